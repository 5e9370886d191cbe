package connection

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
)

// shapes is an API server with one kind, whose resource and scope change.
type shapes struct {
	mu          sync.Mutex
	plural      string        // guarded by mu
	namespaced  bool          // guarded by mu
	fails       bool          // guarded by mu; discovery does
	hangs       bool          // guarded by mu; discovery does
	wholeHangs  bool          // guarded by mu; discovery of all groups does
	lookupTakes time.Duration // guarded by mu
	discoveries int           // guarded by mu; of all groups
	lookups     int           // guarded by mu; of the group alone
	requests    []string      // guarded by mu; others

	client *http.Client // of the connection
}

var shapeKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shape"}

func (s *shapes) set(change func(*shapes)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// take returns the requests since the last call, and how many discoveries there were in all.
func (s *shapes) take() (requests []string, discoveries int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.requests = nil }()
	return s.requests, s.discoveries
}

// RoundTrip implements http.RoundTripper.
func (s *shapes) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	if path := r.URL.Path; s.hangs && (path == "/api" || path == "/apis" || path == "/apis/example.com") {
		s.discoveries++
		s.mu.Unlock()
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if path := r.URL.Path; s.wholeHangs && (path == "/api" || path == "/apis") {
		s.mu.Unlock()
		<-r.Context().Done()
		return nil, r.Context().Err()
	} else if path == "/apis/example.com" && s.lookupTakes > 0 {
		takes := s.lookupTakes
		s.mu.Unlock()
		select {
		case <-time.After(takes):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	answer, status := func() (string, int) {
		switch path := r.URL.Path; {
		case s.fails && (path == "/api" || path == "/apis" || path == "/apis/example.com"):
			return `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}`, 500
		case path == "/api":
			return `{"kind":"APIVersions","versions":[]}`, 200
		case path == "/apis":
			s.discoveries++
			return `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com",` +
				`"versions":[{"groupVersion":"example.com/v1","version":"v1"}],` +
				`"preferredVersion":{"groupVersion":"example.com/v1","version":"v1"}}]}`, 200
		case path == "/apis/example.com":
			s.lookups++
			return `{"kind":"APIGroup","apiVersion":"v1","name":"example.com",` +
				`"versions":[{"groupVersion":"example.com/v1","version":"v1"}],` +
				`"preferredVersion":{"groupVersion":"example.com/v1","version":"v1"}}`, 200
		case path == "/apis/example.com/v1":
			return fmt.Sprintf(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[`+
				`{"name":%q,"singularName":"shape","namespaced":%t,"kind":"Shape","verbs":["get"]}]}`, s.plural, s.namespaced), 200
		case path == "/gone":
			return "404 page not found", 404
		default:
			s.requests = append(s.requests, r.Method+" "+strings.TrimPrefix(path, "/apis/example.com/v1/"))
			kind := "Shape"
			if r.Method == http.MethodGet && strings.HasSuffix(path, "/"+s.plural) {
				kind = "ShapeList"
			}
			return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":%q,"metadata":{"name":"x"},"items":[]}`, kind), 200
		}
	}()
	mediaType := "application/json"
	if status == http.StatusNotFound {
		mediaType = "text/plain"
	}
	return &http.Response{
		StatusCode: status,
		Body:       io.NopCloser(strings.NewReader(answer)),
		Request:    r,
		Header:     http.Header{"Content-Type": {mediaType}},
	}, nil
}

// reads is a cache that has nothing, and counts.
type reads struct {
	client.Reader
	n int
}

func (r *reads) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	r.n++
	return nil
}

func (r *reads) List(context.Context, client.ObjectList, ...client.ListOption) error {
	r.n++
	return nil
}

func newShapes(t *testing.T, options *client.CacheOptions) (*shapes, client.Client) {
	g := NewWithT(t)
	s := &shapes{plural: "shapes", namespaced: true}
	c := newTestConnection(t)
	c.options.Scheme = runtime.NewScheme()
	metav1.AddToGroupVersion(c.options.Scheme, shapeKind.GroupVersion())
	c.limiter = nil
	var set targets.Set
	target, err := set.Join(&rest.Config{Host: "http://server"}, nil, &targets.Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	c.httpClient = &http.Client{Transport: target.Observe(s), Timeout: 10 * time.Second}
	s.client = c.httpClient
	c.mapper = target.Mapper("", c.httpClient, 0)
	c.target = target.Target
	following, err := newFollowingClient(c, c.httpClient, options)
	g.Expect(err).NotTo(HaveOccurred())
	return s, following
}

// notice makes the connection notice that a path is gone.
func (s *shapes) notice(t *testing.T) {
	t.Helper()
	time.Sleep(5 * time.Second) // a discovery is that old
	resp, err := s.client.Get("http://server/gone")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(resp.Body.Close()).To(Succeed())
}

// anew looks the kind up as a scope does.
func anew(t *testing.T, c client.Client) error {
	_, err := c.(*followingClient).conn.mapper.RESTMappingAnew(t.Context(), shapeKind.GroupKind(), shapeKind.Version)
	return err
}

func shapeNamed(namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(shapeKind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// configuration is what a generated type for server-side apply is.
type configuration struct {
	APIVersion *string            `json:"apiVersion,omitempty"`
	Kind       *string            `json:"kind,omitempty"`
	Metadata   map[string]*string `json:"metadata,omitempty"`
	Status     map[string]any     `json:"status,omitempty"`
}

func (*configuration) IsApplyConfiguration()    {}
func (c *configuration) GetName() *string       { return c.Metadata["name"] }
func (c *configuration) GetNamespace() *string  { return c.Metadata["namespace"] }
func (c *configuration) GetKind() *string       { return c.Kind }
func (c *configuration) GetAPIVersion() *string { return c.APIVersion }

// An extension that only reads from the cache has no client of controller-runtime.
func TestReadsFromTheCacheNeedNoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cached := &reads{}
		s, c := newShapes(t, &client.CacheOptions{Reader: cached})
		g.Expect(c.Get(t.Context(), client.ObjectKey{Name: "x"}, shapeNamed("", ""))).To(Succeed())
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(shapeKind)
		g.Expect(c.List(t.Context(), list)).To(Succeed())
		g.Expect(cached.n).To(Equal(2))
		g.Expect(c.(*followingClient).server.forms[formUnstructured].current.Load()).To(BeNil())
		g.Expect(c.Create(t.Context(), shapeNamed("ns", "x"))).To(Succeed())
		g.Expect(c.(*followingClient).server.forms[formUnstructured].current.Load()).NotTo(BeNil())
		requests, _ := s.take()
		g.Expect(requests).To(Equal([]string{"POST namespaces/ns/shapes"}))
	})
}

// Every request that is not for a cache goes to the resource that discovery names now, in each
// representation.
func TestRequestsFollowDiscovery(t *testing.T) {
	merge := client.RawPatch("application/merge-patch+json", []byte(`{}`))
	metadata := func(ns string) *metav1.PartialObjectMetadata {
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "x"}}
		m.SetGroupVersionKind(shapeKind)
		return m
	}
	applied := func(ns string) *configuration {
		c := &configuration{
			APIVersion: new("example.com/v1"),
			Kind:       new("Shape"),
			Metadata:   map[string]*string{"name": new("x")},
		}
		if ns != "" {
			c.Metadata["namespace"] = &ns
		}
		return c
	}
	list := func(gvk schema.GroupVersionKind) *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		return list
	}
	for name, tc := range map[string]struct {
		send func(ctx context.Context, c client.Client, ns string) error
		path string
	}{
		"create": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Create(ctx, shapeNamed(ns, "x"))
		}, "POST %s"},
		"update": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Update(ctx, shapeNamed(ns, "x"))
		}, "PUT %s/x"},
		"patch": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Patch(ctx, shapeNamed(ns, "x"), merge)
		}, "PATCH %s/x"},
		"patch of metadata": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Patch(ctx, metadata(ns), merge)
		}, "PATCH %s/x"},
		"apply": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Apply(ctx, applied(ns), client.FieldOwner("me"))
		}, "PATCH %s/x"},
		"apply of unstructured": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(shapeNamed(ns, "x")), client.FieldOwner("me"))
		}, "PATCH %s/x"},
		"delete": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Delete(ctx, shapeNamed(ns, "x"))
		}, "DELETE %s/x"},
		"delete all": {func(ctx context.Context, c client.Client, ns string) error {
			return c.DeleteAllOf(ctx, shapeNamed("", ""), client.InNamespace(ns))
		}, "DELETE %s"},
		"get": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "x"}, shapeNamed("", ""))
		}, "GET %s/x"},
		"get of metadata": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "x"}, metadata(""))
		}, "GET %s/x"},
		"list": {func(ctx context.Context, c client.Client, ns string) error {
			return c.List(ctx, list(shapeKind), client.InNamespace(ns))
		}, "GET %s"},
		"status update": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Status().Update(ctx, shapeNamed(ns, "x"))
		}, "PUT %s/x/status"},
		"status patch": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Status().Patch(ctx, shapeNamed(ns, "x"), merge)
		}, "PATCH %s/x/status"},
		"status apply": {func(ctx context.Context, c client.Client, ns string) error {
			return c.Status().Apply(ctx, applied(ns), client.FieldOwner("me"))
		}, "PATCH %s/x/status"},
		"get of a subresource": {func(ctx context.Context, c client.Client, ns string) error {
			return c.SubResource("scale").Get(ctx, shapeNamed(ns, "x"), shapeNamed("", ""))
		}, "GET %s/x/scale"},
		"create of a subresource": {func(ctx context.Context, c client.Client, ns string) error {
			return c.SubResource("eviction").Create(ctx, shapeNamed(ns, "x"), shapeNamed("", ""))
		}, "POST %s/x/eviction"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s, c := newShapes(t, nil)
				expect := func(ns, path string) {
					t.Helper()
					g.Expect(tc.send(t.Context(), c, ns)).To(Succeed())
					requests, _ := s.take()
					g.Expect(requests).To(Equal([]string{fmt.Sprintf(tc.path, path)}))
				}
				expect("n", "namespaces/n/shapes")
				s.set(func(s *shapes) { s.namespaced = false })
				time.Sleep(5 * time.Second)
				if name != "list" && name != "delete all" { // which make sense for both
					expect("", "shapes")
				}
				s.set(func(s *shapes) { s.namespaced, s.plural = true, "figures" })
				s.notice(t)
				expect("n", "namespaces/n/figures")
				s.set(func(s *shapes) { s.namespaced = false })
				s.notice(t)
				expect("", "figures")
				s.set(func(s *shapes) { s.namespaced = true })
				time.Sleep(5 * time.Second)
				expect("n", "namespaces/n/figures")
			})
		})
	}
}

// While nothing contradicts what is known, there is one discovery. A request that does contradict
// it has the kind looked up, more and more rarely, and a request whose mistake is the caller's
// fails as ever.
func TestDoubtsAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, c := newShapes(t, nil)
		for range 1000 {
			g.Expect(c.Create(t.Context(), shapeNamed("n", "x"))).To(Succeed())
			time.Sleep(time.Second)
		}
		for range 10 {
			g.Expect(c.List(t.Context(), &unstructured.UnstructuredList{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "ShapeList"}})).To(Succeed(), "of all namespaces")
			g.Expect(c.DeleteAllOf(t.Context(), shapeNamed("", ""))).To(Succeed(), "in all namespaces")
			time.Sleep(10 * time.Second)
		}
		s.set(func(s *shapes) { g.Expect(s.lookups).To(BeZero()) })
		s.take()
		for range 600 {
			g.Expect(c.Create(t.Context(), shapeNamed("", "x"))).To(MatchError(ContainSubstring("an empty namespace")))
			time.Sleep(time.Second)
		}
		requests, discoveries := s.take()
		g.Expect(requests).To(BeEmpty())
		g.Expect(discoveries).To(Equal(1))
		s.set(func(s *shapes) { g.Expect(s.lookups).To(And(BeNumerically(">=", 10), BeNumerically("<=", 5+600/10))) })
		s.set(func(s *shapes) { s.namespaced = false })
		time.Sleep(time.Minute)
		g.Expect(c.Create(t.Context(), shapeNamed("", "x"))).To(Succeed())
	})
}

// While discovery fails, requests go where they went before, and a kind that is not known fails
// with the reason.
func TestRequestsWhileDiscoveryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, c := newShapes(t, nil)
		s.set(func(s *shapes) { s.fails = true })
		g.Expect(c.Create(t.Context(), shapeNamed("n", "x"))).To(MatchError(ContainSubstring("discovering the kinds")))
		s.set(func(s *shapes) { s.fails = false })
		time.Sleep(5 * time.Second)
		g.Expect(c.Create(t.Context(), shapeNamed("n", "x"))).To(Succeed())
		s.set(func(s *shapes) { s.namespaced = false })
		s.notice(t)
		s.set(func(s *shapes) { s.fails = true })
		s.take()
		g.Expect(c.Create(t.Context(), shapeNamed("n", "x"))).To(Succeed())
		requests, _ := s.take()
		g.Expect(requests).To(Equal([]string{"POST namespaces/n/shapes"}))
		g.Expect(anew(t, c)).NotTo(Succeed(), "what is known is no answer")
		s.set(func(s *shapes) { s.fails = false })
		g.Expect(anew(t, c)).To(Succeed())
		s.set(func(s *shapes) { s.fails = true })
		g.Expect(anew(t, c)).To(Succeed(), "it was found a moment ago")
		g.Expect(c.Create(t.Context(), shapeNamed("", "x"))).To(Succeed())
		requests, _ = s.take()
		g.Expect(requests).To(Equal([]string{"POST shapes"}), "a lookup of the group is enough")
		time.Sleep(time.Second)
		g.Expect(anew(t, c)).NotTo(Succeed())

		unknown := shapeNamed("n", "x")
		unknown.SetKind("Unknown")
		g.Expect(c.Create(t.Context(), unknown)).NotTo(Succeed())
		g.Expect(c.Update(t.Context(), &unstructured.Unstructured{})).NotTo(Succeed())
		g.Expect(c.Apply(t.Context(), &configuration{}, client.FieldOwner("me"))).NotTo(Succeed())
	})
}

// While discovery hangs, one request in five seconds waits for it, for a second, and no other.
func TestRequestsWhileDiscoveryHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, c := newShapes(t, nil)
		g.Expect(c.Create(t.Context(), shapeNamed("n", "x"))).To(Succeed())
		s.set(func(s *shapes) { s.namespaced = false })
		s.notice(t)
		s.set(func(s *shapes) { s.hangs, s.discoveries = true, 0 })
		begun := time.Now()
		var waited atomic.Int32
		var writers sync.WaitGroup
		for range 50 {
			writers.Go(func() {
				for range 10 {
					sent := time.Now()
					if err := c.Create(t.Context(), shapeNamed("n", "x")); err != nil {
						t.Error(err)
					}
					if wait := time.Since(sent); wait > 0 {
						waited.Add(1)
						if wait > time.Second {
							t.Errorf("a request waited %s", wait)
						}
					}
					time.Sleep(time.Second)
				}
			})
		}
		writers.Wait()
		g.Expect(waited.Load()).To(BeNumerically("<=", 3))
		g.Expect(time.Since(begun)).To(BeNumerically("<=", 13*time.Second))
		_, discoveries := s.take()
		g.Expect(discoveries).To(BeNumerically("<=", 6), "/api and /apis for each")
		time.Sleep(time.Minute)
	})
}

// What a lookup of the group finds is used while the discovery of all groups hangs, and other kinds
// stay known.
func TestLookupIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, c := newShapes(t, nil)
		g.Expect(c.Create(t.Context(), shapeNamed("n", "x"))).To(Succeed())
		following := c.(*followingClient)
		known := following.server.forms[formUnstructured].current.Load().pins.get(shapeKind)
		otherKind := schema.GroupVersionKind{Version: "v1", Kind: "Other"}
		following.server.forms[formUnstructured].current.Load().pins.known.Store(otherKind, known)
		s.set(func(s *shapes) { s.namespaced, s.wholeHangs = false, true })
		time.Sleep(10 * time.Second)
		s.take()
		begun := time.Now()
		for range 5 {
			g.Expect(c.Create(t.Context(), shapeNamed("", "x"))).To(Succeed())
		}
		requests, _ := s.take()
		g.Expect(requests).To(HaveEach("POST shapes"))
		g.Expect(time.Since(begun)).To(BeZero())
		g.Expect(following.server.forms[formUnstructured].current.Load().pins.get(otherKind)).
			To(BeIdenticalTo(known), "also in another client")
		time.Sleep(time.Minute)
	})
}

// A lookup that takes longer than a request waits for is used by a later one.
func TestSlowLookupIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, c := newShapes(t, nil)
		g.Expect(c.Create(t.Context(), shapeNamed("n", "x"))).To(Succeed())
		s.set(func(s *shapes) { s.namespaced, s.wholeHangs, s.lookupTakes = false, true, 3*time.Second })
		time.Sleep(10 * time.Second)
		begun, failed := time.Now(), 0
		for c.Create(t.Context(), shapeNamed("", "x")) != nil {
			failed++
			g.Expect(time.Since(begun)).To(BeNumerically("<", 10*time.Second))
			time.Sleep(500 * time.Millisecond)
		}
		g.Expect(failed).To(BeNumerically(">", 0))
		time.Sleep(time.Minute)
	})
}

// Reads of a cache ask nothing. Kinds that are not read from it follow.
func TestReadsOfACache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cache := &reads{}
		other := shapeNamed("n", "x")
		other.SetKind("Other")
		read := func(c client.Client) {
			g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "x"}, shapeNamed("", ""))).To(Succeed())
			g.Expect(c.List(t.Context(), &unstructured.UnstructuredList{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "ShapeList"}}, client.InNamespace("n"))).To(Succeed())
		}
		for _, disabled := range [][]client.Object{nil, {other}} {
			s, c := newShapes(t, &client.CacheOptions{Reader: cache, DisableFor: disabled})
			cache.n = 0
			read(c)
			requests, discoveries := s.take()
			g.Expect(cache.n).To(Equal(2))
			g.Expect(requests).To(BeEmpty())
			g.Expect(discoveries).To(BeZero())
		}
		s, c := newShapes(t, &client.CacheOptions{Reader: cache, DisableFor: []client.Object{shapeNamed("", "")}})
		cache.n = 0
		read(c)
		g.Expect(cache.n).To(BeZero())
		requests, _ := s.take()
		g.Expect(requests).To(Equal([]string{"GET namespaces/n/shapes/x", "GET namespaces/n/shapes"}))
		namespaced, err := c.IsObjectNamespaced(shapeNamed("", ""))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(namespaced).To(BeTrue())
		s.set(func(s *shapes) { s.namespaced = false })
		time.Sleep(5 * time.Second)
		g.Expect(c.Get(t.Context(), client.ObjectKey{Name: "x"}, shapeNamed("", ""))).To(Succeed())
		requests, _ = s.take()
		g.Expect(requests).To(Equal([]string{"GET shapes/x"}))
		mapping, err := c.RESTMapper().RESTMapping(shapeKind.GroupKind(), "v1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(mapping.Scope.Name()).To(Equal(meta.RESTScopeNameRoot))
	})
}

// Callers at the same time, while the kind changes, each use one resource or the other, and in the
// end the last.
func TestManyFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, c := newShapes(t, nil)
		var writers sync.WaitGroup
		stop := make(chan struct{})
		for range 8 {
			writers.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(100 * time.Millisecond):
					}
					if err := c.Patch(t.Context(), shapeNamed("n", "x"),
						client.RawPatch("application/merge-patch+json", []byte(`{}`))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range 20 {
			plural := []string{"shapes", "figures"}[i%2]
			s.set(func(s *shapes) { s.plural = plural })
			s.notice(t)
			time.Sleep(6 * time.Second)
			s.take()
			time.Sleep(time.Second)
			requests, _ := s.take()
			g.Expect(requests).To(And(Not(BeEmpty()), HaveEach("PATCH namespaces/n/"+plural+"/x")))
		}
		close(stop)
		writers.Wait()
	})
}
