package scopedcache

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/rbacindex"
)

// Only caches of identities that a change concerns are notified, once for all gathered changes. If
// changes may have been missed, all caches are notified.
func TestRBACEventsReachWhomTheyConcern(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		e := &RBACWatcher{
			index:     rbacindex.New(),
			listeners: map[*rbacListener]struct{}{},
			undecided: map[*rbacListener]struct{}{},
			bySubject: map[rbacindex.Subject]map[*rbacListener]struct{}{},
			changed:   map[rbacindex.Concern]struct{}{},
		}
		var mu sync.Mutex
		var notified []string
		listen := func(name, username string) (stop func()) {
			return e.listen(username, nil, func(namespace string) {
				mu.Lock()
				defer mu.Unlock()
				notified = append(notified, name+" "+namespace)
			}, func() {})
		}
		expect := func(want ...string) {
			t.Helper()
			<-time.After(2 * gatherInterval)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			g.Expect(notified).To(ConsistOf(want))
			notified = nil
		}
		stopRed := listen("red", "system:serviceaccount:team:red")
		stopBlue := listen("blue", "system:serviceaccount:team:blue")
		stopUnknown := listen("unknown", "")
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"},
			RoleRef:    rbacv1.RoleRef{Kind: "Role", Name: "r"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "team", Name: "red"}},
		}
		e.set(binding)
		e.set(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}, Rules: rule("list")})
		expect("red n", "unknown n")
		e.set(&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r", ResourceVersion: "2"},
			Rules:      rule("list"),
		})
		expect()
		e.set(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "b"},
			RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "c"},
			Subjects:   []rbacv1.Subject{{Kind: "Group", Name: "system:serviceaccounts:team"}},
		})
		e.set(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}, Rules: rule("watch")})
		expect("red ", "blue ", "unknown ")
		e.set(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Rules: rule("get")})
		expect("red ", "blue ", "unknown ")
		e.remove(toolscache.DeletedFinalStateUnknown{
			Key: "c",
			Obj: &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		})
		expect("red ", "blue ", "unknown ")
		// concerns its last subjects
		e.remove(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"}})
		expect("red n", "unknown n")
		e.mayHaveMissed()
		expect("red ", "blue ", "unknown ")
		stopRed()
		stopUnknown()
		e.mayHaveMissed()
		expect("blue ")
		stopBlue()
		g.Expect(len(e.listeners)+len(e.undecided)+len(e.bySubject)).To(BeZero(), "removed listeners leave nothing behind")
		e.close()
		e.mayHaveMissed()
		expect()
	})
}

func rule(verb string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{verb}}}
}
