package healthprobe

import (
	"context"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	t0      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errDown = errors.New("down")
)

func TestStateAfter(t *testing.T) {
	g := NewWithT(t)
	s := State{}.After(t0, nil)
	g.Expect(s).To(Equal(State{LastProbeTime: t0, LastProbeSuccessTime: t0}))
	s = s.After(t0.Add(1), errDown).After(t0.Add(2), errDown)
	g.Expect(s).To(Equal(State{LastProbeTime: t0.Add(2), LastProbeSuccessTime: t0, ConsecutiveFailures: 2, LastError: errDown}))
	g.Expect(s.After(t0.Add(3), nil)).To(Equal(State{LastProbeTime: t0.Add(3), LastProbeSuccessTime: t0.Add(3)}))
}

func TestDue(t *testing.T) {
	o := Options{}.WithDefaults()
	for name, tc := range map[string]struct {
		state  State
		spread float64
		want   time.Time
	}{
		"after a success":                 {State{LastProbeTime: t0, LastProbeSuccessTime: t0}, 0, t0.Add(60 * time.Second)},
		"spread forward":                  {State{LastProbeTime: t0, LastProbeSuccessTime: t0}, 0.5, t0.Add(57 * time.Second)},
		"after a failure":                 {State{}.After(t0, nil).After(t0.Add(time.Minute), errDown), 0.5, t0.Add(70 * time.Second)},
		"after a probe that told nothing": {State{LastProbeSuccessTime: t0, LastProbeTime: t0.Add(time.Minute), LastError: errDown}, 0, t0.Add(70 * time.Second)},
		"served since":                    {State{LastProbeSuccessTime: t0.Add(time.Second), LastProbeTime: t0, LastError: errDown}, 0, t0.Add(61 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(o.Due(tc.state, tc.spread)).To(Equal(tc.want))
		})
	}
}

// At FailureThreshold, not after it.
func TestFailed(t *testing.T) {
	g := NewWithT(t)
	o := Options{}.WithDefaults()
	g.Expect(o).To(Equal(Options{Interval: 10 * time.Second, IdentityInterval: time.Minute, Timeout: 5 * time.Second, FailureThreshold: 5}))
	g.Expect(o.Failed(State{ConsecutiveFailures: 4})).To(BeFalse())
	g.Expect(o.Failed(State{ConsecutiveFailures: 5})).To(BeTrue())
}

func TestClassify(t *testing.T) {
	reviews := schema.GroupResource{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}
	for name, tc := range map[string]struct {
		err  error
		want Verdict
	}{
		"none":                      {nil, Valid},
		"401":                       {errors.WithMessage(apierrors.NewUnauthorized("no"), "asking"), Unauthorized},
		"403":                       {apierrors.NewForbidden(reviews, "", errDown), Denied},
		"429":                       {apierrors.NewTooManyRequests("later", 1), Failing},
		"500":                       {apierrors.NewInternalError(errDown), Failing},
		"404":                       {apierrors.NewNotFound(reviews, ""), Failing},
		"refused":                   {&net.OpError{Op: "dial", Err: errDown}, Silent},
		"deadline":                  {context.DeadlineExceeded, Silent},
		"not even an error of ours": {errDown, Silent},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Classify(tc.err)).To(Equal(tc.want))
		})
	}
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
