package scopedcache

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
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
		<-time.After(confirmAfter + soonest)
		return a.reviews() == before
	}).WithTimeout(patience).Should(BeTrue())
}

// soonest is when a question that follows an event was asked by.
const soonest = 1500 * time.Millisecond

// Events have rights asked for, once more for an authorizer that hears of it late, and as often as they come.
func TestEventsHaveRightsAsked(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a := newAPIServer(t)
	c := a.newCache(t, func(o *Options) { o.CheckInterval = time.Hour }).(*scoped)
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

// Events, by which rights are asked for less and less often while they go on, put off nothing that would be asked without them.
func TestEventsPutOffNothing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a := newAPIServer(t)
	const interval = 300 * time.Millisecond
	c := a.newCache(t, func(o *Options) { o.CheckInterval = interval }).(*scoped)
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

// While events go on questions get rarer; what was not waited for because of them does not count; and when they have ended they
// are as quick as ever.
func TestPace(t *testing.T) {
	g := NewWithT(t)
	var p pace
	start := time.Unix(0, 0)
	now, asked := start, 0
	for now.Before(start.Add(10 * time.Minute)) { // there is an event when a question is asked, and it is asked again as told
		_, again := p.next(now, now)
		now = now.Add(again)
		asked++
	}
	g.Expect(asked).To(BeNumerically("~", 24, 4), "of 300, one every two seconds")
	delay, again := p.next(now, now.Add(time.Hour))
	g.Expect(delay).To(BeNumerically("<=", maxGap))
	g.Expect(again).To(Equal(maxGap))
	now = now.Add(delay + 2*maxGap + time.Second)
	delay, again = p.next(now, now.Add(time.Hour))
	g.Expect(delay).To(BeNumerically("<=", afterEvent+time.Second))
	g.Expect(again).To(Equal(confirmAfter))
}

// A change in a namespace concerns scopes that select it, whichever way.
func TestWhomEventsConcern(t *testing.T) {
	g := NewWithT(t)
	c := newAPIServer(t).newCache(t).(*scoped)
	kind, err := c.kindOf(configMap())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(newScope(c, kind, Scope{}).concerns()).To(BeEmpty())
	g.Expect(newScope(c, kind, Scope{Namespace: "n"}).concerns()).To(Equal("n"))
	g.Expect(newScope(c, kind, Scope{FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "n")}).concerns()).To(Equal("n"))
}

// The first denial is looked into soon, the next ones are not.
func TestUntilReview(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t)
	c := a.newCache(t, func(o *Options) { o.CheckInterval = time.Hour }).(*scoped)
	kind, err := c.kindOf(configMap())
	g.Expect(err).NotTo(HaveOccurred())
	of := newScope(c, kind, Scope{})
	of.idleness = newTicker(0)
	g.Expect(of.untilReview(1)).To(Equal(confirmAfter))
	g.Expect(of.untilReview(2)).To(And(BeNumerically(">=", 48*time.Minute), BeNumerically("<=", time.Hour)))
	// Who reads what is not served shortens the pause to a second.
	poke(of.asked)
	begun := time.Now()
	of.pause(t.Context(), time.Minute, of.asked)
	g.Expect(time.Since(begun)).To(And(BeNumerically(">=", time.Second), BeNumerically("<", patience)))
	one := &meta.RESTMapping{Resource: configMaps.GroupVersion().WithResource("configmaps"), Scope: meta.RESTScopeNamespace}
	other := *one
	g.Expect(sameMapping(one, &other)).To(BeTrue())
	other.Scope = meta.RESTScopeRoot
	g.Expect(sameMapping(one, &other)).To(BeFalse())
	of.asked = make(chan struct{}, 1)
	of.state, of.lastError = NotServed, ErrReleased
	_, err = of.await(t.Context())
	g.Expect(err).To(MatchError(ErrReleased))
	g.Expect(of.asked).To(Receive())
}
