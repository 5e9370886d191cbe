package scopedcache

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/tracing"
)

// selections returns the selectors of each list, also of those that begin a watch, of the fake API
// server.
func (a *apiServer) selections() func() []string {
	var mu sync.Mutex
	var seen []string
	a.answers(func(_ http.ResponseWriter, req *http.Request) bool {
		query := req.URL.Query()
		if isList(req) || query.Get("sendInitialEvents") == "true" {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, req.URL.Path+" "+query.Get("labelSelector")+" "+query.Get("fieldSelector"))
		}
		return false
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// attributesOf returns what a review asks.
func attributesOf(req *http.Request) *authorizationv1.ResourceAttributes {
	body, _ := io.ReadAll(req.Body)
	sent, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		panic(err)
	}
	return sent.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes
}

func answerReview(w http.ResponseWriter, allowed bool) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind":       "SelfSubjectAccessReview",
		"apiVersion": "authorization.k8s.io/v1",
		"status":     map[string]any{"allowed": allowed},
	})
}

// allow makes the fake API server allow reviews for which allowed returns true, and returns the
// number of reviews for each namespace/name so far.
func (a *apiServer) allow(allowed func(namespace, name string) bool) func() map[string]int {
	var mu sync.Mutex
	asked := map[string]int{}
	a.answers(func(w http.ResponseWriter, req *http.Request) bool {
		if !isReview(req) {
			return false
		}
		attributes := attributesOf(req)
		mu.Lock()
		asked[attributes.Namespace+"/"+attributes.Name]++
		mu.Unlock()
		answerReview(w, allowed(attributes.Namespace, attributes.Name))
		return true
	})
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		copied := map[string]int{}
		for key, n := range asked {
			copied[key] = n
		}
		return copied
	}
}

func named(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }

func get(t *testing.T, c Cache, name string) error {
	t.Helper()
	return c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: name}, configMap())
}

func namesOf(t *testing.T, c Cache, opts ...client.ListOption) (names []string, err error) {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(configMaps.GroupVersion().WithKind("ConfigMapList"))
	err = c.List(t.Context(), list, opts...)
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	return names, err
}

// Reads use the scope of a watch that has the answer, and list nothing else.
func TestReadsUseTheScopeOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		lists := a.selections()
		c := a.newCache(t)
		for _, scope := range []Scope{
			{Namespace: "n", FieldSelector: named("a")},
			{Namespace: "n", FieldSelector: named("gone")},
			{Namespace: "n", LabelSelector: labels.SelectorFromSet(labels.Set{"l": "1"})},
			{Namespace: "n", FieldSelector: fields.OneTermNotEqualSelector("type", "t")},
		} {
			handle, err := c.Hold(t.Context(), configMap(), scope, HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			defer handle.Release()
		}
		g.Expect(get(t, c, "a")).To(Succeed()) // also while the scope syncs
		synctest.Wait()
		g.Expect(get(t, c, "a")).To(Succeed())
		g.Expect(get(t, c, "gone")).To(Satisfy(apierrors.IsNotFound))
		inside := client.InNamespace("n")
		g.Expect(namesOf(t, c, inside, client.MatchingFieldsSelector{Selector: named("a")})).To(Equal([]string{"a"}))
		g.Expect(namesOf(t, c, inside, client.MatchingFields{"metadata.name": "a", "metadata.namespace": "n"})).
			To(Equal([]string{"a"}))
		g.Expect(namesOf(t, c, inside, client.MatchingLabels{"l": "1"})).To(BeEmpty()) // the fake ignores selectors
		g.Expect(namesOf(t, c, inside, client.MatchingLabels{"l": "1", "m": "1"})).To(BeEmpty())
		g.Expect(namesOf(t, c, inside, client.MatchingFieldsSelector{
			Selector: fields.OneTermNotEqualSelector("type", "t"),
		})).To(Equal([]string{"a"}))
		g.Expect(lists()).To(ConsistOf(
			inN+"  metadata.namespace=n,metadata.name=a",
			inN+"  metadata.namespace=n,metadata.name=gone",
			inN+" l=1 metadata.namespace=n",
			inN+"  metadata.namespace=n,type!=t"))
	})
}

// A scope without selectors that serves has precedence. One that cannot serve does not stop the
// reads that a scope with selectors answers.
func TestPrecedenceOfUnselected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t, func(o *Options) {
			o.PerNamespace, o.IdleTimeout, o.AccessReviewInterval = false, time.Hour, 20*time.Second
		})
		g.Expect(list(t.Context(), c, "")).To(Succeed())
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: named("a")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		synctest.Wait()
		g.Expect(get(t, c, "a")).To(Succeed())
		g.Expect(useOf(handle).recent.Load()).To(BeFalse(), "the wide scope was read")

		a.allow(func(_, name string) bool { return name != "" })
		time.Sleep(time.Minute)
		g.Expect(statesOf(c)).To(ConsistOf(StateForbidden, StateSynced))
		g.Expect(get(t, c, "a")).To(Succeed())
		g.Expect(useOf(handle).recent.Load()).To(BeTrue(), "the scope of the watch was read")
		g.Expect(statesOf(c)).To(HaveLen(2))
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsNotFound))
		g.Expect(statesOf(c)).To(HaveLen(4), "of everything, n, a, and b")
	})
}

func statesOf(c Cache) (states []State) {
	for _, scope := range c.States() {
		states = append(states, scope.State)
	}
	return states
}

// A cached Get of a name needs no more than permission to list and watch that name. A name that is
// denied is asked for again after two seconds, then after an interval, or when RBAC has changed.
func TestGetOfAPermittedName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		permitted := map[string]bool{"a": true}
		var mu sync.Mutex
		asked := a.allow(func(namespace, name string) bool {
			mu.Lock()
			defer mu.Unlock()
			return namespace == "n" && permitted[name]
		})
		c := a.newCache(t, func(o *Options) {
			o.PerNamespace, o.IdleTimeout, o.AccessReviewInterval = false, time.Hour, 10*time.Minute
		})
		g.Expect(get(t, c, "a")).To(Succeed())
		g.Expect(namesOf(t, c, client.InNamespace("n"), client.MatchingFieldsSelector{Selector: named("a")})).
			To(Equal([]string{"a"}))
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		synctest.Wait()
		_, err := namesOf(t, c, client.InNamespace("n"))
		g.Expect(err).To(Satisfy(apierrors.IsForbidden))
		g.Expect(a.watches()).To(Equal([]string{inN}))
		g.Expect(statesOf(c)).To(ConsistOf(StateForbidden, StateForbidden, StateSynced), "no scope of b is left")

		denials := asked()["n/b"]
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		g.Expect(asked()["n/b"]).To(Equal(denials), "answered from memory")
		time.Sleep(firstDenial)
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		g.Expect(asked()["n/b"]).To(Equal(2*denials), "asked again")
		time.Sleep(9 * time.Minute)
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		g.Expect(asked()["n/b"]).To(Equal(2 * denials))
		time.Sleep(time.Minute)
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		g.Expect(asked()["n/b"]).To(Equal(3*denials), "asked again after the interval")
		c.(*scopedCache).entries.accessMayHaveChanged("")
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		g.Expect(asked()["n/b"]).To(Equal(4*denials), "and after any change")

		mu.Lock()
		permitted["b"] = true
		mu.Unlock()
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		c.(*scopedCache).entries.accessMayHaveChanged("other")
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		c.(*scopedCache).entries.accessMayHaveChanged("n")
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsNotFound), "the fake has a only")
	})
}

// Reads of many names that are denied ask for a bounded number of them, wait for none, and leave no
// scope.
func TestDeniedNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		asked := a.allow(func(string, string) bool { return false })
		var changes atomic.Int64
		c := a.newCache(t, func(o *Options) {
			o.AccessReviewInterval = time.Hour
			o.OnStateChange = func(State, ScopeState) { changes.Add(1) }
		})
		began := time.Now()
		for n := range 250 {
			g.Expect(get(t, c, fmt.Sprint("name-", n))).To(Satisfy(apierrors.IsForbidden))
		}
		g.Expect(time.Since(began)).To(BeZero())
		names := 0
		for key := range asked() {
			if key != "n/" {
				names++
			}
		}
		g.Expect(names).To(Equal(namesBurst))
		g.Expect(statesOf(c)).To(Equal([]State{StateForbidden}))
		g.Expect(changes.Load()).To(BeEquivalentTo(1))
	})
}

// Reads begin so many informers of single names, which end when nothing reads them.
func TestNamedScopesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.allow(func(_, name string) bool { return name != "" })
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour })
		read := func(n int) error { return get(t, c, fmt.Sprint("name-", n)) }
		for n := range maxNamedScopes {
			g.Expect(read(n)).To(Satisfy(apierrors.IsNotFound))
		}
		time.Sleep(time.Second) // more names may be asked for
		g.Expect(read(maxNamedScopes)).To(Satisfy(apierrors.IsForbidden))
		g.Expect(read(0)).To(Satisfy(apierrors.IsNotFound))
		g.Expect(c.States()).To(HaveLen(maxNamedScopes + 1))
		time.Sleep(2 * namedIdleTimeout)
		synctest.Wait()
		g.Expect(statesOf(c)).To(Equal([]State{StateForbidden}))
		g.Expect(read(maxNamedScopes)).To(Satisfy(apierrors.IsNotFound))
	})
}

// While the API server does not answer whether a name is permitted, the error of a read says so.
func TestNamesWithoutReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.allow(func(string, string) bool { return false })
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour })
		g.Expect(get(t, c, "a")).To(Satisfy(apierrors.IsForbidden))
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if isReview(req) {
				refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
				return true
			}
			return false
		})
		g.Expect(get(t, c, "b")).To(MatchError(ContainSubstring(`asking whether ConfigMap "b" may be listed`)))
		a.allow(func(_, name string) bool { return name == "b" })
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsNotFound), "no answer is not remembered")
	})
}

// If the identity may not create reviews, the answers to the requests for a name count, and are not
// asked for at each read.
func TestNamesOfWhoMayNotAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		var requests atomic.Int64
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			requests.Add(1)
			wide := strings.Contains(req.URL.Path, "configmaps") &&
				!strings.Contains(req.URL.Query().Get("fieldSelector"), "metadata.name=a")
			if isReview(req) || wide {
				refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			}
			return isReview(req) || wide
		})
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour })
		g.Expect(get(t, c, "a")).To(Succeed())
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		synctest.Wait()
		sent := requests.Load()
		for range 10 {
			g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsForbidden))
		}
		g.Expect(requests.Load()).To(Equal(sent))
	})
}

// A watch whose selector the API server refuses does not keep a List with that selector from the
// informer of the namespace.
func TestListBesideAFailingWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Query().Get("fieldSelector"), "spec.x") {
				refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
				return true
			}
			return false
		})
		c := a.newCache(t)
		g.Expect(c.IndexField(t.Context(), configMap(), "spec.x", func(client.Object) []string { return []string{"y"} })).
			To(Succeed())
		selector := fields.OneTermEqualSelector("spec.x", "y")
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: selector}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		time.Sleep(10 * time.Second)
		g.Expect(handle.State().State).To(Equal(StateFailing))
		g.Expect(namesOf(t, c, client.InNamespace("n"), client.MatchingFieldsSelector{Selector: selector})).
			To(Equal([]string{"a"}))
	})
}

// With ReaderFailOnMissingInformer a read uses the scope of a watch, and begins none.
func TestMissingInformers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCacheOf(t, cache.Options{ReaderFailOnMissingInformer: true})
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: named("a")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		g.Expect(get(t, c, "a")).To(Succeed())
		g.Expect(get(t, c, "b")).To(BeAssignableToTypeOf(&cache.ErrResourceNotCached{}))
	})
}

// With options for namespaces, only a scope in a namespace that has options answers reads: its
// selectors are those of the reads there.
func TestScopesOfConfiguredNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		lists := a.selections()
		c := a.newCacheOf(t, cache.Options{DefaultNamespaces: map[string]cache.Config{
			"n": {LabelSelector: labels.SelectorFromSet(labels.Set{"l": "1"})},
		}})
		for _, scope := range []Scope{
			{FieldSelector: named("a")},
			{Namespace: "m", FieldSelector: named("b")},
			{Namespace: "n", FieldSelector: named("b")},
		} {
			handle, err := c.Hold(t.Context(), configMap(), scope, HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			defer handle.Release()
			if scope.Namespace != "n" { // before any scope may answer
				again, err := c.Hold(t.Context(), configMap(), Scope{FieldSelector: named("other")}, HoldOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				again.Release()
			}
		}
		synctest.Wait()
		g.Expect(get(t, c, "b")).To(Satisfy(apierrors.IsNotFound))
		g.Expect(lists()).NotTo(ContainElement(inN + " l=1 metadata.namespace=n"))
		g.Expect(get(t, c, "a")).To(Succeed())
		g.Expect(lists()).To(ContainElement(inN + " l=1 metadata.namespace=n"))
		g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "m", Name: "b"}, configMap())).
			To(MatchError(ContainSubstring("do not name the namespace")))
	})
}

// Reads keep the scope of a watch after its holder has released it only as long as they come, and
// not at all if scopes do not end when idle.
func TestReadsOfAReleasedScope(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			c := newAPIServer(t).newCache(t, func(o *Options) { o.IdleTimeout = timeout })
			handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: named("a")}, HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(get(t, c, "a")).To(Succeed())
			handle.Release()
			if timeout > 0 {
				g.Expect(c.States()).To(HaveLen(1))
				time.Sleep(2 * timeout)
				synctest.Wait()
			}
			g.Expect(c.States()).To(BeEmpty())
		})
	}
}

// A trace shows which scope answered a read.
func TestReadsInTraces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		recorder := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
		c := newAPIServer(t).newCache(t, func(o *Options) { o.TracerProvider = provider })
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: named("a")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		defer handle.Release()
		ctx, span := provider.Tracer("test").Start(t.Context(), "reconcile")
		for range 2 { // the first waits
			g.Expect(c.Get(ctx, client.ObjectKey{Namespace: "n", Name: "a"}, configMap())).To(Succeed())
			g.Expect(list(ctx, c, "n")).To(Succeed())
		}
		span.End()
		var scopes []string
		for _, ended := range recorder.Ended() {
			for _, event := range ended.Events() {
				for _, attribute := range event.Attributes {
					if attribute.Key == tracing.Scope {
						scopes = append(scopes, event.Name+" "+attribute.Value.AsString())
					}
				}
			}
		}
		read := tracing.CachedRead + " namespace n"
		g.Expect(scopes).To(Equal([]string{read + ", fields metadata.name=a", read, read, read}))
	})
}

// The scope of a watch that is Forbidden ends with its holder, too. A read beside it is Forbidden
// without a scope of its own, which would be another informer once access is granted.
func TestReleaseOfAForbiddenScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.deny(true)
		c := a.newCache(t)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: named("a")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		g.Expect(get(t, c, "a")).To(Satisfy(apierrors.IsForbidden))
		handle.Release()
		synctest.Wait()
		g.Expect(c.States()).To(BeEmpty())
		kind, err := c.(*scopedCache).env.kinds.kindOf(configMap())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kind.selected).To(BeEmpty())
	})
}

// A read that waits for the scope of a watch goes on with another one when the watch ends.
func TestReleaseDuringARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.answers(func(_ http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Query().Get("fieldSelector"), "metadata.name=") {
				<-req.Context().Done()
			}
			return false
		})
		c := a.newCache(t)
		handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: named("a")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		result := make(chan error, 1)
		go func() { result <- get(t, c, "a") }()
		synctest.Wait()
		g.Expect(result).NotTo(Receive())
		handle.Release()
		g.Expect(<-result).NotTo(HaveOccurred())
	})
}

// A List by name has that object only, from whatever informer.
func TestListByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t, func(o *Options) { o.PerNamespace = false })
		g.Expect(c.IndexField(t.Context(), configMap(), "indexed", func(client.Object) []string { return []string{"yes"} })).
			To(Succeed())
		g.Expect(list(t.Context(), c, "")).To(Succeed())
		for _, tc := range []struct {
			fields client.MatchingFields
			want   []string
		}{
			{client.MatchingFields{"metadata.name": "a"}, []string{"a"}},
			{client.MatchingFields{"metadata.name": "b"}, nil},
			{client.MatchingFields{"metadata.namespace": "n"}, []string{"a"}},
			{client.MatchingFields{"metadata.namespace": "m"}, nil},
			{client.MatchingFields{"indexed": "yes", "metadata.name": "a"}, []string{"a"}},
			{client.MatchingFields{"indexed": "yes", "metadata.name": "b"}, nil},
			{client.MatchingFields{"indexed": "no", "metadata.name": "a"}, nil},
		} {
			for _, namespace := range []string{"", "n"} {
				g.Expect(namesOf(t, c, client.InNamespace(namespace), tc.fields)).To(Equal(tc.want), "%v", tc.fields)
			}
		}
		_, err := namesOf(t, c, client.MatchingFields{"unknown": "yes", "metadata.name": "a"})
		g.Expect(err).To(HaveOccurred())
	})
}
