package buckets

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"
)

// A Lease is free for a LeaderElector if the version that is stored has expired, and not if another
// version has followed.
func TestExpiredLeasesAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		leases := clientset.NewClientset().CoordinationV1()
		o := &observed{now: time.Now, longest: 15 * time.Second}
		see := func(lease *coordinationv1.Lease) { o.see(lease) }
		stored := lease("b", roleBucket, "one", "1")
		stored.Namespace = "n"
		_, err := leases.Leases("n").Create(t.Context(), stored, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		holder := func() string {
			got, err := expiringLeases{leases, see, o}.Leases("n").Get(t.Context(), "b", metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			return *got.Spec.HolderIdentity
		}
		g.Expect(holder()).To(Equal("one"), "it is observed from now on")
		time.Sleep(14 * time.Second)
		o.see(stored)
		g.Expect(holder()).To(Equal("one"), "it has not expired")
		time.Sleep(time.Second)
		g.Expect(holder()).To(BeEmpty())
		g.Expect(*stored.Spec.HolderIdentity).To(Equal("one"), "what was observed is not changed")
		renewed := lease("b", roleBucket, "one", "2")
		_, err = leases.Leases("n").Update(t.Context(), renewed, metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(holder()).To(Equal("one"), "the watch is late")
		time.Sleep(15 * time.Second)
		g.Expect(holder()).To(BeEmpty(), "the watch had no event for it")
		_, err = expiringLeases{leases, see, o}.Leases("n").Get(t.Context(), "none", metav1.GetOptions{})
		g.Expect(err).To(HaveOccurred())
	})
}
