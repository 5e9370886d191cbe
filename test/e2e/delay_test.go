package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// createMany creates objects in parallel, and deletes them after the test.
func createMany(t testing.TB, objects []client.Object) {
	t.Helper()
	each := func(f func(client.Object) error) error {
		var group errgroup.Group
		group.SetLimit(16)
		for _, object := range objects {
			group.Go(func() error { return f(object) })
		}
		return group.Wait()
	}
	t.Cleanup(func() {
		if err := each(func(object client.Object) error {
			return client.IgnoreNotFound(admin.Delete(context.Background(), object))
		}); err != nil {
			t.Error(err)
		}
	})
	NewWithT(t).Expect(each(func(object client.Object) error { return admin.Create(context.Background(), object) })).
		To(Succeed())
}

// countPhase returns a function that counts the extensions in that phase.
func (o *operator) countPhase(phase clustercache.Phase) func() int {
	return func() (n int) {
		for _, state := range o.ListConnectionStates(context.Background()) {
			if state.Phase == phase {
				n++
			}
		}
		return n
	}
}

// TestOneNeverDelaysAnother checks that a server, a handler or a map function that hangs or panics
// does not delay other extensions. Probes of the others stay on time, their getters do not wait and
// their events arrive.
func TestOneNeverDelaysAnother(t *testing.T) {
	const healthy, hung = 200, 200
	const period = 5 * time.Second
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "fine")
	hosts := map[string]string{}
	var objects []client.Object
	var names []string
	for i := range hung { // one server for each, which is the worst case
		name := fmt.Sprintf("hung-%03d", i)
		hosts[name] = neverAnswers(t)
		objects = append(objects, extension(ns, name))
	}
	for i := range healthy {
		names = append(names, fmt.Sprintf("healthy-%03d", i))
		objects = append(objects, extension(ns, names[i]))
	}
	createMany(t, objects)
	o := startOperator(t, clustercache.Options{
		Credentials: elsewhere(token(t, ns, "fine"), hosts),
		// A connection attempt to a server that hangs takes longer than the time between attempts.
		// Therefore there are always more such attempts than slots.
		HealthProbe: healthprobe.Options{
			Interval:         period / 5,
			IdentityInterval: period,
			Timeout:          2 * period,
			FailureThreshold: 3,
		},
	})

	// One source has a map function that hangs, and one has a map function that panics. Below, a
	// handler hangs too.
	release := make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	sourceOf := func(mapFunc handler.MapFunc) {
		queue := priorityqueue.New[reconcile.Request]("test")
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(queue.ShutDown)
		t.Cleanup(cancel)
		g.Expect(o.GetExtensionSource("test", mapFunc).Start(ctx, queue)).To(Succeed())
	}
	sourceOf(func(context.Context, client.Object) []ctrl.Request { <-release; return nil })
	sourceOf(func(context.Context, client.Object) []ctrl.Request { panic("this map function panics") })
	recorder := listen(t, o, "")
	g.Eventually(func() int { return o.countPhase(clustercache.PhaseConnected)() }).WithTimeout(patience).
		Should(BeNumerically(">=", healthy+1))
	hang := newFakeController(t)
	hangs := hang.watch("hangs", &corev1.ConfigMap{}, ns)
	hangs.EventHandler = handler.Funcs{CreateFunc: func(context.Context, event.CreateEvent,
		workqueue.TypedRateLimitingInterface[ctrl.Request]) {
		<-release
	}}
	for _, name := range names[:5] {
		g.Expect(o.Watch(t.Context(), key(name), clustercache.NewWatcher(hangs))).To(Succeed())
	}

	begin := time.Now()
	measured := time.NewTimer(6 * period)
	controllers := map[string]*fakeController{}
	for _, name := range names[:10] {
		controllers[name] = newFakeController(t)
		g.Expect(o.Watch(t.Context(), key(name),
			clustercache.NewWatcher(controllers[name].watch("watch", &corev1.ConfigMap{}, ns)))).To(Succeed())
	}
	for i := 0; ; i++ {
		g.Expect(o.countPhase(clustercache.PhaseConnecting)()).
			To(BeNumerically(">", 60), "more than the number of slots for attempts that hang")
		createConfigMaps(t, ns, fmt.Sprintf("event-%d", i))
		for name, c := range controllers {
			g.Eventually(c.seen).WithTimeout(period).Should(ContainElement(fmt.Sprintf("create event-%d", i)), name)
		}
		// The source also reports an extension that is created and deleted.
		temporary := extension(ns, fmt.Sprintf("comes-%d", i))
		g.Expect(admin.Create(t.Context(), temporary)).To(Succeed())
		g.Eventually(recorder.heard).WithTimeout(period).Should(ContainElement(temporary.GetName() + " Connected"))
		g.Expect(admin.Delete(t.Context(), temporary)).To(Succeed())
		g.Eventually(recorder.heard).WithTimeout(period).
			Should(ContainElement(HavePrefix(temporary.GetName() + " deleted")))
		const gets = 10_000
		start := time.Now()
		for i := range gets {
			if _, err := o.GetClient(t.Context(), key(names[i%healthy])); err != nil {
				t.Fatal(err)
			}
		}
		took := time.Since(start)
		g.Expect(took).To(BeNumerically("<", 2*period), "no getter waits for a connect, which hangs that long")
		t.Logf("GetClient takes %s (slower if the race detector is on)", took/gets)
		select {
		case <-measured.C:
		case <-time.After(period):
			continue
		}
		break
	}
	g.Eventually(recorder.heard).WithTimeout(patience).Should(ContainElements(connectedOnes(names)))
	g.Expect(o.countPhase(clustercache.PhaseConnected)()).To(Equal(healthy + 1))

	probes := map[string][]time.Time{}
	for _, event := range auditLog(t, begin) {
		if _, name, ok := strings.Cut(event.UserAgent, "extension/healthy-"); ok && event.Stage == "ResponseComplete" &&
			event.ObjectRef.Resource == "selfsubjectreviews" {
			probes["healthy-"+name] = append(probes["healthy-"+name], event.RequestReceivedTimestamp.Time)
		}
	}
	var gaps []time.Duration
	for _, name := range names[10:] { // only idle extensions: requests of the first ten count as probes
		times := probes[name]
		g.Expect(len(times)).To(BeNumerically(">=", 4), name)
		for i := range times[1:] {
			gaps = append(gaps, times[i+1].Sub(times[i]))
		}
	}
	slices.Sort(gaps)
	early, late := gaps[len(gaps)/100], gaps[len(gaps)*99/100]
	t.Logf("probe intervals of %d idle extensions: %s to %s, 98 percent of them %s to %s; %s is configured", healthy-10,
		gaps[0].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond), early.Round(
			time.Millisecond), late.Round(time.Millisecond), period)
	// A few probes are early. If the machine is so busy that the server answers no request for an
	// Interval, one extension of that server probes for all of them.
	g.Expect(early).To(BeNumerically(">=", period*8/10))
	g.Expect(late).To(BeNumerically("<=", period*12/10))
}

func connectedOnes(names []string) (events []string) {
	for _, name := range names {
		events = append(events, name+" Connected")
	}
	return events
}
