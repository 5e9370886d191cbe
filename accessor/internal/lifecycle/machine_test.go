package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// TestDue checks which attempt is due when. The times follow from the default options.
func TestDue(t *testing.T) {
	healthy := connstate.Health{}.After(epoch0, nil)
	silent := connstate.Health{LastProbeTime: epoch0, ConsecutiveFailures: 1, LastError: errServer}
	connected := func(change func(*Machine)) Machine {
		m := New(scenarioConfig, epoch0, 0)
		m.phase, m.credential, m.health = connstate.PhaseConnected, 1, healthy
		change(&m)
		return m
	}
	disconnected := func(change func(*Machine)) Machine {
		m := New(scenarioConfig, epoch0, 0)
		m.credential = 1
		change(&m)
		return m
	}
	newer := func(next time.Duration) func(*Machine) {
		return func(m *Machine) { m.rotation = &rotation{credential: 2, next: epoch0.Add(next)} }
	}
	for name, tc := range map[string]struct {
		machine Machine
		at      time.Duration // since epoch0
		seen    Observed
		want    AttemptKind
		delay   time.Duration // until the next check; negative for never
	}{
		"first": {machine: disconnected(func(*Machine) {}), want: Connect},
		"nothing to connect with": {
			machine: disconnected(func(m *Machine) {
				m.credential, m.nextConnect = 0, epoch0.Add(time.Minute)
			}),
			delay: time.Minute,
		},
		"backing off": {
			machine: disconnected(func(m *Machine) {
				m.nextConnect = epoch0.Add(time.Minute)
			}),
			delay: time.Minute,
		},
		"backoff over": {
			machine: disconnected(func(m *Machine) { m.nextConnect = epoch0 }),
			want:    Connect,
		},
		"connect under way": {
			machine: disconnected(func(m *Machine) {
				m.attempt = attempt{id: 1, kind: Connect}
			}),
			delay: -1,
		},
		"probe under way": {
			machine: connected(func(m *Machine) {
				m.attempt = attempt{id: 1, kind: Probe}
			}),
			at:    time.Hour,
			delay: -1,
		},
		"removed": {
			machine: disconnected(func(m *Machine) { m.stage = ending }),
			delay:   -1,
		},
		"healthy": {
			machine: connected(func(*Machine) {}),
			at:      time.Second,
			delay:   59 * time.Second,
		},
		"healthy, spread": {
			machine: connected(func(m *Machine) { m.jitter = 0.5 }),
			at:      time.Second,
			delay:   56 * time.Second,
		},
		"probe due": {machine: connected(func(*Machine) {}), at: time.Minute, want: Probe},
		"probe due, but served": {
			machine: connected(func(*Machine) {}),
			at:      time.Minute,
			seen:    Observed{Served: epoch0.Add(50 * time.Second)},
			delay:   50 * time.Second,
		},
		"probe due, served, but under impersonation": {
			machine: connected(func(m *Machine) {
				m.resolution.Impersonated = true
			}),
			at:   time.Minute,
			seen: Observed{Served: epoch0.Add(50 * time.Second)},
			want: Probe,
		},
		"probe due, but a sibling was verified, under impersonation": {
			machine: connected(func(m *Machine) {
				m.resolution.Impersonated = true
			}),
			at:    time.Minute,
			seen:  Observed{Verified: epoch0.Add(50 * time.Second)},
			delay: 50 * time.Second,
		},
		"a failed probe, and a sibling was verified": {
			machine: connected(func(m *Machine) {
				m.health = m.health.After(epoch0.Add(50*time.Second), errServer)
			}),
			at:    time.Minute,
			seen:  Observed{Verified: epoch0.Add(55 * time.Second)},
			delay: 55 * time.Second,
		},
		"a doubt after a sibling was verified": {
			machine: connected(func(m *Machine) { m.probeReason = unauthorized }),
			at:      10 * time.Second,
			seen:    Observed{Verified: epoch0.Add(9 * time.Second)},
			want:    Probe,
		},
		"a 401 right after a probe": {
			machine: connected(func(m *Machine) { m.probeReason = unauthorized }),
			at:      time.Second,
			delay:   9 * time.Second,
		},
		"a 401 long after a probe": {
			machine: connected(func(m *Machine) { m.probeReason = unauthorized }),
			at:      10 * time.Second,
			want:    Probe,
		},
		"a 401 after served requests": {
			machine: connected(func(m *Machine) { m.probeReason = unauthorized }),
			at:      10 * time.Second,
			seen:    Observed{Served: epoch0.Add(9 * time.Second)},
			want:    Probe,
		},
		"a 401, and a silent target": {
			machine: connected(func(m *Machine) { m.probeReason = unauthorized }),
			at:      9 * time.Second,
			seen:    Observed{Target: silent},
			delay:   time.Second,
		},
		"probe requested for all": {
			machine: connected(func(m *Machine) { m.probeReason = forAll }),
			want:    Probe,
		},
		"probe requested while not connected": {
			machine: disconnected(func(m *Machine) {
				m.probeReason, m.nextConnect = forAll, epoch0.Add(1)
			}),
			delay: 1,
		},
		"probe failed, next one not due": {
			machine: connected(func(m *Machine) {
				m.health = healthy.After(epoch0, errServer)
			}),
			at:    9 * time.Second,
			delay: time.Second,
		},
		"probe failed, next one due": {
			machine: connected(func(m *Machine) {
				m.health = healthy.After(epoch0, errServer)
			}),
			at:   10 * time.Second,
			want: Probe,
		},
		"probe inconclusive": {
			machine: connected(func(m *Machine) {
				m.health = healthy.Inconclusive(epoch0.Add(1), errServer)
			}),
			at:    1,
			delay: 10 * time.Second,
		},
		"probe due, but the target is silent": {
			machine: connected(func(*Machine) {}),
			at:      time.Hour,
			seen:    Observed{Target: silent},
			delay:   10 * time.Second,
		},
		"probe requested while the target is silent": {
			machine: connected(func(m *Machine) { m.probeReason = forAll }),
			seen:    Observed{Target: silent},
			want:    Probe,
		},
		"a newer credential":                 {machine: connected(newer(0)), want: Verify},
		"a newer credential, tried just now": {machine: connected(newer(time.Second)), delay: time.Second},
		"a newer credential, much later": {
			machine: connected(newer(time.Hour)),
			at:      time.Second,
			delay:   59 * time.Second,
		},
		"a newer credential, and a probe requested for all": {
			machine: connected(func(m *Machine) {
				newer(0)(m)
				m.probeReason = forAll
			}),
			want: Probe,
		},
		"a newer credential, and a 401": {
			machine: connected(func(m *Machine) {
				newer(0)(m)
				m.probeReason = unauthorized
			}),
			want: Verify,
		},
		"a newer credential, and a silent target": {
			machine: connected(newer(0)),
			seen:    Observed{Target: silent},
			delay:   10 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			now := epoch0.Add(tc.at)
			kind, at := tc.machine.due(now, tc.seen)
			g.Expect(kind).To(Equal(tc.want))
			if tc.delay < 0 {
				g.Expect(at).To(BeZero())
			} else {
				g.Expect(at.Sub(now)).To(Equal(tc.delay))
			}
		})
	}
}

func TestSnapshot(t *testing.T) {
	g := NewWithT(t)
	p := &player{now: epoch0, generation: 3}
	p.machine = New(scenarioConfig, epoch0, 0)
	do := func(words ...string) Snapshot {
		_, err := p.do(words)
		g.Expect(err).NotTo(HaveOccurred())
		return p.machine.Snapshot(p.now, p.seen)
	}
	g.Expect(p.machine.Snapshot(p.now, Observed{})).
		To(
			Equal(Snapshot{
				Phase:             connstate.PhaseDisconnected,
				Reason:            connstate.ReasonNotStarted,
				Since:             epoch0,
				DisconnectedSince: epoch0,
				HealthSince:       epoch0,
				LastSuccess:       epoch0,
			}))
	s := do("resolve-error", "reason=NotAllowed", "source=elsewhere")
	g.Expect(s.Source).To(Equal("elsewhere"), "the source is known without a credential")
	g.Expect(s.Err).To(MatchError("failed"))
	s = do("resolved", "source=here")
	g.Expect(s.Phase).To(Equal(connstate.PhaseConnecting))
	g.Expect(s.Healthy).To(BeFalse())
	do("wait", "1s")
	s = do("answer", "user=red")
	g.Expect(s).
		To(Equal(Snapshot{
			Phase:           connstate.PhaseConnected,
			Since:           p.now,
			Epoch:           1,
			Generation:      3,
			Source:          "here",
			Credential:      s.Credential,
			CredentialSince: p.now,
			Health:          connstate.Health{}.After(p.now, nil),
			LastSuccess:     p.now,
			Proven:          true,
			Healthy:         true,
			HealthSince:     p.now,
		}))
	g.Expect(s.Credential).NotTo(BeZero())

	connectedAt := p.now
	do("wait", "60s")
	do("resolved", "source=here")
	s = do("answer", "403")
	g.Expect(s.Healthy).To(BeFalse(), "a denied review is not a success")
	g.Expect(s.LastSuccess).To(Equal(connectedAt))
	do("wait", "1s")
	s = do("served")
	g.Expect(s.Healthy).To(BeTrue(), "a served request is a success")
	g.Expect(s.LastSuccess).To(Equal(p.now))
	do("wait", "1s")
	s = do("target", "silent")
	g.Expect(s.Healthy).To(BeFalse())
	g.Expect(s.Health.ConsecutiveFailures).To(Equal(1), "while the target is silent, the connection is not healthy")
	do("target")
	do("resolved", "source=here", "version=2")
	s = do("answer", "401")
	g.Expect(s.Err).To(MatchError(ContainSubstring("the newest is not used: here: failed")))
}

// What served a connection counts after its end, whatever ended it: an alert that counts from the
// last success does not fire because of the hours in which no probe was needed.
func TestSuccessOutlivesTheConnection(t *testing.T) {
	for _, end := range [][]string{
		{"resolve-error", "reason=InvalidCredential"},
		{"resolved", "source=elsewhere", "key=other"},
	} {
		g := NewWithT(t)
		p := &player{now: epoch0, generation: 1}
		p.machine = New(scenarioConfig, epoch0, 0)
		do := func(words ...string) Snapshot {
			_, err := p.do(words)
			g.Expect(err).NotTo(HaveOccurred(), "%q", words)
			return p.machine.Snapshot(p.now, p.seen)
		}
		do("resolved", "source=here")
		g.Expect(do("answer", "user=red").Phase).To(Equal(connstate.PhaseConnected))
		do("wait", "1s")
		served := do("served").LastSuccess
		g.Expect(served).To(Equal(p.now))
		do("wait", "1s")
		s := do(end...)
		g.Expect(s.Phase).NotTo(Equal(connstate.PhaseConnected))
		g.Expect(s.LastSuccess).To(Equal(served))
	}
}

func TestStanding(t *testing.T) {
	g := NewWithT(t)
	p := &player{now: epoch0, generation: 1}
	p.machine = New(scenarioConfig, epoch0, 0)
	step := func(words ...string) (connected bool, waits time.Duration) {
		_, err := p.do(words)
		g.Expect(err).NotTo(HaveOccurred())
		connected, _, until := p.machine.Standing()
		if until.IsZero() {
			return connected, -1
		}
		return connected, until.Sub(p.now)
	}
	expect := func(connected bool, waits time.Duration) func(bool, time.Duration) {
		return func(c bool, w time.Duration) { t.Helper(); g.Expect([]any{c, w}).To(Equal([]any{connected, waits})) }
	}
	expect(false, -1)(step("resolved"))
	expect(false, -1)(step("answer", "500")) // the machine waits, but not for the target
	step("wait", "30s")
	step("resolved")
	expect(false, time.Minute)(step("answer", "silence"))
	expect(false, time.Second)(step("retry", "in=1s"))
	step("wait", "1s")
	step("resolved")
	expect(true, -1)(step("answer", "user=red"))
	expect(false, 30*time.Second)(step("target-down"))
	expect(false, -1)(step("resolve-error", "reason=Unreachable", "serviceaccount=another")) // the machine has no target
}

func TestAcceptsProbe(t *testing.T) {
	g := NewWithT(t)
	p := &player{now: epoch0, generation: 1}
	p.machine = New(scenarioConfig, epoch0, 0)
	accepts := func(words ...string) bool {
		_, err := p.do(words)
		g.Expect(err).NotTo(HaveOccurred())
		return p.machine.AcceptsProbe(ProbeRequested{Target: p.target})
	}
	g.Expect(accepts("resolved")).To(BeFalse())
	g.Expect(accepts("answer", "user=red")).To(BeTrue())
	g.Expect(p.machine.AcceptsProbe(ProbeRequested{Target: p.target + 1})).To(BeFalse())
	g.Expect(accepts("resolved", "version=2")).To(BeTrue(), "a verify does not prevent a probe")
	g.Expect(accepts("resolved")).To(BeTrue())
	accepts("wait", "60s")
	g.Expect(accepts("resolved")).To(BeFalse(), "a probe is under way")
}
