package connstate

import (
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
)

var (
	t0      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errDown = errors.New("down")
)

func TestHealthAfter(t *testing.T) {
	g := NewWithT(t)
	s := Health{}.After(t0, nil)
	g.Expect(s).To(Equal(Health{LastProbeTime: t0, LastProbeSuccessTime: t0}))
	s = s.After(t0.Add(1), errDown).After(t0.Add(2), errDown)
	g.Expect(s).
		To(Equal(Health{LastProbeTime: t0.Add(2), LastProbeSuccessTime: t0, ConsecutiveFailures: 2, LastError: errDown}))
	g.Expect(s.After(t0.Add(3), nil)).To(Equal(Health{LastProbeTime: t0.Add(3), LastProbeSuccessTime: t0.Add(3)}))
}

func TestDue(t *testing.T) {
	o := ProbeOptions{}.WithDefaults()
	for name, tc := range map[string]struct {
		state   Health
		members int
		jitter  float64
		want    time.Time
	}{
		"after a success": {Health{LastProbeTime: t0, LastProbeSuccessTime: t0}, 1, 0, t0.Add(60 * time.Second)},
		"spread forward":  {Health{LastProbeTime: t0, LastProbeSuccessTime: t0}, 1, 0.5, t0.Add(57 * time.Second)},
		"after a failure": {Health{}.After(t0, nil).After(t0.Add(time.Minute), errDown), 100_000, 0.5,
			t0.Add(70 * time.Second)},
		"after an inconclusive probe": {Health{
			LastProbeSuccessTime: t0,
			LastProbeTime:        t0.Add(time.Minute),
			LastError:            errDown,
		}, 1, 0, t0.Add(70 * time.Second)},
		"served since": {Health{
			LastProbeSuccessTime: t0.Add(time.Second),
			LastProbeTime:        t0,
			LastError:            errDown,
		}, 1, 0, t0.Add(61 * time.Second)},
		"many members":              {Health{LastProbeSuccessTime: t0}, 10_000, 0, t0.Add(400 * time.Second)},
		"many members, spread":      {Health{LastProbeSuccessTime: t0}, 10_000, 0.5, t0.Add(300 * time.Second)},
		"so many that it just fits": {Health{LastProbeSuccessTime: t0}, 2700, 0, t0.Add(60 * time.Second)},
		"fits, early":               {Health{LastProbeSuccessTime: t0}, 2700, 0.9, t0.Add(54_600 * time.Millisecond)},
		"a few more":                {Health{LastProbeSuccessTime: t0}, 2750, 0, t0.Add(110 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(o.Due(tc.state, tc.members, tc.jitter)).To(Equal(tc.want))
		})
	}
	o.MaxIdentityProbesPerSecond = -1
	NewWithT(t).Expect(o.Due(Health{LastProbeSuccessTime: t0}, 10_000, 0)).To(Equal(t0.Add(time.Minute)), "no bound")
}

// Identities that connected within 20 s are probed at most 50 times a second, however many they
// are.
func TestProbesAreBounded(t *testing.T) {
	o := ProbeOptions{}.WithDefaults()
	for _, members := range []int{1000, 10_000, 100_000} {
		random := rand.New(rand.NewPCG(1, 2))
		perSecond, total, end := map[int64]int{}, 0, 2*time.Hour
		for n := range members {
			jitter := random.Float64()
			at := t0.Add(20 * time.Second * time.Duration(n) / time.Duration(members))
			for {
				if at = o.Due(Health{LastProbeSuccessTime: at}, members, jitter); at.Sub(t0) > end {
					break
				}
				perSecond[int64(at.Sub(t0).Seconds())/10]++
				total++
			}
		}
		busiest := 0
		for _, n := range perSecond {
			busiest = max(busiest, n/10)
		}
		t.Logf("%d identities: %.0f probes a second, %d at most", members, float64(total)/end.Seconds(), busiest)
		NewWithT(t).Expect(busiest).To(BeNumerically("<=", 60), "%d identities, 50 and what is chance", members)
	}
}

// Failed is true at FailureThreshold, not only after it.
func TestFailed(t *testing.T) {
	g := NewWithT(t)
	o := ProbeOptions{}.WithDefaults()
	g.Expect(o).
		To(
			Equal(ProbeOptions{
				Interval:                   10 * time.Second,
				IdentityInterval:           time.Minute,
				Timeout:                    5 * time.Second,
				FailureThreshold:           5,
				MaxIdentityProbesPerSecond: 50,
				ThrottleTimeout:            5 * time.Minute,
			}))
	g.Expect(o.Failed(Health{ConsecutiveFailures: 4})).To(BeFalse())
	g.Expect(o.Failed(Health{ConsecutiveFailures: 5})).To(BeTrue())
}

func TestIdentityMatches(t *testing.T) {
	seen := Identity{Username: "u", UID: "1", Groups: []string{"g"}}
	for name, tc := range map[string]struct {
		expected Identity
		want     bool
	}{
		"nothing expected": {Identity{}, true},
		"same":             {Identity{Username: "u", UID: "1"}, true},
		"groups change":    {Identity{Username: "u", UID: "1", Groups: []string{"h"}}, true},
		"other UID":        {Identity{Username: "u", UID: "2"}, false},
		"other name":       {Identity{Username: "v", UID: "1"}, false},
		"UID unknown":      {Identity{Username: "u"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(tc.expected.Matches(seen)).To(Equal(tc.want))
		})
	}
}

// Another impersonator is another identity: the same name would otherwise hide another user's
// credential.
func TestSameIdentity(t *testing.T) {
	identity := Identity{Username: "u", UID: "1", ImpersonatorUsername: "own", ImpersonatorUID: "2"}
	same := identity
	same.Groups = []string{"g"}
	NewWithT(t).Expect(identity.Same(same)).To(BeTrue())
	for name, change := range map[string]func(*Identity){
		"Username":             func(i *Identity) { i.Username = "v" },
		"UID":                  func(i *Identity) { i.UID = "3" },
		"ImpersonatorUsername": func(i *Identity) { i.ImpersonatorUsername = "" },
		"ImpersonatorUID":      func(i *Identity) { i.ImpersonatorUID = "3" },
	} {
		other := identity
		change(&other)
		NewWithT(t).Expect(identity.Same(other)).To(BeFalse(), name)
	}
}

func TestServed(t *testing.T) {
	g := NewWithT(t)
	failed := Health{}.After(t0, nil).After(t0.Add(10), errDown)
	g.Expect(failed.Served(time.Time{})).To(Equal(failed))
	g.Expect(failed.Served(t0.Add(20))).To(Equal(Health{LastProbeTime: t0.Add(20), LastProbeSuccessTime: t0.Add(20)}),
		"a request that the identity itself sent counts as a probe")
	earlier := failed.Served(t0.Add(5))
	g.Expect(earlier.ConsecutiveFailures).To(Equal(1), "a request before the failure does not count as a probe")
	g.Expect(earlier.LastProbeSuccessTime).To(Equal(t0.Add(5)))
}

func TestWithTarget(t *testing.T) {
	g := NewWithT(t)
	healthy := Health{}.After(t0, nil)
	silent := Health{}.After(t0.Add(10), errDown).After(t0.Add(20), errDown)
	g.Expect(healthy.WithTarget(silent)).
		To(Equal(Health{LastProbeTime: t0.Add(20), LastProbeSuccessTime: t0, ConsecutiveFailures: 2, LastError: errDown}))
	g.Expect(healthy.After(t0.Add(30), nil).WithTarget(silent).ConsecutiveFailures).
		To(BeZero(), "failures of the target before our last success do not count")
	g.Expect(healthy.WithTarget(Health{})).To(Equal(healthy))
}
