package accessor

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// changes counts the reported changes of each extension.
type changes struct {
	mu    sync.Mutex
	count map[string]int // guarded by mu
}

func subscribeTo(t *testing.T, d *driver) *changes {
	c, done := &changes{count: map[string]int{}}, make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		d.options.States.Subscribe(ctx, nil, d.Keys, func(keys []client.ObjectKey) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, key := range keys {
				c.count[key.Name]++
			}
		})
	}()
	NewWithT(t).Eventually(d.options.States.HasSubscribers).WithTimeout(patience).Should(BeTrue())
	return c
}

func (c *changes) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[name]
}

// Probes that succeed, whose only trace is their time, are no changes. A probe that fails is one,
// and so is the success that ends the failures.
func TestProbeTimesAreNoChanges(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, noRetry)
	d.extension("red", "red")
	healthy := d.eventually("red", connectedAs("user-of-red"))
	g.Expect(healthy.Healthy).To(BeTrue())
	g.Expect(healthy.DisconnectedSince).To(BeZero())
	c := subscribeTo(t, d)
	g.Eventually(func() int { return c.of("red") }).WithTimeout(patience).Should(BeNumerically(">=", 1))
	before, probed := c.of("red"), r.reviews.Load()
	g.Eventually(r.reviews.Load).WithTimeout(patience).Should(BeNumerically(">", probed+10))
	g.Expect(c.of("red")).To(BeNumerically("<=", before+1), "10 probes; the first look of a new subscriber is one change")

	before = c.of("red")
	r.status(http.StatusInternalServerError)
	d.eventually("red", func(s State) bool { return !s.Healthy && s.HealthSince.After(healthy.HealthSince) })
	g.Eventually(func() int { return c.of("red") }).WithTimeout(patience).Should(BeNumerically(">", before))
}

// Since when a connection is healthy, or not, does not depend on when the state is read.
func TestHealthSince(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	probes := fastProbes
	probes.FailureThreshold = 1000000
	d := drive(t, r.URL, probes, noRetry)
	d.extension("red", "red")
	g.Eventually(r.reviews.Load).WithTimeout(patience).Should(BeNumerically(">", 10), "the state was not read yet")
	first := d.eventually("red", connectedAs("user-of-red"))
	g.Expect(first.HealthSince).To(Equal(first.Since), "healthy since the connect")

	r.status(http.StatusInternalServerError)
	failed := r.reviews.Load()
	g.Eventually(r.reviews.Load).WithTimeout(patience).Should(BeNumerically(">", failed+10))
	begun := time.Now()
	unhealthy := d.eventually("red", func(s State) bool { return !s.Healthy })
	g.Expect(unhealthy.HealthSince).To(BeTemporally("<", begun), "before the state was read")
	later := d.eventually("red", func(s State) bool { return !s.Healthy })
	g.Expect(later.HealthSince).To(Equal(unhealthy.HealthSince))
}

// A retry changes Phase and Since, and not since when there is no connection.
func TestDisconnectedSinceSurvivesRetries(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	r.status(http.StatusUnauthorized)
	d := drive(t, r.URL, rareProbes, immediateRetry)
	d.extension("red", "red")
	first := d.eventually("red", disconnectedFor(connstate.ReasonUnauthorized))
	g.Expect(first.DisconnectedSince).NotTo(BeZero())
	later := d.eventually("red", func(s State) bool {
		return s.Phase == connstate.PhaseDisconnected && s.Since.After(first.Since) && r.reviews.Load() > 3
	})
	g.Expect(later.DisconnectedSince).To(Equal(first.DisconnectedSince))
	g.Expect(later.HealthSince).To(Equal(first.HealthSince))
	g.Expect(later.Healthy).To(BeFalse())
}

// While a server is silent, one member probes for all. The others' health changes without a step of
// their own, and is reported too.
func TestSilenceIsReportedForAllMembers(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	probes := fastProbes
	probes.FailureThreshold, probes.Timeout = 1000000, 20*time.Millisecond
	d := drive(t, r.URL, probes, noRetry)
	names := []string{"red", "blue", "green"}
	for _, name := range names {
		d.extension(name, name)
		d.eventually(name, connectedAs("user-of-"+name))
	}
	c := subscribeTo(t, d)
	for _, name := range names {
		g.Eventually(func() int { return c.of(name) }).WithTimeout(patience).Should(BeNumerically(">=", 1))
	}
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) }) // before the server closes, which waits for its requests
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		<-hang
		return http.StatusInternalServerError, authenticationv1.UserInfo{}
	})
	for _, name := range names {
		before := c.of(name)
		d.eventually(name, func(s State) bool { return !s.Healthy && s.Phase == connstate.PhaseConnected })
		g.Eventually(func() int { return c.of(name) }).WithTimeout(patience).Should(BeNumerically(">", before), name)
	}
}
