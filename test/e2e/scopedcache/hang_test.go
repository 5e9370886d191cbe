package scopedcache_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// TestHungKindBesideAHealthyOne checks that a kind whose requests hang does not delay reads of
// other kinds. Reads of that kind end at the caller's deadline or at ReadTimeout. The error gives
// the reason.
func TestHungKindBesideAHealthyOne(t *testing.T) {
	for name, suffix := range map[string]string{"list": "/configmaps",
		"access review": "/selfsubjectaccessreviews"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx := t.Context()
			// Reads that wait for an access review end before that review does.
			const readTimeout = 1700 * time.Millisecond
			ns, u := createNamespace(t), newUser(t)
			create(t, configMap(ns, "a"))
			u.grant(t, ns, "configmaps", "list", "watch")
			u.grant(t, ns, "services", "list", "watch")
			u.grant(t, ns, "secrets", "list", "watch")
			server := newFaultyServer(t, u)
			c := u.startWithConfig(t, server.config,
				scopedcache.Options{
					PerNamespace:         true,
					AccessReviewInterval: shortInterval,
					ReadTimeout:          readTimeout,
				}, cache.Options{})
			g.Expect(c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns))).To(Succeed())
			server.hangRequests(suffix)

			handle, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			defer handle.Release()
			key := client.ObjectKey{Namespace: ns, Name: "a"}
			// The bounds are generous: a read that ignores its deadline would hang for ever.
			for name, read := range map[string]func(context.Context) error{
				"List": func(ctx context.Context) error {
					return c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns))
				},
				"Get":              func(ctx context.Context) error { return c.Get(ctx, key, &corev1.ConfigMap{}) },
				"List of a handle": func(ctx context.Context) error { return handle.List(ctx, &corev1.ConfigMapList{}) },
				"Get of a handle":  func(ctx context.Context) error { return handle.Get(ctx, key, &corev1.ConfigMap{}) },
			} {
				// The first deadline is that of the context. With the second one ReadTimeout ends
				// the read.
				for _, deadline := range []time.Duration{200 * time.Millisecond, time.Hour} {
					inTime, cancel := context.WithTimeout(ctx, deadline)
					began := time.Now()
					err := read(inTime)
					took := time.Since(began)
					cancel()
					t.Logf("%s, after %s: %v", name, took.Round(time.Millisecond), err)
					g.Expect(apierrors.IsTimeout(err)).To(BeTrue())
					g.Expect(err).To(MatchError(context.DeadlineExceeded))
					g.Expect(err).
						To(
							MatchError(ContainSubstring("the informer of /v1, Kind=ConfigMap (namespace " + ns +
								") has not synced, it is Syncing")))
					byReadTimeout := ContainSubstring("a cached read waits for " + readTimeout.String() + " at most")
					if deadline < readTimeout {
						g.Expect(err).NotTo(MatchError(byReadTimeout))
					} else {
						g.Expect(err).To(MatchError(byReadTimeout))
						g.Expect(took).To(BeNumerically(">=", readTimeout))
					}
					g.Expect(took).To(BeNumerically("<", patience))
				}
			}
			for range 100 { // a read that waited for the requests that hang would fail
				g.Expect(c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns))).To(Succeed())
			}
			if name == "list" { // a new informer of a healthy kind
				g.Expect(c.List(ctx, &corev1.SecretList{}, client.InNamespace(ns))).To(Succeed())
			}
			server.answerWith(nil)
			server.CloseClientConnections() // the requests that hang now never get a response
			g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).
				Should(Equal([]string{"a"}))
		})
	}
}

// TestReadSaysWhyItWaits checks that a read that times out returns the reason in its error.
func TestReadSaysWhyItWaits(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	server := newFaultyServer(t, u)
	server.answerWith(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, "/configmaps") {
			return false
		}
		respondWithStatus(w, http.StatusInternalServerError, "TheDatabaseIsAway")
		return true
	})
	c := u.startWithConfig(t, server.config, scopedcache.Options{PerNamespace: true, ReadTimeout: 2 * time.Second},
		cache.Options{})
	_, err := c.names(t.Context(), ns)
	g.Expect(apierrors.IsTimeout(err)).To(BeTrue())
	g.Expect(err).To(MatchError(And(ContainSubstring("it is Failing"), ContainSubstring("thedatabaseisaway"))))
}

// TestStopDuringSync checks that a cache that is stopped during a sync ends at once, and so do the
// calls that wait for the sync. Later calls fail at once with ErrStopped.
func TestStopDuringSync(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	u.grant(t, ns, "services", "list", "watch")
	server := newFaultyServer(t, u)
	c := u.startWithConfig(t, server.config,
		scopedcache.Options{PerNamespace: true, AccessReviewInterval: shortInterval}, cache.Options{})
	g.Expect(c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns))).To(Succeed())
	server.hangRequests("/configmaps")
	handle, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	informer, err := c.GetInformer(ctx, &corev1.Service{}, cache.BlockUntilSynced(false))
	g.Expect(err).NotTo(HaveOccurred())
	calls := map[string]func() error{
		"List":        func() error { return c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns)) },
		"Get":         func() error { return c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{}) },
		"handle List": func() error { return handle.List(ctx, &corev1.ConfigMapList{}) },
		"GetInformer": func() error { _, err := c.GetInformer(ctx, &corev1.ConfigMap{}); return err },
	}
	results := make(chan error, len(calls))
	for _, call := range calls {
		go func() { results <- call() }()
	}
	g.Eventually(server.hanging).WithTimeout(patience).Should(Equal(1),
		"only one: the informer of all namespaces sends no list, because it has no permission")
	began := time.Now()
	c.stop()
	g.Expect(time.Since(began)).To(BeNumerically("<", 10*time.Second),
		"a safety bound: a hanging request never ends by itself")
	stopped := 0
	for range calls {
		var err error
		g.Eventually(results).WithTimeout(patience).Should(Receive(&err))
		if err != nil { // GetInformer may return nil: its state Forbidden counts as synced
			g.Expect(err).To(MatchError(scopedcache.ErrStopped))
			stopped++
		}
	}
	g.Expect(stopped).To(BeNumerically(">=", 3))

	calls["List of a synced kind"] = func() error { return c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns)) }
	calls["Hold"] = func() error {
		_, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{}, scopedcache.HoldOptions{})
		return err
	}
	calls["AddEventHandler"] = func() error { _, err := informer.AddEventHandler(&testutil.Recorder{}); return err }
	for name, call := range calls {
		began := time.Now()
		g.Expect(call()).To(MatchError(scopedcache.ErrStopped), name)
		g.Expect(time.Since(began)).To(BeNumerically("<", 5*time.Second), name)
	}
	g.Expect(informer.IsStopped()).To(BeTrue())
	g.Expect(c.WaitForCacheSync(ctx)).To(BeFalse())
	g.Expect(c.RemoveInformer(ctx, &corev1.ConfigMap{})).To(Succeed())
	handle.Release()
}
