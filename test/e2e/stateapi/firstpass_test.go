package stateapi

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// A subscriber is called first when every extension has been reconciled, and then with all of them:
// one that hangs in a function of the host operator is waited for.
func TestFirstCallHasAllExtensions(t *testing.T) {
	g := NewWithT(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "first"}})
	tenant(t, "free", "first")
	tenant(t, "held", "first")
	mgr, err := ctrl.NewManager(cp.Config(), ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	skip := true
	connections, err := clustercache.SetupWithManager(t.Context(), mgr, clustercache.Options{
		AllowIdentity: clustercache.GuardedByAdmission,
		Client:        clustercache.ClientOptions{UserAgent: "first-test"},
		Filter: func(object client.Object) bool {
			if object.GetName() == "held" {
				<-release
			}
			return true
		},
	}, controller.Options{SkipNameValidation: &skip, MaxConcurrentReconciles: 2})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	calls := make(chan []client.ObjectKey, 100)
	var running sync.WaitGroup
	running.Go(func() { connections.SubscribeStates(ctx, func(keys []client.ObjectKey) { calls <- keys }) })
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	t.Cleanup(letGo)

	free, held := client.ObjectKey{Name: "free"}, client.ObjectKey{Name: "held"}
	eventually(t, func() string {
		state, _ := connections.GetConnectionState(t.Context(), free)
		return string(state.Reason)
	}).Should(Equal("ServiceAccountNotFound"))
	g.Consistently(calls).WithTimeout(500 * time.Millisecond).ShouldNot(Receive())
	letGo()
	eventually(t, calls).Should(Receive(ConsistOf(free, held)))
}
