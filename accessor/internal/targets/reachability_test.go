package targets

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var errDown = errors.New("down")

// team holds the members of one target, and records the calls of the target.
type team struct {
	Set
	policy Policy
	g      *WithT
	target *Target
	all    map[string]*player
	calls  []string // "<name> probes", "<name> is down", "<name> retries in <duration>"
}

type player struct {
	*Membership
	team *team
	name string
	busy bool
}

func (p *player) ProbeForAll(id ID) bool {
	p.team.g.Expect(id).To(Equal(p.ID()))
	if p.busy {
		return false
	}
	p.team.calls = append(p.team.calls, p.name+" probes")
	return true
}

func (p *player) TargetDown(id ID, err error) {
	p.team.g.Expect(id).To(Equal(p.ID()))
	p.team.g.Expect(err).To(MatchError(errDown))
	p.team.calls = append(p.team.calls, p.name+" is down")
}

func (p *player) RetryAt(id ID, at time.Time) {
	p.team.g.Expect(id).To(Equal(p.ID()))
	p.team.calls = append(p.team.calls, fmt.Sprintf("%s retries in %s", p.name, time.Until(at)))
}

func newTeam(t *testing.T) *team {
	return &team{
		policy: Policy{Probe: connstate.ProbeOptions{FailureThreshold: 3}.WithDefaults(), FirstBackoff: 30 * time.Second},
		g:      NewWithT(t),
		all:    map[string]*player{},
	}
}

func (tm *team) join(name string) *player { return tm.joinWith(name, &tm.policy) }

func (tm *team) joinWith(name string, policy *Policy) *player {
	p := &player{team: tm, name: name}
	var err error
	p.Membership, err = tm.Join(&rest.Config{Host: "https://one"}, p, policy)
	tm.g.Expect(err).NotTo(HaveOccurred())
	tm.all[name], tm.target = p, p.Target
	return p
}

// addConnected adds a member whose last probe was the given time ago.
func (tm *team) addConnected(name string, ago time.Duration) *player {
	p := tm.join(name)
	p.Update(true, time.Now().Add(-ago), time.Time{})
	return p
}

// addWaiting adds a member that waits because the target was silent, and that connects after the
// given time.
func (tm *team) addWaiting(name string, delay time.Duration) *player {
	p := tm.join(name)
	p.Update(false, time.Time{}, time.Now().Add(delay))
	return p
}

// checkAfter waits, calls CheckSilent, and returns the resulting calls of members.
func (tm *team) checkAfter(d time.Duration) []string {
	<-time.After(d)
	tm.calls = nil
	tm.CheckSilent(time.Now(), &tm.policy)
	return tm.calls
}

// answer makes the server answer a request.
func (tm *team) answer() {
	_, _ = tm.target.Observe(testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusInternalServerError, Body: http.NoBody}, nil
	})).RoundTrip(httptest.NewRequest(http.MethodGet, "https://one/", nil))
}

func TestConnectedMemberProbesForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		tm.addConnected("new", time.Second)
		old := tm.addConnected("old", time.Minute)
		tm.addWaiting("waiting", time.Second)
		tm.addWaiting("also", time.Second)
		g.Expect(tm.checkAfter(0)).To(Equal([]string{"old probes"}), "the member whose last probe is the oldest")
		g.Expect(tm.checkAfter(9*time.Second)).To(BeEmpty(), "once per Interval")
		g.Expect(tm.checkAfter(time.Second)).To(Equal([]string{"old probes"}))
		old.busy = true
		g.Expect(tm.checkAfter(10*time.Second)).To(Equal([]string{"new probes"}),
			"another member, because the first one is busy")
		tm.all["new"].busy = true
		g.Expect(tm.checkAfter(10 * time.Second)).To(BeEmpty())
		tm.all["new"].busy = false
		g.Expect(tm.checkAfter(time.Second)).To(Equal([]string{"new probes"}),
			"a check without an available member does not use up the turn")
		tm.answer()
		g.Expect(tm.checkAfter(9*time.Second)).To(BeEmpty(), "the target answered, if only with a 500")
		g.Expect(tm.checkAfter(time.Second)).To(HaveLen(1))
	})
}

func TestWaitingMemberTriesForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		late := tm.addWaiting("late", time.Hour)
		g.Expect(tm.checkAfter(time.Second)).To(BeEmpty(), "a single waiting member uses only its own backoff")
		soon := tm.addWaiting("soon", time.Minute)
		g.Expect(tm.checkAfter(time.Second)).To(Equal([]string{"soon retries in 0s"}),
			"the member whose connect is the soonest")
		soon.Update(false, time.Time{}, time.Now().Add(2*time.Hour)) // its connect failed
		g.Expect(tm.checkAfter(29*time.Second)).To(BeEmpty(), "two try every 30 s")
		g.Expect(tm.checkAfter(time.Second)).To(Equal([]string{"late retries in 0s"}))
		late.Update(false, time.Time{}, time.Now().Add(4*time.Hour))
		tm.addWaiting("third", 3*time.Hour)
		tm.addWaiting("fourth", 3*time.Hour)
		g.Expect(tm.checkAfter(9 * time.Second)).To(BeEmpty())
		g.Expect(tm.checkAfter(time.Second)).To(Equal([]string{"soon retries in 0s"}),
			"four try every 10 s, which is the Interval")
	})
}

func TestTargetDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.addConnected("one", 0)
		tm.addConnected("two", 0)
		tm.addWaiting("three", time.Hour)
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Unknown))
		tm.answer()
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Reachable))
		silence := func(forAll bool) {
			<-time.After(time.Second)
			one.Report(Outcome{Asked: time.Now().Add(-time.Millisecond), ForAll: forAll, Err: errDown})
		}
		silence(false)
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Unresponsive))
		g.Expect(one.Health().ConsecutiveFailures).To(BeZero(), "a member's own probe does not count")
		silence(true)
		silence(true)
		g.Expect(one.Health().ConsecutiveFailures).To(Equal(2))
		g.Expect(tm.calls).To(BeEmpty())
		silence(true)
		g.Expect(tm.calls).To(ConsistOf("one is down", "two is down"))
		<-time.After(time.Second)
		tm.answer()
		g.Expect(one.Health().ConsecutiveFailures).
			To(BeZero(), "any answer to any member proves that the target is up")
	})
}

// A probe that got no answer does not count if another member got an answer meanwhile, however long
// the silence was before.
func TestAnswersDuringAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.addConnected("one", 0)
		tm.addWaiting("two", time.Hour)
		for range 2 {
			<-time.After(time.Second)
			one.Report(Outcome{Asked: time.Now(), ForAll: true, Err: errDown})
		}
		sentAt := time.Now()
		<-time.After(time.Second)
		tm.answer()
		one.Report(Outcome{Asked: sentAt, ForAll: true, Err: errDown})
		g.Expect(one.Health().ConsecutiveFailures).To(BeZero())
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Reachable))
		g.Expect(tm.calls).To(Equal([]string{"two retries in 0s"}), "the waiting members are woken")
	})
}

// When the target answers any member, all waiting members are woken once, spread over time.
func TestWaitersAreWokenSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.addConnected("one", 0)
		for i := range 400 {
			tm.addWaiting(fmt.Sprintf("w%d", i), time.Hour)
		}
		answered := Outcome{Answered: true, Asked: time.Now()}
		one.Report(answered)
		g.Expect(tm.calls).To(BeEmpty(), "the target was not silent")
		one.Report(Outcome{Asked: time.Now(), Err: errDown})
		one.Report(answered)
		g.Expect(tm.calls).To(HaveLen(400))
		early, late := 0, 0
		for _, call := range tm.calls {
			var name string
			var delay string
			_, err := fmt.Sscanf(call, "%s retries in %s", &name, &delay)
			g.Expect(err).NotTo(HaveOccurred())
			d, err := time.ParseDuration(delay)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(d).To(And(BeNumerically(">=", 0), BeNumerically("<=", 10*time.Second)))
			if d < 3*time.Second {
				early++
			}
			if d > 7*time.Second {
				late++
			}
		}
		g.Expect(early).To(BeNumerically(">", 50))
		g.Expect(late).To(BeNumerically(">", 50))
		tm.calls = nil
		one.Report(answered)
		g.Expect(tm.calls).To(BeEmpty(), "the members are woken only once")
	})
}

// A member that has left receives no calls, and a new membership has a new ID.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.addConnected("one", time.Minute)
		tm.addConnected("two", time.Second)
		first := one.ID()
		one.Leave()
		g.Expect(tm.checkAfter(time.Second)).To(Equal([]string{"two probes"}))
		g.Expect(tm.addConnected("one", 0).ID()).NotTo(Equal(first))
	})
}

func TestWakeWindow(t *testing.T) {
	g := NewWithT(t)
	g.Expect(wakeWindow(0)).To(BeZero())
	g.Expect(wakeWindow(1)).To(BeZero(), "a single waiter need not wait")
	g.Expect(wakeWindow(6)).To(Equal(250 * time.Millisecond))
	g.Expect(wakeWindow(100_000)).To(Equal(10 * time.Second))
}

func TestScoutInterval(t *testing.T) {
	g := NewWithT(t)
	g.Expect(scoutInterval(2, 10*time.Second, 30*time.Second)).To(Equal(30 * time.Second))
	g.Expect(scoutInterval(3, 10*time.Second, 30*time.Second)).To(Equal(15 * time.Second))
	g.Expect(scoutInterval(500, 10*time.Second, 30*time.Second)).To(Equal(10 * time.Second))
}

// Members with different policies share a target and its answers. Each policy selects its own
// members, counts its own failures, and disconnects its own members only.
func TestPoliciesShareATarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		patient := &Policy{
			FirstBackoff: 30 * time.Second,
			Probe:        connstate.ProbeOptions{Interval: time.Minute, FailureThreshold: 2}.WithDefaults(),
		}
		quick := []*player{tm.addConnected("quick", time.Second), tm.addConnected("also", time.Second)}
		other := tm.joinWith("patient", patient)
		other.Update(true, time.Now().Add(-time.Hour), time.Time{})
		g.Expect(other.Target).To(BeIdenticalTo(quick[0].Target))
		check := func(policy *Policy) []string {
			tm.calls = nil
			tm.CheckSilent(time.Now(), policy)
			return tm.calls
		}
		fail := func(p *player) []string {
			tm.calls = nil
			p.Report(Outcome{Asked: time.Now(), ForAll: true, Err: errDown})
			return tm.calls
		}
		g.Expect(tm.checkAfter(0)).To(ConsistOf(Or(Equal("quick probes"), Equal("also probes"))),
			"the patient member is older, but of another policy")
		g.Expect(check(patient)).To(Equal([]string{"patient probes"}), "another policy took no turn of this one")
		g.Expect(fail(other)).To(BeEmpty())
		for range 2 {
			g.Expect(fail(quick[0])).To(BeEmpty())
		}
		g.Expect(fail(quick[0])).To(ConsistOf("quick is down", "also is down"))
		g.Expect(other.Health().ConsecutiveFailures).To(Equal(1))
		for _, p := range quick { // from now on they try in turn, every Interval
			p.Update(false, time.Time{}, time.Now().Add(time.Hour))
		}
		for range 6 {
			g.Expect(tm.checkAfter(30 * time.Second)).To(HaveLen(1))
		}
		g.Expect(check(patient)).To(Equal([]string{"patient probes"}), "the tries of the others took no turn of this one")
		g.Expect(fail(other)).To(Equal([]string{"patient is down"}))

		<-time.After(time.Second)
		tm.answer()
		g.Expect(other.Health().ConsecutiveFailures).To(BeZero())
		g.Expect(quick[0].Health().ConsecutiveFailures).To(BeZero(), "an answer is everybody's")
		for _, p := range quick {
			p.Leave()
		}
		g.Expect(tm.List()).To(HaveLen(1), "the target stays while the other policy has a member")
		g.Expect(other.views).To(HaveLen(1))
		other.Leave()
		g.Expect(tm.List()).To(BeEmpty())
	})
}
