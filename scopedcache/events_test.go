package scopedcache

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// reviews is how often it was asked about rights.
func (a *apiServer) reviews() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asks
}

// quiet waits until nobody asks about rights any more: who does so after that was told to.
func (a *apiServer) quiet(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func() bool {
		before := a.reviews()
		<-time.After(monitor.DefaultTiming.ConfirmAfter + soonest)
		return a.reviews() == before
	}).WithTimeout(patience).Should(BeTrue())
}

// soonest is when a question that follows an event was asked by.
const soonest = 1500 * time.Millisecond

// Events have rights asked for, once more for an authorizer that hears of it late, and as often as
// they come.
func TestEventsHaveRightsAsked(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a := newAPIServer(t)
	c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour }).(*scopedCache)
	held, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer held.Release()
	state := func() State { return held.State().State }
	g.Eventually(state).WithTimeout(patience).Should(Equal(Synced))
	for _, late := range []time.Duration{0, soonest} {
		c.rightsMayHaveChanged("n") // which changes nothing
		a.quiet(t)
		c.rightsMayHaveChanged("n")
		<-time.After(late) // the first question is answered as before
		a.deny(true)
		g.Eventually(state).WithTimeout(patience).Should(Equal(Forbidden))
		a.quiet(t)
		c.rightsMayHaveChanged("n")
		<-time.After(late)
		a.deny(false)
		g.Eventually(state).WithTimeout(patience).Should(Equal(Synced))
	}
}

// Events, by which rights are asked for less and less often while they go on, put off nothing that
// would be asked without them.
func TestEventsPutOffNothing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a := newAPIServer(t)
	const interval = 300 * time.Millisecond
	c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = interval }).(*scopedCache)
	held, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer held.Release()
	state := func() State { return held.State().State }
	g.Eventually(state).WithTimeout(patience).Should(Equal(Synced))
	const soon = 10 * time.Second // a third of the gap between questions because of events
	storm := func() {
		for range 10 {
			before := a.reviews()
			c.rightsMayHaveChanged("n")
			g.Eventually(a.reviews).WithTimeout(soon).Should(BeNumerically(">", before))
		}
	}
	storm()
	a.deny(true)
	c.rightsMayHaveChanged("n")
	g.Eventually(state).WithTimeout(soon).Should(Equal(Forbidden))
	storm()
	a.deny(false)
	c.rightsMayHaveChanged("n")
	g.Eventually(state).WithTimeout(soon).Should(Equal(Synced))
}

// A change in a namespace concerns scopes that select it, whichever way.
func TestWhomEventsConcern(t *testing.T) {
	g := NewWithT(t)
	c := newAPIServer(t).newCache(t).(*scopedCache)
	kind, err := c.kindOf(configMap())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(newEntry(c, kind, Scope{}).concerns()).To(BeEmpty())
	g.Expect(newEntry(c, kind, Scope{Namespace: "n"}).concerns()).To(Equal("n"))
	g.Expect(newEntry(c, kind, Scope{FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "n")}).
		concerns()).To(Equal("n"))
}

// Readers of what is not served ask for it.
func TestReadOfWhatIsNotServed(t *testing.T) {
	g := NewWithT(t)
	c := newAPIServer(t).newCache(t).(*scopedCache)
	kind, err := c.kindOf(configMap())
	g.Expect(err).NotTo(HaveOccurred())
	of := newEntry(c, kind, Scope{})
	of.state, of.lastError = NotServed, ErrReleased
	_, err = of.await(t.Context())
	g.Expect(err).To(MatchError(ErrReleased))
	g.Expect(of.mail.take()).To(Equal([]monitor.Event{monitor.Read{}}))
}
