package main

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// The demo shows what it says, and ends.
func TestRun(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	var out bytes.Buffer
	g.Expect(run(t.Context(), &out, true)).To(Succeed())
	g.Expect(out.String()).To(And(ContainSubstring("Mailbox hello is Ready"), ContainSubstring("nothing is left")))
	t.Log(out.String())
}
