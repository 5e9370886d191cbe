package accessor

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			probes.Interval, probes.IdentityInterval = 100*time.Millisecond, 200*time.Millisecond
			d := drive(t, r.URL, probes, noRetry)
			d.extension("red", "red")
			d.eventually("red", connectedAs("user-of-red"))
			view := d.At(client.ObjectKey{Name: "red"})
			config, err := view.GetRESTConfig()
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
				for start := time.Now(); time.Since(start) < 3*probes.IdentityInterval; {
					g.Expect(get()).To(Succeed())
				}
				state, _ := view.State()
				g.Expect(state.Phase).To(Equal(connstate.PhaseConnected))
				g.Expect(r.reviews.Load()-reviews).To(BeNumerically("<=", 1), "requests that are served count as probes")
				return
			}
			g.Eventually(func() ConnectionState {
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
		config, err := d.At(client.ObjectKey{Name: name}).GetRESTConfig()
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
