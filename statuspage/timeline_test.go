package statuspage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(second int) time.Time { return t0.Add(time.Duration(second) * time.Second) }

// connected returns a state with a connection.
func connected(change ...func(*clustercache.ConnectionState)) clustercache.ConnectionState {
	state := clustercache.ConnectionState{
		Extension:       client.ObjectKey{Name: "red"},
		UID:             "1",
		Phase:           clustercache.PhaseConnected,
		Since:           at(1),
		Epoch:           1,
		Identity:        clustercache.Identity{Username: "system:serviceaccount:ns:sa"},
		Target:          "https://server",
		Source:          "serviceaccount ns/sa",
		CredentialSince: at(1),
		TokenExpires:    at(3600),
		Healthy:         true,
		HealthSince:     at(1),
		Scopes:          []clustercache.ScopeState{scope("ConfigMap", clustercache.StateSynced, "")},
	}
	for _, c := range change {
		c(&state)
	}
	return state
}

func scope(kind string, state scopedcache.State, err string) clustercache.ScopeState {
	s := clustercache.ScopeState{
		GVK:            schema.GroupVersionKind{Version: "v1", Kind: kind},
		Scope:          clustercache.Scope{Namespace: "ns"},
		Representation: "Typed",
		State:          state,
	}
	if err != "" {
		s.LastError = errors.New(err)
	}
	return s
}

func disconnected(reason clustercache.Reason, message string) clustercache.ConnectionState {
	return connected(func(s *clustercache.ConnectionState) {
		s.Phase, s.Reason, s.Message, s.DisconnectedSince = clustercache.PhaseDisconnected, reason, message, at(5)
		s.Identity, s.CredentialSince, s.TokenExpires, s.Scopes = clustercache.Identity{}, time.Time{}, time.Time{}, nil
		s.Healthy = false
	})
}

func TestEntriesBetween(t *testing.T) {
	type state = clustercache.ConnectionState
	starting := disconnected(clustercache.ReasonNotStarted, "")
	starting.Epoch, starting.DisconnectedSince = 0, at(0)
	first := entry{at(1), entryConnected, "", "connect 1, as system:serviceaccount:ns:sa to https://server"}
	for name, tc := range map[string]struct {
		old  *state
		next state
		want []entry
	}{
		"not known, starting":  {nil, starting, nil},
		"not known, connected": {nil, connected(), []entry{first}},
		"not known, disconnected": {nil, disconnected(clustercache.ReasonNotAllowed, "no"),
			[]entry{{at(9), entryNotConnected, "NotAllowed", "no"}}},
		"connected": {&starting, connected(), []entry{first}},
		"the same":  {new(connected()), connected(), nil},
		"disconnected": {new(connected()), disconnected(clustercache.ReasonUnauthorized, "401"),
			[]entry{{at(5), entryDisconnected, "Unauthorized", "401"}}},
		"a retry": {new(disconnected(clustercache.ReasonUnauthorized, "401")),
			func() state {
				s := disconnected(clustercache.ReasonUnauthorized, "401 again")
				s.Phase, s.Since = clustercache.PhaseConnecting, at(8)
				return s
			}(), nil},
		"connected again": {new(disconnected(clustercache.ReasonUnauthorized, "401")),
			connected(func(s *state) { s.Epoch, s.Since = 2, at(7) }),
			[]entry{{at(7), entryConnected, "", "connect 2, as system:serviceaccount:ns:sa to https://server"}}},
		"another reason": {new(disconnected(clustercache.ReasonUnauthorized, "401")),
			disconnected(clustercache.ReasonUnreachable, "refused"),
			[]entry{{at(9), entryNotConnected, "Unreachable", "refused"}}},
		"connected again in between": {new(connected()), connected(func(s *state) {
			s.Epoch, s.Since, s.CredentialSince = 3, at(7), at(7)
		}),
			[]entry{{at(7), entryDisconnected, "", "ended and connected again"},
				{at(7), entryConnected, "", "connect 3, as system:serviceaccount:ns:sa to https://server"}}},
		"another credential": {new(connected()), connected(func(s *state) {
			s.CredentialSince, s.TokenExpires = at(8), at(9000)
		}),
			[]entry{{at(8), entryRotated, "", "the connection uses another credential: serviceaccount ns/sa"}}},
		"a renewed token": {new(connected()), connected(func(s *state) { s.TokenExpires = at(7200) }),
			[]entry{{at(9), entryRotated, "", "renewed token, valid until 2026-01-01T02:00:00Z"}}},
		"credential not used": {new(connected()), connected(func(s *state) { s.Message = "the newest is not used" }),
			[]entry{{at(9), entryNotUsed, "", "the newest is not used"}}},
		"credential used": {new(connected(func(s *state) { s.Message = "the newest is not used" })), connected(),
			[]entry{{at(9), entryUsed, "", "the newest credential is in use"}}},
		"connected, credential not used": {&starting, connected(func(s *state) { s.Message = "the newest is not used" }),
			[]entry{first, {at(9), entryNotUsed, "", "the newest is not used"}}},
		"requests refused": {new(connected()), connected(func(s *state) {
			s.Problems = []clustercache.Problem{{Reason: clustercache.ProblemKindsNotServed, Message: "Thing"},
				{Reason: clustercache.ProblemRequestsRefused, Message: "may not create pods", Since: at(8), Muted: true}}
		}), []entry{{at(9), entryRefused, "", "may not create pods"}}},
		"requests granted": {new(connected(func(s *state) {
			s.Problems = []clustercache.Problem{{Reason: clustercache.ProblemRequestsRefused, Message: "may not create pods"}}
		})), connected(), []entry{{at(9), entryGranted, "", "or not sent again for ten minutes"}}},
		"probe fails": {new(connected()), connected(func(s *state) {
			s.Healthy, s.HealthSince, s.Health.LastError = false, at(6), errors.New("timeout")
		}), []entry{{at(6), entryProbeFailed, "", "timeout"}}},
		"probe succeeds": {new(connected(func(s *state) { s.Healthy = false })),
			connected(func(s *state) { s.HealthSince = at(7) }), []entry{{at(7), entryProbeOK, "", ""}}},
		"scope forbidden": {new(connected()), connected(func(s *state) {
			s.Scopes = []clustercache.ScopeState{scope("ConfigMap", clustercache.StateForbidden, "denied")}
		}), []entry{{at(9), entryScope, "Forbidden", "ConfigMap in namespace ns (Typed): denied"}}},
		"scope back": {new(connected(func(s *state) {
			s.Scopes = []clustercache.ScopeState{scope("ConfigMap", clustercache.StateForbidden, "denied")}
		})), connected(), []entry{{at(9), entryScope, "Synced", "ConfigMap in namespace ns (Typed): delivers again"}}},
		"scope syncing again": {new(connected(func(s *state) {
			s.Scopes = []clustercache.ScopeState{scope("ConfigMap", clustercache.StateForbidden, "denied")}
		})), connected(func(s *state) {
			s.Scopes = []clustercache.ScopeState{scope("ConfigMap", clustercache.StateSyncing, "")}
		}), nil},
		"another object": {new(connected()), func() state { s := starting; s.UID = "2"; return s }(),
			[]entry{{at(9), entryRecreated, "", "another object has the name now: UID 2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var old *seen
			if tc.old != nil {
				old = new(seenOf(nil, *tc.old))
			}
			got := entriesBetween(old, seenOf(old, tc.next), tc.next, at(9))
			NewWithT(t).Expect(got).To(Equal(tc.want))
		})
	}
}

// A scope that was forbidden, and syncs for a while before it delivers, is reported to deliver.
func TestScopeThatSyncsAgain(t *testing.T) {
	g := NewWithT(t)
	f := newFleet()
	for i, state := range []scopedcache.State{clustercache.StateSynced, clustercache.StateForbidden,
		clustercache.StateSyncing, clustercache.StateSynced} {
		f.update([]client.ObjectKey{{Name: "red"}}, func(client.ObjectKey) (shown, bool) {
			return own(connected(func(s *clustercache.ConnectionState) {
				s.Scopes = []clustercache.ScopeState{scope("ConfigMap", state, "")}
			})), true
		}, at(i))
	}
	timeline, _ := f.timeline(client.ObjectKey{Name: "red"})
	g.Expect(timeline).To(HaveLen(3))
	g.Expect(timeline[0].Reason).To(Equal("Synced"))
	g.Expect(timeline[1].Reason).To(Equal("Forbidden"))
}

// A text that is too long ends at a character.
func TestCut(t *testing.T) {
	g := NewWithT(t)
	g.Expect(cut("short")).To(Equal("short"))
	for _, text := range []string{strings.Repeat("ü", 400), "x" + strings.Repeat("ü", 400),
		"xx" + strings.Repeat("…", 400)} {
		short := cut(text)
		g.Expect(len(short)).To(And(BeNumerically("<=", maxMessage), BeNumerically(">", maxMessage-8)))
		g.Expect(short).To(HaveSuffix("…"))
		g.Expect(short).NotTo(ContainSubstring("�"))
	}
}

// The newest entries stay, of an extension and of all. An extension with many entries takes none
// from others.
func TestTimelinesAreBounded(t *testing.T) {
	g := NewWithT(t)
	var lines timelines
	first := client.ObjectKey{Name: "first"}
	lines.add(first, entry{Message: "first"})
	busy := client.ObjectKey{Name: "busy"}
	for n := range 3 * maxAllEntries {
		lines.add(busy, entry{Message: fmt.Sprint(n)})
	}
	g.Expect(lines.of(busy)).To(HaveLen(maxEntries))
	g.Expect(lines.of(busy)[0].Message).To(Equal(fmt.Sprint(3*maxAllEntries - 1)))
	g.Expect(lines.of(busy)[maxEntries-1].Message).To(Equal(fmt.Sprint(3*maxAllEntries - maxEntries)))
	g.Expect(lines.of(first)).To(HaveLen(1), "although others had more entries than all may have")
	g.Expect(len(lines.order)).To(BeNumerically("<=", 2*maxAllEntries))
	for n := range maxAllEntries - maxEntries {
		lines.add(client.ObjectKey{Name: fmt.Sprint("other", n)}, entry{})
	}
	g.Expect(lines.of(first)).To(BeEmpty())
	g.Expect(lines.of(busy)).To(HaveLen(maxEntries), "what is gone already takes nothing else with it")
	for n := range maxAllEntries {
		lines.add(client.ObjectKey{Name: fmt.Sprint(n)}, entry{}, entry{})
	}
	g.Expect(lines.of(busy)).To(BeEmpty())
	all := 0
	for _, own := range lines.byKey {
		all += len(own)
	}
	g.Expect(all).To(Equal(maxAllEntries))
	g.Expect(lines.count).To(Equal(maxAllEntries))
	g.Expect(lines.of(client.ObjectKey{Name: fmt.Sprint(maxAllEntries - 1)})).To(HaveLen(2))
}

// The timeline of a removed extension is there for an hour, unless the extension comes back.
func TestTimelinesOfRemovedExtensions(t *testing.T) {
	g := NewWithT(t)
	f := newFleet()
	known := map[string]bool{"gone": true, "back": true, "stays": true}
	update := func(second int, names ...string) {
		var keys []client.ObjectKey
		for _, name := range names {
			keys = append(keys, client.ObjectKey{Name: name})
		}
		f.update(keys, func(key client.ObjectKey) (shown, bool) { return own(connected()), known[key.Name] }, at(second))
	}
	entries := func(name string) int {
		timeline, _ := f.timeline(client.ObjectKey{Name: name})
		return len(timeline)
	}
	update(0, "gone", "back", "stays")
	known["gone"], known["back"] = false, false
	update(10, "gone", "back")
	known["back"] = true
	update(20, "back")
	update(3609, "stays")
	g.Expect(entries("gone")).To(Equal(2))
	update(3610, "stays")
	g.Expect(entries("gone")).To(BeZero())
	g.Expect(entries("back")).To(Equal(3))
	g.Expect(entries("stays")).To(Equal(1))
	g.Expect(f.timelines.count).To(Equal(4))
	known["back"] = false
	update(4000, "back")
	update(7599, "stays")
	g.Expect(entries("back")).To(Equal(4), "the hour begins with the last removal")
	update(7600, "stays")
	g.Expect(entries("back")).To(BeZero())
}
