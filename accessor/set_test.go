package accessor

import (
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/target"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// silent is a set whose extensions know one target that does not answer, and who of them is woken.
type silent struct {
	*Set
	t      *target.Target
	woken  []string
	begun  time.Time
	member map[string]*identityAccessor
}

func newSilent(t *testing.T) *silent {
	s := &silent{begun: time.Now(), member: map[string]*identityAccessor{}}
	s.Set = NewSet(Options{
		HealthProbe: healthprobe.Options{Interval: 10 * time.Second}.WithDefaults(), Logger: logr.Discard(), ConnectBackoff: never,
		Wake: func(key client.ObjectKey) { s.woken = append(s.woken, key.Name) },
	})
	s.options.ConnectBackoff.Duration = 30 * time.Second
	var err error
	s.t, err = s.targets.Acquire(&rest.Config{Host: "https://silent.invalid"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { s.t.Release(); s.end(errDown) })
	return s
}

// waits adds an extension that has given up on the target and tries again at some time after begun.
func (s *silent) waits(name string, again time.Duration) {
	a := newAccessor(s.Set, client.ObjectKey{Name: name})
	a.target, a.nextConnect = s.t, s.begun.Add(again)
	a.published.Store(&snapshot{phase: Disconnected, reason: Unreachable, err: a.notConnected(Unreachable, errors.New("down"))})
	s.accessors.Store(a.key, a)
	s.member[name] = a
}

// connected adds an extension that is connected, whose probe was that long before begun.
func (s *silent) connected(name string, ago time.Duration) {
	a := newAccessor(s.Set, client.ObjectKey{Name: name})
	a.target, a.health.LastProbeTime = s.t, s.begun.Add(-ago)
	a.published.Store(&snapshot{phase: Connected, conn: &connection{}})
	s.accessors.Store(a.key, a)
	s.member[name] = a
}

// asked returns who was woken by a look that long after begun.
func (s *silent) asked(after time.Duration) []string {
	s.woken = nil
	s.askSilentTargets(s.begun.Add(after))
	return s.woken
}

// Of those that are connected, the one whose probe is longest ago asks for all, once per Interval.
func TestAMemberAsksForAll(t *testing.T) {
	g := NewWithT(t)
	s := newSilent(t)
	s.connected("new", time.Second)
	s.connected("old", time.Minute)
	s.waits("waiting", time.Second)
	s.waits("also", time.Second)
	g.Expect(s.asked(0)).To(Equal([]string{"old"}))
	g.Expect(s.member["old"].wish).To(Equal(forTarget))
	g.Expect(s.asked(9 * time.Second)).To(BeEmpty())
	g.Expect(s.asked(10 * time.Second)).To(HaveLen(1))
}

// If all have given up, the one whose turn is next tries it for all, the more often the more there are.
func TestAWaiterTriesForAll(t *testing.T) {
	g := NewWithT(t)
	s := newSilent(t)
	s.waits("late", time.Hour)
	g.Expect(s.asked(time.Second)).To(BeEmpty(), "one alone has its own backoff only")
	s.waits("soon", time.Minute)
	g.Expect(s.asked(2 * time.Second)).To(Equal([]string{"soon"}))
	g.Expect(s.member["soon"].nextConnect).To(Equal(s.begun.Add(2 * time.Second)))
	s.member["soon"].nextConnect = s.begun.Add(2 * time.Hour) // it tried in vain
	g.Expect(s.asked(31*time.Second)).To(BeEmpty(), "two try every 30 s")
	g.Expect(s.asked(32 * time.Second)).To(Equal([]string{"late"}))
	s.waits("third", 3*time.Hour)
	s.waits("fourth", 3*time.Hour)
	s.member["late"].nextConnect = s.begun.Add(4 * time.Hour)
	g.Expect(s.asked(41 * time.Second)).To(BeEmpty())
	g.Expect(s.asked(42*time.Second)).To(Equal([]string{"soon"}), "four try every 10 s, which is the Interval")
}

// When the target answers anybody, all who wait are woken, spread.
func TestWaitersAreWokenSpread(t *testing.T) {
	g := NewWithT(t)
	s := newSilent(t)
	for i := range 400 {
		s.waits(string(rune('a'+i%26))+string(rune('a'+i/26)), time.Hour)
	}
	s.answered(s.t)
	g.Expect(s.woken).To(BeEmpty(), "nobody had met silence")
	s.t.MarkSilent()
	now := time.Now()
	s.answered(s.t)
	g.Expect(s.woken).To(HaveLen(400))
	early, late := 0, 0
	for _, a := range s.member {
		in := a.nextConnect.Sub(now)
		g.Expect(in).To(And(BeNumerically(">=", -time.Second), BeNumerically("<=", 11*time.Second)))
		if in < 3*time.Second {
			early++
		}
		if in > 7*time.Second {
			late++
		}
	}
	g.Expect(early).To(BeNumerically(">", 50))
	g.Expect(late).To(BeNumerically(">", 50))
	s.woken = nil
	s.answered(s.t)
	g.Expect(s.woken).To(BeEmpty(), "once")
}
