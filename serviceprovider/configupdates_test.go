package serviceprovider

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// testConfig is a config.
type testConfig struct{ corev1.ConfigMap }

func (*testConfig) PollInterval() time.Duration { return time.Minute }

func (c *testConfig) DeepCopyObject() runtime.Object { return &testConfig{*c.DeepCopy()} }

func named(name string) event.GenericEvent {
	return event.GenericEvent{Object: &testConfig{corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}}}
}

// The sender never blocks who sets an event, and a slow receiver gets the newest.
func TestLatestEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		latest, receiver := &latestEvent{}, make(chan event.GenericEvent)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		latest.set(named("before the start"))
		go func() { ended <- latest.deliver(ctx, receiver) }()
		synctest.Wait()
		g.Expect((<-receiver).Object.GetName()).To(Equal("before the start"))
		synctest.Wait()
		select {
		case e := <-receiver:
			t.Fatalf("%v was sent twice", e)
		default:
		}
		for _, name := range []string{"first", "second", "third"} {
			latest.set(named(name))
			synctest.Wait()
		}
		g.Expect((<-receiver).Object.GetName()).To(Equal("third"))
		latest.set(event.GenericEvent{})
		g.Expect(<-receiver).To(Equal(event.GenericEvent{}), "the config is gone")
		latest.set(named("at the end"))
		synctest.Wait()
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
}

func TestTakeConfig(t *testing.T) {
	g := NewWithT(t)
	r := &APIReconciler[*testAPI, *testConfig]{}
	_, exists, known := r.current.get()
	g.Expect(exists).To(BeFalse())
	g.Expect(known).To(BeFalse(), "nothing is known before the first event")
	g.Expect(r.takeConfig(t.Context(), event.GenericEvent{Object: &corev1.ConfigMap{}})).To(BeFalse(), "another type")
	sent := named("it")
	g.Expect(r.takeConfig(t.Context(), sent)).To(BeTrue())
	config, exists, known := r.current.get()
	g.Expect(config.Name).To(Equal("it"))
	g.Expect(exists && known).To(BeTrue())
	config.Name = "changed by the author"
	sent.Object.SetName("changed by the sender")
	config, _, _ = r.current.get()
	g.Expect(config.Name).To(Equal("it"))
	g.Expect(r.takeConfig(t.Context(), event.GenericEvent{Object: (*testConfig)(nil)})).To(BeTrue())
	_, exists, _ = r.current.get()
	g.Expect(exists).To(BeFalse(), "a nil pointer is no config")
	g.Expect(r.takeConfig(t.Context(), sent)).To(BeTrue())
	g.Expect(r.takeConfig(t.Context(), event.GenericEvent{})).To(BeTrue())
	config, exists, known = r.current.get()
	g.Expect(config).To(BeNil())
	g.Expect(exists).To(BeFalse())
	g.Expect(known).To(BeTrue())
}

// The runtime's own writes cause no reconcile.
func TestIsAnnotated(t *testing.T) {
	g := NewWithT(t)
	type m = map[string]string
	for name, tc := range map[string]struct {
		before, after m
		want          bool
	}{
		"nothing":             {nil, m{}, false},
		"ours":                {m{untouchedAnnotation: "1"}, m{removedAnnotation: "1"}, false},
		"reconcile asked":     {nil, m{OperationAnnotation: OperationReconcile}, true},
		"reconcile removed":   {m{OperationAnnotation: OperationReconcile}, nil, false},
		"ignore removed":      {m{OperationAnnotation: OperationIgnore}, nil, true},
		"ignore after":        {m{OperationAnnotation: OperationReconcile}, m{OperationAnnotation: OperationIgnore}, true},
		"orphan":              {nil, m{OrphanAnnotation: "true"}, true},
		"another":             {m{"a": "b"}, m{"a": "c"}, true},
		"both ours and other": {m{"a": "b", untouchedAnnotation: "1"}, m{"a": "c"}, true},
	} {
		g.Expect(isAnnotated(tc.before, tc.after)).To(Equal(tc.want), name)
	}
}
