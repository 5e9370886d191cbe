package accessor

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// notified is a set of one extension that cannot be resolved, and what its Changed was called with.
type notified struct {
	*Set
	entered chan struct{} // Changed was called
	proceed chan struct{} // Changed may return

	mu     sync.Mutex
	events []int64 // guarded by mu; the generations that Changed got
}

func newNotified() *notified {
	n := &notified{entered: make(chan struct{}), proceed: make(chan struct{})}
	n.Set = NewSet(Options{
		HealthProbe: healthprobe.Options{}.WithDefaults(), ConnectBackoff: never, Logger: logr.Discard(),
		Wake: func(client.ObjectKey) {},
		Changed: func(object client.Object) {
			n.entered <- struct{}{}
			<-n.proceed
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, object.GetGeneration())
			if object.GetGeneration() == 13 {
				panic("unlucky")
			}
		},
	})
	return n
}

// reconcile says that the extension, at that generation, cannot be resolved: that is announced for
// each generation.
func (n *notified) reconcile(generation int64) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid", Generation: generation}}
	n.Reconcile(object, credential.Resolution{}, credential.ErrInvalidReference)
}

func (n *notified) all() []int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]int64(nil), n.events...)
}

// A notification never overtakes an earlier one, and the goroutine that comes second does not wait
// for the first.
func TestNotificationsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, n := NewWithT(t), newNotified()
		go n.reconcile(1)
		<-n.entered
		n.reconcile(2) // returns, although Changed has not
		g.Expect(n.all()).To(BeEmpty())
		n.proceed <- struct{}{}
		<-n.entered
		n.proceed <- struct{}{}
		synctest.Wait()
		g.Expect(n.all()).To(Equal([]int64{1, 2}))
	})
}

// Remove returns when nothing of the extension is under way any more.
func TestRemoveWaitsForNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, n := NewWithT(t), newNotified()
		go n.reconcile(1)
		<-n.entered
		removed := make(chan struct{})
		go func() {
			n.Remove(client.ObjectKey{Name: "red"}, Deleted)
			close(removed)
		}()
		synctest.Wait()
		g.Expect(removed).NotTo(BeClosed())
		n.proceed <- struct{}{}
		<-n.entered // gone
		synctest.Wait()
		g.Expect(removed).NotTo(BeClosed())
		n.proceed <- struct{}{}
		<-removed
		g.Expect(n.all()).To(Equal([]int64{1, 1}))
	})
}

// A callback that panics costs its own caller, and nothing that comes after it.
func TestNotificationThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, n := NewWithT(t), newNotified()
		panicked := make(chan any)
		go func() {
			defer func() { panicked <- recover() }()
			n.reconcile(13)
		}()
		<-n.entered
		n.reconcile(14)
		go func() { n.proceed <- struct{}{} }()
		g.Expect(<-panicked).To(Equal("unlucky"))
		removed := make(chan struct{})
		go func() {
			n.Remove(client.ObjectKey{Name: "red"}, Deleted) // takes over what was left
			close(removed)
		}()
		for range 2 {
			<-n.entered
			n.proceed <- struct{}{}
		}
		<-removed
		g.Expect(n.all()).To(Equal([]int64{13, 14, 14}))
	})
}

// A new identity at the same API server keeps its TCP connections and what is known of its kinds:
// the target is joined again before it is left.
func TestTargetOutlivesANewIdentity(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rare, never)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	before := d.targets.List()
	object := d.Object(client.ObjectKey{Name: "red"})
	resolved, err := d.resolver.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	resolved.Key += "another"
	d.Set.Reconcile(object, resolved, nil)
	d.eventually("red", func(s ConnectionState) bool { return s.Phase == Connected && s.Generation >= 2 })
	g.Expect(d.targets.List()).To(HaveLen(1))
	g.Expect(d.targets.List()[0]).To(BeIdenticalTo(before[0]))
}

// A target that is not adopted is left again.
func TestRemovedAccessorJoinsNoTarget(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rare, never)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	found, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	a := found.(*identityAccessor)
	object := d.Object(client.ObjectKey{Name: "red"})
	resolved, err := d.resolver.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	a.step(lifecycle.Removed{Reason: Deleted}, brought{})
	a.reconcile(object, resolved, nil)
	g.Eventually(d.targets.List).Should(BeEmpty())
	g.Expect(a.credentials).To(BeEmpty())
}
