package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// permission is how the tests write a permission on record.
func permission(verb, group, resource, subresource, namespace, name string) string {
	return fmt.Sprintf("%s %s/%s/%s in %q named %q", verb, group, resource, subresource, namespace, name)
}

// permissionsOf returns the permissions that are on record, one for each name.
func permissionsOf(uses []clustercache.PermissionUse) []string {
	found := map[string]bool{}
	for _, use := range uses {
		names := use.Names
		if names == nil {
			names = []string{""}
		}
		for _, name := range names {
			found[permission(use.Verb, use.Group, use.Resource, use.Subresource, use.Namespace, name)] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// The record of an extension has exactly what the API server's audit log has of its identity: what
// it used, whether or not that led to anything, and what it was refused. It goes on after a
// reconnect, and is no other extension's.
func TestPermissionRecord(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	begin := time.Now()
	for _, name := range []string{ns + "-busy", ns + "-idle"} {
		create(t, serviceAccount(ns, name))
	}
	role := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "pods/log"}, Verbs: []string{"get", "create"}},
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"patch"}},
	}
	grant(t, ns, ns+"-busy", role...)
	allowNone(t, ns, "count/pods")
	o := startOperator(t, clustercache.Options{Permissions: clustercache.PermissionOptions{Record: true}})
	for _, name := range []string{ns + "-busy", ns + "-idle"} {
		create(t, extension(ns, name))
		o.waitConnected(t, name)
	}
	busy := ns + "-busy"
	c, err := o.GetUncachedClient(t.Context(), key(busy))
	g.Expect(err).NotTo(HaveOccurred())
	configMap := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	}
	force := []client.ApplyOption{client.ForceOwnership, client.FieldOwner("test")}

	g.Expect(c.Create(t.Context(), configMap("one"))).To(Succeed())
	g.Expect(c.Create(t.Context(), configMap("one"))).NotTo(Succeed(), "it exists")
	g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "missing"}, configMap(""))).NotTo(Succeed())
	g.Expect(c.Apply(t.Context(), applycorev1.ConfigMap("applied", ns), force...)).To(Succeed())
	g.Expect(c.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns), client.Limit(1))).To(Succeed())
	g.Expect(c.DeleteAllOf(t.Context(), configMap(""), client.InNamespace(ns),
		client.MatchingLabels{"none": "such"})).To(Succeed())
	g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "p"}, &corev1.Pod{})).NotTo(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	g.Expect(c.Create(t.Context(), pod)).To(MatchError(ContainSubstring("exceeded quota")), "which is a 403, too")
	g.Expect(isForbidden(c.List(t.Context(), &corev1.ConfigMapList{}))).To(BeTrue(), "of all namespaces")
	g.Expect(isForbidden(c.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "d"}}))).To(BeTrue())
	g.Expect(isForbidden(c.Apply(t.Context(), applycorev1.Service("s", ns).WithSpec(applycorev1.ServiceSpec().
		WithPorts(applycorev1.ServicePort().WithPort(1))), force...))).To(BeTrue(), "it may not create")
	live, err := o.GetClient(t.Context(), key(busy))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(live.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "one"}, configMap(""))).NotTo(HaveOccurred())

	used, refused := audited(t, ns, busy, begin)
	g.Expect(used).To(ContainElements(permission("create", "", "configmaps", "", ns, ""),
		permission("watch", "", "configmaps", "", ns, ""), permission("deletecollection", "", "configmaps", "", ns, "")))
	g.Expect(refused).To(ContainElement(permission("create", "apps", "deployments", "", ns, "")))
	// The audit log has the apply that may not create as a patch, which it was permitted.
	apply := permission("patch", "", "services", "", ns, "s")
	refused = slices.DeleteFunc(refused, func(p string) bool { return p == apply })
	refused, used = append(refused, permission("create", "", "services", "", ns, "s")), append(used, apply)
	record := o.state(busy).Permissions
	g.Expect(permissionsOf(record.Refused)).To(ConsistOf(refused))
	g.Expect(permissionsOf(record.Used)).To(ConsistOf(used))
	g.Expect(record.Incomplete).To(BeFalse())

	user := "system:serviceaccount:" + ns + ":"
	g.Expect(record.Username).To(Equal(user + busy))
	g.Expect(o.state(ns + "-idle").Permissions).To(Equal(&clustercache.PermissionRecord{
		Username: user + ns + "-idle",
		Source:   "serviceaccount " + ns + "/" + ns + "-idle",
	}))

	// Another credential of the same name does not begin anew; the extension's next life does.
	before := o.state(busy)
	account := serviceAccount(ns, busy)
	g.Expect(admin.Delete(t.Context(), account)).To(Succeed())
	o.waitReason(t, busy, clustercache.ReasonServiceAccountNotFound)
	create(t, serviceAccount(ns, busy))
	g.Eventually(func() int64 { return o.state(busy).Epoch }).WithTimeout(testenv.Patience).
		Should(BeNumerically(">", before.Epoch))
	o.waitConnected(t, busy)
	g.Expect(permissionsOf(o.state(busy).Permissions.Used)).To(ContainElements(permissionsOf(record.Used)))
	g.Expect(admin.Delete(t.Context(), extension(ns, busy))).To(Succeed())
	create(t, extension(ns, busy))
	g.Eventually(func() *clustercache.PermissionRecord { return o.state(busy).Permissions }).
		WithTimeout(testenv.Patience).
		Should(Equal(&clustercache.PermissionRecord{Username: record.Username, Source: record.Source}))
}

// audited returns the permissions that requests of a ServiceAccount used, and was refused, by the
// API server's audit log: without those that each user has.
func audited(t *testing.T, namespace, name string, begin time.Time) (used, refused []string) {
	t.Helper()
	all, denied := map[string]bool{}, map[string]bool{}
	for _, event := range auditLog(t, begin) {
		object := event.ObjectRef
		if event.User.Username != "system:serviceaccount:"+namespace+":"+name || object.Resource == "" ||
			object.APIGroup == "authorization.k8s.io" || object.APIGroup == "authentication.k8s.io" ||
			event.Stage == "RequestReceived" {
			continue
		}
		requestName := object.Name
		if event.Verb == "create" && object.Subresource == "" {
			requestName = "" // the log has that of the object
		}
		p := permission(event.Verb, object.APIGroup, object.Resource, object.Subresource, object.Namespace, requestName)
		if event.ResponseStatus.Code == http.StatusForbidden && object.Resource != "pods" { // pods: the quota
			denied[p] = true
		} else {
			all[p] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(denied))
}
