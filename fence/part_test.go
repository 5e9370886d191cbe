package fence

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// A part of a term ends with the term, or before, and does not end the term.
func TestPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		late := time.Duration(0) // how late the timer of the fence is
		f := newFenceAt(func() time.Time { return time.Now().Add(late) })
		f.renewed(time.Now(), 10*time.Second)
		term := f.Term()
		first, second := term.Part(), term.Part()
		g.Expect(first.Err()).NotTo(HaveOccurred())
		first.End("given up")
		g.Expect(first.Err()).To(And(MatchError(ErrClosed), MatchError(ContainSubstring("given up"))))
		g.Expect(first.Context().Err()).To(HaveOccurred())
		g.Expect(second.Err()).NotTo(HaveOccurred())
		g.Expect(term.Err()).NotTo(HaveOccurred())

		term.End("not a part")
		g.Expect(term.Err()).NotTo(HaveOccurred())
		g.Expect(term.Context().Err()).NotTo(HaveOccurred())

		late = 11 * time.Second
		g.Expect(second.Err()).To(And(MatchError(ErrClosed), MatchError(errNotRenewed)), "although no timer has fired")
		<-second.Context().Done()
		second.End("later")
		g.Expect(errors.Is(second.Err(), errNotRenewed)).To(BeTrue(), "the first cause stays")

		free := (*Term)(nil).Part()
		g.Expect(free.Err()).NotTo(HaveOccurred())
		free.End("given up")
		g.Expect(free.Err()).To(MatchError(ErrClosed))
		<-free.Context().Done()
	})
}
