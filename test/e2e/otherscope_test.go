package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// shape is a kind whose CustomResourceDefinition is deleted, and created again with something else.
type shape struct{ group string }

func (s shape) define(t *testing.T, plural, scope string) {
	t.Helper()
	create(t, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + s.group},
		"spec": map[string]any{"group": s.group, "scope": scope,
			"names": map[string]any{"plural": plural, "singular": "shape", "kind": "Shape"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object",
					"x-kubernetes-preserve-unknown-fields": true}}}}},
	}})
}

// remove deletes the definition, and waits until it is gone.
func (s shape) remove(t *testing.T, plural string) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   "apiextensions.k8s.io",
		Version: "v1",
		Kind:    "CustomResourceDefinition",
	})
	crd.SetName(plural + "." + s.group)
	g := NewWithT(t)
	g.Expect(admin.Delete(t.Context(), crd)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(t.Context(), client.ObjectKeyFromObject(crd), crd))
	}).WithTimeout(patience).WithPolling(10 * time.Millisecond).Should(BeTrue())
}

func (s shape) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: s.group, Version: "v1", Kind: "Shape"}
}

func (s shape) object(namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(s.gvk())
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func (s shape) list() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(s.gvk())
	return list
}

// shapeClients are what a controller has had since before the kind changed.
type shapeClients struct {
	cached, live client.Client
	reader       client.Reader // of the cluster.Cluster
}

func (c *shapeClients) of(t *testing.T, o *operator, name string) {
	g := NewWithT(t)
	var err error
	c.cached, err = o.GetClient(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	c.live, err = o.GetUncachedClient(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	whole, err := o.GetCluster(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	c.reader = whole.GetAPIReader()
}

// lifecycle writes and reads an object in every way.
func (c *shapeClients) lifecycle(ctx context.Context, s shape, namespace, name string) error {
	object, id := s.object(namespace, name), client.ObjectKey{Namespace: namespace, Name: name}
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(s.gvk())
	metadata.SetNamespace(namespace)
	metadata.SetName(name)
	applied := s.object(namespace, name)
	applied.Object["size"] = "large"
	for i, step := range []func() error{
		func() error { return client.IgnoreAlreadyExists(c.cached.Create(ctx, object)) },
		func() error { return c.live.Get(ctx, id, object) },
		func() error { return c.reader.Get(ctx, id, object) },
		func() error { return c.cached.Update(ctx, object) },
		func() error {
			return c.cached.Status().Patch(ctx, object, client.RawPatch("application/merge-patch+json",
				[]byte(`{"status":{"is":"round"}}`)))
		},
		func() error { return c.live.SubResource("status").Update(ctx, object) },
		func() error {
			return c.cached.Patch(ctx, metadata, client.RawPatch("application/merge-patch+json",
				[]byte(`{"metadata":{"labels":{"a":"b"}}}`)))
		},
		func() error {
			return c.live.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.ForceOwnership,
				client.FieldOwner("test"))
		},
		func() error { return c.live.Get(ctx, id, metadata) },
		func() error { return c.cached.Get(ctx, id, s.object("", "")) },
		func() error {
			list := s.list()
			if err := c.cached.List(ctx, list, client.InNamespace(namespace)); err != nil || len(list.Items) != 1 {
				return fmt.Errorf("a list from the cache has %d items, and the error %w", len(list.Items), err)
			}
			return nil
		},
		func() error { return c.live.List(ctx, s.list(), client.InNamespace(namespace)) },
		func() error { return c.live.DeleteAllOf(ctx, s.object(namespace, ""), client.InNamespace(namespace)) },
		func() error {
			return client.IgnoreNotFound(c.cached.Delete(ctx, s.object(namespace, name)))
		},
	} {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// A kind comes back with another scope, or another resource. Clients, caches and watches that a
// controller has had since before follow within seconds, also where no request was sent meanwhile
// that could have been refused.
func TestKindComesBackOtherwise(t *testing.T) {
	const namespaced, cluster = "Namespaced", "Cluster"
	for i, change := range []struct{ name, plural, scope, thenPlural, thenScope string }{
		{"namespaced, then cluster-scoped", "shapes", namespaced, "shapes", cluster},
		{"cluster-scoped, then namespaced", "shapes", cluster, "shapes", namespaced},
		{"another resource", "shapes", namespaced, "figures", namespaced},
		{"another resource and scope", "shapes", cluster, "figures", namespaced},
	} {
		t.Run(change.name, func(t *testing.T) {
			g := NewWithT(t)
			ns := namespace(t)
			s := shape{group: fmt.Sprintf("back%d.example.test", i)}
			s.define(t, change.plural, change.scope)
			everything := rbacv1.PolicyRule{APIGroups: []string{s.group}, Resources: []string{"*"}, Verbs: []string{"*"}}
			names := []string{"quiet", "busy"} // first who has no watches of controllers, whose requests would help
			inNamespace := func(scope string) string {
				if scope == cluster {
					return ""
				}
				return ns
			}
			for _, name := range names {
				create(t, serviceAccount(ns, name))
				role := &rbacv1.ClusterRole{
					ObjectMeta: metav1.ObjectMeta{Name: ns + "-" + name},
					Rules:      []rbacv1.PolicyRule{everything},
				}
				create(t, role)
				create(t, &rbacv1.ClusterRoleBinding{
					ObjectMeta: metav1.ObjectMeta{Name: role.Name},
					RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
					Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: name}},
				})
				create(t, extension(ns, name))
			}
			if change.thenScope == namespaced { // one that may only use what comes, in its namespace
				create(t, serviceAccount(ns, "bound"))
				grant(t, ns, "bound", everything)
				create(t, extension(ns, "bound"))
				names = append(names, "bound")
			}
			o := startOperator(t, clustercache.Options{Cache: clustercache.CacheOptions{AccessReviewInterval: 2 * time.Second}})
			held := map[string]*shapeClients{}
			for _, name := range names {
				o.waitConnected(t, name)
				held[name] = &shapeClients{}
				held[name].of(t, o, name)
			}
			c := newFakeController(t)
			for _, everywhere := range []string{"", ns} {
				watch := c.watch("in "+everywhere, s.object("", ""), everywhere)
				g.Expect(o.Watch(t.Context(), key("busy"), clustercache.NewWatcher(watch))).To(Succeed())
			}
			early := s.object(inNamespace(change.scope), "early") // not by admin, a client that would remember the resource
			g.Eventually(func() error { return held["busy"].live.Create(t.Context(), early) }).WithTimeout(patience).
				Should(Succeed())
			g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create early"))
			g.Expect(held["busy"].live.Delete(t.Context(), early)).To(Succeed())
			for _, name := range []string{"busy", "quiet"} {
				g.Eventually(func() error {
					return held[name].lifecycle(t.Context(), s, inNamespace(change.scope), "before-"+name)
				}).WithTimeout(patience).Should(Succeed(), name)
			}
			if bound := held["bound"]; bound != nil && change.scope == cluster { // refused
				g.Expect(bound.live.Create(t.Context(), s.object(inNamespace(change.scope), "bound"))).NotTo(Succeed())
				g.Expect(bound.cached.List(t.Context(), s.list(), client.InNamespace(ns))).NotTo(Succeed())
			}

			s.remove(t, change.plural)
			s.define(t, change.thenPlural, change.thenScope)
			begun := time.Now()
			for _, name := range names {
				g.Eventually(func() error {
					return held[name].lifecycle(t.Context(), s, inNamespace(change.thenScope), "after-"+name)
				}).WithTimeout(30*time.Second).Should(Succeed(), name)
				t.Logf("%s: after %s", name, time.Since(begun).Round(time.Millisecond))
			}
			create(t, s.object(inNamespace(change.thenScope), "seen"))
			g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create seen"))
			for _, name := range names {
				var err error
				now := &shapeClients{}
				now.cached, err = o.GetClient(t.Context(), key(name))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(now.cached).To(BeIdenticalTo(held[name].cached), "%s was connected all the time", name)
			}
			g.Eventually(func(g Gomega) {
				for _, scope := range o.state("busy").Scopes {
					g.Expect(scope.State).To(Equal(scopedcache.StateSynced), "%+v", scope)
				}
			}).WithTimeout(patience).Should(Succeed())
		})
	}
}

// A scope is Forbidden because its kind is cluster-scoped, and the identity has a Role in a
// namespace only. The kind comes back namespaced, and nothing is sent that could show it: no
// informer runs, and no path is refused.
func TestForbiddenScopeFollowsItsKind(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	s := shape{group: "forbidden-back.example.test"}
	s.define(t, "shapes", "Cluster")
	create(t, serviceAccount(ns, "bound"))
	grant(t, ns, "bound",
		rbacv1.PolicyRule{APIGroups: []string{s.group}, Resources: []string{"*"}, Verbs: []string{"list", "watch"}})
	create(t, extension(ns, "bound"))
	o := startOperator(t, clustercache.Options{Cache: clustercache.CacheOptions{AccessReviewInterval: 2 * time.Second}})
	o.waitConnected(t, "bound")
	c, err := o.GetClient(t.Context(), key("bound"))
	g.Expect(err).NotTo(HaveOccurred())
	list := func() error { return c.List(t.Context(), s.list(), client.InNamespace(ns)) }
	g.Eventually(list).WithTimeout(patience).Should(Satisfy(apierrors.IsForbidden))
	s.remove(t, "shapes")
	s.define(t, "shapes", "Namespaced")
	g.Eventually(list).WithTimeout(patience).Should(Succeed())
}
