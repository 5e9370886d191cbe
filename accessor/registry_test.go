package accessor

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// The reason of an extension without an accessor follows from what this replica is, and only then
// from what the host operator may read: a replica that does not lead reads nothing.
func TestAbsentReason(t *testing.T) {
	forbidden := errors.New("forbidden")
	const notStarted, notLeading = connstate.ReasonNotStarted, connstate.ReasonNotLeading
	const notOwned = connstate.ReasonNotOwned
	led := absence{oneLeads: true, leads: true}
	ledForbidden := absence{oneLeads: true, leads: true, mayNotRead: forbidden}
	for name, test := range map[string]struct {
		absence
		reason connstate.Reason
		cause  error
	}{
		"alone":                      {absence{}, notStarted, errUnknown},
		"alone, and may not read":    {absence{mayNotRead: forbidden}, connstate.ReasonOperatorForbidden, forbidden},
		"leads":                      {led, notStarted, errUnknown},
		"leads, and may not read":    {ledForbidden, connstate.ReasonOperatorForbidden, forbidden},
		"does not lead":              {absence{oneLeads: true}, notLeading, fence.ErrClosed},
		"neither leads nor may read": {absence{oneLeads: true, mayNotRead: forbidden}, notLeading, fence.ErrClosed},
		"shares":                     {absence{shared: true}, notOwned, errNotOwned},
		"shares, and may not read":   {absence{shared: true, mayNotRead: forbidden}, notOwned, errNotOwned},
		"shares, and does not lead":  {absence{oneLeads: true, shared: true}, notLeading, fence.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			reason, cause := absentReason(test.absence)
			g.Expect(reason).To(Equal(test.reason))
			g.Expect(cause).To(BeIdenticalTo(test.cause))
		})
	}
}
