package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// TestStopInTheMiddleOfConnects stops a manager while it connects. The manager ends in time and
// leaves nothing behind; startOperator checks for leaks.
func TestStopInTheMiddleOfConnects(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	hosts := map[string]string{}
	hanging := neverAnswers(t)
	create(t, serviceAccount(ns, "all"))
	for i := range 50 {
		name := fmt.Sprintf("stop-%02d", i)
		create(t, extension(ns, name))
		if i%2 == 0 {
			hosts[name] = hanging
		}
	}
	o := startOperator(t, clustercache.Options{
		Credentials: elsewhere(token(t, ns, "all"), hosts),
		// The timeouts are so long that a connect does not end in time unless the stop cancels it.
		HealthProbe: healthprobe.Options{Timeout: 5 * time.Minute},
		Client:      clustercache.ClientOptions{Timeout: 5 * time.Minute},
	})
	connecting := func() (n int) {
		for _, state := range o.ListConnectionStates(t.Context()) {
			if state.Phase == clustercache.PhaseConnecting {
				n++
			}
		}
		return n
	}
	g.Eventually(connecting).WithTimeout(patience).WithPolling(time.Millisecond).Should(BeNumerically(">=", 10))

	begin := time.Now()
	o.end(t)
	g.Expect(time.Since(begin)).To(BeNumerically("<", 8*time.Second))
	expectNotConnected(t, o, "stop-00", clustercache.ReasonNotStarted)
	expectNotConnected(t, o, "stop-01", clustercache.ReasonNotStarted)
}

// TestNotStarted covers a manager that was never started or does not lead. Such a manager connects
// no extension, and the reason is NotStarted.
func TestNotStarted(t *testing.T) {
	ns := namespace(t)
	tenant(t, ns, "waiting")
	o := newOperator(t, clustercache.Options{})
	expectNotConnected(t, o, "waiting", clustercache.ReasonNotStarted)
}

// TestStopWithHandlersThatHang checks that hanging handlers and OnErrors do not prevent a manager
// from stopping.
func TestStopWithHandlersThatHang(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "hangs")
	createConfigMaps(t, ns, "x")
	o := startOperator(t, clustercache.Options{})
	o.waitConnected(t, "hangs")
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	calls := make(chan string, 10)
	c := newFakeController(t)
	handles := c.watch("handler", &corev1.ConfigMap{}, ns)
	handles.EventHandler = handler.Funcs{CreateFunc: func(context.Context, event.CreateEvent,
		workqueue.TypedRateLimitingInterface[ctrl.Request]) {
		calls <- "handler"
		<-release
	}}
	fails := c.watch("error", &corev1.Node{}, "") // the identity may not watch Nodes
	fails.OnError = func(context.Context, clustercache.WatchError) {
		calls <- "OnError"
		<-release
	}
	for _, options := range []clustercache.WatcherOptions{handles, fails} {
		g.Expect(o.Watch(t.Context(), key("hangs"), clustercache.NewWatcher(options))).To(Succeed())
	}
	g.Eventually(calls).WithTimeout(patience).Should(Receive())
	g.Eventually(calls).WithTimeout(patience).Should(Receive())
	begin := time.Now()
	o.stopManager(t)
	g.Expect(time.Since(begin)).To(BeNumerically("<", 20*time.Second),
		"the manager itself would wait for 30 s and then give up")
	expectNotConnected(t, o, "hangs", clustercache.ReasonNotStarted)
	free()
	c.close()
	o.leftNothing(t)
}
