package access

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// A review that the API server refuses for now is unanswered at once. client-go's own retries would
// keep its slot, for which other reviews wait.
func TestThrottledReview(t *testing.T) {
	g := NewWithT(t)
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too busy here", http.StatusTooManyRequests)
	}))
	defer server.Close()
	r, err := NewReviewer(&rest.Config{Host: server.URL}, server.Client(), "", false)
	g.Expect(err).NotTo(HaveOccurred())
	pods := Question{Mapping: &meta.RESTMapping{Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}}}
	verdict, err := r.Review(t.Context(), pods, "list")
	g.Expect(verdict).To(Equal(monitor.Unanswered))
	g.Expect(err).To(MatchError(ContainSubstring("too many requests")))
	g.Expect(requests.Load()).To(BeEquivalentTo(1))
	g.Expect(r.Ready(t.Context())).To(Equal(monitor.DeniedUnready))
	g.Expect(requests.Load()).To(BeEquivalentTo(2))
	username, _ := r.Identity(t.Context())
	g.Expect(username).To(BeEmpty())
	g.Expect(requests.Load()).To(BeEquivalentTo(3))
}
