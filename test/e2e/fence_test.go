package e2e

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// held passes on the requests of tenants, counts them, and holds back the answers to their creates
// of a resource between holdCreates and release.
type held struct {
	*faults
	requests atomic.Int64 // of tenants, not counting what goes on
	waiting  atomic.Int64 // answers that are held back

	mu       sync.Mutex
	resource string        // guarded by mu
	hold     chan struct{} // guarded by mu; answers wait for its end; nil: none waits
}

func newHeld(t *testing.T) *held {
	h := &held{faults: newFaults(t)}
	h.pass.Store(new(func(w http.ResponseWriter, req *http.Request, pass http.Handler) {
		if !strings.Contains(req.UserAgent(), " extension/") {
			pass.ServeHTTP(w, req)
			return
		}
		h.requests.Add(1)
		h.mu.Lock()
		hold, resource := h.hold, h.resource
		h.mu.Unlock()
		if hold == nil || req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/"+resource) {
			pass.ServeHTTP(w, req)
			return
		}
		answer := httptest.NewRecorder()
		pass.ServeHTTP(answer, req)
		h.waiting.Add(1)
		<-hold
		h.waiting.Add(-1)
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	return h
}

// holdCreates makes answers wait until the function that it returns is called.
func (h *held) holdCreates(resource string) (release func()) {
	hold := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold, h.resource = hold, resource
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.hold = nil
		close(hold)
	})
}

// createUnderWay creates a ConfigMap under-way. The API server has carried that out, and holds the
// answer back until release is called.
func (h *held) createUnderWay(t *testing.T, c client.Client, ns string) (written <-chan error, release func()) {
	t.Helper()
	release = h.holdCreates("configmaps")
	answer := make(chan error, 1)
	go func() { answer <- c.Create(t.Context(), configMap(ns, "under-way")) }()
	NewWithT(t).Eventually(func() error {
		return admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "under-way"}, &corev1.ConfigMap{})
	}).WithTimeout(patience).Should(Succeed())
	return answer, release
}

// When the lease ends, a write whose answer has not come is reported as of unknown outcome,
// although the API server has carried it out. Watches end, and nothing is sent any more. With the
// next term the extension is connected anew.
func TestLeaseEnds(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "fenced")
	h := newHeld(t)
	config, _ := h.operatorConfig(t)
	lease, f := testutil.NewLease()
	defer lease.Release()
	o := newOperatorAt(t, config, clustercache.Options{
		Ownership:     ownership.Leader(f),
		AllowIdentity: clustercache.GuardedByAdmission,
	})
	o.also = append(o.also, h.quiet)
	o.start(t)
	events := newFakeController(t)
	g.Expect(events.Watch(o.GetExtensionSource("fenced", clustercache.EnqueueExtension))).To(Succeed())
	_, err := o.GetClient(t.Context(), key("fenced"))
	expectReason(g, err, clustercache.ReasonNotLeading)

	lease.Renew(3600)
	o.waitConnected(t, "fenced")
	c, err := o.GetClient(t.Context(), key("fenced"))
	g.Expect(err).NotTo(HaveOccurred())
	watch := clustercache.NewWatcher(events.watch("content", &corev1.ConfigMap{}, ns))
	g.Expect(o.Watch(t.Context(), key("fenced"), watch)).To(Succeed())
	create(t, configMap(ns, "before"))
	g.Eventually(events.seen).WithTimeout(patience).Should(ContainElement("create before"))

	written, release := h.createUnderWay(t, c, ns)
	defer release()
	g.Eventually(events.seen).WithTimeout(patience).Should(ContainElement("create under-way"))
	lease.Release()
	err = <-written
	g.Expect(err).To(MatchError(clustercache.ErrOutcomeUnknown))
	expectReason(g, err, clustercache.ReasonNotLeading)
	release()

	sent := h.requests.Load()
	create(t, configMap(ns, "after"))
	err = c.Create(t.Context(), configMap(ns, "refused"))
	expectReason(g, err, clustercache.ReasonNotLeading)
	g.Expect(err).NotTo(MatchError(clustercache.ErrOutcomeUnknown))
	expectReason(g, c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "before"}, &corev1.ConfigMap{}),
		clustercache.ReasonNotLeading)
	g.Eventually(func() error { _, err := o.GetClient(t.Context(), key("fenced")); return err }).WithTimeout(patience).
		Should(MatchError(clustercache.ErrNotConnected))
	// Longer than the intervals of probes, for identities and for API servers.
	g.Consistently(h.requests.Load).WithTimeout(6*time.Second).WithPolling(100*time.Millisecond).Should(Equal(sent),
		"nothing is sent while another replica may lead")
	g.Expect(events.seen()).NotTo(ContainElement("create after"))

	lease.Renew(3600)
	o.waitConnected(t, "fenced")
	g.Expect(o.Watch(t.Context(), key("fenced"), watch)).To(Succeed())
	g.Eventually(events.seen).WithTimeout(patience).Should(ContainElement("create after"))
	expectReason(g, c.Create(t.Context(), configMap(ns, "refused")), clustercache.ReasonNotLeading)
}

func expectReason(g Gomega, err error, reason clustercache.Reason) {
	var notConnected *clustercache.NotConnectedError
	g.ExpectWithOffset(1, errors.As(err, &notConnected)).To(BeTrue(), "%v", err)
	g.ExpectWithOffset(1, notConnected.Reason).To(Equal(reason))
}
