package credential

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// A TokenRequest that the API server refuses for now fails at once, with one request and the
// server's answer, and not with a timeout.
func TestThrottledTokenRequest(t *testing.T) {
	g := NewWithT(t)
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "7")
		http.Error(w, "too busy here", http.StatusTooManyRequests)
	}))
	defer server.Close()
	core, err := corev1client.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	g.Expect(err).NotTo(HaveOccurred())
	issuer := &tokenIssuer{client: core.RESTClient(), lifetime: time.Hour}
	_, err = issuer.issue(t.Context(), tokenID{serviceAccount: types.NamespacedName{Namespace: "n", Name: "sa"}})
	g.Expect(err).To(MatchError(identity.ErrTokenRequestFailed))
	g.Expect(apierrors.IsTooManyRequests(errors.Cause(err)) || apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
	g.Expect(requests.Load()).To(BeEquivalentTo(1))
	asked, throttled := connstate.ThrottledFor(&NoTokenError{Err: err})
	g.Expect(throttled).To(BeTrue(), "also below errors with a status of their own")
	g.Expect(asked).To(Equal(7 * time.Second))
}

// The next TokenRequest waits as long as the API server asks, within the usual limit.
func TestThrottledRetry(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	throttled := func(seconds int) error {
		return &classifiedError{kind: identity.ErrTokenRequestFailed, cause: apierrors.NewTooManyRequests("busy", seconds)}
	}
	g.Expect(afterFailure(nil, throttled(1), now, 0).retry.Sub(now)).To(Equal(time.Second))
	g.Expect(afterFailure(nil, throttled(10), now, 1).retry.Sub(now)).To(Equal(12 * time.Second))
	g.Expect(afterFailure(nil, throttled(3600), now, 0).retry.Sub(now)).To(Equal(retryMost))
	g.Expect(afterFailure(nil, throttled(0), now, 0).retry.Sub(now)).To(Equal(retryFirst))
	again := afterFailure(afterFailure(nil, throttled(1), now, 0), throttled(1), now, 0)
	g.Expect(again.retry.Sub(now)).To(Equal(2*retryFirst), "a server that refuses again is asked less often")
	again = afterFailure(again, throttled(50), now, 0)
	g.Expect(again.retry.Sub(now)).To(Equal(50*time.Second), "and never before it says")
	sa := schema.GroupResource{Resource: "serviceaccounts"}
	unavailable := apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "POST", sa, "", "", 3, true)
	g.Expect(afterFailure(nil, unavailable, now, 0).retry.Sub(now)).To(Equal(3 * time.Second))
	g.Expect(afterFailure(nil, apierrors.NewNotFound(sa, "sa"), now, 0).retry.Sub(now)).To(Equal(retryFirst))
}
