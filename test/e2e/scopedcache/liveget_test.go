package scopedcache_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// With LiveGet, get alone suffices for a cached Get, in each representation, as if the cache had
// the object: with its transform and its selectors. The API server is asked once.
func TestLiveGet(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	chosen := configMap(ns, "a")
	chosen.Labels, chosen.Data = map[string]string{"choose": "me"}, map[string]string{"key": "value"}
	create(t, chosen, configMap(ns, "other"))
	u.grant(t, ns, "configmaps", "get")
	var gets atomic.Int64
	c := u.start(t, scopedcache.Options{
		LiveGet:              true,
		OnLiveGet:            func() { gets.Add(1) },
		PerNamespace:         true,
		AccessReviewInterval: endlessInterval,
	}, cache.Options{
		DefaultLabelSelector: labels.SelectorFromSet(chosen.Labels),
		DefaultTransform: func(object any) (any, error) {
			object.(client.Object).SetAnnotations(map[string]string{"transformed": "yes"})
			return object, nil
		},
	})
	unstructuredMap := &unstructured.Unstructured{}
	unstructuredMap.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	get := func(name string, object client.Object) error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, object)
	}
	typed := &corev1.ConfigMap{}
	for _, object := range []client.Object{typed, unstructuredMap, metadata} {
		g.Expect(get("a", object)).To(Succeed(), "%T", object)
		g.Expect(object.GetAnnotations()).To(HaveKey("transformed"), "%T", object)
		g.Expect(object.GetObjectKind().GroupVersionKind().Kind).To(Equal("ConfigMap"), "%T", object)
	}
	g.Expect(typed.Data).To(Equal(chosen.Data))
	g.Expect(gets.Load()).To(BeEquivalentTo(3))
	g.Expect(get("gone", typed)).To(Satisfy(apierrors.IsNotFound))
	g.Expect(get("other", typed)).To(Satisfy(apierrors.IsNotFound), "not selected")
	_, err := c.names(t.Context(), ns)
	g.Expect(err).To(Satisfy(apierrors.IsForbidden), "List never goes to the API server")

	g.Expect(u.requests.lists("/configmaps")).To(BeZero())
	g.Expect(statesIn(c, ns)).To(ContainElement(scopedcache.StateLive))
	g.Expect(statesIn(c, ns)).NotTo(ContainElement(scopedcache.StateForbidden))
	handle, err := c.Hold(t.Context(), typed, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer handle.Release()
	g.Expect(statesIn(c, ns)).To(ContainElement(scopedcache.StateForbidden), "a holder needs list and watch")
}

// statesIn returns the states of the scopes of a namespace.
func statesIn(c *runningCache, namespace string) (states []scopedcache.State) {
	for _, scope := range c.States() {
		if scope.Scope.Namespace == namespace {
			states = append(states, scope.State)
		}
	}
	return states
}

// Get follows what the identity may do: nothing, get of one name, get of all, list and watch.
func TestLiveGetFollowsPermissions(t *testing.T) {
	g := NewWithT(t)
	ns, u := createNamespace(t), newUser(t)
	create(t, configMap(ns, "a"), configMap(ns, "b"))
	var gets atomic.Int64
	c := u.start(t, scopedcache.Options{
		LiveGet:              true,
		OnLiveGet:            func() { gets.Add(1) },
		PerNamespace:         true,
		AccessReviewInterval: shortInterval,
	}, cache.Options{})
	result := func(name string) func() string {
		return func() string {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			before := gets.Load()
			err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &corev1.ConfigMap{})
			if err != nil && !apierrors.IsForbidden(err) {
				return err.Error()
			}
			return fmt.Sprintf("forbidden %t, live %t", err != nil, gets.Load() > before)
		}
	}
	eventually := func(name, expected string) {
		t.Helper()
		g.Eventually(result(name)).WithTimeout(patience).WithPolling(20 * time.Millisecond).Should(Equal(expected))
	}
	eventually("a", "forbidden true, live false")
	one := u.grantRule(t, ns, rbacv1.PolicyRule{
		APIGroups:     []string{""},
		Resources:     []string{"configmaps"},
		ResourceNames: []string{"a"},
		Verbs:         []string{"get"},
	})
	eventually("a", "forbidden false, live true")
	eventually("b", "forbidden true, live false")
	all := u.grant(t, ns, "configmaps", "get")
	eventually("b", "forbidden false, live true")
	all.revoke(t)
	eventually("b", "forbidden true, live false")
	eventually("a", "forbidden false, live true")
	listed := u.grant(t, ns, "configmaps", "list", "watch")
	eventually("b", "forbidden false, live false")
	g.Eventually(func() []scopedcache.State { return statesIn(c, ns) }).WithTimeout(patience).
		Should(And(ContainElement(scopedcache.StateSynced), Not(ContainElement(scopedcache.StateLive))))
	listed.revoke(t)
	eventually("a", "forbidden false, live true")
	one.revoke(t)
	eventually("a", "forbidden true, live false")
	g.Eventually(func() []scopedcache.State { return statesIn(c, ns) }).WithTimeout(patience).
		ShouldNot(ContainElement(scopedcache.StateLive))
}
