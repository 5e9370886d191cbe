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
	"github.com/latchkey-dev/latchkey/internal/testutil"
)

var errDown = errors.New("down")

// team is the members of one target, and what the target has them do.
type team struct {
	Set
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
		Set: Set{Probe: connstate.ProbeOptions{FailureThreshold: 3}.WithDefaults(), FirstBackoff: 30 * time.Second},
		g:   NewWithT(t), all: map[string]*player{},
	}
}

func (tm *team) join(name string) *player {
	p := &player{team: tm, name: name}
	var err error
	p.Membership, err = tm.Join(&rest.Config{Host: "https://one"}, p)
	tm.g.Expect(err).NotTo(HaveOccurred())
	tm.all[name], tm.target = p, p.Target
	return p
}

// connected adds a member whose last probe was so long ago.
func (tm *team) connected(name string, ago time.Duration) *player {
	p := tm.join(name)
	p.Update(true, time.Now().Add(-ago), time.Time{})
	return p
}

// waiting adds a member that gave up on the target and connects after that time.
func (tm *team) waiting(name string, after time.Duration) *player {
	p := tm.join(name)
	p.Update(false, time.Time{}, time.Now().Add(after))
	return p
}

// after lets time pass, checks, and returns what members were made to do.
func (tm *team) after(d time.Duration) []string {
	<-time.After(d)
	tm.calls = nil
	tm.CheckSilent(time.Now())
	return tm.calls
}

// answer has the server answer anything to anybody.
func (tm *team) answer() {
	_, _ = tm.target.Observe(testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusInternalServerError, Body: http.NoBody}, nil
	})).RoundTrip(httptest.NewRequest(http.MethodGet, "https://one/", nil))
}

func TestConnectedMemberProbesForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		tm.connected("new", time.Second)
		old := tm.connected("old", time.Minute)
		tm.waiting("waiting", time.Second)
		tm.waiting("also", time.Second)
		g.Expect(tm.after(0)).To(Equal([]string{"old probes"}), "the one whose probe is longest ago")
		g.Expect(tm.after(9*time.Second)).To(BeEmpty(), "once per Interval")
		g.Expect(tm.after(time.Second)).To(Equal([]string{"old probes"}))
		old.busy = true
		g.Expect(tm.after(10*time.Second)).To(Equal([]string{"new probes"}), "another one, if that one cannot")
		tm.all["new"].busy = true
		g.Expect(tm.after(10 * time.Second)).To(BeEmpty())
		tm.all["new"].busy = false
		g.Expect(tm.after(time.Second)).To(Equal([]string{"new probes"}), "the turn was not taken in vain")
		tm.answer()
		g.Expect(tm.after(9*time.Second)).To(BeEmpty(), "the target answered, if only with a 500")
		g.Expect(tm.after(time.Second)).To(HaveLen(1))
	})
}

func TestWaitingMemberTriesForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		late := tm.waiting("late", time.Hour)
		g.Expect(tm.after(time.Second)).To(BeEmpty(), "one alone has its own backoff only")
		soon := tm.waiting("soon", time.Minute)
		g.Expect(tm.after(time.Second)).To(Equal([]string{"soon retries in 0s"}), "the one whose turn is next")
		soon.Update(false, time.Time{}, time.Now().Add(2*time.Hour)) // it tried in vain
		g.Expect(tm.after(29*time.Second)).To(BeEmpty(), "two try every 30 s")
		g.Expect(tm.after(time.Second)).To(Equal([]string{"late retries in 0s"}))
		late.Update(false, time.Time{}, time.Now().Add(4*time.Hour))
		tm.waiting("third", 3*time.Hour)
		tm.waiting("fourth", 3*time.Hour)
		g.Expect(tm.after(9 * time.Second)).To(BeEmpty())
		g.Expect(tm.after(time.Second)).To(Equal([]string{"soon retries in 0s"}),
			"four try every 10 s, which is the Interval")
	})
}

func TestTargetDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.connected("one", 0)
		tm.connected("two", 0)
		tm.waiting("three", time.Hour)
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Unknown))
		tm.answer()
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Reachable))
		silence := func(forAll bool) {
			<-time.After(time.Second)
			one.Report(Outcome{Asked: time.Now().Add(-time.Millisecond), ForAll: forAll, Err: errDown})
		}
		silence(false)
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Unresponsive))
		g.Expect(tm.target.Health().ConsecutiveFailures).To(BeZero(), "what a member asked for itself does not count")
		silence(true)
		silence(true)
		g.Expect(tm.target.Health().ConsecutiveFailures).To(Equal(2))
		g.Expect(tm.calls).To(BeEmpty())
		silence(true)
		g.Expect(tm.calls).To(ConsistOf("one is down", "two is down"))
		<-time.After(time.Second)
		tm.answer()
		g.Expect(tm.target.Health().ConsecutiveFailures).To(BeZero(), "any answer to any member proves it up")
	})
}

// A probe that got no answer while others got one counts for nothing, however long the silence was
// before.
func TestAnswersDuringAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.connected("one", 0)
		tm.waiting("two", time.Hour)
		for range 2 {
			<-time.After(time.Second)
			one.Report(Outcome{Asked: time.Now(), ForAll: true, Err: errDown})
		}
		asked := time.Now()
		<-time.After(time.Second)
		tm.answer()
		one.Report(Outcome{Asked: asked, ForAll: true, Err: errDown})
		g.Expect(tm.target.Health().ConsecutiveFailures).To(BeZero())
		g.Expect(tm.target.Reachability()).To(Equal(connstate.Reachable))
		g.Expect(tm.calls).To(Equal([]string{"two retries in 0s"}), "and those that wait are woken")
	})
}

// When the target answers anybody, all who wait are woken once, spread.
func TestWaitersAreWokenSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.connected("one", 0)
		for i := range 400 {
			tm.waiting(fmt.Sprintf("w%d", i), time.Hour)
		}
		answered := Outcome{Answered: true, Asked: time.Now()}
		one.Report(answered)
		g.Expect(tm.calls).To(BeEmpty(), "it was not silent")
		one.Report(Outcome{Asked: time.Now(), Err: errDown})
		one.Report(answered)
		g.Expect(tm.calls).To(HaveLen(400))
		early, late := 0, 0
		for _, call := range tm.calls {
			var name string
			var in string
			_, err := fmt.Sscanf(call, "%s retries in %s", &name, &in)
			g.Expect(err).NotTo(HaveOccurred())
			d, err := time.ParseDuration(in)
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
		g.Expect(tm.calls).To(BeEmpty(), "once")
	})
}

// A member that left is asked nothing, and a new membership has a new ID.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.connected("one", time.Minute)
		tm.connected("two", time.Second)
		first := one.ID()
		one.Leave()
		g.Expect(tm.after(time.Second)).To(Equal([]string{"two probes"}))
		g.Expect(tm.connected("one", 0).ID()).NotTo(Equal(first))
	})
}

func TestWakeWindow(t *testing.T) {
	g := NewWithT(t)
	g.Expect(wakeWindow(0)).To(BeZero())
	g.Expect(wakeWindow(1)).To(BeZero(), "one alone has none to spread from")
	g.Expect(wakeWindow(6)).To(Equal(250 * time.Millisecond))
	g.Expect(wakeWindow(100_000)).To(Equal(10 * time.Second))
}

func TestScoutInterval(t *testing.T) {
	g := NewWithT(t)
	g.Expect(scoutInterval(2, 10*time.Second, 30*time.Second)).To(Equal(30 * time.Second))
	g.Expect(scoutInterval(3, 10*time.Second, 30*time.Second)).To(Equal(15 * time.Second))
	g.Expect(scoutInterval(500, 10*time.Second, 30*time.Second)).To(Equal(10 * time.Second))
}
