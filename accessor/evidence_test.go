package accessor

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// answer writes a whole answer.
func answer(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/login")
		if contentType != "" {
			w.Header().Set("Content-Type", contentType)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// A review that fails with a 2xx or 3xx is a failure. FailureThreshold of them end the connection.
func TestAnsweredReviewsThatFail(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"201 without a user name": answer(http.StatusCreated, "application/json",
			`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{}}}`),
		"201 of another kind": answer(http.StatusCreated, "application/json",
			`{"kind":"Status","apiVersion":"v1","status":"Success"}`),
		"200 with HTML":      answer(http.StatusOK, "text/html", "<html>log in</html>"),
		"200 that says JSON": answer(http.StatusOK, "application/json", "<html>log in</html>"),
		"200 of any type":    answer(http.StatusOK, "*/*", "<html>log in</html>"),
		"200 without a body": answer(http.StatusOK, "", ""),
		"a body that breaks off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"kind":"SelfSubjectReview"`))
		},
		"302": answer(http.StatusFound, "text/html", ""),
		"307": answer(http.StatusTemporaryRedirect, "application/json", "{}"),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReviewer(t)
			d := drive(t, r.URL, fastProbes, noRetry)
			d.extension("red", "red")
			connected := d.eventually("red", connectedAs("user-of-red"))
			r.rest.Store(&handler)
			state := d.eventually("red", disconnectedFor(connstate.ReasonProbeFailed))
			g.Expect(state.Health.ConsecutiveFailures).To(Equal(fastProbes.FailureThreshold))
			g.Expect(state.Health.LastProbeSuccessTime).To(BeTemporally(">=", connected.Health.LastProbeSuccessTime))
		})
	}
}

// Requests that get a 2xx or 3xx which is not what they asked for do not count as served. So probes
// are sent, and fail. A request that gets what it asked for counts.
func TestAnswersThatAreNotServed(t *testing.T) {
	configMap := answer(http.StatusOK, "application/json", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"}}`)
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		serves  bool
	}{
		"200 with JSON": {configMap, true},
		"200 with HTML": {answer(http.StatusOK, "text/html; charset=utf-8", "<html>log in</html>"), false},
		"302":           {answer(http.StatusFound, "application/json", "{}"), false},
		"304":           {answer(http.StatusNotModified, "application/json", ""), false},
		"204":           {answer(http.StatusNoContent, "", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReviewer(t)
			probes := fastProbes
			probes.Interval, probes.IdentityInterval = 100*time.Millisecond, time.Second
			d := drive(t, r.URL, probes, noRetry)
			d.extension("red", "red")
			d.eventually("red", connectedAs("user-of-red"))
			view := d.At(client.ObjectKey{Name: "red"})
			config, err := view.GetRESTConfig(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			requests, err := corev1client.NewForConfig(config)
			g.Expect(err).NotTo(HaveOccurred())
			reviewsFail := answer(http.StatusFound, "", "")
			handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if strings.HasSuffix(req.URL.Path, "/selfsubjectreviews") {
					reviewsFail(w, req)
					return
				}
				tc.handler(w, req)
			})
			r.rest.Store(&handler)
			get := func() error {
				_, err := requests.ConfigMaps("n").Get(t.Context(), "c", metav1.GetOptions{})
				return err
			}
			if tc.serves {
				reviews := r.reviews.Load()
				for start := time.Now(); time.Since(start) < 2*probes.IdentityInterval; {
					g.Expect(get()).To(Succeed())
				}
				state, _ := view.State()
				g.Expect(state.Phase).To(Equal(connstate.PhaseConnected))
				g.Expect(r.reviews.Load()-reviews).To(BeNumerically("<=", 1), "requests that are served count as probes")
				return
			}
			g.Eventually(func() State {
				_ = get()
				state, _ := view.State()
				return state
			}).WithTimeout(patience).WithPolling(time.Millisecond).Should(Satisfy(disconnectedFor(connstate.ReasonProbeFailed)))
		})
	}
}

// A 401 that comes soon after a probe is remembered: the next probe does not wait for
// IdentityInterval. Afterwards only another extension sends requests, so the target is not silent.
func TestUnauthorizedSoonAfterProbe(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	probes := rareProbes
	probes.Interval = 2 * time.Second
	d := drive(t, r.URL, probes, noRetry)
	get := func(name string) error {
		config, err := d.At(client.ObjectKey{Name: name}).GetRESTConfig(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		requests, err := corev1client.NewForConfig(config)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = requests.ConfigMaps("n").Get(t.Context(), "c", metav1.GetOptions{})
		return err
	}
	for _, name := range []string{"busy", "idle"} {
		d.extension(name, name)
		d.eventually(name, connectedAs("user-of-"+name))
	}
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "idle" {
			return http.StatusUnauthorized, authenticationv1.UserInfo{}
		}
		return http.StatusCreated, authenticationv1.UserInfo{Username: "user-of-" + token, UID: "uid-of-" + token}
	})
	g.Expect(apierrors.IsUnauthorized(get("idle"))).To(BeTrue())
	g.Eventually(func() []string {
		_ = get("busy")
		return d.disconnectReasons()
	}).WithTimeout(patience).Should(HaveExactElements("Unauthorized"))
}

// Identities whose review is denied hold no place that others need: a new identity at the same
// server connects, those that are connected are probed, and a hand-over is complete.
func TestDeniedIdentitiesDelayNoOther(t *testing.T) {
	const denied = 400
	g := NewWithT(t)
	r := newReviewer(t)
	r.denies("denied")
	probes := rareProbes
	probes.Timeout = time.Hour // of the connects that are denied
	d := drive(t, r.URL, probes, immediateRetry)
	keys := make([]client.ObjectKey, denied)
	for i := range keys {
		keys[i].Name = fmt.Sprintf("denied-%d", i)
		d.extension(keys[i].Name, keys[i].Name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g.Expect(d.Settled(ctx, keys, func(client.ObjectKey) bool { return true })).
		To(Succeed(), "each was tried once, which is all that a hand-over waits for")
	state, _ := d.At(keys[0]).State()
	g.Expect(state.Phase).To(Equal(connstate.PhaseConnecting))
	g.Expect(state.Reason).To(Equal(connstate.ReasonProbeFailed), "the state says why it is not connected yet")
	d.extension("red", "red")
	d.eventually("red", connectedAs("user-of-red"))
	g.Expect(d.disconnectReasons()).To(BeEmpty(), "the denied ones are still being tried")
}

// BenchmarkConnectBesideDenied connects an identity while 1,000 others at the same server are
// denied, again and again. It reports the median.
func BenchmarkConnectBesideDenied(b *testing.B) {
	for _, denied := range []int{0, 1000} {
		b.Run(fmt.Sprintf("denied=%d", denied), func(b *testing.B) {
			r := newReviewer(b)
			r.denies("denied")
			d := drive(b, r.URL, connstate.ProbeOptions{IdentityInterval: time.Hour}.WithDefaults(),
				wait.Backoff{Duration: time.Second, Steps: 1})
			for i := range denied {
				d.extension(fmt.Sprintf("denied-%d", i), fmt.Sprintf("denied-%d", i))
			}
			NewWithT(b).Eventually(func() int { return int(r.reviews.Load()) }).WithTimeout(patience).
				Should(BeNumerically(">=", denied))
			var took []time.Duration
			for n := 0; b.Loop(); n++ {
				start, name := time.Now(), fmt.Sprintf("new-%d", n)
				d.extension(name, name)
				NewWithT(b).Eventually(func() error {
					_, err := d.At(client.ObjectKey{Name: name}).GetClient(b.Context())
					return err
				}).WithTimeout(patience).WithPolling(100 * time.Microsecond).Should(Succeed())
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
		})
	}
}

// refuses is a server that takes no requests for now.
func refuses(status int, retryAfter, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		answer(status, contentType, body)(w, req)
	}
}

// A connect that the server refuses for now is answered, with the server's words, and tried again
// when the server says. Each try is one request.
func TestThrottledConnect(t *testing.T) {
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"too busy here"}`
	for name, handler := range map[string]http.HandlerFunc{
		"429 with text": refuses(http.StatusTooManyRequests, "2", "text/plain", "too busy here"),
		"429 with a Status": refuses(http.StatusTooManyRequests, "2", "application/json",
			fmt.Sprintf(status, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)),
		"503 with text": refuses(http.StatusServiceUnavailable, "2", "text/plain", "too busy here"),
		"503 with a Status": refuses(http.StatusServiceUnavailable, "2", "application/json",
			fmt.Sprintf(status, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReviewer(t)
			r.rest.Store(&handler)
			d := drive(t, r.URL, rareProbes, noRetry)
			start := time.Now()
			d.extension("red", "red")
			state := d.eventually("red", disconnectedFor(connstate.ReasonThrottled))
			g.Expect(message(state)).To(And(ContainSubstring("refuses requests for now"), ContainSubstring("after 2s"),
				ContainSubstring("too busy here")))
			g.Expect(r.reviews.Load()).To(BeEquivalentTo(1), "the transport repeats nothing")
			r.rest.Store(nil)
			d.eventually("red", connectedAs("user-of-red")) // noRetry would take an hour
			g.Expect(time.Since(start)).To(BeNumerically(">=", 2*time.Second), "not before the server said")
		})
	}
}

// A 503 that does not say when is a failure of the server, and 429 never is.
func TestThrottledWithoutATime(t *testing.T) {
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	for reason, handler := range map[connstate.Reason]http.HandlerFunc{
		connstate.ReasonThrottled:   refuses(http.StatusTooManyRequests, "", "text/plain", "busy"),
		connstate.ReasonProbeFailed: refuses(http.StatusServiceUnavailable, "", "text/plain", "busy"),
	} {
		r.rest.Store(&handler)
		d.extension(string(reason), "red")
		d.eventually(string(reason), disconnectedFor(reason))
	}
}

// A connection whose probes are throttled goes on, without failures, until ThrottleTimeout has
// brought nothing else. It counts as healthy while its last success is not older than a server that
// fails would take to be noticed; WatchForProbeFailure goes by the age of the last success alone.
func TestThrottledProbes(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	probes := fastProbes
	probes.ThrottleTimeout = time.Hour
	d := drive(t, r.URL, probes, noRetry)
	d.extension("red", "red")
	connected := d.eventually("red", connectedAs("user-of-red"))
	busy := refuses(http.StatusTooManyRequests, "", "text/plain", "too busy here")
	r.rest.Store(&busy)
	throttled := d.eventually("red", func(s State) bool { return s.Health.LastError != nil })
	g.Expect(throttled.Healthy || throttled.Health.LastProbeTime.Sub(throttled.Health.LastProbeSuccessTime) >
		probes.IdentityInterval).To(BeTrue(), "no evidence either way")
	var since []time.Time
	d.EachUnhealthy(func(_ client.Object, last time.Time) { since = append(since, last) })
	g.Expect(since).To(Equal([]time.Time{throttled.Health.LastProbeSuccessTime}))
	reviews := r.reviews.Load()
	g.Eventually(r.reviews.Load).WithTimeout(patience).Should(BeNumerically(">", reviews+10))
	state := d.eventually("red", func(s State) bool { return !s.Healthy }) // by age
	g.Expect(state.Phase).To(Equal(connstate.PhaseConnected))
	g.Expect(state.Epoch).To(Equal(connected.Epoch))
	g.Expect(state.Health.ConsecutiveFailures).To(BeZero())
	g.Expect(connstate.ErrorText(state.Health.LastError)).To(ContainSubstring("too busy here"))
	r.rest.Store(nil)
	d.eventually("red", func(s State) bool { return s.Healthy && s.Health.LastError == nil })
}

// ThrottleTimeout of nothing but throttled probes ends the connection.
func TestThrottledForTooLong(t *testing.T) {
	r := newReviewer(t)
	probes := fastProbes
	probes.ThrottleTimeout = 200 * time.Millisecond
	d := drive(t, r.URL, probes, noRetry)
	d.extension("red", "red")
	d.eventually("red", connectedAs("user-of-red"))
	busy := refuses(http.StatusTooManyRequests, "3600", "text/plain", "too busy here")
	r.rest.Store(&busy)
	d.eventually("red", disconnectedFor(connstate.ReasonThrottled))
}
