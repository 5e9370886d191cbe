package e2e

import (
	"context"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// listener is a controller's queue behind an extension source. A listener records the state of the
// extension at each event.
type listener struct {
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]

	mu     sync.Mutex
	events []string // guarded by mu
}

func listen(t *testing.T, o *operator, panics string) *listener {
	t.Helper()
	l := &listener{queue: priorityqueue.New[reconcile.Request]("test")}
	t.Cleanup(l.queue.ShutDown)
	src := o.GetExtensionSource("listener", func(ctx context.Context, extension client.Object) []ctrl.Request {
		if extension.GetName() == panics {
			panic("this map function panics for " + panics)
		}
		state, known := o.GetConnectionState(ctx, client.ObjectKeyFromObject(extension))
		description := extension.GetName() + " " + string(state.Phase) + string(state.Reason)
		if !known {
			description = extension.GetName() + " deleted " + string(extension.GetUID())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.events = append(l.events, description)
		return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(extension)}}
	})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	NewWithT(t).Expect(src.Start(ctx, l.queue)).To(Succeed())
	return l
}

func (l *listener) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.events...)
}

func TestExtensionSource(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, extension(ns, "observed"))
	create(t, extension(ns, "panicking"))
	o := startOperator(t, clustercache.Options{ConnectBackoff: never()})
	early := listen(t, o, "panicking")
	g.Eventually(early.heard).WithTimeout(patience).Should(ContainElement("observed DisconnectedServiceAccountNotFound"))

	create(t, serviceAccount(ns, "observed"))
	g.Eventually(early.heard).WithTimeout(patience).Should(ContainElement("observed Connected"))
	late := listen(t, o, "")
	g.Eventually(late.heard).WithTimeout(patience).
		Should(ContainElements("observed Connected", "panicking DisconnectedServiceAccountNotFound"),
			"a source that starts late receives every known extension")

	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "observed"))).To(Succeed())
	for _, l := range []*listener{early, late} {
		g.Eventually(func() string { descriptions := l.heard(); return descriptions[len(descriptions)-1] }).
			WithTimeout(patience).
			Should(Equal("observed DisconnectedServiceAccountNotFound"))
	}
	e := extension(ns, "observed")
	g.Expect(admin.Get(t.Context(), key("observed"), e)).To(Succeed())
	g.Expect(admin.Delete(t.Context(), e)).To(Succeed())
	g.Eventually(late.heard).WithTimeout(patience).Should(ContainElement("observed deleted "+string(e.GetUID())),
		"the event carries the object last seen")
	g.Expect(late.queue.Len()).To(Equal(2), "the queue contains one request per extension")
}
