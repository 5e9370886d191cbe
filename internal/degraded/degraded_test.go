package degraded

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func at(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }

func fault(what, why string, minute int) []Fault { return []Fault{{what, why, at(minute)}} }

func reasonsOf(problems []Problem) (all []Reason) {
	for _, p := range problems {
		all = append(all, p.Reason)
	}
	return all
}

// Each fact alone is a problem with its reason.
func TestProblems(t *testing.T) {
	for reason, facts := range map[Reason]Facts{
		ProbesFailing:     {Probe: fault("", "no answer", 1)},
		ScopesFailing:     {Failing: fault("", "no answer", 1)},
		CredentialNotUsed: {Credential: fault("", "no answer", 1)},
		ScopesForbidden:   {Forbidden: fault("", "no answer", 1)},
		RequestsRefused:   {Refused: fault("", "no answer", 1)},
		KindsNotServed:    {NotServed: fault("", "no answer", 1)},
	} {
		NewWithT(t).Expect(Problems(facts)).To(Equal([]Problem{{Reason: reason, Message: "no answer", Since: at(1)}}))
	}
	NewWithT(t).Expect(Problems(Facts{})).To(BeEmpty())
}

func everything() Facts {
	return Facts{
		Probe:      fault("", "no answer", 6),
		Credential: fault("", "expired", 5),
		Refused:    append(fault("may not create pods", "", 4), fault("may not get pods", "", 3)...),
		Failing:    fault("Pod", "broken", 7),
		Forbidden:  append(fault("Pod", "denied", 8), Fault{What: "Secret", Since: at(9)}),
		NotServed:  fault("Thing", "", 9),
	}
}

// The worst problem comes first, and what is muted last. Only what a tenant causes can be muted.
func TestOrderAndMuting(t *testing.T) {
	g := NewWithT(t)
	all := Problems(everything())
	g.Expect(reasonsOf(all)).To(Equal(Reasons))
	g.Expect(all[3]).To(Equal(Problem{Reason: ScopesForbidden, Message: "Pod: denied (and 1 more)", Since: at(8)}))
	g.Expect(all[4]).To(Equal(Problem{Reason: RequestsRefused, Message: "may not get pods (and 1 more)", Since: at(3)}))
	g.Expect(Is(all)).To(BeTrue())

	rest := []Reason{ProbesFailing, ScopesFailing}
	for _, muted := range []Facts{{Muted: Reasons}, {MutedHere: "all"},
		{MutedHere: "CredentialNotUsed,ScopesForbidden, RequestsRefused KindsNotServed, ProbesFailing,ScopesFailing"}} {
		facts := everything()
		facts.Muted, facts.MutedHere = muted.Muted, muted.MutedHere
		all = Problems(facts)
		g.Expect(reasonsOf(all)).To(Equal(append(append([]Reason{}, rest...), ByTenants...)))
		for n, p := range all {
			g.Expect(p.Muted).To(Equal(n >= len(rest)), string(p.Reason))
		}
	}
	facts := Facts{Forbidden: fault("Pod", "denied", 1), Refused: fault("x", "", 2), MutedHere: "ScopesForbidden, x"}
	g.Expect(reasonsOf(Problems(facts))).To(Equal([]Reason{RequestsRefused, ScopesForbidden}))
	facts.MutedHere = "all"
	g.Expect(Is(Problems(facts))).To(BeFalse())
	g.Expect(Is(nil)).To(BeFalse())
}
