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

// inUse returns the memory in bytes and the number of goroutines that are in use after garbage
// collection.
func inUse() (bytes, goroutines float64) {
	var stats runtime.MemStats
	for range 3 { // later rounds free the objects that finalizers and pools hold
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc + stats.StackInuse), float64(runtime.NumGoroutine())
}

// BenchmarkIdleExtension connects 1,000 extensions, each with its own ServiceAccount. The benchmark
// reports the cost of one extension that no caller uses: bytes (heap and stacks) and goroutines.
// The manager's cache keeps copies of extensions and ServiceAccounts, as in any operator. The
// benchmark measures those copies with a plain cache and reports them separately.
func BenchmarkIdleExtension(b *testing.B) {
	const extensions = 1000
	g := NewWithT(b)
	ctx := context.Background()
	create := func(object client.Object) {
		g.Expect(admin.Create(ctx, object)).To(Succeed())
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "idle-"}}
	create(ns)
	var group errgroup.Group
	group.SetLimit(16)
	for i := range extensions {
		group.Go(func() error {
			name := fmt.Sprintf("idle-%04d", i)
			if err := admin.Create(ctx, serviceAccount(ns.Name, name)); err != nil {
				return err
			}
			return admin.Create(ctx, extension(ns.Name, name))
		})
	}
	g.Expect(group.Wait()).To(Succeed())
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
		managerBytes := after - before
		stopPlain()

		o := newOperator(b, clustercache.Options{HealthProbe: healthprobe.Options{IdentityInterval: time.Hour}}).start(b)
		startBytes, startGoroutines := inUse()
		g.Eventually(func() (connected int) {
			for _, state := range o.ListConnectionStates(ctx) {
				if state.Phase == clustercache.PhaseConnected {
					connected++
				}
			}
			return connected
		}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Equal(extensions))
		<-time.After(5 * time.Second) // until everything that only the connection attempts needed is gone
		endBytes, endGoroutines := inUse()
		bytes, goroutines := (endBytes-startBytes-managerBytes)/extensions, (endGoroutines-startGoroutines)/extensions
		b.ReportMetric(bytes, "B/extension")
		b.ReportMetric(managerBytes/extensions, "manager-B/extension")
		b.ReportMetric(goroutines, "goroutines/extension")
		if bytes > 16<<10 || goroutines > 1 {
			b.Errorf("an idle extension uses %.0f B and %.2f goroutines; the limits are 16 KiB and 1 goroutine", bytes,
				goroutines)
		}
		o.end(b)
	}
}
