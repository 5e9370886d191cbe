package scopedcache_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// reconcileRecorder records the objects that a plain operator reconciles. The operator has one
// controller each for ConfigMaps, Secrets and Services.
type reconcileRecorder struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (r *reconcileRecorder) has(key string) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.seen[key]
	}
}

// plainOperator returns a typical operator. Only newCache depends on latchkey.
func plainOperator(u *user, newCache cache.NewCacheFunc) (manager.Manager, *reconcileRecorder, error) {
	skipNameValidation := true
	mgr, err := ctrl.NewManager(u.config, ctrl.Options{
		NewCache:   newCache,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: controllerconfig.Controller{CacheSyncTimeout: 5 * time.Second, SkipNameValidation: &skipNameValidation},
	})
	if err != nil {
		return nil, nil, err
	}
	recorder := &reconcileRecorder{seen: map[string]bool{}}
	for _, kind := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}, &corev1.Service{}} {
		name := fmt.Sprintf("%T", kind)[len("*v1."):]
		err := ctrl.NewControllerManagedBy(mgr).For(kind).
			Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				if err := mgr.GetClient().Get(ctx, req.NamespacedName, kind.DeepCopyObject().(client.Object)); err != nil {
					return reconcile.Result{}, client.IgnoreNotFound(err)
				}
				recorder.mu.Lock()
				defer recorder.mu.Unlock()
				recorder.seen[name+" "+req.String()] = true
				return reconcile.Result{}, nil
			}))
		if err != nil {
			return nil, nil, err
		}
	}
	return mgr, recorder, nil
}

// TestPlainOperator checks a plain operator that has no permissions for two of its three kinds.
// With this cache the operator keeps running, reconciles the third kind, and starts with the others
// when the permissions are granted. With controller-runtime's own cache the operator ends. The
// scoped cache exists to avoid this.
func TestPlainOperator(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, "", "configmaps", "get", "list", "watch")
	create(t, configMap(ns, "a"),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "b"}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}},
		})

	before := testenv.NewGoroutines()
	mgr, seen, err := plainOperator(u,
		scopedcache.NewWithOptions(scopedcache.Options{AccessReviewInterval: shortInterval}))
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	g.Eventually(seen.has("ConfigMap " + ns + "/a")).WithTimeout(patience).Should(BeTrue())
	g.Consistently(ended, 10*time.Second).ShouldNot(Receive(), "the operator runs for twice CacheSyncTimeout")
	g.Expect(seen.has("Secret " + ns + "/b")()).To(BeFalse())
	create(t, configMap(ns, "d"))
	g.Eventually(seen.has("ConfigMap "+ns+"/d")).WithTimeout(patience).
		Should(BeTrue(), "the operator still reconciles ConfigMaps")

	u.grant(t, "", "secrets", "get", "list", "watch")
	g.Eventually(seen.has("Secret " + ns + "/b")).WithTimeout(patience).Should(BeTrue())
	g.Expect(seen.has("Service " + ns + "/c")()).To(BeFalse())
	u.grant(t, "", "services", "get", "list", "watch")
	g.Eventually(seen.has("Service " + ns + "/c")).WithTimeout(patience).Should(BeTrue())
	cancel()
	g.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	idleClosers = append(idleClosers, func() { utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport) })
	expectNoLeakedGoroutines(t, before)
}

// TestPlainOperatorWithDefaults checks that the operator also keeps running with default options.
func TestPlainOperatorWithDefaults(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	u.grant(t, "", "configmaps", "get", "list", "watch")
	create(t, configMap(ns, "a"))
	before := testenv.NewGoroutines()
	mgr, seen, err := plainOperator(u, scopedcache.New)
	g.Expect(err).NotTo(HaveOccurred())
	informers := func() map[string]float64 {
		families, err := metrics.Registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		values := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "latchkey_informers" {
				continue
			}
			for _, metric := range family.GetMetric() {
				values[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = metric.GetGauge().GetValue()
			}
		}
		return values
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	g.Eventually(seen.has("ConfigMap " + ns + "/a")).WithTimeout(patience).Should(BeTrue())
	g.Consistently(ended, 10*time.Second).ShouldNot(Receive(), "the operator runs for twice CacheSyncTimeout")
	g.Expect(informers()).To(Equal(map[string]float64{"scopedcache Synced": 1, "scopedcache Forbidden": 2}))
	cancel()
	g.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	idleClosers = append(idleClosers, func() { utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport) })
	expectNoLeakedGoroutines(t, before)
	g.Expect(informers()).To(BeEmpty(), "an ended cache leaves no series")
}

// TestPlainOperatorWithTheOtherCache checks that the operator ends with controller-runtime's own
// cache.
func TestPlainOperatorWithTheOtherCache(t *testing.T) {
	g := NewWithT(t)
	u := newUser(t)
	u.grant(t, "", "configmaps", "get", "list", "watch")
	mgr, _, err := plainOperator(u, cache.New)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	g.Eventually(ended).WithTimeout(patience).
		Should(Receive(MatchError(ContainSubstring("timed out waiting for cache to be synced"))))
}
