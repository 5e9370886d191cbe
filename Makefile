# make run     see it work: the demo on a control plane of its own
# make check   the tests that need no control plane, and lint: 3 minutes
# make test    all tests: 15 minutes
# make help    the rest
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The folders that are modules of their own.
CONTROLPLANE := test/controlplane
TOOLS := tools
BENCH := bench
CLUSTERAPI := adapters/clusterapi

# How often "make soak" runs the end-to-end tests.
N ?= 10
# How long "make fuzz-rbac" goes on.
DURATION ?= 10m
# ONCE=1 ends the demo after the tour; BREAK=<step> leaves out that step's cause.
DEMO_FLAGS := $(if $(ONCE),--once) $(if $(BREAK),--break=$(BREAK))

# what VERSIONING.md promises
PUBLIC := clustercache credential scopedcache healthprobe fence ownership ownership/buckets ownership/controllersharding fake config stateapi stateapi/v1alpha1 stateapi/apiserver statuspage \
	serviceprovider serviceprovider/clustersv1alpha1
MODULE := github.com/latchkey-dev/latchkey

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: controlplane
controlplane: ## kube-apiserver, etcd and kubectl, downloaded or else built, and kube-controller-manager; up to 5 minutes once
	@go run ./hack/controlplane -controller-manager

# gobuild,<package> compiles the target and says how far it is.
gobuild = $(if $(GOOS)$(GOARCH),go build -o $@ $(1),go run -C $(CONTROLPLANE) ./gobuild -C $(CURDIR) -o $(CURDIR)/$@ $(1))

.PHONY: run
run: ## the demo; ONCE=1 ends after the tour, BREAK=connect, repair, recreate, grant or restart makes that step fail
	@echo "make run uses what is compiled and downloaded already. It took about 5 minutes elsewhere, on two cores, where the control plane had to be built." >&2
	@echo "1 of 3: bin/latchkey" >&2
	@$(MAKE) --no-print-directory bin/latchkey
	@echo "2 of 3: a control plane, from what is there, a download, or a build from Go modules" >&2
	@assets=$$(go run ./hack/controlplane) && echo "3 of 3: the tour" >&2 && KUBEBUILDER_ASSETS="$$assets" exec bin/latchkey demo $(DEMO_FLAGS)

.PHONY: run-serviceprovider
run-serviceprovider: ## a service provider on three control planes; ONCE=1 ends after the tour
	@assets=$$(go run ./hack/controlplane) && go build -o bin/serviceprovider-demo ./examples/serviceprovider/cmd/demo && \
		KUBEBUILDER_ASSETS="$$assets" exec bin/serviceprovider-demo $(if $(ONCE),--once)

.PHONY: generate
generate: ## deep copies, CustomResourceDefinitions and OpenAPI definitions from Go types, the diagrams of the machines, and what the pages and the code share
	@go build -C $(TOOLS) -o $(CURDIR)/bin/controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen
	bin/controller-gen object crd:maxDescLen=0 paths=./serviceprovider/clustersv1alpha1 output:crd:dir=serviceprovider/clustersv1alpha1/crds
	bin/controller-gen object crd:maxDescLen=0 paths=./examples/serviceprovider/v1alpha1 output:crd:dir=examples/serviceprovider/config/crds
	@go build -C $(TOOLS) -o $(CURDIR)/bin/openapi-gen k8s.io/kube-openapi/cmd/openapi-gen
	for p in examples/extensionapi/v1alpha1 stateapi/v1alpha1; do \
		bin/controller-gen object paths=./$$p && \
		bin/openapi-gen --go-header-file /dev/null -r /dev/null --output-dir $$p --output-pkg $(MODULE)/$$p \
			--output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go ./$$p || exit 1; \
	done
	go generate ./accessor/internal/lifecycle ./scopedcache/internal/monitor
	go run ./hack/advice > internal/advice/advice.new && mv internal/advice/advice.new internal/advice/zz_generated.reasons.go
	go run ./hack/reference > docs/reference.md.new && mv docs/reference.md.new docs/reference.md

# render,<folder of deploy/kustomize>,<flags of helm template>
render = bin/helm template latchkey deploy/helm/latchkey --namespace latchkey-system --kube-version 1.36 \
	--set crds.keep=false $(2) > deploy/kustomize/$(1)/latchkey.yaml

.PHONY: deploy
deploy: bin/helm ## the chart's copies of config/, its table of values, and deploy/kustomize from the chart
	cp config/crd/clusterextensions.yaml config/stateapi/state-api.yaml deploy/helm/latchkey/files/
	cp config/admission/serviceaccount-reference.yaml deploy/helm/latchkey/files/admission.yaml
	cp config/admission-olm/serviceaccount-reference.yaml deploy/helm/latchkey/files/admission-olm.yaml
	go run ./hack/dashboard > deploy/observability/dashboard.json
	cp deploy/observability/rules.yaml deploy/observability/dashboard.json deploy/helm/latchkey/files/
	go run ./hack/chartvalues deploy/helm/latchkey
	@$(call render,default)
	@$(call render,state-api,--set stateAPI.enabled=true)

.PHONY: bin/helm
bin/helm:
	@go build -C tools/helm -o $(CURDIR)/bin/helm helm.sh/helm/v4/cmd/helm

.PHONY: release
release: ## what a release consists of, in dist/: binaries, SBOMs, the chart, notes, checksums; publishes nothing
	@go build -C tools/release -o $(CURDIR)/bin/release .
	@bin/release $(if $(VERSION),-version '$(VERSION)') $(if $(PLATFORMS),-platforms '$(PLATFORMS)')

.PHONY: image
image: ## the image of latchkey manager, with buildah: latchkey:VERSION of the chart, for linux/ARCH (amd64)
	@command -v buildah >/dev/null || { echo "image: install buildah (apt-get install buildah)"; exit 1; }
	@$(MAKE) --no-print-directory release PLATFORMS=linux/$(or $(ARCH),amd64)
	buildah --storage-driver vfs build --isolation chroot --timestamp $$(git log -1 --format=%ct) --build-arg TARGETARCH=$(or $(ARCH),amd64) \
		--platform linux/$(or $(ARCH),amd64) -t latchkey:$$(sed -n 's/^appVersion: //p' deploy/helm/latchkey/Chart.yaml) .

.PHONY: test-release
test-release: bin/helm ## make release twice gives the same bytes, and make image the same digest
	go test -C tools/release -count=1 -timeout 60m .

.PHONY: bin/prometheus
bin/prometheus:
	@go build -C tools/prometheus -o $(CURDIR)/bin/ github.com/prometheus/prometheus/cmd/...

.PHONY: test-deploy
test-deploy: bin/helm bin/prometheus controlplane ## the chart with Helm, and the alerts with Prometheus, on real control planes; 20 minutes, and 8 once for the tools
	go vet -C test/deploy .
	go test -C test/deploy -timeout 40m -count=1 .

.PHONY: test-statuspage
test-statuspage: controlplane ## the status page in headless Chromium (apt-get install chromium), checked by axe (npm); a minute
	npm ci --prefix test/statuspage --no-audit --no-fund
	go vet -C test/statuspage .
	go test -C test/statuspage -timeout 20m -count=1 .

.PHONY: picture
picture: ## draw docs/run.svg, the picture in README.md, from a run of the demo
	@$(MAKE) --no-print-directory run ONCE=1 > .picture.log && go run ./hack/terminalpicture < .picture.log > docs/run.svg; \
		failed=$$?; rm -f .picture.log; exit $$failed

.PHONY: bin/latchkey
bin/latchkey: ## the binary
	@$(call gobuild,./cmd/latchkey)

.PHONY: check
check: bin/golangci-lint ## gofmt, vet, lint of what differs from the last commit but one, and the tests that need no control plane: 3 minutes
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	@changed=$$(git diff --name-only --diff-filter=d HEAD~ -- '*.go' && git ls-files -o --exclude-standard -- '*.go') || exit 1; \
	folders=$$(echo "$$changed" | grep -vE '^(adapters|bench|tools|test/(controlplane|deploy|docs|statuspage))/' | xargs -r dirname | sort -u | sed 's,^,./,'); \
	test -z "$$folders" || bin/golangci-lint run $$folders
	go test -short -timeout 10m ./...

# The packages with tests that start a control plane or another program.
STARTING = $(or $(shell go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | \
	sed -nE 's,^$(MODULE)/([^ ]*) .*/(test/support/testenv|controller-runtime/pkg/envtest)[] ].*,\1,p'),$(error no package starts a control plane))
# How many of them run at the same time. Each mostly waits for its control plane.
PROCESSES ?= 4
# Those that take longest begin first. test/e2e is four processes: the patterns name the tests of three.
E2E_1 := ^Test[A-E]
E2E_2 := ^Test[F-N]
E2E_3 := ^TestR
# What measures how long others wait, or keeps all cores busy, runs last and alone.
ALONE := ^TestOneNeverDelaysAnother$$|^TestStarvedLeader$$|^TestBuckets$$
FIRST := test/e2e/scopedcache test/e2e/remote test/e2e-1 test/e2e-2 test/e2e-3 test/e2e-4 cmd/latchkey test/e2e/replicas

.PHONY: test
test: controlplane ## all tests of all modules: unit tests with the race detector, then those that start a control plane without it, four packages at a time; 15 minutes
	go test -race -short -timeout 20m ./...
	@$(MAKE) --no-print-directory -j $(PROCESSES) --output-sync --keep-going \
		$(addprefix run/,$(FIRST) $(filter-out test/e2e $(FIRST),$(STARTING)) explorations conformance $(CLUSTERAPI) test/docs)
	go test -p 1 -timeout 20m -run '$(ALONE)' ./test/e2e ./test/e2e/replicas
	go test -C $(CONTROLPLANE) -race . ./compile
	go test -C $(BENCH) ./internal/report

run/test/e2e-1:
	@go test -timeout 20m -run '$(E2E_1)' ./test/e2e
run/test/e2e-2:
	@go test -timeout 20m -run '$(E2E_2)' ./test/e2e
run/test/e2e-3:
	@go test -timeout 20m -run '$(E2E_3)' ./test/e2e
run/test/e2e-4:
	@go test -timeout 20m -skip '$(E2E_1)|$(E2E_2)|$(E2E_3)|$(ALONE)' ./test/e2e
run/test/e2e/replicas:
	@go test -timeout 20m -skip '$(ALONE)' ./test/e2e/replicas
# PATIENT makes envtest wait longer than 20 s for programs on a loaded machine.
PATIENT = KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=2m KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT=1m
run/scopedcache/internal/rbacindex:
	@go test -race -timeout 20m ./scopedcache/internal/rbacindex
run/examples/fluxlike: # as its users run it
	@assets=$$(go run ./hack/controlplane) && $(PATIENT) KUBEBUILDER_ASSETS="$$assets" go test -timeout 20m ./examples/fluxlike
run/explorations:
	@go test -p 1 -run 'Explore|Diagram|AtRest' ./accessor/internal/lifecycle ./scopedcache/internal/monitor \
		./scopedcache/internal/members
run/conformance:
	@go run ./hack/conformance
run/$(CLUSTERAPI):
	@go test -C $(CLUSTERAPI) -timeout 20m ./...
run/test/docs:
	@assets=$$(go run ./hack/controlplane) && $(PATIENT) KUBEBUILDER_ASSETS="$$assets" go test -C test/docs -timeout 20m .
run/%:
	@go test -timeout 20m ./$*

.PHONY: test-docs
test-docs: controlplane ## the commands of the documentation that "make test" does not run, and the programs of the migration pages; in a clean tree
	@git diff --quiet HEAD || { echo "test-docs: commit or stash your changes first, because some of the commands write files"; exit 1; }
	go vet -C test/docs .
	make verify-api
	make lint
	make generate
	go run ./cmd/latchkey manager -h
	go test -race ./test/e2e -run TestWatch -operator-log
	go test ./accessor/internal/lifecycle -run Scenarios -update
	git diff --exit-code # what is generated is what is committed

.PHONY: test-matrix
test-matrix: controlplane ## the tests with the lowest controller-runtime that passes (go.mod's) and with the newest of its minor version, then test-kubernetes; three hours
	cp go.mod .newest.mod && cp go.sum .newest.sum
	go get -modfile=.newest.mod sigs.k8s.io/controller-runtime@v0.25 k8s.io/client-go@v0.37 k8s.io/api@v0.37 k8s.io/apimachinery@v0.37 k8s.io/streaming@v0.37
	@for mod in go.mod .newest.mod; do \
		echo "$$mod: controller-runtime $$(go list -modfile=$$mod -m -f '{{.Version}}' sigs.k8s.io/controller-runtime)"; \
		go vet -modfile=$$mod ./... && \
			KUBEBUILDER_ASSETS="$$(go run ./hack/controlplane)" go test -modfile=$$mod -count=1 -p 1 -timeout 40m ./... || exit 1; \
	done; rm -f .newest.mod .newest.sum
	$(MAKE) conformance-clusterapi
	$(MAKE) test-kubernetes

# The other versions of Kubernetes that "make test-kubernetes" tests with: the newest of each minor version.
KUBERNETES ?= 1.34.4 1.35.4 1.36.3
# What runs on another version: the tests whose subject is the API server's behaviour.
ON_KUBERNETES := ./test/e2e/... ./accessor/... ./credential/... ./scopedcache/... ./clustercache/... ./cmd/latchkey/... ./examples/...

# What only Kubernetes 1.36 and newer do: impersonation that is constrained, and an aggregator that takes up a new
# authority of an APIService while its connection lasts.
SINCE_1_36 := TestConstrainedImpersonation|TestRBACExamples/constrained-impersonation|TestAvailable$$

.PHONY: test-kubernetes
test-kubernetes: ## the end-to-end tests on other versions of Kubernetes: KUBERNETES="1.34.4 1.35.4 1.36.3"; 6 minutes each to build once, and 30 to run
	@for version in $(KUBERNETES); do \
		dir="$${XDG_CACHE_HOME:-$$HOME/.cache}/latchkey/controlplane/kubernetes-v$$version-$$(go env GOOS)-$$(go env GOARCH)"; \
		go run -C $(CONTROLPLANE) . -kubernetes v$$version -o "$$dir" || exit 1; \
		echo "Kubernetes $$version"; \
		case $$version in 1.34.*|1.35.*) skip='$(SINCE_1_36)';; *) skip='';; esac; \
		KUBEBUILDER_ASSETS="$$dir" go test -count=1 -p 1 -timeout 60m $${skip:+-skip "$$skip"} $(ON_KUBERNETES) || exit 1; \
	done

.PHONY: conformance
conformance: controlplane ## controller-runtime's own tests of its cache, against scopedcache
	go run ./hack/conformance

.PHONY: conformance-clusterapi
conformance-clusterapi: controlplane ## the tests of adapters/clusterapi, and ten suites of Cluster API's own tests with it (SUITES=regexp: some of them); 15 minutes
	go test -C $(CLUSTERAPI) -count=1 -timeout 20m .
	@go build -C $(CLUSTERAPI) -o $(CURDIR)/bin/conformance-clusterapi ./conformance
	bin/conformance-clusterapi $(if $(SUITES),-suites '$(SUITES)')

.PHONY: mutants
mutants: ## break the pure machines, and guards against rare interleavings, in ways that tests must notice; 30 minutes
	go run ./hack/mutants

.PHONY: fuzz-rbac
fuzz-rbac: controlplane ## random permissions, objects, reads and restarts against a model, and 10,000 edits of RBAC; DURATION=1h, SEED=n for one sequence
	go test -count=1 -timeout 0 ./scopedcache/internal/rbacindex -run TestRandomEdits -v -rbac-edits 10000
	LATCHKEY_LONG_TESTS=1 go test -race -count=1 -timeout 0 ./test/e2e/scopedcache -run TestRandomPermissions -v -fuzz-rbac $(DURATION) $(if $(SEED),-seed $(SEED))

.PHONY: test-replicas
test-replicas: controlplane ## replicas that share 2,000 extensions, and 500 random sequences of faults; 20 minutes
	go test -race -count=1 -timeout 30m -v -run TestBuckets ./test/e2e/replicas -args -extensions=2000
	go test -race -count=1 -timeout 60m -parallel 4 -run TestRandomFaults ./test/e2e/replicas -args -sequences=500

.PHONY: test-views
test-views: controlplane ## one view of all replicas, through VIEWS=200 random sequences of faults with ROWS=10000 extensions; hours
	go test -count=1 -timeout 0 -v -run TestRandomViews ./test/e2e/replicas -args -views=$(or $(VIEWS),200) -rows=$(or $(ROWS),10000) $(if $(SEED),-seed=$(SEED))

.PHONY: soak
soak: controlplane ## the end-to-end tests N times (N=10), printing how long each run took
	@export KUBEBUILDER_ASSETS="$$(go run ./hack/controlplane)"; for i in $$(seq $(N)); do \
		start=$$(date +%s); \
		LATCHKEY_LONG_TESTS=1 go test -race -count=1 -timeout 40m ./test/... ./cmd/... ./clustercache/... ./accessor/... ./credential/... ./scopedcache/... ./fake/... ./internal/... ./examples/... > .soak.log 2>&1 \
			|| { cat .soak.log; echo "run $$i of $(N): FAILED"; exit 1; }; \
		echo "run $$i of $(N): ok, $$(( $$(date +%s) - start )) s"; \
	done; rm -f .soak.log

.PHONY: bench
bench: bench-peers controlplane ## the benchmarks, with allocations, and the comparison of bench-peers
	go test -run '^$$' -bench . -benchmem ./clustercache ./stateapi ./scopedcache/internal/objectpool ./scopedcache/internal/listwatch
	go test -run '^$$' -bench . ./test/e2e ./test/e2e/scopedcache

.PHONY: bench-peers
bench-peers: $(if $(REPORT),,controlplane) ## compares with Cluster API's clustercache and plain caches: 70 minutes, and continues where it was interrupted; QUICK=1: 5 minutes; SCENARIO=name: only that (idle_100k runs only so); PROFILES=folder: also heap profiles; REPORT=1: only reports, and writes the tables of docs/benchmarks.md
	@go build -C $(BENCH) -buildvcs=auto -o $(CURDIR)/bin/bench . && cd $(BENCH) && \
		$(if $(REPORT),,KUBEBUILDER_ASSETS="$$(cd .. && go run ./hack/controlplane)") \
		$(CURDIR)/bin/bench $(if $(QUICK),-quick) $(if $(SCENARIO),-scenario $(SCENARIO)) $(if $(REPORT),-report) \
		$(if $(PROFILES),-profiles $(abspath $(PROFILES)))

.PHONY: bin/golangci-lint
bin/golangci-lint:
	@go build -C $(TOOLS) -o $(CURDIR)/bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: ## gofmt, vet and golangci-lint, as pinned in tools/ and set up in .golangci.yml; the first build of the linter takes minutes
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go vet -C $(CONTROLPLANE) . ./compile ./gobuild
	go vet -C $(BENCH) ./...
	go vet -C $(CLUSTERAPI) ./...
	go vet -C test/deploy .
	go vet -C test/statuspage .
	go vet -C tools/release .
	@$(MAKE) --no-print-directory bin/golangci-lint
	go build -C tools/actionlint -o $(CURDIR)/bin/actionlint github.com/rhysd/actionlint/cmd/actionlint
	bin/actionlint
	bin/golangci-lint run ./...
	cd $(CONTROLPLANE) && $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml . ./compile ./gobuild
	cd $(BENCH) && $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml ./...
	cd $(CLUSTERAPI) && $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml ./...
	cd test/deploy && $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml .
	cd test/statuspage && $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml .
	cd tools/release && $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml .

.PHONY: vuln
vuln: ## known vulnerabilities in what we depend on; skipped, with a line that says so, where their database cannot be reached
	@go build -C $(TOOLS) -o $(CURDIR)/bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	@out=$$(bin/govulncheck ./... 2>&1) && echo "$$out" || { \
		echo "$$out"; \
		case "$$out" in *"fetching vulnerabilities"*) echo "vuln: skipped, because the vulnerability database cannot be reached";; *) exit 1;; esac; }

.PHONY: verify-api
verify-api: ## incompatible changes of the public packages, but for sealed interfaces, since the last tag, or else since the commit in .apidiff-base
	@go build -C $(TOOLS) -o $(CURDIR)/bin/apidiff golang.org/x/exp/cmd/apidiff
	@base=$$(git describe --tags --abbrev=0 2>/dev/null || cat .apidiff-base); \
	old=$$(mktemp -d); trap 'git worktree remove --force "$$old/tree" >/dev/null 2>&1; rm -rf "$$old"' EXIT; \
	git worktree add --quiet --detach "$$old/tree" "$$base" || exit 1; \
	failed=0; for p in $(PUBLIC); do \
		test -d "$$old/tree/$$p" || { echo "verify-api: $$p is new since $$base"; continue; }; \
		mkdir -p "$$(dirname "$$old/$$p")"; \
		(cd "$$old/tree" && $(CURDIR)/bin/apidiff -w "$$old/$$p.api" $(MODULE)/$$p) && bin/apidiff -w "$$old/$$p.new" $(MODULE)/$$p || exit 1; \
		changes=$$(set -o pipefail; bin/apidiff -incompatible "$$old/$$p.api" "$$old/$$p.new" | \
			sed -E '/^- (Provider\.Bind|Watcher\.Spec|ContentWatch\.Spec):/d') || exit 1; \
		test -z "$$changes" || { failed=1; echo "incompatible changes of $$p since $$base:"; echo "$$changes"; }; \
	done; \
	test $$failed = 0 || { echo "verify-api: note them in CHANGELOG.md; VERSIONING.md says which version they need"; exit 1; }; \
	echo "verify-api: no incompatible change since $$base"

.PHONY: clean
clean: ## remove bin/; the control plane stays in your cache
	rm -rf bin dist .soak.log .picture.log .newest.mod .newest.sum
