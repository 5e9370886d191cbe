package buckets

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lease returns a version of a Lease that was renewed now.
func lease(name, role, holder, version string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, Labels: map[string]string{roleLabel: role}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), RenewTime: &now}}
}

// A Lease expires when it has not changed for its duration since it was seen, whatever the times in
// it.
func TestLeasesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := &observed{now: time.Now, longest: 15 * time.Second}
		late := lease("b", roleBucket, "one", "1")
		late.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-time.Hour)} // another replica's clock
		g.Expect(o.see(late)).To(BeTrue())
		holder := func() string { return o.get("b").holder(o.now()) }
		g.Expect(holder()).To(Equal("one"))
		time.Sleep(14 * time.Second)
		g.Expect(o.see(late)).To(BeFalse(), "a list has it again")
		g.Expect(holder()).To(Equal("one"))
		g.Expect(o.see(lease("b", roleBucket, "one", "2"))).To(BeFalse(), "a renewal is no news")
		time.Sleep(14 * time.Second)
		g.Expect(holder()).To(Equal("one"))
		next, ok := o.nextExpiry(o.now())
		g.Expect(ok).To(BeTrue())
		g.Expect(next).To(Equal(time.Second))
		time.Sleep(time.Second)
		g.Expect(holder()).To(BeEmpty())
		_, ok = o.nextExpiry(o.now())
		g.Expect(ok).To(BeFalse())
		g.Expect(o.see(lease("b", roleBucket, "one", "3"))).To(BeTrue(), "it is held again")
		g.Expect(o.see(lease("b", roleBucket, "two", "4"))).To(BeTrue(), "it has another holder")
		g.Expect(o.see(lease("b", roleBucket, "", "5"))).To(BeTrue(), "it is released")
		g.Expect(holder()).To(BeEmpty())
		o.gone("b")
		g.Expect(o.get("b").lease).To(BeNil())
		o.see(lease("b", roleBucket, "one", "6"))
		o.gone("b")
		g.Expect(holder()).To(Equal("one"), "it does not know yet that its Lease was deleted")
		time.Sleep(15 * time.Second)
		g.Expect(holder()).To(BeEmpty())
	})
}

// Members that ended before this replica began do not count, and their Leases are forgotten.
func TestMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := &observed{now: time.Now, longest: 15 * time.Second}
		members := func() []string { list, _ := o.members(o.now()); return list }
		dead := lease("m-dead", roleMember, "dead", "1")
		time.Sleep(time.Minute)
		o.see(dead)
		o.see(lease("m-two", roleMember, "two", "2"))
		o.see(lease("m-one", roleMember, "one", "3"))
		o.see(lease("m-left", roleMember, "", "4"))
		o.see(lease("b", roleBucket, "other", "5"))
		g.Expect(members()).To(Equal([]string{"one", "two"}))
		g.Expect(o.expiredMembers(o.now(), 46*time.Second)).To(BeEmpty())
		g.Expect(o.expiredMembers(o.now(), 45*time.Second)).To(ConsistOf(dead))
		o.see(lease("m-dead", roleMember, "dead", "6"))
		g.Expect(members()).To(Equal([]string{"dead", "one", "two"}), "it lives after all")

		ghost := lease("m-ghost", roleMember, "ghost", "8")
		ghost.Spec.LeaseDurationSeconds = new(int32(1 << 30))
		o.see(ghost)
		serves := lease("m-one", roleMember, "one", "7")
		serves.Annotations = map[string]string{servesAnnotation: "3,x,,5"}
		g.Expect(o.see(serves)).To(BeTrue())
		_, serving := o.members(o.now())
		g.Expect(serving["one"]).To(Equal([]int{3, 5}))
		time.Sleep(16 * time.Second)
		g.Expect(members()).To(BeEmpty())
	})
}
