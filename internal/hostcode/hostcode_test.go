package hostcode

import (
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/latchkey-dev/latchkey/internal/metrics"
)

func TestCall(t *testing.T) {
	g := NewWithT(t)
	var logged strings.Builder
	asked := 0
	counts := metrics.New("panics")
	defer counts.Export(func() metrics.Snapshot { return metrics.Snapshot{} })()
	c := Caller{
		Metrics: counts,
		Logger: func() logr.Logger {
			asked++
			return funcr.New(func(_, args string) { logged.WriteString(args) }, funcr.Options{}).WithValues("extension", "red")
		},
	}
	g.Expect(c.Call("Filter", func() error { return nil })).To(Succeed())
	failure := errors.New("no")
	err := c.Call("Filter", func() error { return failure })
	g.Expect(err).To(BeIdenticalTo(failure))
	g.Expect(IsPanic(err)).To(BeFalse())
	g.Expect(IsPanic(nil)).To(BeFalse())
	g.Expect(logged.String()).To(BeEmpty())
	g.Expect(asked).To(BeZero(), "a call that does not panic costs no logger")

	err = c.Call("Filter", func() error { panic("secret") })
	g.Expect(err).To(MatchError("Filter panicked: see the host operator's log"))
	g.Expect(IsPanic(err)).To(BeTrue())
	g.Expect(IsPanic(errors.Wrap(err, "of another call"))).To(BeFalse())
	g.Expect(logged.String()).To(And(ContainSubstring(`"error"="secret"`), ContainSubstring(`"extension"="red"`),
		ContainSubstring(`"function"="Filter"`), ContainSubstring("hostcode_test.go"), ContainSubstring("stack")))
	g.Expect(panics(t)).To(BeEquivalentTo(1))
}

// panics returns the value of the counter.
func panics(t *testing.T) (value float64) {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() == "latchkey_handler_panics_total" {
			value += family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return value
}
