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
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

var churning = flag.Duration("churning", testenv.Long(12*time.Second, 40*time.Second),
	"how long RBAC of other subjects changes while the test revokes a permission every 400 ms, 100 at most")

// soonRevoked is the time within which a revocation takes effect with WatchRBAC.
const soonRevoked = 5 * time.Second

// TestRevocationsWhileRBACChanges checks that revocations take effect within soonRevoked while RBAC
// of other subjects changes. A change to RBAC causes access reviews only for the subjects of that
// change.
func TestRevocationsWhileRBACChanges(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	bindOperator(t, "latchkey-rbac-events")
	tenants := min(int(*churning/(400*time.Millisecond)), 100)
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

	// RBAC of other subjects changes every two seconds, in each of the four kinds, in the same
	// namespace too.
	other := rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "another"}
	clusterRole := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "churn-" + ns}}
	clusterBinding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "churn-" + ns},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "churn-" + ns},
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "churn"}}
	binding := roleBinding(ns, "churn", other)
	for _, object := range []client.Object{clusterRole, clusterBinding, role, binding} {
		create(t, object)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	changes := 0
	wg.Go(func() {
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
			var object client.Object
			switch changes % 4 {
			case 0:
				clusterRole.Rules, object = rules, clusterRole
			case 1:
				clusterBinding.Subjects, object = subjects, clusterBinding
			case 2:
				role.Rules, object = rules, role
			case 3:
				binding.Subjects, object = subjects, binding
			}
			if err := admin.Update(context.Background(), object); err != nil {
				t.Error(err)
			}
		}
	})

	delays := make([]time.Duration, tenants)
	for i := range tenants {
		<-time.After(*churning / time.Duration(tenants))
		g.Expect(admin.Delete(ctx, roleBinding(ns, name(i)))).To(Succeed())
		revokeTime := time.Now()
		wg.Go(func() {
			for ticker := time.NewTicker(20 * time.Millisecond); time.Since(revokeTime) < patience; <-ticker.C {
				if apierrors.IsForbidden(readers[i].List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns))) {
					ticker.Stop()
					delays[i] = time.Since(revokeTime)
					return
				}
			}
			t.Errorf("the revocation of %s did not take effect within %s", name(i), patience)
		})
	}
	close(stop)
	wg.Wait()
	soon, worst := 0, time.Duration(0)
	for _, delay := range delays {
		if worst = max(worst, delay); delay <= soonRevoked {
			soon++
		}
	}
	t.Logf("%d of %d revocations took effect within %s, the slowest after %s, during %d RBAC changes of other subjects",
		soon, tenants, soonRevoked, worst.Round(10*time.Millisecond), changes)
	g.Expect(soon).To(BeNumerically(">=", tenants-1))
	g.Expect(changes).To(BeNumerically(">=", int(*churning/(4*time.Second))))
}
