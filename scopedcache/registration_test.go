package scopedcache

import (
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/latchkey-dev/latchkey/internal/replay"
)

// A handle that is being released is not returned to another holder.
func TestHoldDuringRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t)
		options := HoldOptions{Dependent: "dependent", Name: "name"}
		first := hold(t, c, options)
		g.Expect(hold(t, c, options)).To(BeIdenticalTo(first))
		first.dead.Store(true) // as Release does first
		second := hold(t, c, options)
		g.Expect(second).NotTo(BeIdenticalTo(first))
		first.dead.Store(false)
		first.Release()
		g.Expect(useOf(second).gone.IsOpen()).To(BeFalse(), "the scope is still held")
	})
}

// holdHanging holds a scope whose informer has no answer, and returns when it has asked.
func holdHanging(t *testing.T, options cache.Options) *Handle {
	a := newAPIServer(t)
	asked := make(chan struct{}, 10)
	a.answers(func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, "/configmaps") {
			return false
		}
		asked <- struct{}{}
		<-req.Context().Done()
		return true
	})
	handle := hold(t, a.newCacheOf(t, options), HoldOptions{})
	NewWithT(t).Eventually(asked).WithTimeout(patience).Should(Receive())
	return handle
}

// A handler that is removed before its informer has synced leaves nothing behind, however long the
// informer goes on without an answer, and wherever the informer comes from.
func TestHandlersRemovedBeforeTheInformerSyncs(t *testing.T) {
	for name, options := range map[string]cache.Options{
		"ours":           {},
		"of the options": {NewInformer: toolscache.NewSharedIndexInformer},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				handle := holdHanging(t, options)
				before := goruntime.NumGoroutine()
				for range 100 {
					registration, err := handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{})
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(handle.RemoveEventHandler(registration)).To(Succeed())
				}
				g.Eventually(goruntime.NumGoroutine).WithTimeout(patience).Should(BeNumerically("<", before+10))
			})
		})
	}
}

// Handlers that wait for their informer to sync have no goroutine: thousands may wait at once.
func TestHandlersWaitWithoutGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		handle := holdHanging(t, cache.Options{})
		before := goruntime.NumGoroutine()
		for range 100 {
			_, err := handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{})
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(goruntime.NumGoroutine()).To(BeNumerically("<", before+10))
	})
}

// A handler whose feed ended before it had all objects has not synced, although its informer goes
// on and calls it for all of them.
func TestHandlerThatIsSupersededHasNotSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		handle := hold(t, newAPIServer(t).newCache(t), HoldOptions{})
		g.Expect(handle.Readable(t.Context())).To(Succeed())
		entered, leave, received := make(chan struct{}), make(chan struct{}), false
		registration, err := handle.AddEventHandler(replay.ResumedHandler{
			ResourceEventHandler: toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { received = true }},
			Options: replay.Options{Call: func(note func() bool, call func()) {
				close(entered)
				<-leave
				if note() {
					call()
				}
			}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		<-entered
		r := registration.(*registrations).each[0]
		r.feed.Pause()
		close(leave)
		synctest.Wait()
		g.Expect(r.inner.HasSynced()).To(BeTrue(), "that is what the informer says")
		g.Expect(received).To(BeFalse())
		g.Expect(registration.HasSynced()).To(BeFalse())
	})
}

// entryOf returns the scope that a handle holds.
func entryOf(h *Handle) *entry { return useOf(h).entry }

// useOf returns what the holder of a handle has of its scope.
func useOf(h *Handle) *use { return h.held.(heldScope).use() }
