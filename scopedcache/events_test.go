package scopedcache

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// reviews returns how many access reviews the fake has received.
func (a *apiServer) reviews() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reviewCount
}

// quiet waits until the cache sends no reviews any more. A review after that has a new cause.
func (a *apiServer) quiet(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func() bool {
		before := a.reviews()
		<-time.After(monitor.DefaultTiming.ConfirmAfter + soonest)
		return a.reviews() == before
	}).WithTimeout(patience).Should(BeTrue())
}

// soonest is the time within which a review follows an event.
const soonest = 1500 * time.Millisecond

// Each event causes an access review, and a second one in case the authorizer receives the change
// late.
func TestEventsCauseReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour }).(*scopedCache)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		state := func() State { return handle.State().State }
		g.Eventually(state).WithTimeout(patience).Should(Equal(StateSynced))
		for _, late := range []time.Duration{0, soonest} {
			c.entries.accessMayHaveChanged("n") // without a change of permissions
			a.quiet(t)
			c.entries.accessMayHaveChanged("n")
			<-time.After(late) // the first review is answered as before the change
			a.deny(true)
			g.Eventually(state).WithTimeout(patience).Should(Equal(StateForbidden))
			a.quiet(t)
			c.entries.accessMayHaveChanged("n")
			<-time.After(late)
			a.deny(false)
			g.Eventually(state).WithTimeout(patience).Should(Equal(StateSynced))
		}
	})
}

// While events continue, they cause reviews less and less often. Events never delay a review that
// would happen without them.
func TestEventsPutOffNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		const interval = 300 * time.Millisecond
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = interval }).(*scopedCache)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		state := func() State { return handle.State().State }
		g.Eventually(state).WithTimeout(patience).Should(Equal(StateSynced))
		const soon = 10 * time.Second // a third of the gap between reviews caused by events
		storm := func() {
			for range 10 {
				before := a.reviews()
				c.entries.accessMayHaveChanged("n")
				g.Eventually(a.reviews).WithTimeout(soon).Should(BeNumerically(">", before))
			}
		}
		storm()
		a.deny(true)
		c.entries.accessMayHaveChanged("n")
		g.Eventually(state).WithTimeout(soon).Should(Equal(StateForbidden))
		storm()
		a.deny(false)
		c.entries.accessMayHaveChanged("n")
		g.Eventually(state).WithTimeout(soon).Should(Equal(StateSynced))
	})
}

// A change in a namespace concerns the scopes that select it, by Namespace or by FieldSelector.
func TestWhomEventsConcern(t *testing.T) {
	g := NewWithT(t)
	c := newAPIServer(t).newCache(t).(*scopedCache)
	kind, err := c.env.kinds.kindOf(configMap())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.entries.newEntry(kind, Scope{}).selection.concerns()).To(BeEmpty())
	g.Expect(c.entries.newEntry(kind, Scope{Namespace: "n"}).selection.concerns()).To(Equal("n"))
	g.Expect(c.entries.newEntry(kind, Scope{FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "n")}).
		selection.concerns()).To(Equal("n"))
}

// A read of a kind that is not served sends a Read event, so that the kind is discovered sooner.
func TestReadOfWhatIsNotServed(t *testing.T) {
	g := NewWithT(t)
	c := newAPIServer(t).newCache(t).(*scopedCache)
	kind, err := c.env.kinds.kindOf(configMap())
	g.Expect(err).NotTo(HaveOccurred())
	e := c.entries.newEntry(kind, Scope{})
	e.state, e.lastError = StateNotServed, ErrReleased
	_, err = (&use{user: c.user, entry: e}).await(t.Context())
	g.Expect(err).To(MatchError(ErrReleased))
	taken, _ := e.mail.take()
	g.Expect(taken.events).To(Equal([]monitor.Event{monitor.Read{}}))
}
