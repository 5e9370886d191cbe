package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// TestRotatedSigningKey makes every token invalid at once. Within 30 s every extension recovers,
// with one TokenRequest each, and no watch misses an event.
func TestRotatedSigningKey(t *testing.T) {
	g := NewWithT(t)
	const tenants = 100
	ns := namespace(t)
	name := func(i int) string { return fmt.Sprintf("tenant-%d", i) }
	var objects []client.Object
	for i := range tenants {
		objects = append(objects, serviceAccount(ns, name(i)), extension(ns, name(i)))
	}
	createMany(t, objects)
	grantTo(t, ns, "Group", "system:serviceaccounts:"+ns)
	o := startOperator(t, clustercache.Options{})
	watchers := make([]*fakeController, tenants)
	epochs := make([]int64, tenants)
	for i := range tenants {
		epochs[i] = o.waitConnected(t, name(i)).Epoch
		watchers[i] = newFakeController(t)
		g.Expect(o.Watch(t.Context(), key(name(i)),
			clustercache.NewWatcher(watchers[i].watch("content", &corev1.ConfigMap{}, ns)))).To(Succeed())
	}
	create(t, configMap(ns, "before"))
	for i := range tenants {
		g.Eventually(watchers[i].seen).WithTimeout(patience).Should(ContainElement("create before"))
		watchers[i].forget()
	}
	issued := series(t)["latchkey_token_requests_total result=Issued"]

	begin := time.Now()
	g.Expect(cp.KillAPIServer(t.Context())).To(Succeed())
	o.filters++ // the manager's own watch of metadata may leave a goroutine behind
	g.Expect(cp.RotateServiceAccountKey()).To(Succeed())
	g.Expect(cp.StartAPIServer(t.Context())).To(Succeed())
	back := time.Now()
	create(t, configMap(ns, "meanwhile"))
	g.Expect(admin.Delete(t.Context(), configMap(ns, "before"))).To(Succeed())
	for i := range tenants {
		g.Eventually(watchers[i].seen).WithTimeout(patience).
			Should(ContainElements("create meanwhile", "delete before"), name(i))
		o.waitConnected(t, name(i))
	}
	took := time.Since(back)
	g.Expect(took).To(BeNumerically("<", 30*time.Second))
	events := auditLog(t, begin)
	for i := range tenants {
		// a new connection also reports the objects that existed before
		for _, once := range []string{"create meanwhile", "delete before"} {
			g.Expect(slices.DeleteFunc(watchers[i].seen(), func(event string) bool { return event != once })).
				To(HaveLen(1), name(i)+": "+once)
		}
		g.Expect(tokensIssued(events, ns, name(i))).To(Equal(1), name(i))
		watchers[i].close()
	}
	g.Expect(series(t)["latchkey_token_requests_total result=Issued"]).To(Equal(issued + tenants))
	reconnects := 0
	for i := range tenants {
		reconnects += int(o.state(name(i)).Epoch - epochs[i])
	}
	t.Logf("all extensions recovered after %s, %d of %d with a new connection, one TokenRequest each", took, reconnects,
		tenants)
}

// TestServiceAccountOfTheSameName deletes a ServiceAccount and creates a new one of the same name.
// Within 3 s, callers with the old identity lose all access. The new identity inherits nothing.
func TestServiceAccountOfTheSameName(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "again")
	o := startOperator(t, clustercache.Options{ConnectBackoff: never()})
	before := o.waitConnected(t, "again")
	old := handlesOf(t, o, "again")
	create(t, configMap(ns, "seen-by-the-old-one"))
	cached := func(c client.Reader) error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "seen-by-the-old-one"}, &corev1.ConfigMap{})
	}
	g.Eventually(func() error { return cached(old.client) }).WithTimeout(patience).Should(Succeed())
	clientset, err := kubernetes.NewForConfig(old.config)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { closeIdle(clientset.CoreV1().RESTClient()) })
	stream, err := clientset.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(stream.Stop)

	deletedAt := time.Now()
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "again"))).To(Succeed())
	g.Eventually(func() error { return cached(old.client) }).WithTimeout(3 * time.Second).WithPolling(time.Millisecond).
		Should(MatchError(ContainSubstring(string(clustercache.ReasonServiceAccountNotFound))))
	g.Eventually(func() bool { return ended(stream) }).WithTimeout(3*time.Second-time.Since(deletedAt)).
		Should(BeTrue(), "latchkey ends the stream, which the API server would keep open")
	old.expectDead(t, ns, clustercache.ReasonServiceAccountNotFound)
	o.waitReason(t, "again", clustercache.ReasonServiceAccountNotFound)
	disconnectedAt := time.Now()

	// The new ServiceAccount has no permissions. Anything that it could read would come from the
	// old one.
	g.Expect(admin.Delete(t.Context(), roleBinding(ns, "again"))).To(Succeed())
	create(t, serviceAccount(ns, "again"))
	uid := uidOf(t, ns, "again")
	after := o.waitFor(t, "again", func(s clustercache.ConnectionState) bool { return s.Identity.UID == uid })
	g.Expect(after.Epoch).To(Equal(before.Epoch + 1))
	fresh := handlesOf(t, o, "again")
	g.Eventually(func() error { return cached(fresh.client) }).WithTimeout(patience).Should(Satisfy(isForbidden))
	g.Expect(cached(fresh.reader)).To(Satisfy(isForbidden))
	g.Expect(cached(fresh.whole.GetCache())).To(Satisfy(isForbidden))
	old.expectDead(t, ns, clustercache.ReasonServiceAccountNotFound)
	served := 0
	for _, event := range auditLog(t, disconnectedAt) {
		if event.Stage == "ResponseComplete" && event.User.Username == after.Identity.Username {
			g.Expect(event.User.UID).To(Equal(uid), event.String())
			served++
		}
	}
	g.Expect(served).To(BeNumerically(">=", 2))
}

// ended reports whether a watch has ended, and discards pending events.
func ended(stream watch.Interface) bool {
	for {
		select {
		case _, open := <-stream.ResultChan():
			if !open {
				return true
			}
		default:
			return false
		}
	}
}
