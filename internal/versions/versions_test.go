package versions

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestLater(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Later("9", "10")).To(Equal("10"))
	g.Expect(Later("10", "9")).To(Equal("10"))
	g.Expect(Later("305", "")).To(Equal("305"))
	g.Expect(Later("", "305")).To(Equal("305"))
	g.Expect(Later("a", "b")).To(Equal("b"))
	g.Expect(IsAfter("10", "9")).To(BeTrue())
	g.Expect(IsAfter("9", "9")).To(BeFalse())
	g.Expect(IsAfter("b", "a")).To(BeFalse(), "that is not known")
}

func TestReached(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Reached("10", "9")).To(BeTrue())
	g.Expect(Reached("9", "9")).To(BeTrue())
	g.Expect(Reached("9", "10")).To(BeFalse())
	g.Expect(Reached("", "1")).To(BeFalse(), "nothing is known yet")
	g.Expect(Reached("", "")).To(BeTrue(), "nothing is waited for")
	g.Expect(Reached("a", "b")).To(BeTrue(), "it would wait for ever")
}

func TestByNamespace(t *testing.T) {
	g := NewWithT(t)
	known := ByNamespace{}
	g.Expect(known.Latest()).To(BeEmpty())
	known.Note("a", "9")
	known.Note("b", "8")
	known.NoteAll(ByNamespace{"b": "10", "a": "7"})
	g.Expect(known).To(Equal(ByNamespace{"a": "9", "b": "10"}))
	g.Expect(known.Latest()).To(Equal("10"))
}
