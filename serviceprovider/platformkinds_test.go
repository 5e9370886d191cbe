package serviceprovider

import (
	"context"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// watchesBoth depends on the Secret that the config is named after, and on the ConfigMap of that
// name.
type watchesBoth struct{ noReconciler }

func (watchesBoth) IsReferencedSecret(_ context.Context, secret *corev1.Secret, config *testConfig) bool {
	return secret.Name == config.Name // panics without a config
}

func (watchesBoth) IsReferencedConfigMap(_ context.Context, configMap *corev1.ConfigMap, config *testConfig) bool {
	return config != nil && configMap.Name == config.Name
}

// otherConfig is not the config of the provider.
type otherConfig struct{ *testConfig }

// watchesForOther implements the interfaces for another type of config.
type watchesForOther struct{ noReconciler }

func (watchesForOther) IsReferencedSecret(context.Context, *corev1.Secret, otherConfig) bool {
	return true
}

func (watchesForOther) IsReferencedConfigMap(context.Context, *corev1.ConfigMap, otherConfig) bool {
	return true
}

var (
	_ SecretWatcher[*testConfig]    = watchesBoth{}
	_ ConfigMapWatcher[*testConfig] = watchesBoth{}
	_ SecretWatcher[otherConfig]    = watchesForOther{}
	_ ConfigMapWatcher[otherConfig] = watchesForOther{}
)

func TestPlatformKinds(t *testing.T) {
	g := NewWithT(t)
	r := completeAPI().Reconciler(watchesBoth{}).SecretNamespace("secrets").ConfigMapNamespace("configmaps").MustBuild()
	kinds := r.platformKinds()
	g.Expect(kinds).To(HaveLen(2))
	secrets, configMaps := kinds[0], kinds[1]
	g.Expect(secrets.namespace).To(Equal("secrets"))
	g.Expect(configMaps.namespace).To(Equal("configmaps"))
	called := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

	g.Expect(secrets.isReferenced(t.Context(), &corev1.Secret{ObjectMeta: called("it")})).To(BeTrue(),
		"the author's function panicked")
	g.Expect(configMaps.isReferenced(t.Context(), &corev1.ConfigMap{ObjectMeta: called("it")})).To(BeFalse(),
		"there is no config yet")
	r.takeConfig(t.Context(), named("it"))
	for name, referenced := range map[string]bool{"it": true, "other": false} {
		g.Expect(secrets.isReferenced(t.Context(), &corev1.Secret{ObjectMeta: called(name)})).To(Equal(referenced))
		g.Expect(configMaps.isReferenced(t.Context(), &corev1.ConfigMap{ObjectMeta: called(name)})).To(Equal(referenced))
	}

	for _, reconciler := range []Reconciler[*testAPI, *testConfig]{noReconciler{}, watchesForOther{}} {
		for _, kind := range completeAPI().Reconciler(reconciler).MustBuild().platformKinds() {
			g.Expect(kind.isReferenced).To(BeNil(), kind.watcher)
		}
	}
}

// A source needs both, a namespace and the author's function.
func TestSourceOfPlatformKind(t *testing.T) {
	g := NewWithT(t)
	always := func(context.Context, client.Object) bool { return true }
	for _, kind := range []platformKind{{namespace: "ns"}, {isReferenced: always}} {
		g.Expect(kind.source(nil, nil, nil)).To(BeNil())
	}
}

// listingCache is a cache that answers the first list with an error.
type listingCache struct {
	cache.Cache
	objects client.Reader
	failed  bool
}

func (c *listingCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if !c.failed {
		c.failed = true
		return errors.New("not yet")
	}
	return c.objects.List(ctx, list, opts...)
}

// A change of a referenced object reconciles all API objects, also if they cannot be listed at
// first.
func TestEnqueueAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		orders := clientfake.NewClientBuilder().WithObjects(
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "first"}},
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "second"}}).Build()
		all := &enqueueAll{cache: &listingCache{objects: orders}, list: &corev1.ServiceList{}}
		handler := all.when(func(_ context.Context, object client.Object) bool { return object.GetName() == "it" })
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		of := func(name, version string) client.Object {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
		}

		handler.Create(t.Context(), event.CreateEvent{Object: of("other", "1")}, q)
		handler.Update(t.Context(), event.UpdateEvent{ObjectOld: of("it", "1"), ObjectNew: of("it", "1")}, q)
		g.Expect(q.Len()).To(BeZero(), "neither another object nor a resync")
		for what, change := range map[string]func(){
			"created": func() { handler.Create(t.Context(), event.CreateEvent{Object: of("it", "1")}, q) },
			"deleted": func() { handler.Delete(t.Context(), event.DeleteEvent{Object: of("it", "1")}, q) },
			"was referenced": func() {
				handler.Update(t.Context(), event.UpdateEvent{ObjectOld: of("it", "1"), ObjectNew: of("other", "2")}, q)
			},
			"is referenced": func() {
				handler.Update(t.Context(), event.UpdateEvent{ObjectOld: of("other", "1"), ObjectNew: of("it", "2")}, q)
			},
		} {
			change()
			var got []string
			for q.Len() > 0 {
				request, _ := q.Get()
				got = append(got, request.String())
				q.Done(request)
			}
			g.Expect(got).To(ConsistOf("a/first", "b/second"), what)
		}
	})
}
