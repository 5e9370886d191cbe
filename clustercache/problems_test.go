package clustercache

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A person sees in one word whether work gets done, and since when.
func TestSummary(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	degraded := []Problem{{Reason: ProblemScopesFailing, Message: "429", Since: at(7)},
		{Reason: ProblemKindsNotServed, Since: at(6)}, {Reason: ProblemRequestsRefused, Since: at(1), Muted: true}}
	for name, test := range map[string]struct {
		state ConnectionState
		want  Summary
	}{
		"connected": {ConnectionState{Phase: PhaseConnected, Since: at(1)}, Summary{"Connected", "", "", at(1)}},
		"degraded": {ConnectionState{Phase: PhaseConnected, Since: at(1), Problems: degraded},
			Summary{"Degraded", "ScopesFailing", "429", at(6)}},
		"muted": {ConnectionState{Phase: PhaseConnected, Since: at(1), Problems: degraded[2:]},
			Summary{"Connected", "", "", at(1)}},
		"connecting": {ConnectionState{
			Phase:             PhaseConnecting,
			Reason:            ReasonNotStarted,
			Since:             at(1),
			DisconnectedSince: at(1),
		},
			Summary{"Connecting", "NotStarted", "", at(1)}},
		"a retry": {ConnectionState{
			Phase:             PhaseConnecting,
			Reason:            ReasonUnreachable,
			Message:           "down",
			Epoch:             1,
			Since:             at(2),
			DisconnectedSince: at(1),
		}, Summary{"Disconnected", "Unreachable", "down", at(1)}},
	} {
		NewWithT(t).Expect(test.state.Summary()).To(Equal(test.want), name)
	}
}

// Only what a tenant causes can be muted.
func TestMutedReasons(t *testing.T) {
	g := NewWithT(t)
	all := ProblemOptions{Mute: []ProblemReason{ProblemCredentialNotUsed, ProblemScopesForbidden, ProblemRequestsRefused,
		ProblemKindsNotServed}}
	g.Expect(all.check()).To(Succeed())
	for _, reason := range []ProblemReason{ProblemProbesFailing, ProblemScopesFailing, "Nonsense", "all"} {
		options := ProblemOptions{Mute: []ProblemReason{ProblemScopesForbidden, reason}}
		g.Expect(options.check()).To(MatchError(ContainSubstring(`"` + string(reason) + `" is not one of`)))
	}
}
