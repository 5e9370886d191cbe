package e2e

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

var churning = flag.Duration("churning", 40*time.Second,
	"how long RBAC that concerns others changes, while 100 permissions are revoked")

// soonRevoked is within what time a revocation is seen with WatchRBAC.
const soonRevoked = 5 * time.Second

// Whatever happens to the roles and bindings of others, a revocation is seen as soon as ever: a
// change makes only those ask whom it concerns.
func TestRevocationsWhileRBACChanges(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "rbac-events-"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "latchkey-rbac-events"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: operatorUser}}})
	const tenants = 100
	name := func(i int) string { return fmt.Sprintf("revoked-%d", i) }
	for i := range tenants {
		tenant(t, ns, name(i))
	}
	o := startOperator(t,
		clustercache.Options{Cache: clustercache.CacheOptions{AccessReviewInterval: time.Hour, WatchRBAC: true}})
	readers := make([]client.Reader, tenants)
	for i := range readers {
		o.waitConnected(t, name(i))
		var err error
		readers[i], err = o.GetReader(ctx, key(name(i)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(readers[i].List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
	}

	// What concerns others changes every two seconds, in each of the four kinds, in the same
	// namespace too.
	other := rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "another"}
	clusterRole := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "churn-" + ns}}
	clusterBinding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "churn-" + ns},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "churn-" + ns}}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "churn"}}
	binding := roleBinding(ns, "churn", other)
	for _, object := range []client.Object{clusterRole, clusterBinding, role, binding} {
		create(t, object)
	}
	stop := make(chan struct{})
	var working sync.WaitGroup
	changes := 0
	working.Go(func() {
		for ticker := time.NewTicker(2 * time.Second); ; changes++ {
			select {
			case <-stop:
				ticker.Stop()
				return
			case <-ticker.C:
			}
			rules := []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{fmt.Sprintf("things-%d", changes)}, Verbs: []string{"get"}},
			}
			subjects := []rbacv1.Subject{
				other, {Kind: "User", APIGroup: rbacv1.GroupName, Name: fmt.Sprintf("user-%d", changes)},
			}
			var changed client.Object
			switch changes % 4 {
			case 0:
				clusterRole.Rules, changed = rules, clusterRole
			case 1:
				clusterBinding.Subjects, changed = subjects, clusterBinding
			case 2:
				role.Rules, changed = rules, role
			case 3:
				binding.Subjects, changed = subjects, binding
			}
			if err := admin.Update(context.Background(), changed); err != nil {
				t.Error(err)
			}
		}
	})

	seen := make([]time.Duration, tenants)
	for i := range tenants {
		<-time.After(*churning / tenants)
		g.Expect(admin.Delete(ctx, roleBinding(ns, name(i)))).To(Succeed())
		revoked := time.Now()
		working.Go(func() {
			for look := time.NewTicker(20 * time.Millisecond); time.Since(revoked) < patience; <-look.C {
				if apierrors.IsForbidden(readers[i].List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns))) {
					look.Stop()
					seen[i] = time.Since(revoked)
					return
				}
			}
			t.Errorf("the revocation of %s was not seen within %s", name(i), patience)
		})
	}
	close(stop)
	working.Wait()
	soon, worst := 0, time.Duration(0)
	for _, after := range seen {
		if worst = max(worst, after); after <= soonRevoked {
			soon++
		}
	}
	t.Logf("%d of %d revocations were seen within %s, the last after %s, beside %d changes that concern others", soon,
		tenants, soonRevoked, worst.Round(10*time.Millisecond), changes)
	g.Expect(soon).To(BeNumerically(">=", tenants-1))
	g.Expect(changes).To(BeNumerically(">=", int(*churning/(4*time.Second))))
}
