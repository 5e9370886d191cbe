package main

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// docs/reference.md is what the code says.
func TestReferenceIsCurrent(t *testing.T) {
	testenv.SkipIfShort(t) // which builds latchkey, and runs it
	g := NewWithT(t)
	want, err := reference("../..")
	g.Expect(err).NotTo(HaveOccurred())
	got, err := os.ReadFile("../../docs/reference.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(got)).To(Equal(want), "make generate")
	for _, part := range []string{"| `--status-address` | `0` |", "| `UserAgent` | `string` |", "| `ServiceAccountNotFound` |",
		"| `latchkey_connections` | `phase`, `reason` |", "### scopedcache.Options"} {
		g.Expect(want).To(ContainSubstring(part))
	}
}

func TestParseFlags(t *testing.T) {
	g := NewWithT(t)
	g.Expect(parseFlags("Usage of x:\n  -a string\n    \tone\n    \ttwo (default \"v\")\n  -b\tthree\n  -c duration\n" +
		"    \tfour (default 5s)\n")).To(Equal([]flagLine{{"a", "v", "one two"}, {"b", "", "three"}, {"c", "5s", "four"}}))
}
