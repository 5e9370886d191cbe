package scopedcache

import (
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// getOnly is an API server at which an identity may get, but not list and watch.
type getOnly struct {
	reviews, gets atomic.Int64
	review        atomic.Int64 // the status of reviews of get; 0 for an answer
	get           atomic.Int64 // the status of gets; 0 for the object
	unserved      atomic.Bool
	answer        atomic.Value // the name of the object; the one that was asked for if there is none
}

func (s *getOnly) name(asked string) string {
	if other, ok := s.answer.Load().(string); ok {
		return other
	}
	return asked
}

func reasonOf(code int) metav1.StatusReason {
	return map[int]metav1.StatusReason{
		http.StatusForbidden:           metav1.StatusReasonForbidden,
		http.StatusNotFound:            metav1.StatusReasonNotFound,
		http.StatusInternalServerError: metav1.StatusReasonInternalError,
	}[code]
}

func (s *getOnly) serve(a *apiServer) {
	a.answers(func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case isReview(req):
			get := attributesOf(req).Verb == "get"
			if get {
				s.reviews.Add(1)
			}
			if code := int(s.review.Load()); get && code != 0 {
				refuse(w, code, reasonOf(code))
				return true
			}
			answerReview(w, get)
			return true
		case strings.HasPrefix(req.URL.Path, inN+"/"):
			s.gets.Add(1)
			if s.unserved.Load() {
				http.NotFound(w, req) // as an API server answers at a path that it does not serve
				return true
			}
			if code := int(s.get.Load()); code != 0 {
				refuse(w, code, reasonOf(code))
				return true
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"namespace": "n", "name": s.name(path.Base(req.URL.Path)), "resourceVersion": "1"},
			})
			return true
		}
		return false
	})
}

// One review is enough for all names. A denial by the API server itself counts, and errors of
// servers whose text is not trusted have none of it.
func TestLiveGets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a, s := newAPIServer(t), &getOnly{}
		s.serve(a)
		var changes atomic.Int64
		before := int64(-1)
		c := a.newCache(t, func(o *Options) {
			o.LiveGet, o.HideServerMessages, o.AccessReviewInterval = true, true, time.Hour
			o.OnScopesChange = func() { changes.Add(1) }
			o.OnLiveGet = func() {
				if before < 0 {
					before = changes.Load()
				}
			}
		})
		for range 20 {
			g.Expect(get(t, c, "a"+strings.Repeat("x", int(s.gets.Load())))).To(Succeed())
		}
		g.Expect(s.reviews.Load()).To(BeEquivalentTo(1), "may the identity get all")
		synctest.Wait()
		g.Expect(statesOf(c)).To(Equal([]State{StateLive}))
		g.Expect(changes.Load()).To(BeNumerically(">", before), "the state has changed")

		s.get.Store(http.StatusForbidden)
		err := get(t, c, "a")
		g.Expect(err).To(Satisfy(apierrors.IsForbidden))
		g.Expect(err.Error()).NotTo(ContainSubstring("you may not"), "the server's text")
		sent := s.gets.Load()
		g.Expect(get(t, c, "a")).To(Satisfy(apierrors.IsForbidden))
		g.Expect(s.gets.Load()).To(Equal(sent), "the API server's own denial is remembered")
		s.get.Store(0)
		time.Sleep(firstDenial + time.Second)
		g.Expect(get(t, c, "a")).To(Succeed())
	})
}

// Without an answer to the review, the error says so. If the identity may not create reviews, the
// answer to the Get counts.
func TestLiveGetWithoutReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a, s := newAPIServer(t), &getOnly{}
		s.serve(a)
		c := a.newCache(t, func(o *Options) { o.LiveGet = true })
		s.review.Store(http.StatusInternalServerError)
		g.Expect(get(t, c, "a")).To(MatchError(ContainSubstring("asking whether a Get may go to the API server")))
		g.Expect(s.gets.Load()).To(BeZero())
		s.review.Store(http.StatusForbidden)
		g.Expect(get(t, c, "a")).To(Succeed())
	})
}

// Selectors that only an API server can apply rule out a Get that goes there.
func TestLiveGetOfUnknownFields(t *testing.T) {
	for selector, reason := range map[string]metav1.StatusReason{
		"type=t":                metav1.StatusReasonForbidden,
		"metadata.name=a":       "",
		"metadata.namespace!=n": metav1.StatusReasonNotFound,
	} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			a, s := newAPIServer(t), &getOnly{}
			s.serve(a)
			c := a.newCacheOf(t, cache.Options{DefaultFieldSelector: fields.ParseSelectorOrDie(selector)},
				func(o *Options) { o.LiveGet = true })
			g.Expect(apierrors.ReasonForError(get(t, c, "a"))).To(Equal(reason), selector)
		})
	}
}

// What a Get returns is the object that was asked for, in the words of the cache, whatever a server
// answers. Names that would change the path are not sent.
func TestLiveGetAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a, s := newAPIServer(t), &getOnly{}
		s.serve(a)
		c := a.newCache(t, func(o *Options) { o.LiveGet, o.HideServerMessages = true, true })
		s.answer.Store("other")
		err := get(t, c, "a")
		g.Expect(err).To(MatchError(ContainSubstring("with something else")))
		g.Expect(err.Error()).NotTo(ContainSubstring("other"))

		sent := s.gets.Load()
		metadata := &metav1.PartialObjectMetadata{}
		metadata.SetGroupVersionKind(configMaps)
		for _, name := range []string{"../../other/configmaps/a", "..", "a/b", "a%2fb"} {
			for _, object := range []client.Object{configMap(), metadata} {
				key := client.ObjectKey{Namespace: "n", Name: name}
				g.Expect(c.Get(t.Context(), key, object)).To(Satisfy(apierrors.IsNotFound), "%s as %T", name, object)
				key = client.ObjectKey{Namespace: name, Name: "a"}
				g.Expect(c.Get(t.Context(), key, object)).NotTo(Succeed(), "namespace %s as %T", name, object)
			}
		}
		g.Expect(s.gets.Load()).To(Equal(sent))

		s.unserved.Store(true)
		for _, object := range []client.Object{configMap(), metadata} {
			key := client.ObjectKey{Namespace: "n", Name: "a"}
			g.Expect(c.Get(t.Context(), key, object)).To(Satisfy(meta.IsNoMatchError), "%T", object)
			g.Expect(c.Get(t.Context(), client.ObjectKey{Name: "a"}, object)).NotTo(Succeed(), "without a namespace")
		}
	})
}

// The state is Live only as long as Gets succeed.
func TestLiveEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a, s := newAPIServer(t), &getOnly{}
		s.serve(a)
		c := a.newCache(t, func(o *Options) { o.LiveGet, o.AccessReviewInterval = true, time.Minute })
		g.Expect(get(t, c, "a")).To(Succeed())
		since := c.States()[0].Since
		time.Sleep(time.Minute)
		g.Expect(get(t, c, "a")).To(Succeed())
		time.Sleep(time.Minute)
		g.Expect(statesOf(c)).To(Equal([]State{StateLive}))
		g.Expect(c.States()[0].Since).To(Equal(since))
		s.get.Store(http.StatusForbidden)
		g.Expect(get(t, c, "a")).To(Satisfy(apierrors.IsForbidden))
		time.Sleep(2 * time.Minute)
		g.Expect(statesOf(c)).To(Equal([]State{StateForbidden}))
	})
}

// The options for all other namespaces apply to a Get that goes to the API server.
func TestLiveGetWithOptionsForAllNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a, s := newAPIServer(t), &getOnly{}
		s.serve(a)
		c := a.newCacheOf(t, cache.Options{DefaultNamespaces: map[string]cache.Config{
			cache.AllNamespaces: {LabelSelector: labels.SelectorFromSet(labels.Set{"choose": "me"})},
		}}, func(o *Options) { o.LiveGet = true })
		g.Expect(get(t, c, "a")).To(Satisfy(apierrors.IsNotFound), "not selected")
	})
}

// A List by name does not depend on whether all may be got.
func TestListByNameBesideLiveGets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if !isReview(req) {
				return false
			}
			attributes := attributesOf(req)
			answerReview(w, attributes.Verb == "get" || attributes.Name == "a")
			return true
		})
		c := a.newCache(t, func(o *Options) { o.LiveGet, o.AccessReviewInterval = true, time.Hour })
		_ = get(t, c, "other")
		g.Expect(namesOf(t, c, client.InNamespace("n"), client.MatchingFieldsSelector{Selector: named("a")})).
			To(Equal([]string{"a"}))
	})
}
