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

// listener is a controller's queue behind an extension source, and what was in the state when it
// was told.
type listener struct {
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]

	mu   sync.Mutex
	told []string // guarded by mu
}

func listen(t *testing.T, o *operator, panics string) *listener {
	t.Helper()
	l := &listener{queue: priorityqueue.New[reconcile.Request]("test")}
	t.Cleanup(l.queue.ShutDown)
	src := o.GetExtensionSource("listener", func(ctx context.Context, extension client.Object) []ctrl.Request {
		if extension.GetName() == panics {
			panic("this map function does not like " + panics)
		}
		state, known := o.GetConnectionState(ctx, client.ObjectKeyFromObject(extension))
		said := extension.GetName() + " " + string(state.Phase) + string(state.Reason)
		if !known {
			said = extension.GetName() + " deleted " + string(extension.GetUID())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.told = append(l.told, said)
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
	return append([]string(nil), l.told...)
}

func TestExtensionSource(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, extension(ns, "told"))
	create(t, extension(ns, "disliked"))
	o := startOperator(t, clustercache.Options{ConnectBackoff: never()})
	early := listen(t, o, "disliked")
	g.Eventually(early.heard).WithTimeout(patience).Should(ContainElement("told DisconnectedServiceAccountNotFound"))

	create(t, serviceAccount(ns, "told"))
	g.Eventually(early.heard).WithTimeout(patience).Should(ContainElement("told Connected"))
	late := listen(t, o, "")
	g.Eventually(late.heard).WithTimeout(patience).
		Should(ContainElements("told Connected", "disliked DisconnectedServiceAccountNotFound"),
			"a source that starts late hears of every known extension")

	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "told"))).To(Succeed())
	for _, l := range []*listener{early, late} {
		g.Eventually(func() string { heard := l.heard(); return heard[len(heard)-1] }).WithTimeout(patience).
			Should(Equal("told DisconnectedServiceAccountNotFound"))
	}
	e := extension(ns, "told")
	g.Expect(admin.Get(t.Context(), key("told"), e)).To(Succeed())
	g.Expect(admin.Delete(t.Context(), e)).To(Succeed())
	g.Eventually(late.heard).WithTimeout(patience).Should(ContainElement("told deleted "+string(e.GetUID())),
		"with the object last seen")
	g.Expect(late.queue.Len()).To(Equal(2), "requests are in the queue, one per extension")
}
