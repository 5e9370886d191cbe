package statechanges

import (
	"context"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

// A subscriber receives what is known first, and while it is busy each key waits once. The producer
// never waits for it.
func TestSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		var hub Hub
		calls, release := [][]client.ObjectKey{}, make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			hub.Subscribe(ctx, nil, func() []client.ObjectKey { return []client.ObjectKey{key("b"), key("a")} },
				func(keys []client.ObjectKey) {
					calls = append(calls, keys)
					<-release
				})
		}()
		synctest.Wait()
		g.Expect(hub.HasSubscribers()).To(BeTrue())
		for range 1000 {
			hub.Changed(key("c"))
			hub.Changed(key("a"))
		}
		release <- struct{}{}
		synctest.Wait()
		release <- struct{}{}
		synctest.Wait()
		g.Expect(calls).To(Equal([][]client.ObjectKey{{key("a"), key("b")}, {key("a"), key("c")}}))
		cancel()
		<-done
		g.Expect(hub.HasSubscribers()).To(BeFalse())
		hub.Changed(key("late"))
	})
}

// A change between the registration and the list of what is known is not lost. A subscriber to
// nothing is called once, when ready is closed.
func TestSubscribeMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var hub Hub
		var calls [][]client.ObjectKey
		done := make(chan struct{})
		go func() {
			defer close(done)
			hub.Subscribe(ctx, nil, func() []client.ObjectKey { hub.Changed(key("a")); return nil },
				func(keys []client.ObjectKey) { calls = append(calls, keys) })
		}()
		ready, none := make(chan struct{}), 0
		go hub.Subscribe(ctx, ready, func() []client.ObjectKey { return nil }, func(keys []client.ObjectKey) { none++ })
		synctest.Wait()
		NewWithT(t).Expect(none).To(BeZero())
		close(ready)
		synctest.Wait()
		NewWithT(t).Expect(none).To(Equal(1))
		cancel()
		<-done
		NewWithT(t).Expect(calls).To(Equal([][]client.ObjectKey{{key("a")}}))
	})
}
