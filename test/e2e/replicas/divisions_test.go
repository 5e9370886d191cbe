package replicas

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// The Leases of a fleet are deleted while a replica is suspended, and one with another number of
// buckets starts. It acts when the Leases of the former have ended, the former never again, and
// says why.
func TestTwoDivisions(t *testing.T) {
	g := NewWithT(t)
	name := fmt.Sprint("divisions-", time.Now().UnixMilli()) // which no other run of the test has in the audit log
	tenants := manyExtensions(t, name, 24)
	f := newFleet(t, name, options{Extensions: tenants, Buckets: 8})
	before := f.start()
	f.settle(len(tenants), 1)
	before.writes(t, 100)

	before.signal(syscall.SIGSTOP)
	deleteLeases(name)
	f.options.Buckets = 12
	after := f.start()
	f.replicas = f.replicas[1:] // the former cannot say that it is not connected any more
	f.settle(len(tenants), 1)
	after.writes(t, 100)
	before.signal(syscall.SIGCONT)
	g.Eventually(before.ended).WithTimeout(patience).Should(BeClosed())
	g.Expect(before.log.String()).To(ContainSubstring(`has ownership.latchkey.dev/buckets "12", and this replica has "8"`))
	after.writes(t, 100)

	again := startReplica(t, options{Name: name + "-again", Fleet: name, Buckets: 8, Extensions: tenants})
	g.Eventually(again.ended).WithTimeout(patience).Should(BeClosed())
	g.Expect(again.log.String()).To(ContainSubstring(`has ownership.latchkey.dev/buckets "12", and this replica has "8"`))
	after.writes(t, 100)

	var order []string
	for _, request := range tenantRequests(name) {
		order = append(order, request.replica)
	}
	g.Expect(slices.Compact(order)).To(Equal([]string{before.name, after.name}))
}
