package contract

import (
	"context"
	"slices"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// subscriber records the calls of SubscribeStates, and the state of red at each.
type subscriber struct {
	mu    sync.Mutex
	calls [][]client.ObjectKey // guarded by mu
	lines []string             // guarded by mu: states of red, without repetitions
}

func subscribe(t *testing.T, w World) *subscriber {
	t.Helper()
	s, done := &subscriber{}, make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		w.Cache().SubscribeStates(ctx, func(keys []client.ObjectKey) { s.note(ctx, w, keys) })
	}()
	return s
}

func (s *subscriber) note(ctx context.Context, w World, keys []client.ObjectKey) {
	line := "other"
	if slices.Contains(keys, key("red")) {
		line = "gone"
		if state, known := w.Cache().GetConnectionState(ctx, key("red")); known {
			line = string(state.Phase) + string(state.Reason)
			for _, watch := range state.Watches {
				line += " watch " + watch.Name
			}
			for _, scope := range state.Scopes {
				line += " " + scope.GVK.Kind + " " + string(scope.State)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, keys)
	if len(s.lines) == 0 || s.lines[len(s.lines)-1] != line {
		s.lines = append(s.lines, line)
	}
}

func (s *subscriber) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == 0 {
		return ""
	}
	return s.lines[len(s.lines)-1]
}

func (s *subscriber) first() []client.ObjectKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == 0 {
		return nil
	}
	return s.calls[0]
}

// SubscribeStates names what is known first, and then each extension whose state changed.
func subscribeStates(t *testing.T, w World) {
	g := NewWithT(t)
	early := subscribe(t, w)
	connect(t, w, "red", "blue")
	g.Eventually(early.last).WithTimeout(patience).Should(Or(Equal("Connected"), Equal("other")))
	s := subscribe(t, w)
	g.Eventually(s.first).WithTimeout(patience).Should(Equal([]client.ObjectKey{key("blue"), key("red")}))

	watcher := clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "content",
		Kind:         &corev1.ConfigMap{},
		Scope:        clustercache.Scope{Namespace: w.Namespace()},
		Watcher:      newController(),
		EventHandler: &handler.EnqueueRequestForObject{},
	})
	g.Expect(w.Cache().Watch(t.Context(), key("red"), watcher)).To(Succeed())
	g.Eventually(s.last).WithTimeout(patience).Should(Equal("Connected watch content ConfigMap Synced"))
	w.Cache().Unwatch(t.Context(), key("red"), "content")
	g.Eventually(s.last).WithTimeout(patience).Should(Equal("Connected"))

	state, _ := w.Cache().GetConnectionState(t.Context(), key("red"))
	g.Expect(state.DisconnectedSince).To(BeZero())
	g.Expect(state.Healthy).To(BeTrue())
	g.Expect(state.HealthSince).NotTo(BeZero())
	disconnect(t, w, "red")
	g.Eventually(s.last).WithTimeout(patience).Should(Equal("DisconnectedServiceAccountNotFound"))
	lost, _ := w.Cache().GetConnectionState(t.Context(), key("red"))
	g.Expect(lost.DisconnectedSince).NotTo(BeZero())
	g.Expect(lost.Healthy).To(BeFalse())
	g.Expect(lost.HealthSince).To(BeTemporally(">", state.HealthSince))
	remove(t, w, "red")
	g.Eventually(s.last).WithTimeout(patience).Should(Equal("gone"))
	g.Eventually(early.last).WithTimeout(patience).Should(Equal("gone"), "each subscriber in its own time")
}
