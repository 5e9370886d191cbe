package replicas

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A fleet changes from one leader to replicas that share, and back, as in a rolling update and its
// rollback: old and new replicas run at the same time, and never act at the same time, also not one
// that was suspended.
func TestLeaderAndBuckets(t *testing.T) {
	g := NewWithT(t)
	name := fmt.Sprint("change-", time.Now().UnixMilli()) // which no other run of the test has in the audit log
	tenants := manyExtensions(t, name, 24)
	t.Cleanup(func() { _, _ = cp.Kubectl(context.Background(), "delete", "lease", leaderLease, "--ignore-not-found") })
	f := newFleet(t, name, options{Extensions: tenants, Buckets: 8, WithLeaderLease: true})
	waits := func(r *replica) {
		g.Eventually(r.log.String).WithTimeout(patience).Should(Or(
			ContainSubstring("Waits until the leader has ended"), ContainSubstring("Attempting to acquire leader lease")))
	}
	before := startReplica(t, options{Name: name + "-leader-before", Extensions: tenants})
	before.writes(t, 100)
	first, second := f.start(), f.start()
	waits(first)
	waits(second)
	before.writes(t, 100)
	g.Expect(first.requests() + second.requests()).To(BeZero())

	before.signal(syscall.SIGTERM)
	<-before.ended
	f.settle(len(tenants), 2)
	after := startReplica(t, options{Name: name + "-leader-after", Extensions: tenants})
	waits(after)
	first.signal(syscall.SIGTERM)
	<-first.ended
	f.settle(len(tenants), 1)
	second.writes(t, 100)
	g.Expect(after.requests()).To(BeZero(), "a replica still shares")
	second.signal(syscall.SIGSTOP)
	stopped := time.Now()
	after.writes(t, 100)
	t.Logf("led %s after the last replica that shares was suspended", time.Since(stopped).Round(time.Millisecond))
	second.signal(syscall.SIGCONT)
	g.Eventually(second.ended).WithTimeout(patience).Should(BeClosed())
	g.Expect(second.log.String()).To(ContainSubstring("Lease default/replicas, which keeps leaders away"))
	after.writes(t, 100)

	var order []string
	for _, request := range tenantRequests(name) {
		way, _, _ := strings.Cut(request.replica, "-replica-")
		order = append(order, strings.TrimPrefix(way, name))
	}
	g.Expect(slices.Compact(order)).To(Equal([]string{"-leader-before", "", "-leader-after"}))
}
