// The program behind "make release", in a module of its own: its dependencies are for nothing else.
module github.com/latchkey-dev/latchkey/tools/release

go 1.26.0

require (
	github.com/onsi/gomega v1.44.0
	github.com/pkg/errors v0.9.1
	github.com/spdx/tools-golang v0.5.7
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.56.0 // indirect
	golang.org/x/text v0.38.0 // indirect
)
