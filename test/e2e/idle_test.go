package e2e

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// inUse is the memory and the goroutines that are in use once garbage is gone.
func inUse() (bytes, goroutines float64) {
	var stats runtime.MemStats
	for range 3 { // what finalizers and pools hold goes in the rounds after the first
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc + stats.StackInuse), float64(runtime.NumGoroutine())
}

// BenchmarkIdleExtension connects 1,000 extensions, each with a ServiceAccount of its own, and
// reports what each costs while nobody asks for it: bytes (heap and stacks) and goroutines. The
// copies of extension and ServiceAccount that the manager's cache keeps, as with any operator, are
// measured with a plain cache and reported apart.
func BenchmarkIdleExtension(b *testing.B) {
	const extensions = 1000
	g := NewWithT(b)
	ctx := context.Background()
	create := func(object client.Object) {
		g.Expect(admin.Create(ctx, object)).To(Succeed())
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "idle-"}}
	create(ns)
	var creating errgroup.Group
	creating.SetLimit(16)
	for i := range extensions {
		creating.Go(func() error {
			name := fmt.Sprintf("idle-%04d", i)
			if err := admin.Create(ctx, serviceAccount(ns.Name, name)); err != nil {
				return err
			}
			return admin.Create(ctx, extension(ns.Name, name))
		})
	}
	g.Expect(creating.Wait()).To(Succeed())
	b.Cleanup(func() {
		g.Expect(admin.DeleteAllOf(ctx, &unstructured.Unstructured{Object: extension("", "").Object})).To(Succeed())
		g.Expect(admin.Delete(ctx, ns)).To(Succeed())
	})

	for b.Loop() {
		before, _ := inUse()
		plain, err := cluster.New(cp.Config())
		g.Expect(err).NotTo(HaveOccurred())
		plainCtx, stopPlain := context.WithCancel(ctx)
		go func() { _ = plain.Start(plainCtx) }()
		for _, kind := range []client.Object{extension("", ""), metadataOf("ServiceAccount")} {
			_, err = plain.GetCache().GetInformer(ctx, kind)
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(plain.GetCache().WaitForCacheSync(ctx)).To(BeTrue())
		after, _ := inUse()
		managers := after - before
		stopPlain()

		o := newOperator(b, clustercache.Options{HealthProbe: healthprobe.Options{IdentityInterval: time.Hour}}).start(b)
		unstarted, goroutines := inUse()
		g.Eventually(func() (connected int) {
			for _, state := range o.ListConnectionStates(ctx) {
				if state.Phase == clustercache.Connected {
					connected++
				}
			}
			return connected
		}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Equal(extensions))
		<-time.After(5 * time.Second) // until what connects needed has ended
		connected, nowGoroutines := inUse()
		bytes, routines := (connected-unstarted-managers)/extensions, (nowGoroutines-goroutines)/extensions
		b.ReportMetric(bytes, "B/extension")
		b.ReportMetric(managers/extensions, "manager-B/extension")
		b.ReportMetric(routines, "goroutines/extension")
		if bytes > 16<<10 || routines > 1 {
			b.Errorf("an idle extension may cost 16 KiB and a goroutine, it costs %.0f B and %.2f", bytes, routines)
		}
		o.end(b)
	}
}
