package deepcall

import (
	"runtime"
	"runtime/debug"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
)

func fails() int { panic(errors.New("no number")) }

// A call returns, panics or ends its goroutine as it would without Run.
func TestRun(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Run(func() int { return 7 })).To(Equal(7))
	g.Expect(Run(func() string { return string(debug.Stack()) })).
		NotTo(ContainSubstring("testing.tRunner"), "on the caller's stack")

	g.Expect(func() { Run(fails) }).To(PanicWith(And(
		MatchError(ContainSubstring("no number")),
		MatchError(ContainSubstring("deepcall.fails")), // the stack that matters
		WithTransform(func(p *PanicError) error { return p.Unwrap() }, MatchError("no number")),
	)))
	g.Expect(func() { Run(func() int { panic("text") }) }).
		To(PanicWith(WithTransform(func(p *PanicError) error { return p.Unwrap() }, BeNil())))

	ended, returned := make(chan struct{}), false
	go func() {
		defer close(ended)
		Run(func() int {
			runtime.Goexit()
			return 0
		})
		returned = true
	}()
	<-ended
	g.Expect(returned).To(BeFalse())
}
