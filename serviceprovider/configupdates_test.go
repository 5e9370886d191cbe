package serviceprovider

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
		"ours":                {m{usedAnnotation: "1"}, m{removedAnnotation: "1"}, false},
		"reconcile asked":     {nil, m{OperationAnnotation: OperationReconcile}, true},
		"reconcile removed":   {m{OperationAnnotation: OperationReconcile}, nil, false},
		"ignore removed":      {m{OperationAnnotation: OperationIgnore}, nil, true},
		"ignore after":        {m{OperationAnnotation: OperationReconcile}, m{OperationAnnotation: OperationIgnore}, true},
		"orphan":              {nil, m{OrphanAnnotation: "true"}, true},
		"another":             {m{"a": "b"}, m{"a": "c"}, true},
		"both ours and other": {m{"a": "b", usedAnnotation: "1"}, m{"a": "c"}, true},
	} {
		g.Expect(isAnnotated(tc.before, tc.after)).To(Equal(tc.want), name)
	}
}

// failingReader is an API server that answers every read with an error.
type failingReader struct {
	client.Reader
	err error
}

func (f failingReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return f.err
}

type clusterOf struct {
	noCluster
	reader client.Reader
}

func (c clusterOf) GetAPIReader() client.Reader { return c.reader }

// Only NotFound means that there is no config.
func TestConfigReconciler(t *testing.T) {
	g := NewWithT(t)
	reconciler := func(answer error) *ConfigReconciler[*testConfig] {
		return NewConfigReconcilerBuilder[*testConfig]().EmptyObjectProvider(func() *testConfig { return &testConfig{} }).
			PlatformCluster(clusterOf{reader: failingReader{err: answer}}).ProviderName("it").
			UpdateChannel(make(chan event.GenericEvent)).MustBuild()
	}
	request := ctrl.Request{NamespacedName: client.ObjectKey{Name: "it"}}
	for _, answer := range []error{apierrors.NewInternalError(errors.New("no")),
		apierrors.NewForbidden(schema.GroupResource{}, "it", nil), errors.New("timeout")} {
		r := reconciler(answer)
		_, err := r.Reconcile(t.Context(), request)
		g.Expect(err).To(HaveOccurred())
		pending, _ := r.latest.next()
		g.Expect(pending).To(BeNil(), "nothing is sent")
	}
	r := reconciler(apierrors.NewNotFound(schema.GroupResource{}, "it"))
	g.Expect(r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "other"}})).To(BeZero())
	pending, _ := r.latest.next()
	g.Expect(pending).To(BeNil(), "a config of another name triggers nothing")
	g.Expect(r.Reconcile(t.Context(), request)).To(BeZero())
	pending, _ = r.latest.next()
	g.Expect(pending).To(Equal(&event.GenericEvent{}))
}

// A process that has just started changes nothing until it has read the config.
func TestConfigFor(t *testing.T) {
	g := NewWithT(t)
	r := &APIReconciler[*testAPI, *testConfig]{}
	shown := func(a *testAPI) string {
		_, ok := r.configFor(a)
		g.Expect(ok).To(BeFalse())
		return a.shown()
	}
	g.Expect(shown(&testAPI{})).To(Equal("Progressing False ProviderConfigMissing"))
	known := &testAPI{}
	StatusReady(known)
	g.Expect(shown(known)).To(Equal("Ready True Ready"))
	known.Generation = 2
	g.Expect(shown(known)).To(Equal("Progressing False ProviderConfigMissing"))
	r.takeConfig(t.Context(), event.GenericEvent{})
	StatusReady(known)
	g.Expect(shown(known)).To(Equal("Progressing False ProviderConfigMissing"), "it is known that there is none")
	deleting := named("it")
	deleting.Object.SetDeletionTimestamp(&deleted)
	r.takeConfig(t.Context(), deleting)
	g.Expect(shown(known)).To(Equal("Progressing False ProviderConfigDeleting"))
	known.DeletionTimestamp = &deleted
	g.Expect(shown(known)).To(Equal("Terminating False ProviderConfigDeleting"))
}
