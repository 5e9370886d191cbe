package targets

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// A new request makes the guard forget only what cannot be written any more: not a request that is
// under way, and not one whose term has ended, however long ago it returned.
func TestGuardRemembers(t *testing.T) {
	for name, returned := range map[string]func() time.Time{
		"under way":       func() time.Time { return time.Time{} },
		"returned before": func() time.Time { return time.Now().Add(-2 * lateWrite) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			lease, f := testutil.NewLease()
			lease.Renew(3600)
			own, part := &guard{}, f.Term().Part()
			use := own.begin(part)
			use.returned = returned()
			if name == "returned before" {
				part.End("given up")
			}
			own.begin(f.Term())
			if name == "under way" {
				part.End("given up")
			}
			g.Expect(own.check()).To(MatchError(fence.ErrClosed))
		})
	}
}

// The probe of the last member may end after it has left the target.
func TestReportAfterLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, tm := NewWithT(t), newTeam(t)
		one := tm.addConnected("one", 0)
		one.Leave()
		one.Report(Outcome{Asked: time.Now(), ForAll: true, Err: errDown})
		g.Expect(one.Health().ConsecutiveFailures).To(BeZero(), "nothing is remembered")
		g.Expect(tm.calls).To(BeEmpty())
	})
}
