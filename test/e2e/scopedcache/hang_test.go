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

	"github.com/latchkey-dev/latchkey/internal/testutil"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// A kind that hangs delays no other, and nobody longer than they said. The error says why.
func TestHungKindBesideAHealthyOne(t *testing.T) {
	for name, hangs := range map[string]string{"the list": "/configmaps",
		"the access review": "/selfsubjectaccessreviews"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx := t.Context()
			const readTimeout = 1700 * time.Millisecond // the reads that wait for it are over before the access review is
			ns, u := namespace(t), newUser(t)
			create(t, configMap(ns, "a"))
			u.grant(t, ns, "configmaps", "list", "watch")
			u.grant(t, ns, "services", "list", "watch")
			u.grant(t, ns, "secrets", "list", "watch")
			f := newFaults(t, u)
			c := u.startAt(t, f.config,
				scopedcache.Options{PerNamespace: true, AccessReviewInterval: often, ReadTimeout: readTimeout}, cache.Options{})
			g.Expect(c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns))).To(Succeed())
			f.hangOn(hangs)

			held, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			defer held.Release()
			key := client.ObjectKey{Namespace: ns, Name: "a"}
			// The bounds are generous; what hangs would hang for ever.
			for name, read := range map[string]func(context.Context) error{
				"List": func(ctx context.Context) error {
					return c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns))
				},
				"Get":              func(ctx context.Context) error { return c.Get(ctx, key, &corev1.ConfigMap{}) },
				"List of a handle": func(ctx context.Context) error { return held.List(ctx, &corev1.ConfigMapList{}) },
				"Get of a handle":  func(ctx context.Context) error { return held.Get(ctx, key, &corev1.ConfigMap{}) },
			} {
				// that of the context, and ReadTimeout
				for _, deadline := range []time.Duration{200 * time.Millisecond, time.Hour} {
					inTime, cancel := context.WithTimeout(ctx, deadline)
					begun := time.Now()
					err := read(inTime)
					took := time.Since(begun)
					cancel()
					t.Logf("%s, after %s: %v", name, took.Round(time.Millisecond), err)
					g.Expect(apierrors.IsTimeout(err)).To(BeTrue())
					g.Expect(err).To(MatchError(context.DeadlineExceeded))
					g.Expect(err).
						To(
							MatchError(ContainSubstring("the informer of /v1, Kind=ConfigMap (namespace " + ns +
								") has not synced, it is Syncing")))
					if deadline < readTimeout {
						g.Expect(took).To(BeNumerically("<", 1500*time.Millisecond))
					} else {
						g.Expect(took).To(And(BeNumerically(">=", readTimeout), BeNumerically("<", 10*time.Second)))
					}
				}
			}
			for range 100 {
				begun := time.Now()
				g.Expect(c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns))).To(Succeed())
				g.Expect(time.Since(begun)).To(BeNumerically("<", time.Second))
			}
			if name == "the list" { // a healthy one that is new
				g.Expect(c.List(ctx, &corev1.SecretList{}, client.InNamespace(ns))).To(Succeed())
			}
			f.do(nil)
			f.CloseClientConnections() // what hangs now hangs for ever
			g.Eventually(func() ([]string, error) { return c.names(ctx, ns) }).WithTimeout(patience).
				Should(Equal([]string{"a"}))
		})
	}
}

// A read that waits in vain says why.
func TestReadSaysWhyItWaits(t *testing.T) {
	g := NewWithT(t)
	ns, u := namespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	f := newFaults(t, u)
	f.do(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, "/configmaps") {
			return false
		}
		fail(w, http.StatusInternalServerError, "TheDatabaseIsAway")
		return true
	})
	c := u.startAt(t, f.config, scopedcache.Options{PerNamespace: true, ReadTimeout: 2 * time.Second}, cache.Options{})
	_, err := c.names(t.Context(), ns)
	g.Expect(apierrors.IsTimeout(err)).To(BeTrue())
	g.Expect(err).To(MatchError(And(ContainSubstring("it is Failing"), ContainSubstring("thedatabaseisaway"))))
}

// A cache that is stopped in the middle of a sync ends at once, and so does everybody who waits for
// it. What is called after that fails at once, with the reason.
func TestStopDuringSync(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u := namespace(t), newUser(t)
	u.grant(t, ns, "configmaps", "list", "watch")
	u.grant(t, ns, "services", "list", "watch")
	f := newFaults(t, u)
	c := u.startAt(t, f.config, scopedcache.Options{PerNamespace: true, AccessReviewInterval: often}, cache.Options{})
	g.Expect(c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns))).To(Succeed())
	f.hangOn("/configmaps")
	held, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	informer, err := c.GetInformer(ctx, &corev1.Service{}, cache.BlockUntilSynced(false))
	g.Expect(err).NotTo(HaveOccurred())
	calls := map[string]func() error{
		"List":        func() error { return c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns)) },
		"Get":         func() error { return c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "a"}, &corev1.ConfigMap{}) },
		"held":        func() error { return held.List(ctx, &corev1.ConfigMapList{}) },
		"GetInformer": func() error { _, err := c.GetInformer(ctx, &corev1.ConfigMap{}); return err },
	}
	waits := make(chan error, len(calls))
	for _, call := range calls {
		go func() { waits <- call() }()
	}
	g.Eventually(f.hanging).WithTimeout(patience).Should(Equal(1),
		"one of them waits for the right to all namespaces, which it has not got")
	begun := time.Now()
	c.stop()
	g.Expect(time.Since(begun)).To(BeNumerically("<", 10*time.Second), "a safety bound: what hangs would hang for ever")
	stopped := 0
	for range calls {
		var err error
		g.Eventually(waits).WithTimeout(patience).Should(Receive(&err))
		if err != nil { // GetInformer is settled: it is forbidden
			g.Expect(err).To(MatchError(scopedcache.ErrStopped))
			stopped++
		}
	}
	g.Expect(stopped).To(BeNumerically(">=", 3))

	calls["of what has synced"] = func() error { return c.List(ctx, &corev1.ServiceList{}, client.InNamespace(ns)) }
	calls["Hold"] = func() error {
		_, err := c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{}, scopedcache.HoldOptions{})
		return err
	}
	calls["AddEventHandler"] = func() error { _, err := informer.AddEventHandler(&testutil.Recorder{}); return err }
	for name, call := range calls {
		begun := time.Now()
		g.Expect(call()).To(MatchError(scopedcache.ErrStopped), name)
		g.Expect(time.Since(begun)).To(BeNumerically("<", 5*time.Second), name)
	}
	g.Expect(informer.IsStopped()).To(BeTrue())
	g.Expect(c.WaitForCacheSync(ctx)).To(BeFalse())
	g.Expect(c.RemoveInformer(ctx, &corev1.ConfigMap{})).To(Succeed())
	held.Release()
}
