package scopedcache_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// widget is a custom kind that a test installs.
type widget struct{ group string }

var widgets int

func newWidget() widget {
	widgets++
	return widget{group: fmt.Sprintf("w%d.example.com", widgets)}
}

func (w widget) resource() string { return "widgets." + w.group }

// define installs the kind with one version. The schema accepts any fields.
func (w widget) define(t testing.TB, scope, version string) {
	t.Helper()
	w.defineWith(t, scope, version, map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

// defineWith installs the kind with a schema.
func (w widget) defineWith(t testing.TB, scope, version string, schema map[string]any) {
	t.Helper()
	g := NewWithT(t)
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": w.resource()},
		"spec": map[string]any{"group": w.group, "scope": scope,
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": schema}}}},
	}}
	g.Expect(admin.Create(context.Background(), crd)).To(Succeed())
	// The API server serves the kind a moment after it accepts the CRD.
	g.Eventually(func() error {
		_, err := cp.Kubectl(context.Background(), "get", w.resource(), "--all-namespaces")
		return err
	}).WithTimeout(patience).Should(Succeed())
}

func (w widget) remove(t testing.TB) {
	t.Helper()
	g := NewWithT(t)
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   "apiextensions.k8s.io",
		Version: "v1",
		Kind:    "CustomResourceDefinition",
	})
	crd.SetName(w.resource())
	g.Expect(admin.Delete(context.Background(), crd)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(context.Background(), client.ObjectKeyFromObject(crd), crd))
	}).WithTimeout(patience).Should(BeTrue())
}

func (w widget) object(version, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: w.group, Version: version, Kind: "Widget"})
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func (w widget) names(ctx context.Context, c client.Reader, version, namespace string) ([]string, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: w.group, Version: version, Kind: "WidgetList"})
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return namesOf(list), nil
}

// createWithNewClient creates an object with a new client, which discovers the current kind. The
// administrator's client may have cached an earlier definition of the kind.
func createWithNewClient(t testing.TB, object client.Object) {
	t.Helper()
	fresh, err := client.New(cp.Config(), client.Options{HTTPClient: adminHTTP})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(fresh.Create(context.Background(), object)).To(Succeed())
}

// TestKindsComeAndGo checks that the cache waits for a kind that is not installed yet, and drops
// the objects of a kind that is deleted. A kind that is recreated with another scope or version
// works again. The test restarts nothing, and uses controller-runtime's own mapper, which never
// forgets a mapping.
func TestKindsComeAndGo(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u, w := createNamespace(t), newUser(t), newWidget()
	u.grant(t, "", w.resource(), "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: shortInterval}, cache.Options{})
	handle, err := c.Hold(ctx, w.object("v1", "", ""), scopedcache.Scope{}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	namespaceHandle, err := c.Hold(ctx, w.object("v1", "", ""), scopedcache.Scope{Namespace: ns},
		scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	recorder := &testutil.Recorder{}
	_, err = handle.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	listAll := func() ([]string, error) { return w.names(ctx, handle, "v1", "") }
	notServed := func() bool {
		_, err := listAll()
		return meta.IsNoMatchError(err)
	}

	// The kind is installed late.
	g.Expect(notServed()).To(BeTrue())
	g.Expect(handle.State().State).To(Equal(scopedcache.StateNotServed))
	g.Expect(handle.HasSynced()).To(BeTrue(), "the state is known, so the handle has synced")
	w.define(t, "Namespaced", "v1")
	createWithNewClient(t, w.object("v1", ns, "a"))
	g.Eventually(listAll).WithTimeout(patience).Should(Equal([]string{"a"}))
	g.Eventually(func() ([]string, error) { return w.names(ctx, namespaceHandle, "v1", ns) }).WithTimeout(patience).
		Should(Equal([]string{"a"}))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))

	// The kind is deleted.
	w.remove(t)
	g.Eventually(notServed).WithTimeout(patience).Should(BeTrue())
	g.Expect(handle.State()).To(And(HaveField("State", scopedcache.StateNotServed), HaveField("Objects", 0)))

	// The kind is recreated without namespaces.
	w.define(t, "Cluster", "v1")
	createWithNewClient(t, w.object("v1", "", "b"))
	g.Eventually(listAll).WithTimeout(patience).Should(Equal([]string{"b"}))
	g.Eventually(recorder.Events).WithTimeout(patience).
		Should(ConsistOf("add a", Or(Equal("delete a"), Equal("delete unseen a")), "add b"))
	g.Expect(handle.Get(ctx, client.ObjectKey{Name: "b"}, w.object("v1", "", ""))).To(Succeed())
	g.Eventually(func() ([]string, error) { return w.names(ctx, namespaceHandle, "v1", "") }).WithTimeout(patience).
		Should(Equal([]string{"b"}))

	// The kind is recreated in another version. Only the new version is served.
	w.remove(t)
	w.define(t, "Namespaced", "v2")
	createWithNewClient(t, w.object("v2", ns, "c"))
	g.Eventually(notServed).WithTimeout(patience).Should(BeTrue())
	g.Eventually(func() ([]string, error) { return w.names(ctx, c, "v2", ns) }).WithTimeout(patience).
		Should(Equal([]string{"c"}))
	handle.Release()
	namespaceHandle.Release()
	w.remove(t)
}

// TestLateKindInConfiguredNamespaces checks that a cache whose options name its namespaces also
// keeps running without a kind. The cache reads the kind when the kind is installed.
func TestLateKindInConfiguredNamespaces(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	one, two, other, u, w := createNamespace(t), createNamespace(t), createNamespace(t), newUser(t), newWidget()
	u.grant(t, one, w.resource(), "list", "watch")
	u.grant(t, two, w.resource(), "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: shortInterval},
		cache.Options{DefaultNamespaces: map[string]cache.Config{one: {}, two: {}}})
	informer, err := c.GetInformer(ctx, w.object("v1", "", ""))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(informer.HasSynced()).To(BeTrue(), "the state is known: the kind is not served")
	recorder := &testutil.Recorder{}
	_, err = informer.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = w.names(ctx, c, "v1", one)
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue())
	w.define(t, "Namespaced", "v1")
	for name, ns := range map[string]string{"a": one, "b": two, "c": other} {
		createWithNewClient(t, w.object("v1", ns, name))
	}
	g.Eventually(recorder.Events).WithTimeout(patience).Should(ConsistOf("add a", "add b"))
	g.Expect(w.names(ctx, c, "v1", "")).To(ConsistOf("a", "b"))
	w.remove(t)
}

// TestKindWithAnotherSchema checks that the cache reads the current form of a kind that is
// recreated with another schema, and of a kind whose schema changes while the cache watches it.
func TestKindWithAnotherSchema(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u, w := createNamespace(t), newUser(t), newWidget()
	u.grant(t, ns, w.resource(), "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: shortInterval, PerNamespace: true}, cache.Options{})
	handle, err := c.Hold(ctx, w.object("v1", "", ""), scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	recorder := &testutil.Recorder{}
	_, err = handle.AddEventHandler(recorder)
	g.Expect(err).NotTo(HaveOccurred())
	sized := func(sizeType string) map[string]any {
		return map[string]any{"type": "object", "properties": map[string]any{"size": map[string]any{"type": sizeType}}}
	}
	create := func(name string, size any) {
		t.Helper()
		object := w.object("v1", ns, name)
		object.Object["size"] = size
		createWithNewClient(t, object)
	}
	size := func(name string) func() (any, error) {
		return func() (any, error) {
			got := w.object("v1", "", "")
			err := handle.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, got)
			return got.Object["size"], err
		}
	}

	w.defineWith(t, "Namespaced", "v1", sized("integer"))
	create("one", int64(7))
	g.Eventually(size("one")).WithTimeout(patience).Should(Equal(int64(7)))

	// Recreate the kind at once, so that the cache may not notice that the kind was missing.
	w.remove(t)
	w.defineWith(t, "Namespaced", "v1", sized("string"))
	create("one", "large")
	g.Eventually(size("one")).WithTimeout(patience).Should(Equal("large"))
	g.Eventually(recorder.Events).WithTimeout(patience).Should(Or(
		ConsistOf("add one", Or(Equal("delete one"), Equal("delete unseen one")), "add one"),
		ConsistOf("add one", "update one"), // how client-go reports a recreation that the watch missed
	))

	// Change the schema in place. Existing objects that do not match it stay; new objects match it.
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   "apiextensions.k8s.io",
		Version: "v1",
		Kind:    "CustomResourceDefinition",
	})
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: w.resource()}, crd)).To(Succeed())
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	g.Expect(err).NotTo(HaveOccurred())
	versions[0].(map[string]any)["schema"] = map[string]any{"openAPIV3Schema": sized("boolean")}
	g.Expect(unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions")).To(Succeed())
	g.Expect(admin.Update(ctx, crd)).To(Succeed())
	object := w.object("v1", ns, "two")
	object.Object["size"] = true
	g.Eventually(func() error { return client.IgnoreAlreadyExists(admin.Create(ctx, object.DeepCopy())) }).
		WithTimeout(patience).Should(Succeed())
	g.Eventually(size("two")).WithTimeout(patience).Should(BeTrue())
	g.Expect(size("one")()).To(Equal("large"))
	handle.Release()
	w.remove(t)
}

// TestWithoutBookmarks checks that a cache whose options turn bookmarks off lists each kind instead
// of streaming it, because only a bookmark marks the end of a streamed list. In each representation
// the cache then reports changes.
func TestWithoutBookmarks(t *testing.T) {
	typed, untyped, metadata := &corev1.ConfigMap{}, &unstructured.Unstructured{}, &metav1.PartialObjectMetadata{}
	untyped.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	for _, example := range []client.Object{typed, untyped, metadata} {
		t.Run(fmt.Sprintf("%T", example), func(t *testing.T) {
			g := NewWithT(t)
			ns := createNamespace(t)
			create(t, configMap(ns, "one"))
			u := newUser(t)
			u.grant(t, ns, "configmaps", "list", "watch")
			s := u.start(t, scopedcache.Options{PerNamespace: true}, cache.Options{DefaultEnableWatchBookmarks: new(bool)})
			get := func(name string) error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				return s.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, example.DeepCopyObject().(client.Object))
			}
			g.Expect(get("one")).To(Succeed())
			create(t, configMap(ns, "two"))
			g.Eventually(func() error { return get("two") }).WithTimeout(patience).Should(Succeed())
		})
	}
}
