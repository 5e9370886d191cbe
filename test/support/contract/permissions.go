package contract

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// permissions tests that reads and watches fit what is permitted: names, and get alone.
func permissions(t *testing.T, w World) {
	g := NewWithT(t)
	connect(t, w, "red")
	names := []string{"permitted-a", "permitted-b"}
	for _, name := range names {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace(), Name: name}}
		g.Expect(w.Content().Create(t.Context(), object)).To(Succeed())
		t.Cleanup(func() { _ = w.Content().Delete(context.Background(), object) })
	}
	reader, err := w.Cache().GetClient(t.Context(), key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	inside := client.InNamespace(w.Namespace())
	// works returns which of the reads work: Get of both, List of all, and List by each name.
	works := func() string {
		get := func(name string) bool {
			object := &corev1.ConfigMap{}
			return permitted(t, reader.Get(t.Context(), client.ObjectKey{Namespace: w.Namespace(), Name: name}, object))
		}
		list := func(opts ...client.ListOption) bool {
			list := &corev1.ConfigMapList{}
			err := reader.List(t.Context(), list, append(opts, inside)...)
			return permitted(t, err) && len(list.Items) > 0
		}
		byName := func(name string) bool {
			return list(client.MatchingFields{"metadata.name": name, "metadata.namespace": w.Namespace()})
		}
		return fmt.Sprint(get(names[0]), get(names[1]), list(), byName(names[0]), byName(names[1]))
	}
	eventually := func(expected string) {
		t.Helper()
		g.Eventually(works).WithTimeout(patience).Should(Equal(expected))
	}
	eventually("true true true true true")

	w.Restrict(t, "red", names[0])
	eventually("true false false true false")
	c := newController()
	g.Expect(w.Cache().Watch(t.Context(), key("red"), clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "permitted",
		Kind:         &corev1.ConfigMap{},
		Watcher:      c,
		EventHandler: c,
		Scope: clustercache.Scope{
			Namespace:     w.Namespace(),
			FieldSelector: fields.OneTermEqualSelector("metadata.name", names[0]),
		},
	}))).To(Succeed())
	g.Eventually(c.heard).WithTimeout(patience).Should(Equal([]string{"create " + names[0]}))
	w.Cache().Unwatch(t.Context(), key("red"), "permitted")

	w.Restrict(t, "red")
	eventually("true true false false false")
}

// permitted reports whether a read succeeded. Another error than Forbidden ends the test.
func permitted(t *testing.T, err error) bool {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
	return err == nil
}

// checkPermissions tests that a check finds which permissions are missing, and which kinds.
func checkPermissions(t *testing.T, w World) {
	g := NewWithT(t)
	connect(t, w, "red")
	bound := w.Cache().For(t.Context(), w.Object(t, "red"))
	g.Eventually(func() error { _, err := bound.GetClient(t.Context()); return err }).WithTimeout(patience).
		Should(Succeed())
	reads := clustercache.PermissionCheck{
		Objects: []client.Object{configMap(w, "checked")},
		Verbs:   []string{"get", "list", "watch"},
	}
	var report *clustercache.PermissionReport
	var err error
	g.Eventually(func() []clustercache.MissingPermission {
		report, err = bound.CheckPermissions(t.Context(), reads)
		g.Expect(err).NotTo(HaveOccurred())
		return report.Missing
	}).WithTimeout(patience).Should(BeEmpty())
	g.Expect(report.Err()).NotTo(HaveOccurred())
	g.Expect(report.NotFound).To(BeEmpty())
	g.Expect(clustercache.PermissionsCondition(report, nil, 1).Reason).To(Equal("Permitted"))

	unserved := &unstructured.Unstructured{}
	unserved.SetGroupVersionKind(schema.GroupVersionKind{Group: "nowhere.example.com", Version: "v1", Kind: "Unserved"})
	unserved.SetName("x")
	report, err = bound.CheckPermissions(t.Context(), clustercache.PermissionCheck{Objects: []client.Object{unserved}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(report.Missing).To(BeEmpty())
	g.Expect(report.NotFound).To(ConsistOf(clustercache.ContentNotFound{
		Kind:    unserved.GroupVersionKind(),
		Objects: []int{0},
	}))

	w.Restrict(t, "red")
	var missing []string
	g.Eventually(func() []string {
		report, err = bound.CheckPermissions(t.Context(), reads)
		g.Expect(err).NotTo(HaveOccurred())
		missing = nil
		for _, one := range report.Missing {
			missing = append(missing, one.String())
		}
		return missing
	}).WithTimeout(patience).Should(Equal([]string{"list configmaps in namespace " + w.Namespace(),
		"watch configmaps in namespace " + w.Namespace()}))
	g.Expect(apierrors.IsForbidden(report.Err())).To(BeTrue())
	g.Expect(report.Err()).To(MatchError("the identity lacks permission to list, watch configmaps in namespace " +
		w.Namespace()))

	nameless := clustercache.PermissionCheck{Objects: []client.Object{&corev1.ConfigMap{}}}
	_, err = bound.CheckPermissions(t.Context(), nameless)
	g.Expect(err).To(MatchError(ContainSubstring("has no name")))
	_, err = bound.CheckPermissions(t.Context(), clustercache.PermissionCheck{DryRun: true})
	g.Expect(err).To(MatchError(ContainSubstring("FieldOwner")))
}
