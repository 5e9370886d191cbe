package config_test

import (
	"fmt"
	"strings"

	"github.com/latchkey-dev/latchkey/config"
)

// The end-to-end tests of an operator apply what the operator needs, with kubectl apply -f - or as
// objects.
func ExampleManifests() {
	for document := range strings.SplitSeq(config.Manifests(config.CRD, config.Admission), "\n---\n") {
		for line := range strings.Lines(document) {
			if kind, ok := strings.CutPrefix(line, "kind: "); ok {
				fmt.Print(kind)
			}
		}
	}
	// Output:
	// CustomResourceDefinition
	// ValidatingAdmissionPolicy
	// ValidatingAdmissionPolicyBinding
}
