package clustercache

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The first pass ends when the list is complete and each of its extensions was reconciled, in any
// order. Extensions that appear after the end of the pass do not count.
func TestInitialPass(t *testing.T) {
	a, b, later := client.ObjectKey{Name: "a"}, client.ObjectKey{Name: "b"}, client.ObjectKey{Name: "later"}
	for name, tc := range map[string]struct {
		steps func(p *initialPass)
		done  bool
	}{
		"standby, leads, one unseen":      {func(p *initialPass) { p.complete(); p.begins(a) }, false},
		"standby, leads, one seen before": {func(p *initialPass) { p.complete(); p.reconciled(a); p.begins(a) }, true},
		"standby":                         {func(p *initialPass) { p.complete() }, false},
		"standby, leads":                  {func(p *initialPass) { p.complete(); p.begins() }, true},
		"standby, leads, one appeared":    {func(p *initialPass) { p.complete(); p.found(later); p.begins() }, false},
		"standby, leads, all reconciled": {func(p *initialPass) {
			p.complete()
			p.found(later)
			p.begins()
			p.reconciled(later)
		}, true},
		"nothing known":     {func(*initialPass) {}, false},
		"no extensions":     {func(p *initialPass) { p.complete() }, true},
		"not reconciled":    {func(p *initialPass) { p.found(a); p.complete() }, false},
		"list not complete": {func(p *initialPass) { p.found(a); p.reconciled(a) }, false},
		"one is missing":    {func(p *initialPass) { p.found(a); p.found(b); p.complete(); p.reconciled(a) }, false},
		"all": {func(p *initialPass) {
			p.found(a)
			p.found(b)
			p.complete()
			p.reconciled(b)
			p.reconciled(a)
		}, true},
		"reconciled early":   {func(p *initialPass) { p.found(a); p.reconciled(a); p.complete() }, true},
		"later ones":         {func(p *initialPass) { p.complete(); p.found(later); p.reconciled(later) }, true},
		"later, one missing": {func(p *initialPass) { p.found(a); p.complete(); p.found(later); p.reconciled(later) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newInitialPass()
			if !strings.HasPrefix(name, "standby") {
				p.begins()
			}
			tc.steps(p)
			select {
			case <-p.done:
				NewWithT(t).Expect(tc.done).To(BeTrue(), "it is done")
			default:
				NewWithT(t).Expect(tc.done).To(BeFalse(), "it is not done")
			}
		})
	}
}
