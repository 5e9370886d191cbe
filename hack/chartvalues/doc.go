// Package main copies the descriptions of the Helm chart's values from values.yaml into
// values.schema.json and into the table of the chart's README.md.
//
// # Usage
//
//	go run ./hack/chartvalues deploy/helm/latchkey
//
// "make deploy" does so, and a test compares the files. values.yaml has its comments in the form of
// helm-docs: "# -- text" describes the value below, and "# path[].name -- text" a value that has no
// line of its own, such as a field of a list's items. An empty comment ends a description.
package main
