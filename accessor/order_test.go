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
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// notificationRecorder is a set with one extension that cannot be resolved. notificationRecorder
// records the calls of Changed.
type notificationRecorder struct {
	*Set
	entered chan struct{} // Changed was called
	proceed chan struct{} // Changed may return

	mu     sync.Mutex
	events []int64 // guarded by mu; the generations that Changed received
}

func newNotificationRecorder() *notificationRecorder {
	n := &notificationRecorder{entered: make(chan struct{}), proceed: make(chan struct{})}
	n.Set = NewSet(Options{
		HealthProbe:    connstate.ProbeOptions{}.WithDefaults(),
		ConnectBackoff: noRetry,
		Logger:         logr.Discard(),
		Wake:           func(client.ObjectKey) {},
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

// reconcile reports that the extension, at that generation, cannot be resolved. The set notifies
// once for each generation.
func (n *notificationRecorder) reconcile(generation int64) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid", Generation: generation}}
	n.Reconcile(object, identity.Resolution{}, credential.ErrInvalidReference, nil)
}

func (n *notificationRecorder) all() []int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]int64(nil), n.events...)
}

// A notification never overtakes an earlier one, and the second goroutine does not wait for the
// first.
func TestNotificationsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, n := NewWithT(t), newNotificationRecorder()
		go n.reconcile(1)
		<-n.entered
		n.reconcile(2) // returns before the first call of Changed returns
		g.Expect(n.all()).To(BeEmpty())
		n.proceed <- struct{}{}
		<-n.entered
		n.proceed <- struct{}{}
		synctest.Wait()
		g.Expect(n.all()).To(Equal([]int64{1, 2}))
	})
}

// Remove returns after all notifications of the extension have returned.
func TestRemoveWaitsForNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, n := NewWithT(t), newNotificationRecorder()
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
		<-n.entered // removed
		synctest.Wait()
		g.Expect(removed).NotTo(BeClosed())
		n.proceed <- struct{}{}
		<-removed
		g.Expect(n.all()).To(Equal([]int64{1, 1}))
	})
}

// A panic in a callback reaches the goroutine that called it. The notifications after it still run.
func TestNotificationThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, n := NewWithT(t), newNotificationRecorder()
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
			n.Remove(client.ObjectKey{Name: "red"}, Deleted) // runs the remaining notifications
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

// After a change of identity at the same API server, the TCP connections and the discovery results
// are kept, because the accessor joins the target again before it leaves the target.
func TestTargetOutlivesANewIdentity(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	previous := d.shared.targets.List()
	object := d.Object(client.ObjectKey{Name: "red"})
	resolution, err := d.resolver.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	resolution.Key += "another"
	d.Set.Reconcile(object, resolution, nil, nil)
	d.eventually("red", func(s State) bool { return s.Phase == connstate.PhaseConnected && s.Epoch >= 2 })
	g.Expect(d.shared.targets.List()).To(HaveLen(1))
	g.Expect(d.shared.targets.List()[0]).To(BeIdenticalTo(previous[0]))
}

// The accessor leaves a target that the machine does not adopt.
func TestRemovedAccessorJoinsNoTarget(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	object := d.Object(client.ObjectKey{Name: "red"})
	resolution, err := d.resolver.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	d.mu.Lock()
	delete(d.tokens, "red") // so that no Reconcile connects it again
	d.mu.Unlock()
	a.step(lifecycle.Removed{Why: lifecycle.Deleted}, eventPayload{})
	a.reconcile(object, resolution, nil)
	g.Eventually(d.shared.targets.List).Should(BeEmpty())
	g.Expect(a.credentials).To(BeEmpty())
}
