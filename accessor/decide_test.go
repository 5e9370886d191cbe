package accessor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/healthprobe"
)

var (
	t0      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errDown = errors.New("down")
)

func TestDecide(t *testing.T) {
	healthy := healthprobe.State{}.After(t0, nil)
	for name, tc := range map[string]struct {
		view  view
		want  action
		after time.Duration
	}{
		"first":                                {view{now: t0, phase: Disconnected}, connect, 0},
		"backing off":                          {view{now: t0, phase: Disconnected, nextConnect: t0.Add(time.Minute)}, nothing, time.Minute},
		"backoff over":                         {view{now: t0, phase: Disconnected, nextConnect: t0}, connect, 0},
		"connect under way":                    {view{now: t0, phase: Connecting, busy: true}, nothing, 0},
		"probe under way":                      {view{now: t0.Add(time.Hour), phase: Connected, busy: true, health: healthy}, nothing, 0},
		"healthy":                              {view{now: t0.Add(time.Second), phase: Connected, health: healthy}, nothing, 59 * time.Second},
		"probe due":                            {view{now: t0.Add(time.Minute), phase: Connected, health: healthy}, probe, 0},
		"asked for":                            {view{now: t0, phase: Connected, health: healthy, wanted: true}, probe, 0},
		"not connected and asked for":          {view{now: t0, phase: Disconnected, wanted: true, nextConnect: t0.Add(1)}, nothing, 1},
		"failed, too early":                    {view{now: t0.Add(9 * time.Second), phase: Connected, health: healthy.After(t0, errDown)}, nothing, time.Second},
		"failed, again":                        {view{now: t0.Add(10 * time.Second), phase: Connected, health: healthy.After(t0, errDown)}, probe, 0},
		"due, but the target is silent":        {view{now: t0.Add(time.Hour), phase: Connected, health: healthy, target: healthy.After(t0, errDown)}, nothing, 10 * time.Second},
		"asked for while the target is silent": {view{now: t0, phase: Connected, health: healthy, target: healthy.After(t0, errDown), wanted: true}, probe, 0},
		"a newer credential":                   {view{now: t0, phase: Connected, health: healthy, verify: t0}, verify, 0},
		"a newer credential, tried just now":   {view{now: t0, phase: Connected, health: healthy, verify: t0.Add(time.Second)}, nothing, time.Second},
		"a newer credential, much later":       {view{now: t0.Add(time.Second), phase: Connected, health: healthy, verify: t0.Add(time.Hour)}, nothing, 59 * time.Second},
		"a newer credential, and asked for":    {view{now: t0, phase: Connected, health: healthy, verify: t0, wanted: true}, probe, 0},
		"a newer credential, not connected":    {view{now: t0, phase: Disconnected, verify: t0, nextConnect: t0.Add(1)}, nothing, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			action, after := decide(tc.view, healthprobe.Options{}.WithDefaults())
			g.Expect(action).To(Equal(tc.want))
			g.Expect(after).To(Equal(tc.after))
		})
	}
}

func TestWakeWindow(t *testing.T) {
	g := NewWithT(t)
	g.Expect(wakeWindow(0)).To(BeZero())
	g.Expect(wakeWindow(1)).To(BeZero(), "nobody to spread from")
	g.Expect(wakeWindow(6)).To(Equal(250 * time.Millisecond))
	g.Expect(wakeWindow(100_000)).To(Equal(10 * time.Second))
}

func TestScoutInterval(t *testing.T) {
	g := NewWithT(t)
	g.Expect(scoutInterval(2, 10*time.Second, 30*time.Second)).To(Equal(30 * time.Second))
	g.Expect(scoutInterval(3, 10*time.Second, 30*time.Second)).To(Equal(15 * time.Second))
	g.Expect(scoutInterval(500, 10*time.Second, 30*time.Second)).To(Equal(10 * time.Second))
}
