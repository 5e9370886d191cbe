package peers

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A replica knows whether it has missed a member: there are Leases that it was not shown yet.
func TestCheckMembers(t *testing.T) {
	g := NewWithT(t)
	p, _ := fleetOf(t, "fleet")
	client, events := clientset.NewClientset(), watch.NewFake()
	client.PrependWatchReactor("leases", clienttesting.DefaultWatchReactor(events, nil))
	p.leases, p.watching, p.checking = client.CoordinationV1(), client.CoordinationV1(), client.CoordinationV1()
	fails := false
	client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fails, nil, apierrors.NewServiceUnavailable("it starts")
	})
	create := func(name, holder string) *coordinationv1.Lease {
		lease, err := client.CoordinationV1().Leases("ns").Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{FleetLabel: "fleet"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return lease
	}
	me := create(p.options.leaseName("me"), "me 127.0.0.1:1")
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	g.Expect(p.CheckMembers(short)).To(MatchError(context.DeadlineExceeded))

	ctx, end := context.WithCancel(logr.NewContext(context.Background(), logr.Discard()))
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		p.follow(ctx)
	}()
	t.Cleanup(func() {
		end()
		<-followed
		p.running.Wait()
	})
	check := func() error { return p.CheckMembers(t.Context()) }
	g.Expect(check()).To(MatchError("the replicas are not known yet"))
	events.Add(me)
	events.Action(watch.Bookmark, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "1",
		Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	g.Eventually(check).WithTimeout(patience).Should(Succeed())
	create("fleet-peer-of-nothing", "stranger 127.0.0.1:1") // no member's
	g.Expect(check()).To(Succeed())

	you := create(p.options.leaseName("you"), "you 127.0.0.1:1")
	g.Expect(check()).To(MatchError("replica you is not known yet"))
	g.Expect(p.listener.(*heard).all()).NotTo(ContainElement("members you"))
	events.Add(you)
	g.Eventually(check).WithTimeout(patience).Should(Succeed())
	g.Expect(p.listener.(*heard).all()).To(ContainElement("members you"))

	renewed := you.DeepCopy() // and that was seen so late that the one before counts as expired
	renewed.ResourceVersion = "2"
	_, err := client.CoordinationV1().Leases("ns").Update(t.Context(), renewed, metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(check()).To(Succeed())
	late := func(lease *coordinationv1.Lease) (err error) {
		checked := make(chan struct{})
		g.Expect(p.do(t.Context(), func(now time.Time) {
			defer close(checked)
			err = p.missing([]coordinationv1.Lease{*lease}, now.Add(p.observed.longest))
		})).To(Succeed())
		<-checked
		return err
	}
	g.Expect(late(renewed)).To(MatchError("replica you is not known yet"))
	g.Expect(late(you)).To(Succeed())

	moved := you.DeepCopy() // to another address
	*moved.Spec.HolderIdentity = "you 127.0.0.2:1"
	_, err = client.CoordinationV1().Leases("ns").Update(t.Context(), moved, metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(check()).To(MatchError("replica you is not known yet"))
	g.Expect(client.CoordinationV1().Leases("ns").Delete(t.Context(), you.Name, metav1.DeleteOptions{})).To(Succeed())
	g.Expect(check()).To(Succeed())
	fails = true
	g.Expect(check()).To(MatchError(ContainSubstring("it starts")))
}
