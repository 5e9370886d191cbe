package controllersharding

import (
	"testing"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Of two processes with one name, each sees the other's Lease as that of another holder. The
// sharder's label stays on the Lease. A Lease of another ring is refused.
func TestLock(t *testing.T) {
	g := NewWithT(t)
	leases := clientset.NewClientset().CoordinationV1()
	engines := []*Engine{newEngine(t), newEngine(t)}
	var locks []resourcelock.Interface
	for _, e := range engines {
		e.leases = leases
		locks = append(locks, e.lock())
	}
	holder := func(lock resourcelock.Interface) string {
		record, _, err := lock.Get(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return record.HolderIdentity
	}
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15}
	g.Expect(locks[0].Create(t.Context(), record)).To(Succeed())
	g.Expect(holder(locks[0])).To(Equal("me"))
	g.Expect(holder(locks[1])).To(Equal("me, process " + engines[0].process))
	stored := func() *coordinationv1.Lease {
		lease, err := leases.Leases("n").Get(t.Context(), "me", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return lease
	}
	lease := stored()
	lease.Labels["alpha.sharding.timebertt.dev/state"] = "ready"
	_, err := leases.Leases("n").Update(t.Context(), lease, metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(holder(locks[1])).NotTo(Equal("me"))
	g.Expect(locks[1].Update(t.Context(), record)).To(Succeed(), "it has expired")
	g.Expect(holder(locks[1])).To(Equal("me"))
	g.Expect(holder(locks[0])).To(Equal("me, process " + engines[1].process))
	g.Expect(*stored().Spec.HolderIdentity).To(Equal("me"), "what the sharder sees")
	g.Expect(stored().Labels).To(Equal(map[string]string{
		RingLabel:                            "ring",
		"alpha.sharding.timebertt.dev/state": "ready",
	}))

	lease = stored()
	lease.Labels[RingLabel] = "other"
	_, err = leases.Leases("n").Update(t.Context(), lease, metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = locks[0].Get(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring(`is of ring "other", not "ring": choose another Options.Shard`)))
}
