package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// Without this test, a patch that no longer applies would go unnoticed until all mutants run.
func TestEveryPatchApplies(t *testing.T) {
	g := NewWithT(t)
	t.Chdir("../..")
	guards := 0
	for _, machine := range slices.Concat(machines, guarded) {
		patches, err := filepath.Glob(filepath.Join(machine, "testdata", "mutants", "*.patch"))
		g.Expect(err).NotTo(HaveOccurred())
		if slices.Contains(guarded, machine) {
			g.Expect(len(patches)).To(BeNumerically(">=", 4), machine)
			guards += len(patches)
		} else {
			g.Expect(len(patches)).To(BeNumerically(">=", 10), machine)
		}
		for _, patch := range patches {
			overlay, err := patched(machine, patch, t.TempDir())
			g.Expect(err).NotTo(HaveOccurred(), patch)
			g.Expect(os.Stat(overlay)).NotTo(BeNil())
		}
	}
	g.Expect(guards).To(BeNumerically(">=", 20))
}
