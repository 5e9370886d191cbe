package targets

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

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
