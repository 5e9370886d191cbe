package accessor

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/internal/degraded"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Scopes that are read live, or begin, are as they should be.
func TestAddScopes(t *testing.T) {
	g := NewWithT(t)
	var facts degraded.Facts
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	fault := func(minute int) []degraded.Fault {
		return []degraded.Fault{{What: "Deployment.apps in namespace n", Why: "why", Since: at(minute)}}
	}
	for n, state := range []scopedcache.State{scopedcache.StateSyncing, scopedcache.StateSynced,
		scopedcache.StateForbidden, scopedcache.StateNotServed, scopedcache.StateFailing, scopedcache.StatePartial,
		scopedcache.StateLive} {
		AddScopes(&facts, []scopedcache.ScopeState{{
			GVK:       schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
			Scope:     scopedcache.Scope{Namespace: "n"},
			State:     state,
			Since:     at(n),
			LastError: errors.New("why"),
			Missed:    true,
		}, {State: state, Since: at(n + 10), LastError: errors.New("tried")}})
	}
	g.Expect(facts).To(Equal(degraded.Facts{
		Forbidden: fault(2),
		NotServed: fault(3),
		Failing:   append(fault(4), degraded.Fault{Why: "tried", Since: at(14)}),
	}))
}
