package scopedcache

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// answers sets a function that responds to each request for which it returns true.
func (a *apiServer) answers(answer func(w http.ResponseWriter, req *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// listed returns how often a path was listed.
func (a *apiServer) listed(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists[path]
}

func isReview(req *http.Request) bool {
	return strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews")
}

func isList(req *http.Request) bool {
	return strings.HasSuffix(req.URL.Path, "/configmaps") && req.URL.Query().Get("watch") == ""
}

// hold holds the ConfigMaps of namespace n until the test ends.
func hold(t *testing.T, c Cache, options HoldOptions) *Handle {
	t.Helper()
	handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, options)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(handle.Release)
	return handle
}

// Denials count as a revocation even if /readyz does not answer the identity any more, only later.
// Access to /readyz may have been revoked as well.
func TestDeniedByAServerOfUnknownReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if req.URL.Path != "/readyz" {
				return false
			}
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return true
		})
		a.deny(true)
		begun := time.Now()
		g.Eventually(func() bool { return apierrors.IsForbidden(list(t.Context(), c, "n")) }).WithTimeout(patience).
			Should(BeTrue())
		g.Expect(time.Since(begun)).To(BeNumerically(">", monitor.DefaultTiming.ConfirmReadinessUnknown-time.Second))
	})
}

// A 404 for lists of a kind that is served must not look as if the objects were deleted. A
// misconfigured proxy responds like this.
func TestLostPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			switch {
			case strings.HasSuffix(req.URL.Path, "/configmaps"):
				http.NotFound(w, req)
			case req.URL.Path == "/api/v1": // discovery says that the kind is served
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(
					[]byte(
						`{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["list","watch"]}]}`))
			default:
				return false
			}
			return true
		})
		handle := hold(t, c, HoldOptions{})
		g.Eventually(func() State { return handle.State().State }).WithTimeout(patience).Should(Equal(StateNotServed))
		err := c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, configMap())
		g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
		g.Expect(apierrors.IsNotFound(err)).To(BeFalse())
		g.Expect(err).To(MatchError(ContainSubstring("could not find")), "the error contains the reason")

		// A handler that is added during the retries settles at once.
		for range 20 {
			registration, err := handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(registration.HasSynced()).To(BeTrue())
			<-time.After(50 * time.Millisecond)
		}
		a.answers(nil)
		g.Eventually(func() State { return handle.State().State }).WithTimeout(patience).Should(Equal(StateSynced))
	})
}

// An identity that may still watch, but not list any more, does not read the old objects for ever.
func TestListLostWhileWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		var asked atomic.Pointer[string]
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			switch {
			case isReview(req):
				body, _ := io.ReadAll(req.Body)
				what := string(body)
				if !strings.Contains(what, "list") {
					return false
				}
				asked.Store(&what)
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write(
					[]byte(`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":false}}`))
			case req.URL.Query().Get("sendInitialEvents") == "true": // this API server does not stream lists
				refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			case req.URL.Query().Get("watch") != "":
				refuse(w, http.StatusGone, metav1.StatusReasonExpired)
			case isList(req):
				refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			default:
				return false
			}
			return true
		})
		a.cut()
		g.Eventually(func() bool { return apierrors.IsForbidden(list(t.Context(), c, "n")) }).WithTimeout(patience).
			Should(BeTrue())
		g.Expect(asked.Load()).NotTo(BeNil())
	})
}

// A Forbidden scope stays Forbidden while the API server fails, because errors do not contradict
// the denial. Reads return at once.
func TestForbiddenWhileFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.deny(true)
		c := a.newCache(t)
		g.Expect(apierrors.IsForbidden(list(t.Context(), c, "n"))).To(BeTrue())
		failed := make(chan struct{}, 1000)
		a.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			failed <- struct{}{}
			return true
		})
		for range 3 {
			g.Eventually(failed).WithTimeout(patience).Should(Receive())
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			g.Expect(apierrors.IsForbidden(list(ctx, c, "n"))).To(BeTrue())
			cancel()
		}
	})
}

// A scope is not idle while a reader waits for it, however short IdleTimeout is.
func TestIdleWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.answers(func(_ http.ResponseWriter, req *http.Request) bool {
			if strings.HasSuffix(req.URL.Path, "/configmaps") {
				<-time.After(time.Second)
			}
			return false
		})
		c := a.newCache(t, func(o *Options) { o.IdleTimeout = 50 * time.Millisecond })
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		result := make(chan error, 1)
		go func() { result <- list(t.Context(), c, "n") }()
		<-time.After(300 * time.Millisecond)
		handle.Release() // the reader still waits
		g.Eventually(result).WithTimeout(patience).Should(Receive(BeNil()))
		g.Expect(a.listed(inN)).To(Equal(1))
		g.Eventually(c.States).WithTimeout(patience).Should(BeEmpty())
	})
}

// If the identity may not create access reviews, the answers to the informer's own requests count.
// The cache restarts the watch periodically at the same resourceVersion, because the API server
// authorizes each new watch.
func TestReviewsThatMayNotBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if !isReview(req) {
				return false
			}
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return true
		})
		// client-go lists again after a watch of less than a second.
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = 4 * time.Second })
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		begun := func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.watchCount
		}
		before := begun()
		g.Eventually(begun).WithTimeout(patience).Should(BeNumerically(">", before+2))
		g.Expect(a.listed(inN)).To(Equal(1), "restarting the watch lists nothing")
		a.deny(true)
		g.Eventually(func() bool { return apierrors.IsForbidden(list(t.Context(), c, "n")) }).WithTimeout(patience).
			Should(BeTrue())
		a.deny(false)
		g.Eventually(func() error { return list(t.Context(), c, "n") }).WithTimeout(patience).Should(Succeed())

		// The first read of a new scope is refused at once.
		a.deny(true)
		g.Expect(apierrors.IsForbidden(list(t.Context(), c, "m"))).To(BeTrue())
	})
}

// A watch that ends and cannot be restarted for a while resumes at its resourceVersion later,
// without a list.
func TestWatchAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		g.Expect(list(t.Context(), a.newCache(t), "n")).To(Succeed())
		g.Eventually(a.watches).WithTimeout(patience).Should(Equal([]string{inN}))
		<-time.After(1500 * time.Millisecond) // client-go lists again after a watch of less than a second
		errs := make(chan struct{}, 100)
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if isReview(req) || isList(req) || len(errs) == 2 {
				return false
			}
			errs <- struct{}{}
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			return true
		})
		a.cut()
		g.Eventually(errs).WithTimeout(patience).Should(HaveLen(2))
		g.Eventually(a.watches).WithTimeout(patience).Should(Equal([]string{inN}))
		g.Expect(a.listed(inN)).To(Equal(1))
	})
}

// If the second page of a list has expired, the whole list is repeated, as client-go does. The API
// server would refuse the expired page for ever.
func TestExpiredPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		pages := make(chan string, 100)
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			query := req.URL.Query()
			switch {
			case query.Get("sendInitialEvents") == "true":
				refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			case !isList(req):
				return false
			case query.Get("continue") != "":
				pages <- query.Get("continue")
				refuse(w, http.StatusGone, metav1.StatusReasonExpired)
			case len(pages) == 0:
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(
					[]byte(
						`{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"1","continue":"two"},"items":[]}`))
			default:
				return false
			}
			return true
		})
		g.Expect(list(t.Context(), a.newCache(t), "n")).To(Succeed())
		g.Expect(pages).To(HaveLen(1))
	})
}

// A watch that is restarted for authorization resumes at its resourceVersion. A watch that still
// streams its list is not restarted, because it would list from the beginning.
func TestWatchAgain(t *testing.T) {
	g := NewWithT(t)
	i := &informer{}
	observer := watchObserver{run: &run{entry: &entry{}}, informer: i}
	i.restartWatch() // there is no watch yet
	listing, watching := watch.NewFake(), watch.NewFake()
	observer.WatchBegan(true)
	i.setWatch(listing)
	i.restartWatch()
	g.Expect(listing.IsStopped()).To(BeFalse())
	observer.WatchListed() // whatever its version is: it can be that of the list before
	i.restartWatch()
	g.Expect(listing.IsStopped()).To(BeTrue())
	observer.WatchBegan(false)
	i.setWatch(watching)
	i.restartWatch()
	g.Expect(watching.IsStopped()).To(BeTrue())
}

// With HideServerMessages, errors contain the server's HTTP status, but none of its text.
func TestHideServerMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		const words = "words of the server"
		long := strings.Repeat("x", 10_000)
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			if !isReview(req) {
				return false
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(
				[]byte(
					`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":false,"reason":"` + words + long + `"}}`))
			return true
		})
		discreet := a.newCache(t, func(o *Options) { o.HideServerMessages = true })
		err := list(t.Context(), discreet, "n")
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
		g.Expect(err).NotTo(MatchError(ContainSubstring(words)))
		err = list(t.Context(), a.newCache(t), "n")
		g.Expect(err).To(MatchError(ContainSubstring(words)))
		g.Expect(len(err.Error())).To(BeNumerically("<", 2000), "the text of the server is shortened")

		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if !isReview(req) && strings.HasSuffix(req.URL.Path, "/configmaps") {
				w.WriteHeader(http.StatusTeapot)
				_, _ = w.Write([]byte(words))
				return true
			}
			return false
		})
		handle := hold(t, a.newCache(t, func(o *Options) { o.HideServerMessages = true }), HoldOptions{})
		g.Eventually(func() State { return handle.State().State }).WithTimeout(patience).Should(Equal(StateFailing))
		g.Expect(handle.State().LastError).To(MatchError("the API server answered I'm a teapot"))

		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if !isReview(req) {
				return false
			}
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(words))
			return true
		})
		handle = hold(t, a.newCache(t, func(o *Options) { o.HideServerMessages = true }), HoldOptions{})
		g.Eventually(func() State { return handle.State().State }).WithTimeout(patience).Should(Equal(StateFailing))
		lastError := handle.State().LastError
		g.Expect(lastError).To(MatchError("reviewing access: Internal Server Error"))
		var status apierrors.APIStatus
		g.Expect(errors.As(lastError, &status)).To(BeFalse(), "the status contains the text of the server")
	})
}

// An error of discovery is shown as other errors of a server are.
func TestHiddenDiscoveryErrors(t *testing.T) {
	g := NewWithT(t)
	const words = "words of the server"
	mapper := failingMapper{err: apierrors.NewInternalError(errors.New(words + strings.Repeat("x", 10_000)))}
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	_, err := (&discovery{mapper: mapper}).mapping(t.Context(), gvk)
	g.Expect(err).To(MatchError(ContainSubstring(words)))
	g.Expect(len(err.Error())).To(BeNumerically("<", 2000), "the text of the server is shortened")
	_, err = (&discovery{mapper: mapper, hideText: true}).mapping(t.Context(), gvk)
	g.Expect(err).To(MatchError("the API server answered Internal Server Error"))
	mapper.err = &meta.NoKindMatchError{GroupKind: gvk.GroupKind()}
	_, err = (&discovery{mapper: mapper, hideText: true}).mapping(t.Context(), gvk)
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue())
}

// failingMapper is a RESTMapper that fails.
type failingMapper struct {
	meta.RESTMapper
	err error
}

func (m failingMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, m.err
}

// Reports of a stopped informer do not change the state. When observers are notified of a
// revocation, reads are refused already.
func TestStoppedInformersReportNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		var observed atomic.Pointer[entry]
		served := make(chan bool, 10) // whether an informer served reads when the revocation was reported
		c := a.newCache(t, func(o *Options) {
			o.AccessReviewInterval = 100 * time.Millisecond
			o.OnStateChange = func(before State, now ScopeState) {
				if before == StateSynced && now.State == StateForbidden {
					served <- observed.Load().current.Load() != nil
				}
			}
		}).(*scopedCache)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		observed.Store(entryOf(handle))
		state := func() State { return handle.State().State }
		g.Eventually(state).WithTimeout(patience).Should(Equal(StateSynced))
		stopped := entryOf(handle).mail.life
		a.deny(true)
		g.Eventually(served).WithTimeout(patience).Should(Receive(BeFalse()))
		entryOf(handle).mail.reportServed(stopped)
		entryOf(handle).mail.reportError(stopped, monitor.OutcomeFailed, errors.New("late"), time.Now())
		g.Consistently(func() ScopeState { return handle.State() }, 300*time.Millisecond).
			Should(And(HaveField("State", StateForbidden), HaveField("LastError", Not(MatchError("late")))))
	})
}

// A DefaultWatchErrorHandler receives every error, including Forbidden.
func TestDefaultWatchErrorHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		received := make(chan error, 1000)
		c := a.newCacheOf(t,
			cache.Options{DefaultWatchErrorHandler: func(_ context.Context, _ *toolscache.Reflector, err error) {
				received <- err
			}})
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		a.deny(true)
		a.cut()
		g.Eventually(received).WithTimeout(patience).Should(Receive(Satisfy(apierrors.IsForbidden)))
	})
}

// tryRunning returns the running informer, or nil if the entry is locked.
func (s *entry) tryRunning() *informer {
	if !s.mu.TryLock() { // Lock could deadlock: entry.mu comes before entries.mu, which the caller holds
		return nil
	}
	defer s.mu.Unlock()
	return s.running
}

// Errors that are caused by the end of a cache are not logged.
func TestNoErrorWhenACacheEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		const ended = "the connection has ended, as only this test says"
		var logged atomic.Int64
		handlers := utilruntime.ErrorHandlers
		utilruntime.ErrorHandlers = append(slices.Clone(handlers), func(_ context.Context, err error, _ string, _ ...any) {
			if strings.Contains(err.Error(), ended) {
				logged.Add(1)
			}
		})
		defer func() { utilruntime.ErrorHandlers = handlers }()
		asked := make(chan struct{}, 10)
		a.answers(func(_ http.ResponseWriter, req *http.Request) bool {
			query := req.URL.Query()
			if query.Get("watch") == "" || query.Get("sendInitialEvents") == "true" {
				return false
			}
			asked <- struct{}{} // a restarted watch that receives no response
			<-req.Context().Done()
			return true
		})
		transport := &http.Transport{DialContext: a.network.DialContext}
		defer transport.CloseIdleConnections()
		httpClient := &http.Client{Transport: testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			resp, err := transport.RoundTrip(req)
			if err != nil && req.Context().Err() != nil {
				err = errors.New(ended)
			}
			return resp, err
		})}
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(configMaps, meta.RESTScopeNamespace)
		created, err := NewWithOptions(Options{PerNamespace: true})(&rest.Config{Host: a.URL},
			cache.Options{HTTPClient: httpClient, Scheme: runtime.NewScheme(), Mapper: mapper})
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			_ = created.Start(ctx)
		}()
		g.Expect(created.WaitForCacheSync(ctx)).To(BeTrue())
		g.Expect(list(ctx, created.(Cache), "n")).To(Succeed())
		<-time.After(1100 * time.Millisecond) // client-go lists again after a watch of less than a second
		a.cut()
		g.Eventually(asked).WithTimeout(patience).Should(Receive())
		cancel()
		<-stopped
		g.Expect(logged.Load()).To(BeZero())
	})
}
