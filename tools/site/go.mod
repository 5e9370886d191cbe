// The program behind "make site", in a module of its own: its dependencies are for nothing else.
module github.com/latchkey-dev/latchkey/tools/site

go 1.26.0

require (
	github.com/onsi/gomega v1.44.0
	github.com/pkg/errors v0.9.1
	github.com/yuin/goldmark v1.8.7
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.56.0 // indirect
	golang.org/x/text v0.38.0 // indirect
)
