package scopedcache_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/testutil"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// widget is a kind that a test defines.
type widget struct{ group string }

var widgets int

func newWidget() widget {
	widgets++
	return widget{group: fmt.Sprintf("w%d.example.com", widgets)}
}

func (w widget) resource() string { return "widgets." + w.group }

// define installs the kind; version is its only one. It takes what it is given.
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
	// It is served a moment after it says so.
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
		Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
	})
	crd.SetName(w.resource())
	g.Expect(admin.Delete(context.Background(), crd)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(context.Background(), client.ObjectKeyFromObject(crd), crd))
	}).WithTimeout(patience).Should(BeTrue())
}

func (w widget) object(version, namespace, name string) *unstructured.Unstructured {
	made := &unstructured.Unstructured{}
	made.SetGroupVersionKind(schema.GroupVersionKind{Group: w.group, Version: version, Kind: "Widget"})
	made.SetNamespace(namespace)
	made.SetName(name)
	return made
}

func (w widget) names(ctx context.Context, c client.Reader, version, namespace string) ([]string, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: w.group, Version: version, Kind: "WidgetList"})
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return namesOf(list), nil
}

// createVia creates with a client that has just learnt of the kind: the administrator's may know an
// earlier one.
func createVia(t testing.TB, object client.Object) {
	t.Helper()
	fresh, err := client.New(cp.Config(), client.Options{HTTPClient: adminHTTP})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(fresh.Create(context.Background(), object)).To(Succeed())
}

// A kind that is not there yet is waited for; one that goes takes its objects along; one that comes
// back as another, with other scope or version, works. Nobody restarts anything, and the mapper is
// controller-runtime's own, which forgets nothing.
func TestKindsComeAndGo(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u, w := namespace(t), newUser(t), newWidget()
	u.grant(t, "", w.resource(), "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: often}, cache.Options{})
	held, err := c.Hold(ctx, w.object("v1", "", ""), scopedcache.Scope{}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	inNamespace, err := c.Hold(ctx, w.object("v1", "", ""), scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	told := &testutil.Recorder{}
	_, err = held.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	everywhere := func() ([]string, error) { return w.names(ctx, held, "v1", "") }
	notServed := func() bool {
		_, err := everywhere()
		return meta.IsNoMatchError(err)
	}

	// Late.
	g.Expect(notServed()).To(BeTrue())
	g.Expect(held.State().State).To(Equal(scopedcache.NotServed))
	g.Expect(held.HasSynced()).To(BeTrue(), "it is settled")
	w.define(t, "Namespaced", "v1")
	createVia(t, w.object("v1", ns, "a"))
	g.Eventually(everywhere).WithTimeout(patience).Should(Equal([]string{"a"}))
	g.Eventually(func() ([]string, error) { return w.names(ctx, inNamespace, "v1", ns) }).WithTimeout(patience).
		Should(Equal([]string{"a"}))
	g.Eventually(told.Events).WithTimeout(patience).Should(Equal([]string{"add a"}))

	// Deleted.
	w.remove(t)
	g.Eventually(notServed).WithTimeout(patience).Should(BeTrue())
	g.Expect(held.State()).To(And(HaveField("State", scopedcache.NotServed), HaveField("Objects", 0)))

	// Recreated without namespaces.
	w.define(t, "Cluster", "v1")
	createVia(t, w.object("v1", "", "b"))
	g.Eventually(everywhere).WithTimeout(patience).Should(Equal([]string{"b"}))
	g.Eventually(told.Events).WithTimeout(patience).
		Should(ConsistOf("add a", Or(Equal("delete a"), Equal("delete unseen a")), "add b"))
	g.Expect(held.Get(ctx, client.ObjectKey{Name: "b"}, w.object("v1", "", ""))).To(Succeed())
	g.Eventually(func() ([]string, error) { return w.names(ctx, inNamespace, "v1", "") }).WithTimeout(patience).
		Should(Equal([]string{"b"}))

	// Recreated in another version: the old one is not served, the new one is.
	w.remove(t)
	w.define(t, "Namespaced", "v2")
	createVia(t, w.object("v2", ns, "c"))
	g.Eventually(notServed).WithTimeout(patience).Should(BeTrue())
	g.Eventually(func() ([]string, error) { return w.names(ctx, c, "v2", ns) }).WithTimeout(patience).
		Should(Equal([]string{"c"}))
	held.Release()
	inNamespace.Release()
	w.remove(t)
}

// An operator whose options name the namespaces that it caches stays up without a kind too, and
// begins when it is there.
func TestLateKindInConfiguredNamespaces(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	one, two, other, u, w := namespace(t), namespace(t), namespace(t), newUser(t), newWidget()
	u.grant(t, one, w.resource(), "list", "watch")
	u.grant(t, two, w.resource(), "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: often},
		cache.Options{DefaultNamespaces: map[string]cache.Config{one: {}, two: {}}})
	informer, err := c.GetInformer(ctx, w.object("v1", "", ""))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(informer.HasSynced()).To(BeTrue(), "it is known that there is nothing")
	told := &testutil.Recorder{}
	_, err = informer.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = w.names(ctx, c, "v1", one)
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue())
	w.define(t, "Namespaced", "v1")
	for name, ns := range map[string]string{"a": one, "b": two, "c": other} {
		createVia(t, w.object("v1", ns, name))
	}
	g.Eventually(told.Events).WithTimeout(patience).Should(ConsistOf("add a", "add b"))
	g.Expect(w.names(ctx, c, "v1", "")).To(ConsistOf("a", "b"))
	w.remove(t)
}

// A kind that comes back with another schema is read as it is now, and so is one whose schema
// changes while it is watched.
func TestKindWithAnotherSchema(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns, u, w := namespace(t), newUser(t), newWidget()
	u.grant(t, ns, w.resource(), "list", "watch")
	c := u.start(t, scopedcache.Options{AccessReviewInterval: often, PerNamespace: true}, cache.Options{})
	held, err := c.Hold(ctx, w.object("v1", "", ""), scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	told := &testutil.Recorder{}
	_, err = held.AddEventHandler(told)
	g.Expect(err).NotTo(HaveOccurred())
	sized := func(as string) map[string]any {
		return map[string]any{"type": "object", "properties": map[string]any{"size": map[string]any{"type": as}}}
	}
	create := func(name string, size any) {
		t.Helper()
		made := w.object("v1", ns, name)
		made.Object["size"] = size
		createVia(t, made)
	}
	size := func(name string) func() (any, error) {
		return func() (any, error) {
			got := w.object("v1", "", "")
			err := held.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, got)
			return got.Object["size"], err
		}
	}

	w.defineWith(t, "Namespaced", "v1", sized("integer"))
	create("one", int64(7))
	g.Eventually(size("one")).WithTimeout(patience).Should(Equal(int64(7)))

	// Recreated at once, so that nobody may have seen that it was gone.
	w.remove(t)
	w.defineWith(t, "Namespaced", "v1", sized("string"))
	create("one", "large")
	g.Eventually(size("one")).WithTimeout(patience).Should(Equal("large"))
	g.Eventually(told.Events).WithTimeout(patience).Should(Or(
		ConsistOf("add one", Or(Equal("delete one"), Equal("delete unseen one")), "add one"),
		ConsistOf("add one", "update one"), // as client-go tells of what was recreated unseen
	))

	// Changed in place: objects that do not fit stay, and new ones are of the new form.
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{
		Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
	})
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: w.resource()}, crd)).To(Succeed())
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	g.Expect(err).NotTo(HaveOccurred())
	versions[0].(map[string]any)["schema"] = map[string]any{"openAPIV3Schema": sized("boolean")}
	g.Expect(unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions")).To(Succeed())
	g.Expect(admin.Update(ctx, crd)).To(Succeed())
	made := w.object("v1", ns, "two")
	made.Object["size"] = true
	g.Eventually(func() error { return client.IgnoreAlreadyExists(admin.Create(ctx, made.DeepCopy())) }).
		WithTimeout(patience).Should(Succeed())
	g.Eventually(size("two")).WithTimeout(patience).Should(BeTrue())
	g.Expect(size("one")()).To(Equal("large"))
	held.Release()
	w.remove(t)
}
