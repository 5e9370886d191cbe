package e2e

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// A write that was refused is tried again when it is granted: the extension source has an event, a
// few seconds after the change of RBAC (measured: 0.1 s; 5 s are promised) where that is watched,
// and else within AccessReviewInterval. The same holds for what CheckPermissions found missing. For
// an identity that was refused nothing, the API server is asked nothing.
func TestGrantsReachTheSource(t *testing.T) {
	for name, tc := range map[string]struct {
		cache  clustercache.CacheOptions
		within time.Duration
	}{
		"RBAC is watched": {clustercache.CacheOptions{WatchRBAC: true}, 5*time.Second + scheduling},
		"reviews":         {clustercache.CacheOptions{AccessReviewInterval: 2 * time.Second}, 2*time.Second + scheduling},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ns := namespace(t)
			bindOperator(t, "latchkey-rbac-events")
			begin := time.Now()
			names := []string{ns + "-busy", ns + "-asks", ns + "-quiet"}
			for _, name := range names {
				create(t, serviceAccount(ns, name))
				create(t, extension(ns, name))
			}
			permitted := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}
			for _, name := range names {
				grant(t, ns, name, permitted)
			}
			o := startOperator(t, clustercache.Options{
				Cache:       tc.cache,
				Permissions: clustercache.PermissionOptions{Record: true},
			})
			for _, name := range names {
				o.waitConnected(t, name)
			}
			clients := map[string]client.Client{}
			for _, name := range names {
				c, err := o.GetUncachedClient(t.Context(), key(name))
				g.Expect(err).NotTo(HaveOccurred())
				clients[name] = c
				g.Eventually(func() error { return c.List(t.Context(), &corev1.PodList{}, client.InNamespace(ns)) }).
					WithTimeout(testenv.Patience).Should(Succeed())
			}
			l := listen(t, o, "")
			events := func(name string) func() int {
				return func() (n int) {
					for _, event := range l.heard() {
						if event == name+" Connected" {
							n++
						}
					}
					return n
				}
			}
			g.Eventually(events(names[2])).WithTimeout(testenv.Patience).Should(Equal(1))
			reviews := func(name string) int { return reviewsOf(t, ns, name, begin) }
			for _, name := range names {
				g.Expect(reviews(name)).To(BeZero())
			}

			configMap := func(name string) client.Object {
				return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
			}
			g.Expect(isForbidden(clients[names[0]].Create(t.Context(), configMap("a")))).To(BeTrue())
			asks := extension(ns, names[1])
			g.Expect(admin.Get(t.Context(), key(names[1]), asks)).To(Succeed())
			check := clustercache.PermissionCheck{
				Objects: []client.Object{configMap("b")},
				Verbs:   []string{"create", "patch"},
			}
			missing := func() []clustercache.MissingPermission {
				report, err := o.For(t.Context(), asks).CheckPermissions(t.Context(), check)
				g.Expect(err).NotTo(HaveOccurred())
				return report.Missing
			}
			g.Expect(missing()).To(HaveLen(2))
			g.Eventually(events(names[0])).WithTimeout(testenv.Patience).Should(Equal(1))
			g.Eventually(events(names[1])).WithTimeout(testenv.Patience).Should(Equal(1))

			granted := permitted
			granted.Resources, granted.Verbs = []string{"configmaps"}, []string{"create", "patch"}
			for _, name := range names {
				role := &rbacv1.Role{}
				g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, role)).To(Succeed())
				role.Rules = append(role.Rules, granted)
				g.Expect(admin.Update(t.Context(), role)).To(Succeed())
			}
			changed := time.Now()
			for _, name := range names[:2] {
				g.Eventually(events(name)).WithTimeout(tc.within-time.Since(changed)).WithPolling(10*time.Millisecond).
					Should(BeNumerically(">", 1), name)
				t.Logf("%s after %s", name, time.Since(changed))
				g.Eventually(func() []clustercache.PermissionUse { return o.state(name).Permissions.Refused }).
					WithTimeout(testenv.Patience).Should(BeEmpty())
			}
			g.Expect(clients[names[0]].Create(t.Context(), configMap("a"))).To(Succeed())
			g.Expect(missing()).To(BeEmpty(), "the answers of before are forgotten")
			g.Expect(reviews(names[0])).To(BeNumerically(">", 0))
			g.Expect(reviews(names[2])).To(BeZero())
			g.Expect(events(names[2])()).To(Equal(1))
		})
	}
}

// scheduling is how much later than planned a question may be asked and answered.
const scheduling = 3 * time.Second

// reviewsOf returns how many access reviews a ServiceAccount sent, by the audit log.
func reviewsOf(t *testing.T, namespace, name string, begin time.Time) (n int) {
	t.Helper()
	for _, event := range auditLog(t, begin) {
		if event.User.Username == "system:serviceaccount:"+namespace+":"+name && event.Stage == "ResponseComplete" &&
			event.ObjectRef.Resource == "selfsubjectaccessreviews" {
			n++
		}
	}
	return n
}
