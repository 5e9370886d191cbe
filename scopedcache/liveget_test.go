package scopedcache

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// getOnly is an API server at which an identity may get, but not list and watch.
type getOnly struct {
	reviews, gets atomic.Int64
	review        atomic.Int64 // the status of reviews of get; 0 for an answer
	get           atomic.Int64 // the status of gets; 0 for the object
}

func (s *getOnly) serve(a *apiServer) {
	a.answers(func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case isReview(req):
			body, _ := io.ReadAll(req.Body)
			sent, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
			if err != nil {
				return false
			}
			get := sent.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes.Verb == "get"
			if get {
				s.reviews.Add(1)
			}
			if code := int(s.review.Load()); get && code != 0 {
				reason := metav1.StatusReasonInternalError
				if code == http.StatusForbidden {
					reason = metav1.StatusReasonForbidden
				}
				refuse(w, code, reason)
				return true
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(map[string]any{
				"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
				"status": map[string]any{"allowed": get},
			})
			return true
		case strings.HasPrefix(req.URL.Path, inN+"/"):
			s.gets.Add(1)
			if code := int(s.get.Load()); code != 0 {
				refuse(w, code, metav1.StatusReasonForbidden)
				return true
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"namespace": "n", "name": "a", "resourceVersion": "1"},
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
		c := a.newCache(t, func(o *Options) {
			o.LiveGet, o.HideServerMessages, o.AccessReviewInterval = true, true, time.Hour
		})
		for range 20 {
			g.Expect(get(t, c, "a"+strings.Repeat("x", int(s.gets.Load())))).To(Succeed())
		}
		g.Expect(s.reviews.Load()).To(BeEquivalentTo(1), "may the identity get all")
		g.Expect(statesOf(c)).To(Equal([]State{StateLive}))

		s.get.Store(http.StatusForbidden)
		err := get(t, c, "a")
		g.Expect(err).To(Satisfy(apierrors.IsForbidden))
		g.Expect(err.Error()).NotTo(ContainSubstring("you may not"), "the server's text")
		sent := s.gets.Load()
		g.Expect(get(t, c, "a")).To(Satisfy(apierrors.IsForbidden), "until the denial is forgotten, unless all are allowed")
		g.Expect(s.gets.Load()).To(BeNumerically("<=", sent+1))
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
