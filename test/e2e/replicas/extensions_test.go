package replicas

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/ownership/buckets"
)

// admin returns a client that may do everything, without a limit of requests.
func admin(t testing.TB) client.Client {
	t.Helper()
	config := rest.CopyConfig(cp.Config())
	config.QPS = -1
	c, err := client.New(config, client.Options{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

// manyExtensions creates extensions whose ServiceAccounts may read and write ConfigMaps.
func manyExtensions(t testing.TB, prefix string, n int) (names []string) {
	t.Helper()
	return extensionsOf(t, prefix, n, n)
}

// extensionsOf is manyExtensions for extensions that name so many ServiceAccounts.
func extensionsOf(t testing.TB, prefix string, n, accounts int) (names []string) {
	t.Helper()
	g := NewWithT(t)
	c := admin(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: prefix},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""},
			Resources: []string{"configmaps"},
			Verbs:     []string{"get", "list", "watch", "patch", "update"},
		}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: prefix},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: prefix},
		Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:default"}},
	}
	g.Expect(c.Create(t.Context(), role)).To(Succeed())
	g.Expect(c.Create(t.Context(), binding)).To(Succeed())
	var creating errgroup.Group
	creating.SetLimit(20)
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		names = append(names, name)
		creating.Go(func() error {
			content := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			if err := c.Create(t.Context(), content); err != nil {
				return err
			}
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			if err := c.Create(t.Context(), account); err != nil {
				return err
			}
			extension := newExtension(prefix, name)
			if err := unstructured.SetNestedField(extension.Object, fmt.Sprintf("%s-%d", prefix, i%accounts), "spec",
				"serviceAccount", "name"); err != nil {
				return err
			}
			return c.Create(t.Context(), extension)
		})
	}
	g.Expect(creating.Wait()).To(Succeed())
	t.Cleanup(func() {
		_ = c.Delete(context.Background(), role)
		_ = c.Delete(context.Background(), binding)
		var deleting errgroup.Group
		deleting.SetLimit(20)
		for _, name := range names {
			deleting.Go(func() error {
				meta := metav1.ObjectMeta{Namespace: "default", Name: name}
				_ = c.Delete(context.Background(), &corev1.ServiceAccount{ObjectMeta: meta})
				_ = c.Delete(context.Background(), &corev1.ConfigMap{ObjectMeta: meta})
				return c.Delete(context.Background(), newExtension(prefix, name))
			})
		}
		_ = deleting.Wait()
	})
	return names
}

// newExtension returns an extension of a fleet. It names the ServiceAccount of its own name.
func newExtension(fleet, name string) *unstructured.Unstructured {
	extension := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": name, "labels": map[string]any{clustercache.WatchLabel: fleet}},
		"spec":     map[string]any{"namespace": "default", "serviceAccount": map[string]any{"name": name}},
	}}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	return extension
}

// deleteLeases deletes the Leases of a fleet that has ended.
func deleteLeases(fleet string) {
	config := rest.CopyConfig(cp.Config())
	config.QPS = -1
	if c, err := client.New(config, client.Options{}); err == nil {
		_ = c.DeleteAllOf(context.Background(), &coordinationv1.Lease{}, client.InNamespace("default"),
			client.MatchingLabels{buckets.FleetLabel: fleet})
	}
}
