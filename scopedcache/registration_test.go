package scopedcache

import (
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	toolscache "k8s.io/client-go/tools/cache"
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

// A handler that is removed before its informer has synced leaves nothing behind, however long the
// informer goes on without an answer.
func TestHandlersRemovedBeforeTheInformerSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
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
		handle := hold(t, a.newCache(t), HoldOptions{})
		g.Eventually(asked).WithTimeout(patience).Should(Receive())
		before := goruntime.NumGoroutine()
		for range 100 {
			registration, err := handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(handle.RemoveEventHandler(registration)).To(Succeed())
		}
		g.Eventually(goruntime.NumGoroutine).WithTimeout(patience).Should(BeNumerically("<", before+10))
	})
}

// entryOf returns the scope that a handle holds.
func entryOf(h *Handle) *entry { return useOf(h).entry }

// useOf returns what the holder of a handle has of its scope.
func useOf(h *Handle) *use { return h.held.(heldScope).use() }
