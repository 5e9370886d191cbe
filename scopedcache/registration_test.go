package scopedcache

import (
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	toolscache "k8s.io/client-go/tools/cache"
)

// A handler that is removed before its informer has synced leaves nothing behind, however long the
// informer goes on without an answer.
func TestHandlersRemovedBeforeTheInformerSyncs(t *testing.T) {
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
}
