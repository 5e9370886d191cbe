package scopedcache

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// NotSyncedError is a timeout that contains its reasons.
func TestNotSyncedError(t *testing.T) {
	g := NewWithT(t)
	last := apierrors.NewInternalError(errors.New("a failure"))
	err := error(&NotSyncedError{GVK: configMaps, State: StateFailing, Last: last, Cause: context.DeadlineExceeded})
	g.Expect(apierrors.IsTimeout(err)).To(BeTrue())
	g.Expect(err).To(MatchError(context.DeadlineExceeded))
	g.Expect(errors.Is(err, last)).To(BeTrue())
	g.Expect(err).To(MatchError(And(ContainSubstring("Failing"), ContainSubstring("a failure"))))
}

// say sets the answer to the review of each verb: "yes", "no", "error", "never" (the identity may
// not create reviews), "unclear" (the evaluation fails).
func (a *apiServer) say(f func(verb string) string, readyz func() int) (asked func() []string) {
	var mu sync.Mutex
	var verbs []string
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path == "/readyz" {
			w.WriteHeader(readyz())
			return true
		}
		if !strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews") {
			return false
		}
		body, _ := io.ReadAll(req.Body)
		sent, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil) // from protobuf
		if err != nil {
			return false
		}
		verb := sent.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes.Verb
		mu.Lock()
		verbs = append(verbs, verb)
		mu.Unlock()
		status := map[string]any{}
		switch f(verb) {
		case "yes":
			status["allowed"] = true
		case "error":
			refuse(w, 500, metav1.StatusReasonInternalError)
			return true
		case "never":
			refuse(w, 403, metav1.StatusReasonForbidden)
			return true
		case "unclear":
			status["evaluationError"] = "the webhook is unavailable"
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).
			Encode(map[string]any{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
				"status": status})
		return true
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(verbs)
	}
}

// One denied verb makes the verdict a denial, whatever the answers to the other verbs are. The kind
// of denial depends on what /readyz reports.
func TestMay(t *testing.T) {
	q := access.Question{
		Mapping: &meta.RESTMapping{
			Resource: configMaps.GroupVersion().WithResource("configmaps"),
			Scope:    meta.RESTScopeNamespace,
		},
		Namespace: "n",
	}
	for name, tc := range map[string]struct {
		list, watch string
		readyz      int
		want        monitor.Verdict
	}{
		"both":                          {"yes", "yes", 200, monitor.Allowed},
		"no and yes":                    {"no", "yes", 200, monitor.Denied},
		"error and no":                  {"error", "no", 200, monitor.Denied},
		"no and review refused":         {"no", "never", 200, monitor.Denied},
		"error and yes":                 {"error", "yes", 200, monitor.Unanswered},
		"error and review refused":      {"error", "never", 200, monitor.Unanswered},
		"review refused":                {"never", "yes", 200, monitor.Unaskable},
		"evaluation fails":              {"unclear", "yes", 200, monitor.Unanswered},
		"no, but not ready":             {"no", "no", 500, monitor.DeniedUnready},
		"review refused, but not ready": {"never", "never", 500, monitor.Unanswered},
		"no, readiness unknown":         {"no", "no", 403, monitor.DeniedReadinessUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				a := newAPIServer(t)
				a.say(func(verb string) string { return map[string]string{"list": tc.list, "watch": tc.watch}[verb] },
					func() int { return tc.readyz })
				c := a.newCache(t, func(o *Options) { o.Username = "blue" }).(*scopedCache)
				v, err := c.env.reviewer.Review(t.Context(), q, "list", "watch")
				g.Expect(v).To(Equal(tc.want), "%v", err)
				g.Expect(err == nil).To(Equal(v == monitor.Allowed))
				if v.IsDenial() {
					g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
					g.Expect(err).To(MatchError(ContainSubstring(`User "blue" cannot `)))
				}
			})
		})
	}
}

// The cache reviews both verbs before the informer lists. Later it reviews only the verb that the
// informer needs.
func TestWhatIsAsked(t *testing.T) {
	ready := func() int { return 200 }
	for name, tc := range map[string]struct {
		may        string
		listOnly   bool
		want       State
		first      []string // in any order
		afterwards string
	}{
		"both":                  {"list watch", false, StateSynced, []string{"list", "watch"}, "watch"},
		"list only":             {"list", false, StateForbidden, []string{"list", "watch"}, ""},
		"watch only":            {"watch", false, StateForbidden, []string{"list", "watch"}, ""},
		"list only, allowed":    {"list", true, StateSynced, []string{"list", "watch", "list"}, "list"},
		"watch only, list only": {"watch", true, StateForbidden, []string{"list", "watch", "list"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				a := newAPIServer(t)
				asked := a.say(func(verb string) string {
					return map[bool]string{true: "yes", false: "no"}[strings.Contains(tc.may, verb)]
				}, ready)
				c := a.newCache(t, func(o *Options) {
					o.PollWithoutWatch, o.AccessReviewInterval = tc.listOnly, 600*time.Millisecond
				})
				handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				defer handle.Release()
				g.Eventually(func() State { return handle.State().State }).WithTimeout(patience).Should(Equal(tc.want))
				n := len(tc.first)
				g.Expect(asked()[:n]).To(ConsistOf(tc.first))
				if tc.afterwards != "" {
					g.Eventually(func() int { return len(asked()) }).WithTimeout(patience).Should(BeNumerically(">", n+1))
					g.Expect(asked()[n:]).To(HaveEach(tc.afterwards))
				}
				if tc.listOnly && tc.want == StateSynced {
					before := a.listed(inN)
					g.Expect(before).To(BeNumerically("<", 5), "lists are rare")
					g.Eventually(func() int { return a.listed(inN) }).WithTimeout(patience).Should(BeNumerically(">", before))
					g.Expect(a.watches()).To(BeEmpty())
				}
			})
		})
	}
}

// A change in a namespace makes only the scopes of that namespace review access. A change for all
// namespaces concerns all scopes.
func TestAccessMayHaveChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t).(*scopedCache)
		kind, err := c.env.kinds.kindOf(configMap())
		g.Expect(err).NotTo(HaveOccurred())
		entries := map[string]*entry{}
		c.entries.mu.Lock()
		for _, ns := range []string{"", "n", "m"} {
			entries[ns] = c.entries.newEntry(kind, Scope{Namespace: ns}) // this entry does not run
			c.entries.entries[entries[ns]] = struct{}{}
		}
		c.entries.mu.Unlock()
		notified := func() (namespaces []string) {
			for _, ns := range []string{"", "n", "m"} {
				if taken, _ := entries[ns].mail.take(); len(taken.events) > 0 {
					namespaces = append(namespaces, ns)
				}
			}
			return namespaces
		}
		c.entries.accessMayHaveChanged("n")
		g.Expect(notified()).To(Equal([]string{"n"}))
		c.entries.accessMayHaveChanged("")
		g.Expect(notified()).To(Equal([]string{"", "n", "m"}))
	})
}

// Callers that wait for a released or removed informer receive ErrReleased.
func TestWaitersAreNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		block := make(chan struct{})
		defer close(block)
		a.mu.Lock()
		a.answer = func(_ http.ResponseWriter, req *http.Request) bool {
			if strings.HasSuffix(req.URL.Path, "/configmaps") {
				select {
				case <-block:
				case <-req.Context().Done():
				}
				return true
			}
			return false
		}
		a.mu.Unlock()
		c := a.newCache(t)
		handle, err := c.Hold(t.Context(), configMap(),
			Scope{Namespace: "n", LabelSelector: labels.SelectorFromSet(labels.Set{"a": "b"})}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		waits, reads := make(chan error, 1), make(chan error, 1)
		go func() { waits <- handle.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, configMap()) }()
		go func() { reads <- list(t.Context(), c, "n") }()
		g.Eventually(c.States).WithTimeout(patience).Should(HaveLen(2))
		g.Consistently(waits, 200*time.Millisecond).ShouldNot(Receive())
		handle.Release()
		g.Eventually(waits).WithTimeout(patience).Should(Receive(MatchError(ErrReleased)))
		g.Consistently(reads, 200*time.Millisecond).ShouldNot(Receive(), "the list waits for another scope")
		g.Expect(c.RemoveInformer(t.Context(), configMap())).To(Succeed())
		g.Eventually(reads).WithTimeout(patience).Should(Receive(MatchError(ErrReleased)))
		g.Expect(handle.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, configMap())).
			To(MatchError(ErrReleased))
	})
}

// Idle scopes end, whether access is allowed or not. Scopes that are held, pinned, or read
// continue.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, denied := range []bool{false, true} {
			g := NewWithT(t)
			a := newAPIServer(t)
			a.deny(denied)
			c := a.newCache(t, func(o *Options) { o.IdleTimeout = 400 * time.Millisecond })
			for begun := time.Now(); time.Since(begun) < time.Second; <-time.After(20 * time.Millisecond) {
				g.Expect(apierrors.IsForbidden(list(t.Context(), c, "n"))).To(Equal(denied))
			}
			g.Expect(c.States()).To(HaveLen(1))
			if !denied {
				g.Expect(a.listed(inN)).To(Equal(1))
			}
			g.Eventually(c.States).WithTimeout(patience).Should(BeEmpty())
			pinned, err := c.GetInformer(t.Context(), configMap())
			g.Expect(err).NotTo(HaveOccurred())
			handle, err := c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Consistently(c.States, 1200*time.Millisecond).Should(HaveLen(2))
			g.Expect(pinned.IsStopped()).To(BeFalse())
			handle.Release()
		}
	})
}
