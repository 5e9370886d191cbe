package clustercache_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// serviceAccounts is how many ServiceAccounts the extensions share. Sharing them makes connects the
// largest part of the setup.
const serviceAccounts = 100

// bench is a control plane with a ClusterCache whose reconciler connects extensions.
type bench struct {
	clustercache.ClusterCache
	admin client.Client
}

// startBench starts the control plane and the manager, and stops them when b ends.
func startBench(b *testing.B) *bench {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	cp := testenv.Start(b, controlplane.Options{CRDs: []string{"../config/crd"}})
	httpClient, err := rest.HTTPClientFor(cp.Config())
	must(err)
	admin, err := client.New(cp.Config(), client.Options{HTTPClient: httpClient})
	must(err)
	mgr, err := ctrl.NewManager(cp.Config(), manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	must(err)
	skip := true
	connections, err := clustercache.SetupWithManager(b.Context(), mgr, clustercache.Options{
		Client:        clustercache.ClientOptions{UserAgent: "benchmark"},
		AllowIdentity: clustercache.GuardedByAdmission,
		HealthProbe:   healthprobe.Options{IdentityInterval: time.Hour}, // the benchmark measures getters, not probes
	}, controller.Options{SkipNameValidation: &skip})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	b.Cleanup(func() {
		cancel()
		must(<-done)
		utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport)
		utilnet.CloseIdleConnectionsFor(httpClient.Transport)
	})
	for i := range serviceAccounts {
		must(admin.Create(b.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("sa-%d", i)}}))
	}
	return &bench{ClusterCache: connections, admin: admin}
}

// extensions creates the extensions [from, to) and waits until the reconciler has connected all.
func (b *bench) extensions(t *testing.B, from, to int) {
	t.Helper()
	var creating errgroup.Group
	creating.SetLimit(32)
	for i := from; i < to; i++ {
		creating.Go(func() error {
			e := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
				"namespace": "default", "serviceAccount": map[string]any{"name": fmt.Sprintf("sa-%d", i%serviceAccounts)},
			}}}
			e.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
			e.SetName(extensionKey(i).Name)
			return b.admin.Create(t.Context(), e)
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(15 * time.Minute); ; {
		connected := 0
		for i := range to {
			if _, err := b.GetClient(t.Context(), extensionKey(i)); err == nil { // also builds the client, once
				connected++
			}
		}
		if connected == to {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d of %d extensions are connected", connected, to)
		}
		<-time.After(500 * time.Millisecond)
	}
}

func extensionKey(i int) client.ObjectKey {
	return client.ObjectKey{Name: fmt.Sprintf("extension-%05d", i)}
}

func keys(n int) (keys []client.ObjectKey) {
	for i := range n {
		keys = append(keys, extensionKey(i))
	}
	return keys
}

// BenchmarkGetClient gets the clients of ten extensions, as controllers do for the extensions that
// they reconcile now: with ten extensions in total, and with 10,000. "ratio" is the slowdown
// against the same benchmark with ten. "spread" gets the client of each of the 10,000 extensions in
// turn. No processor cache holds them all, so "spread" measures the cost of memory, not of
// latchkey.
func BenchmarkGetClient(b *testing.B) {
	env := startBench(b)
	ctx := b.Context()
	perOp := map[string]float64{}
	report := func(b *testing.B, name, base string) {
		perOp[name] = float64(b.Elapsed().Nanoseconds()) / float64(b.N)
		if base != "" {
			b.ReportMetric(perOp[name]/perOp[base], "ratio")
		}
	}
	get := func(keys []client.ObjectKey, name, base string) func(*testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err := env.GetClient(ctx, keys[i]); err != nil {
					b.Fatal(err)
				}
				if i++; i == len(keys) {
					i = 0
				}
			}
			report(b, name, base)
		}
	}
	getInParallel := func(keys []client.ObjectKey, name, base string) func(*testing.B) {
		return func(b *testing.B) {
			defer env.churn(b)()
			b.ReportAllocs()
			b.SetParallelism(8) // times GOMAXPROCS; 16 goroutines on 2 cores
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); {
					if _, err := env.GetClient(ctx, keys[i]); err != nil {
						b.Error(err)
						return
					}
					if i++; i == len(keys) {
						i = 0
					}
				}
			})
			report(b, name, base)
		}
	}
	few := keys(10)
	env.extensions(b, 0, 10)
	b.Run("extensions=10", get(few, "10", ""))
	b.Run("extensions=10/goroutines=16/churn", getInParallel(few, "10 parallel", ""))
	env.extensions(b, 10, 10_000)
	b.Run("extensions=10000", get(few, "10000", "10"))
	b.Run("extensions=10000/goroutines=16/churn", getInParallel(few, "10000 parallel", "10 parallel"))
	b.Run("extensions=10000/spread", get(keys(10_000), "spread", "10"))
}

// BenchmarkFor binds to an object and gets a client, beside GetClient without an object. "ratio" is
// the slowdown.
func BenchmarkFor(b *testing.B) {
	env := startBench(b)
	ctx := b.Context()
	env.extensions(b, 0, 1)
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	if err := env.admin.Get(ctx, extensionKey(0), object); err != nil {
		b.Fatal(err)
	}
	key, alone := extensionKey(0), 0.0
	b.Run("GetClient", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := env.GetClient(ctx, key); err != nil {
				b.Fatal(err)
			}
		}
		alone = float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	})
	b.Run("For", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := env.For(ctx, object).GetClient(ctx); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/alone, "ratio")
	})
	bound := env.For(ctx, object)
	b.Run("For once", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := bound.GetClient(ctx); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/alone, "ratio")
	})
}

// churn connects and disconnects one extra extension until the returned function is called.
func (b *bench) churn(t *testing.B) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		name := "churning"
		e := &unstructured.Unstructured{
			Object: map[string]any{
				"spec": map[string]any{"namespace": "default", "serviceAccount": map[string]any{"name": "sa-0"}},
			},
		}
		e.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
		e.SetName(name)
		for ctx.Err() == nil {
			fresh := e.DeepCopy()
			if err := b.admin.Create(ctx, fresh); err != nil {
				continue
			}
			for ctx.Err() == nil {
				if _, err := b.GetClient(ctx, client.ObjectKey{Name: name}); err == nil {
					break
				}
				<-time.After(time.Millisecond)
			}
			_ = b.admin.Delete(context.WithoutCancel(ctx), fresh)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}
