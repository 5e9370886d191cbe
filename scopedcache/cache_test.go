package scopedcache

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func TestMain(m *testing.M) {
	// With the race detector, timers of a bubble that fire on two threads at once now and then crash
	// the process: golang/go#78156. What races is found on one thread as well.
	goruntime.GOMAXPROCS(1)
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m)
}

const patience = 30 * time.Second

var configMaps = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

// apiServer is a fake that serves one ConfigMap, "n/a", counts open watches, can deny access, and
// records requests. Package test tests against a real API server.
type apiServer struct {
	*httptest.Server
	network *testutil.PipeListener

	mu     sync.Mutex
	denied bool // guarded by mu; deny all access
	// guarded by mu; if not nil and it returns true, it has written the response
	answer func(w http.ResponseWriter, req *http.Request) bool
	// guarded by mu; lists by path, including lists streamed by watches
	lists       map[string]int
	watchCount  int             // guarded by mu; all watches so far
	reviewCount int             // guarded by mu; access reviews
	open        map[string]int  // guarded by mu; open watches by path
	end         chan struct{}   // guarded by mu; closed and replaced to end all watches
	paths       map[string]bool // guarded by mu; requested paths
}

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{open: map[string]int{}, end: make(chan struct{}), paths: map[string]bool{}, lists: map[string]int{}}
	a.Server = httptest.NewUnstartedServer(a)
	_ = a.Listener.Close()
	a.network = testutil.NewPipeListener()
	a.Listener = a.network
	a.Start()
	t.Cleanup(func() {
		a.cut()
		a.Close()
	})
	return a
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.mu.Lock()
	denied, end, answer := a.denied, a.end, a.answer
	review := strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews")
	whoami := strings.HasSuffix(req.URL.Path, "/selfsubjectreviews")
	readyz, discovery := req.URL.Path == "/readyz", req.URL.Path == "/api/v1"
	if review {
		a.reviewCount++
	} else if !whoami && !readyz && !discovery {
		a.paths[req.URL.Path] = true
	}
	a.mu.Unlock()
	if answer != nil && answer(w, req) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case readyz:
		_, _ = w.Write([]byte("ok"))
		return
	case discovery:
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			GroupVersion: "v1",
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			APIResources: []metav1.APIResource{
				{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"get", "list", "watch"}}},
		})
		return
	case whoami:
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(
			[]byte(
				`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"red"}}}`))
		return
	case review:
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).
			Encode(map[string]any{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
				"status": map[string]any{"allowed": !denied}})
		return
	case denied:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	if req.URL.Query().Get("watch") == "" || req.URL.Query().Get("sendInitialEvents") == "true" {
		a.mu.Lock()
		a.lists[req.URL.Path]++
		a.mu.Unlock()
	}
	object := func(version string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"namespace": "n", "name": "a", "uid": "u", "resourceVersion": version}}
	}
	if req.URL.Query().Get("watch") == "" {
		_ = json.NewEncoder(w).
			Encode(map[string]any{"apiVersion": "v1", "kind": "ConfigMapList",
				"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{object("1")}})
		return
	}
	a.mu.Lock()
	a.watchCount++
	a.open[req.URL.Path]++
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.open[req.URL.Path]--; a.open[req.URL.Path] == 0 {
			delete(a.open, req.URL.Path)
		}
	}()
	if req.URL.Query().Get("sendInitialEvents") == "true" {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": object("1")})
		bookmark := map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"resourceVersion": "1",
				"annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}}
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": bookmark})
	}
	_ = http.NewResponseController(w).Flush()
	select {
	case <-end:
	case <-req.Context().Done():
	}
}

// refuse responds with a Status.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).
		Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure,
			Code:     int32(code),
			Reason:   reason,
			Message:  "you may not",
		})
}

// cut ends all watches.
func (a *apiServer) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.end)
	a.end = make(chan struct{})
}

func (a *apiServer) deny(denied bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.denied = denied
}

// watches returns the path of each open watch, sorted.
func (a *apiServer) watches() (paths []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, n := range a.open {
		paths = append(paths, slices.Repeat([]string{path}, n)...)
	}
	slices.Sort(paths)
	return paths
}

const (
	inN        = "/api/v1/namespaces/n/configmaps"
	everywhere = "/api/v1/configmaps"
)

// newCache creates a cache that runs until the test ends and reviews its access often.
func (a *apiServer) newCache(t *testing.T, options ...func(*Options)) Cache {
	t.Helper()
	return a.newCacheOf(t, cache.Options{}, options...)
}

// newCacheOf is newCache with options for controller-runtime's cache.
func (a *apiServer) newCacheOf(t *testing.T, opts cache.Options, options ...func(*Options)) Cache {
	t.Helper()
	g := NewWithT(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(configMaps, meta.RESTScopeNamespace)
	httpClient := &http.Client{Transport: &http.Transport{DialContext: a.network.DialContext}}
	scopedOptions := Options{AccessReviewInterval: 200 * time.Millisecond, PerNamespace: true}
	for _, option := range options {
		option(&scopedOptions)
	}
	opts.HTTPClient, opts.Mapper, opts.Scheme = httpClient, mapper, runtime.NewScheme()
	created, err := NewWithOptions(scopedOptions)(&rest.Config{Host: a.URL}, opts)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = created.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		httpClient.CloseIdleConnections()
	})
	g.Expect(created.WaitForCacheSync(ctx)).To(BeTrue())
	return created.(Cache)
}

func configMap() client.Object {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(configMaps)
	return object
}

func list(ctx context.Context, c Cache, namespace string) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(configMaps.GroupVersion().WithKind("ConfigMapList"))
	return c.List(ctx, list, client.InNamespace(namespace))
}

// All holders of a scope share one informer, which stops with the last holder.
func TestHoldersShareAnInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		hold := func(namespace string) *Handle {
			handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: namespace}, HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			return handle
		}
		first, second, other := hold("n"), hold("n"), hold("")
		g.Eventually(a.watches).WithTimeout(patience).Should(Equal([]string{everywhere, inN}))
		first.Release()
		first.Release() // a second Release has no effect
		g.Consistently(a.watches, 200*time.Millisecond).Should(Equal([]string{everywhere, inN}))
		second.Release()
		g.Eventually(a.watches).WithTimeout(patience).Should(Equal([]string{everywhere}))
		other.Release()
		g.Eventually(a.watches).WithTimeout(patience).Should(BeEmpty())
		g.Expect(c.States()).To(BeEmpty())
		third := hold("n")
		g.Eventually(a.watches).WithTimeout(patience).Should(Equal([]string{inN}), "a new informer starts")
		third.Release()
	})
}

// A scope that is read stays after its holders release it, until RemoveInformer. RemoveInformer
// does not stop a scope that has a holder.
func TestReadersAndHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, configMap())).To(Succeed())
		handle.Release()
		g.Consistently(a.watches, 200*time.Millisecond).Should(Equal([]string{inN}))
		again, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.RemoveInformer(t.Context(), configMap())).To(Succeed())
		g.Consistently(a.watches, 200*time.Millisecond).Should(Equal([]string{inN}), "the scope has a holder")
		g.Expect(again.IsStopped()).To(BeFalse())
		again.Release()
		g.Eventually(a.watches).WithTimeout(patience).Should(BeEmpty())
		g.Expect(list(t.Context(), c, "n")).To(Succeed(), "the next read starts a new informer")
		g.Expect(c.RemoveInformer(t.Context(), configMap())).To(Succeed())
		g.Eventually(a.watches).WithTimeout(patience).Should(BeEmpty())
	})
}

// A read in a namespace requests that namespace only, so that a Role suffices.
func TestReadsAskForTheirNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		a.mu.Lock()
		defer a.mu.Unlock()
		for path := range a.paths {
			g.Expect(path).To(Equal(inN))
		}
	})
}

// Observers receive states in order. Readers receive a denial at once.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.deny(true)
		c := a.newCache(t)
		states := make(chan ScopeState, 100)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"},
			HoldOptions{OnStateChange: func(state ScopeState) { states <- state }})
		g.Expect(err).NotTo(HaveOccurred())
		var state ScopeState
		g.Eventually(states).WithTimeout(patience).Should(Receive(&state))
		g.Expect(state.State).To(Equal(StateForbidden))
		g.Expect(apierrors.IsForbidden(state.LastError)).To(BeTrue())
		g.Expect(state.GVK).To(Equal(configMaps))
		g.Expect(state.Representation).To(Equal(RepresentationUnstructured))
		g.Expect(state.Scope).To(Equal(Scope{Namespace: "n"}))
		g.Expect(apierrors.IsForbidden(list(t.Context(), c, "n"))).To(BeTrue())
		late := make(chan ScopeState, 100)
		other, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"},
			HoldOptions{OnStateChange: func(state ScopeState) { late <- state }})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(late).To(Receive(HaveField("State", StateForbidden)), "a late observer receives the current state")
		other.Release()

		a.deny(false)
		seen := func() (last State) {
			for {
				select {
				case state := <-states:
					last = state.State
				default:
					return last
				}
			}
		}
		g.Eventually(seen).WithTimeout(patience).Should(Equal(StateSynced))
		g.Expect(c.States()).
			To(
				HaveExactElements(And(HaveField("State", StateSynced), HaveField("Objects", 1), HaveField("LastError", BeNil()))))
		g.Expect(list(t.Context(), c, "n")).To(Succeed())

		a.deny(true)
		g.Eventually(seen).WithTimeout(patience).Should(Equal(StateForbidden),
			"only the answer to the review shows the denial")
		g.Expect(apierrors.IsForbidden(list(t.Context(), c, "n"))).To(BeTrue())
		g.Eventually(a.watches).WithTimeout(patience).Should(BeEmpty())
		a.deny(false)
		g.Eventually(seen).WithTimeout(patience).Should(Equal(StateSynced))
		g.Expect(late).NotTo(Receive(), "an observer receives nothing after Release")
		handle.Release()
	})
}

// Negative and zero options have the defaults that Options documents.
func TestDefaults(t *testing.T) {
	g := NewWithT(t)
	options := Options{AccessReviewInterval: -1}
	options.setDefaults()
	g.Expect(options.AccessReviewInterval).To(Equal(time.Minute))
	g.Expect(options.ReadTimeout).To(Equal(30 * time.Second))
	g.Expect(options.IdleTimeout).To(BeZero())
	g.Expect(options.PerNamespace || options.WatchRBAC || options.PollWithoutWatch).To(BeFalse())
}

// A handle reads its own scope. Another kind, representation or namespace is an error. Such a read
// starts no informer without an access review, and returns no partial list.
func TestHandleReadsWhatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		g.Expect(handle.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, configMap())).To(Succeed())
		secrets := &unstructured.UnstructuredList{}
		secrets.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "SecretList"})
		g.Expect(handle.List(t.Context(), secrets)).
			To(
				MatchError(
					ContainSubstring(
						"the handle is of /v1, Kind=ConfigMap (Unstructured), and not of /v1, Kind=Secret (Unstructured)")))
		metadata := &metav1.PartialObjectMetadata{}
		metadata.SetGroupVersionKind(configMaps)
		g.Expect(handle.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, metadata)).
			To(MatchError(ContainSubstring("(Metadata)")))
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(configMaps.GroupVersion().WithKind("ConfigMapList"))
		g.Expect(handle.List(t.Context(), list, client.InNamespace("m"))).
			To(MatchError(ContainSubstring(`in namespace "n", and not in "m"`)))
		g.Expect(handle.List(t.Context(), list)).To(Succeed())
		g.Expect(a.watches()).To(Equal([]string{inN}))
	})
}

// A selector that selects nothing is refused, because the API server would return all objects for
// it.
func TestScopesThatSelectNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		for _, nothing := range []Scope{{LabelSelector: labels.Nothing()}, {FieldSelector: fields.Nothing()}} {
			_, err := c.Hold(t.Context(), configMap(), nothing, HoldOptions{})
			g.Expect(err).To(MatchError(ContainSubstring("selects nothing")))
		}
		for _, opts := range []cache.Options{
			{DefaultLabelSelector: labels.Nothing()},
			{DefaultNamespaces: map[string]cache.Config{"n": {FieldSelector: fields.Nothing()}}},
			{ByObject: map[client.Object]cache.ByObject{configMap(): {Label: labels.Nothing()}}},
		} {
			_, err := New(&rest.Config{Host: a.URL}, opts)
			g.Expect(err).To(MatchError(ContainSubstring("selects nothing")))
		}
	})
}

// A dependent has one handle on a scope for each name.
func TestDependentsByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t)
		hold := func(name, dependent string) *Handle {
			handle, err := c.Hold(t.Context(), configMap(), Scope{}, HoldOptions{Name: name, Dependent: types.UID(dependent)})
			g.Expect(err).NotTo(HaveOccurred())
			return handle
		}
		one, again, other := hold("a", "uid"), hold("a", "uid"), hold("b", "uid")
		g.Expect(again).To(BeIdenticalTo(one))
		g.Expect(one.State().Dependents).To(Equal([]string{"a uid", "b uid"}))
		one.Release()
		g.Expect(other.State().Dependents).To(Equal([]string{"b uid"}))
		other.Release()
		g.Expect(c.States()).To(BeEmpty())
	})
}

// The log reports when a scope cannot be read, and when it can again. The start of an informer is
// not logged.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		var mu sync.Mutex
		var lines []string
		c := a.newCache(t, func(o *Options) {
			o.Logger = funcr.New(func(_, line string) {
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, line)
			}, funcr.Options{})
		})
		logged := func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(lines, "\n")
		}
		g.Expect(list(t.Context(), c, "n")).To(Succeed())
		g.Expect(logged()).To(BeEmpty())
		a.deny(true)
		g.Eventually(logged).WithTimeout(patience).
			Should(And(ContainSubstring(`"state"="Forbidden"`), ContainSubstring(`"scope"="namespace n"`),
				ContainSubstring(`cannot watch`)))
		a.deny(false)
		g.Eventually(logged).WithTimeout(patience).Should(ContainSubstring(`"state"="Synced"`))
		g.Expect(strings.Count(logged(), "\n")).To(Equal(1))
	})
}
