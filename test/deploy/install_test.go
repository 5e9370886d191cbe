package deploy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/deployment"
)

// patience bounds waits on a loaded machine.
const patience = time.Minute

// withoutRule is how long a manager that lacks a rule is waited for.
const withoutRule = 15 * time.Second

const namespace = "latchkey-system"

// program builds cmd/latchkey.
func program(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "latchkey")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, "./cmd/latchkey")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", out)
	return file
}

// start starts a control plane with the tenants, and with the namespace of the release, whose Pod
// Security profile is restricted.
func start(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	g := NewWithT(t)
	cp, err := controlplane.Start(t.Context(), controlplane.Options{ControllerManager: true, Aggregation: true})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cp.Stop()).To(Succeed()) })
	g.Expect(deployment.Prepare(t.Context(), cp)).To(Succeed())
	_, err = cp.Kubectl(t.Context(), "create", "namespace", namespace)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.Kubectl(t.Context(), "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	g.Expect(err).NotTo(HaveOccurred())
	return cp
}

// createKubeconfigs creates a Secret with a kubeconfig for each tenant.
func createKubeconfigs(t *testing.T, cp *controlplane.ControlPlane) {
	t.Helper()
	g := NewWithT(t)
	for _, name := range deployment.Tenants {
		token, err := cp.Kubectl(t.Context(), "create", "token", "-n", deployment.TenantNamespace, name)
		g.Expect(err).NotTo(HaveOccurred())
		kubeconfig := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "it",
			"contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
			"clusters": [{"name": "it", "cluster": {"server": %q, "certificate-authority-data": %q}}],
			"users": [{"name": "it", "user": {"token": %q}}]}`,
			cp.Config().Host, base64.StdEncoding.EncodeToString(cp.Config().CAData), strings.TrimSpace(token))
		_, err = cp.Kubectl(t.Context(), "create", "secret", "generic", "-n", deployment.TenantNamespace,
			name+"-kubeconfig", "--from-literal=value="+kubeconfig)
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// withoutMonitors returns arguments that leave out the kinds of the Prometheus Operator, whose
// definitions the API server does not have.
var withoutMonitors = []string{"--set",
	"metrics.serviceMonitor.enabled=false,metrics.podMonitor.enabled=false,metrics.prometheusRule.enabled=false"}

// On an API server without anything of ours: helm install, then the manager connects five
// extensions with the rendered identity. Its permissions suffice, and it uses each of them. The
// profile "restricted" admits its Pods. helm uninstall leaves nothing, or only the definition with
// the tenants' objects.
func TestInstall(t *testing.T) {
	binary := program(t)
	for values, kept := range map[string]bool{"tokens": true, "state-api": false, "all-namespaces": true,
		"impersonation": true, "constrained-impersonation": true, "kubeconfigs": true, "without-lease": true,
		"other-names": true, "buckets": true, "view": true, "status-page": true} {
		t.Run(values, func(t *testing.T) {
			g := NewWithT(t)
			cp := start(t)
			if values == "kubeconfigs" {
				createKubeconfigs(t, cp)
			}
			before, err := deployment.Everything(t.Context(), cp)
			g.Expect(err).NotTo(HaveOccurred())
			args := append([]string{"-f", "testdata/" + values + ".values.yaml"}, withoutMonitors...)
			_, err = helm(t.Context(), cp.Kubeconfig(),
				append([]string{"install", "latchkey", chart, "--namespace", namespace}, args...)...)
			g.Expect(err).NotTo(HaveOccurred())
			manifests, err := helm(t.Context(), cp.Kubeconfig(), "get", "manifest", "latchkey", "--namespace", namespace)
			g.Expect(err).NotTo(HaveOccurred())
			objects, err := deployment.Decode(manifests)
			g.Expect(err).NotTo(HaveOccurred())
			for _, object := range objects {
				if slices.Contains([]string{"Deployment", "Role", "RoleBinding", "Service"}, object.GetKind()) {
					g.Expect(object.GetNamespace()).NotTo(BeEmpty(), "%s %s", object.GetKind(), object.GetName())
				}
			}
			g.Expect(deployment.CheckPod(t.Context(), cp, objects)).To(Succeed())
			g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
			options := deployment.Options{Program: binary, Dir: t.TempDir()}
			g.Expect(deployment.Exercise(t.Context(), cp, objects, options, patience)).To(Succeed())
			g.Expect(deployment.CheckPermissions(cp.AuditLog(), objects)).To(Succeed())
			_, _ = cp.Kubectl(t.Context(), "delete", "clusterrolebinding", "prometheus-reads-latchkey")

			_, err = helm(t.Context(), cp.Kubeconfig(), "uninstall", "latchkey", "--namespace", namespace, "--wait")
			g.Expect(err).NotTo(HaveOccurred())
			left := func() ([]string, error) { return deployment.Leftovers(t.Context(), cp, before) }
			if values == "without-lease" { // the manager created it
				_, err = cp.Kubectl(t.Context(), "delete", "lease", "latchkey", "-n", namespace)
				g.Expect(err).NotTo(HaveOccurred())
			}
			if values == "view" { // the manager created it; the Leases of the replicas are gone with them
				_, err = cp.Kubectl(t.Context(), "delete", "lease", "latchkey-state", "-n", namespace)
				g.Expect(err).NotTo(HaveOccurred())
			}
			if values == "buckets" || values == "view" { // the manager created them
				holders, err := cp.Kubectl(t.Context(), strings.Fields("-n latchkey-system get leases -l "+
					"ownership.latchkey.dev/fleet=latchkey -o custom-columns=NAME:.metadata.name,"+
					"HOLDER:.spec.holderIdentity,RENEWED:.spec.renewTime,SECONDS:.spec.leaseDurationSeconds")...)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(holders).To(And(MatchRegexp(`NAME +HOLDER +RENEWED +SECONDS`), ContainSubstring("latchkey-bucket-15")))
				_, err = cp.Kubectl(t.Context(), strings.Fields("-n latchkey-system delete leases -l "+
					"ownership.latchkey.dev/fleet=latchkey")...)
				g.Expect(err).NotTo(HaveOccurred())
			}
			if kept {
				objects := []string{"CustomResourceDefinition /clusterextensions.latchkey.dev",
					"APIService /v1alpha1.latchkey.dev"} // which the API server makes of the former
				for _, name := range deployment.Tenants {
					objects = append(objects, "ClusterExtension /"+name)
				}
				guarded := values != "kubeconfigs"
				if guarded {
					objects = append(objects, "ValidatingAdmissionPolicy /latchkey-dev-clusterextension-serviceaccount",
						"ValidatingAdmissionPolicyBinding /latchkey-dev-clusterextension-serviceaccount")
				}
				g.Eventually(left).WithTimeout(patience).Should(ConsistOf(objects))
				if guarded {
					expectGuarded(t, cp)
				}
				_, err = cp.Kubectl(t.Context(), "delete", "crd", "clusterextensions.latchkey.dev")
				g.Expect(err).NotTo(HaveOccurred())
				_, err = cp.Kubectl(t.Context(), "delete", "--ignore-not-found",
					"validatingadmissionpolicy,validatingadmissionpolicybinding", "latchkey-dev-clusterextension-serviceaccount")
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Eventually(left).WithTimeout(patience).Should(BeEmpty())
			_, err = cp.Kubectl(t.Context(), "delete", "namespace", namespace, "--timeout=60s")
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

// expectGuarded checks that a user who may create extensions, and may impersonate none, may not
// name a ServiceAccount.
func expectGuarded(t *testing.T, cp *controlplane.ControlPlane) {
	t.Helper()
	g := NewWithT(t)
	for _, args := range [][]string{
		{"create", "clusterrole", "author", "--verb=create,get,patch", "--resource=clusterextensions.latchkey.dev"},
		{"create", "clusterrolebinding", "author", "--clusterrole=author", "--user=mallory"}} {
		_, err := cp.Kubectl(t.Context(), args...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err := cp.KubectlInput(t.Context(), `{"apiVersion": "latchkey.dev/v1alpha1", "kind": "ClusterExtension",
		"metadata": {"name": "mine"}, "spec": {"namespace": "team-blue", "serviceAccount": {"name": "blue"}}}`,
		"create", "--as=mallory", "-f", "-")
	g.Expect(err).To(MatchError(
		ContainSubstring("ValidatingAdmissionPolicy 'latchkey-dev-clusterextension-serviceaccount'")))
	_, err = cp.Kubectl(t.Context(), "delete", "clusterrole,clusterrolebinding", "author")
	g.Expect(err).NotTo(HaveOccurred())
}

// The API server takes each rendering, with strict validation of its fields.
func TestServerSideValidation(t *testing.T) {
	g := NewWithT(t)
	cp := start(t)
	_, err := cp.Kubectl(t.Context(), "create", "namespace", "team-green")
	g.Expect(err).NotTo(HaveOccurred())
	files, err := filepath.Glob("testdata/*.values.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		manifests, err := render(t, append([]string{"-f", file}, withoutMonitors...)...)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = cp.KubectlInput(t.Context(), manifests, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred(), file)
	}
}

// Without any one of the rules that the chart grants, the manager does not come up, or is denied a
// request: what [TestInstall] checks.
func TestEveryRuleIsNeeded(t *testing.T) {
	binary := program(t)
	checked := map[string]bool{}
	for _, values := range []string{"state-api", "tokens", "all-namespaces", "impersonation",
		"constrained-impersonation", "kubeconfigs", "without-lease", "buckets", "view"} {
		t.Run(values, func(t *testing.T) {
			g := NewWithT(t)
			cp := start(t)
			if values == "kubeconfigs" {
				createKubeconfigs(t, cp)
			}
			withoutRule := withoutRule
			if values == "buckets" || values == "view" { // it has to take all of them
				withoutRule *= 2
			}
			manifests, err := render(t, append([]string{"-f", "testdata/" + values + ".values.yaml"}, withoutMonitors...)...)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = cp.KubectlInput(t.Context(), manifests, "apply", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
			objects, err := deployment.Decode(manifests)
			g.Expect(err).NotTo(HaveOccurred())
			options := deployment.Options{Program: binary, Dir: t.TempDir()}
			// If all rules did not suffice within the same time, no rule could be shown to be needed.
			g.Expect(deployment.Exercise(t.Context(), cp, objects, options, withoutRule)).To(Succeed(), "with all rules")
			for _, role := range objects {
				if role.GetKind() != "Role" && role.GetKind() != "ClusterRole" || forOthers(role) {
					continue
				}
				rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
				for i, rule := range rules {
					text, err := json.Marshal(rule)
					g.Expect(err).NotTo(HaveOccurred())
					if key := role.GetKind() + " " + role.GetNamespace() + "/" + role.GetName() + string(text); checked[key] {
						continue
					} else {
						checked[key] = true
					}
					_, err = cp.Kubectl(t.Context(), "patch", role.GetKind(), role.GetName(), "-n", role.GetNamespace(),
						"--type=json", "-p", fmt.Sprintf(`[{"op": "remove", "path": "/rules/%d"}]`, i))
					g.Expect(err).NotTo(HaveOccurred())
					// nothing that an earlier process has made is used
					_, err = cp.Kubectl(t.Context(), "delete", "endpointslice", "--all", "-n", namespace)
					g.Expect(err).NotTo(HaveOccurred())
					since := time.Now()
					if values == "without-lease" {
						_, err = cp.Kubectl(t.Context(), "delete", "lease", "--ignore-not-found", "latchkey", "-n", namespace)
						g.Expect(err).NotTo(HaveOccurred())
					}
					err = deployment.Exercise(t.Context(), cp, objects, options, withoutRule)
					denied := deniedSince(t, cp, since)
					g.Expect(err != nil || len(denied) > 0).To(BeTrue(), "the manager does not need %s %s", role.GetName(), text)
					t.Logf("without %s %s: %v; denied: %d", role.GetName(), text, firstLine(err), len(denied))
					content, err := json.Marshal(role)
					g.Expect(err).NotTo(HaveOccurred())
					_, err = cp.KubectlInput(t.Context(), string(content), "replace", "-f", "-")
					g.Expect(err).NotTo(HaveOccurred())
				}
			}
			g.Expect(deployment.Exercise(t.Context(), cp, objects, options, withoutRule)).To(Succeed(),
				"with all rules again")
		})
	}
	NewWithT(t).Expect(len(checked)).To(BeNumerically(">=", 16))
}

// forOthers reports whether a role is for people or Prometheus, and not for the manager.
func forOthers(role *unstructured.Unstructured) bool {
	return strings.HasSuffix(role.GetName(), "-reader") || strings.HasSuffix(role.GetName(), "-viewer")
}

func deniedSince(t *testing.T, cp *controlplane.ControlPlane, since time.Time) (denied []deployment.Request) {
	t.Helper()
	requests, err := deployment.Requests(cp.AuditLog(), "system:serviceaccount:"+namespace+":latchkey")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, request := range requests {
		if request.Denied() && request.RequestReceivedTimestamp.After(since) {
			denied = append(denied, request)
		}
	}
	return denied
}

func firstLine(err error) string {
	if err == nil {
		return "it came up"
	}
	_, last, _ := strings.Cut(err.Error(), "\n\n")
	first, _, _ := strings.Cut(strings.TrimSpace(last), "\n")
	return first
}

// An upgrade from the chart of the last release (or else this chart with an earlier version) keeps
// the tenants' objects, and the new manager connects them. A rollback brings the earlier manager
// back.
func TestUpgrade(t *testing.T) {
	g := NewWithT(t)
	binary := program(t)
	cp := start(t)
	run := func(args ...string) string {
		out, err := helm(t.Context(), cp.Kubeconfig(), append(args, "--namespace", namespace)...)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	values := append([]string{"-f", "testdata/tokens.values.yaml"}, withoutMonitors...)
	run(append([]string{"install", "latchkey", chartBefore(t)}, values...)...)
	g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
	uids := func() string {
		out, err := cp.Kubectl(t.Context(), "get", "clusterextensions.latchkey.dev", "-o",
			"jsonpath={.items[*].metadata.uid}")
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	image := func() string {
		out, err := cp.Kubectl(t.Context(), "get", "deployment", "latchkey", "-n", namespace, "-o",
			"jsonpath={.spec.template.spec.containers[0].image}")
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	connect := func() {
		objects, err := deployment.Decode(run("get", "manifest", "latchkey"))
		g.Expect(err).NotTo(HaveOccurred())
		options := deployment.Options{Program: binary, Dir: t.TempDir()}
		g.Expect(deployment.Exercise(t.Context(), cp, objects, options, patience)).To(Succeed())
	}
	connect()
	extensions, earlier := uids(), image()
	run(append([]string{"upgrade", "latchkey", chart, "--set", "stateAPI.enabled=true,replicas=3"}, values...)...)
	g.Expect(image()).NotTo(Equal(earlier))
	g.Expect(uids()).To(Equal(extensions))
	connect()
	run("rollback", "latchkey", "1")
	g.Expect(image()).To(Equal(earlier))
	g.Expect(uids()).To(Equal(extensions))
	_, err := cp.Kubectl(t.Context(), "get", "apiservice", "v1alpha1.state.latchkey.dev")
	g.Expect(err).To(MatchError(ContainSubstring("NotFound")), "what only the later release had is gone")
	connect()
	run("uninstall", "latchkey")
	g.Expect(uids()).To(Equal(extensions), "tenants' objects are kept")
}

// takeOver are the flags of docs/install.md for what was applied by hand before.
var takeOver = []string{"--create-namespace", "--take-ownership", "--server-side=true", "--force-conflicts"}

// What was applied by hand before belongs to the release after one command, also when an install
// has failed half-way because of it, and whatever way Helm applied it. Tenants' objects stay.
// Upgrades that change what was applied need the flags, too, and others do not.
func TestTakeOwnership(t *testing.T) {
	for name, flags := range map[string][]string{"kubectl apply": nil,
		"kubectl apply --server-side": {"--server-side"}} {
		halfWay := flags == nil
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cp := start(t)
			run := func(args ...string) (string, error) {
				return helm(t.Context(), cp.Kubeconfig(), slices.Concat(args, []string{"--namespace", namespace})...)
			}
			release := append([]string{"latchkey", chart, "-f", "testdata/tokens.values.yaml"}, withoutMonitors...)
			for _, dir := range []string{"config/crd", "config/admission"} {
				_, err := cp.Kubectl(t.Context(), append([]string{"apply", "-f", "../../" + dir}, flags...)...)
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Eventually(func() error { return deployment.CreateExtensions(t.Context(), cp) }).WithTimeout(patience).
				Should(Succeed())
			uids := func() string {
				out, err := cp.Kubectl(t.Context(), "get", "clusterextensions.latchkey.dev", "-o",
					"jsonpath={.items[*].metadata.uid}")
				g.Expect(err).NotTo(HaveOccurred())
				return out
			}
			extensions := uids()
			page, err := os.ReadFile("../../docs/install.md")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(page)).To(ContainSubstring(strings.Join(takeOver, " ") + "\n"))
			_, err = cp.Kubectl(t.Context(), "delete", "namespace", namespace) // as the page has not created it
			g.Expect(err).NotTo(HaveOccurred())
			_, err = run(append([]string{"install", "--create-namespace"}, release...)...)
			g.Expect(err).To(MatchError(ContainSubstring("invalid ownership metadata")))
			if halfWay {
				_, err = run(append([]string{"install", "--create-namespace", "--take-ownership"}, release...)...)
				g.Expect(err).To(MatchError(ContainSubstring("conflict")), "half-way")
			}

			_, err = run(slices.Concat([]string{"upgrade", "--install"}, takeOver, release)...)
			g.Expect(err).NotTo(HaveOccurred())
			for _, object := range []string{"customresourcedefinition/clusterextensions.latchkey.dev",
				"validatingadmissionpolicy/latchkey-dev-clusterextension-serviceaccount",
				"validatingadmissionpolicybinding/latchkey-dev-clusterextension-serviceaccount", "deployment/latchkey"} {
				out, err := cp.Kubectl(t.Context(), "get", object, "-n", namespace, "-o", "jsonpath={.metadata.annotations}")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(out).To(ContainSubstring(`"meta.helm.sh/release-name":"latchkey"`))
			}
			_, err = run(append([]string{"upgrade", "--set", "replicas=3"}, release...)...)
			g.Expect(err).NotTo(HaveOccurred(), "without the flags")
			release[1] = changedChart(t)
			_, err = run(append([]string{"upgrade"}, release...)...)
			g.Expect(err).To(MatchError(ContainSubstring("conflict")))
			_, err = run(slices.Concat([]string{"upgrade"}, takeOver[1:], release)...)
			g.Expect(err).NotTo(HaveOccurred())
			out, err := cp.Kubectl(t.Context(), "get", "crd", "clusterextensions.latchkey.dev", "-o", "jsonpath={.spec.names}")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(ContainSubstring("lkext"))
			g.Expect(uids()).To(Equal(extensions))
		})
	}
}

// changedChart returns a chart whose definition and policy are those of a later version.
func changedChart(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "latchkey")
	g.Expect(os.CopyFS(dir, os.DirFS(chart))).To(Succeed())
	for file, change := range map[string][2]string{
		"files/clusterextensions.yaml": {"    plural: clusterextensions\n",
			"    plural: clusterextensions\n    shortNames: [lkext]\n"},
		"files/admission.yaml": {"failurePolicy: Fail", "failurePolicy: Ignore"},
	} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		g.Expect(err).NotTo(HaveOccurred())
		changed := strings.Replace(string(content), change[0], change[1], 1)
		g.Expect(changed).NotTo(Equal(string(content)), file)
		g.Expect(os.WriteFile(filepath.Join(dir, file), []byte(changed), 0o600)).To(Succeed())
	}
	return dir
}

// chartBefore returns the chart of the last tag before this commit, or else this chart with an
// earlier version.
func chartBefore(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	shell := func(script string) error {
		cmd := exec.CommandContext(context.Background(), "bash", "-o", "pipefail", "-ec", script)
		cmd.Dir = "../.."
		return cmd.Run()
	}
	if shell("git archive $(git describe --tags --abbrev=0 HEAD^) deploy/helm/latchkey | tar -x -C "+dir) == nil {
		return filepath.Join(dir, "deploy/helm/latchkey")
	}
	_, err := helm(t.Context(), "", "package", chart, "--version", "0.0.1", "--app-version", "0.0.1", "--destination", dir)
	g.Expect(err).NotTo(HaveOccurred())
	return filepath.Join(dir, "latchkey-0.0.1.tgz")
}
