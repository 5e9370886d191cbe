package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/credential"
)

// TestAdmissionPolicy checks that, with the policy, permission to write extensions gives no access
// to a ServiceAccount.
func TestAdmissionPolicy(t *testing.T) {
	ns, elsewhere := namespace(t), namespace(t)
	k := guarded{
		gvk:       clustercache.ClusterExtensionGVK,
		resource:  "clusterextensions",
		namespace: ns,
		path:      []string{"spec", "serviceAccount", "name"},
		object: func(serviceAccount string) *unstructured.Unstructured {
			e := extension(ns, serviceAccount)
			e.SetName("guarded")
			return e
		},
	}
	k.allowUsers(t)
	k.apply(t, config.Manifests(config.Admission))
	k.expectGuarded(t)

	t.Run("the namespace is part of the reference", func(t *testing.T) {
		g := NewWithT(t)
		e := k.object("target")
		create(t, e)
		g.Expect(unstructured.SetNestedField(e.Object, elsewhere, "spec", "namespace")).To(Succeed())
		expectRefused(t, k.rich.Update(t.Context(), e), "rich", elsewhere, "target")
	})
}

// TestAdmissionPolicyWithALaxDefinition checks the policy with a less strict
// CustomResourceDefinition than ours. Such a definition allows an extension that names no
// ServiceAccount, and an update in another version.
func TestAdmissionPolicyWithALaxDefinition(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	k := guarded{
		gvk: defineKind(t, "LaxExtension", "Cluster",
			"namespace: {type: string}, serviceAccount: {type: object, properties: {name: {type: string}}}"),
		resource:  "laxextensions",
		namespace: ns,
		path:      []string{"spec", "serviceAccount", "name"},
	}
	k.object = func(serviceAccount string) *unstructured.Unstructured {
		e := extension(ns, serviceAccount)
		e.SetGroupVersionKind(k.gvk)
		e.SetName("guarded")
		return e
	}
	k.allowUsers(t)
	k.apply(t,
		strings.NewReplacer(clustercache.ClusterExtensionGVK.Group, k.gvk.Group,
			"["+clustercache.ClusterExtensionGVK.Version+"]", "["+k.gvk.Version+"]", "clusterextension", "laxextension").
			Replace(config.Manifests(config.Admission)))

	expectEmptyRefused := func(err error) {
		t.Helper()
		g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		g.Expect(err).
			To(MatchError(ContainSubstring("denied request: spec.namespace and spec.serviceAccount.name must both be set")))
	}
	expectEmptyRefused(k.rich.Create(ctx, k.object("")))
	noNamespace := k.object("target")
	unstructured.RemoveNestedField(noNamespace.Object, "spec", "namespace")
	expectEmptyRefused(k.rich.Create(ctx, noNamespace))
	noSpec := k.object("target")
	delete(noSpec.Object, "spec")
	expectEmptyRefused(k.rich.Create(ctx, noSpec))

	e := k.object("target")
	create(t, e)
	unstructured.RemoveNestedField(e.Object, "spec", "serviceAccount")
	expectEmptyRefused(k.rich.Update(ctx, e))

	expectRefused(t, edits["update in another version"](k.poor, k.object("target"), k.object("next")), "poor", ns, "next")

	g.Expect(edits["merge patch"](k.poor, k.object("target"), k.object(strings.Repeat("long", 2000)))).To(
		MatchError(
			ContainSubstring(
				"denied request: you may not act as the ServiceAccount that spec.namespace and spec.serviceAccount.name "+
					"refer to")),
		"the API server does not return messages of more than 5 kB")
}

// TestAdmissionPolicyForNamespacedKinds checks the second form of the policy. In this form the
// ServiceAccount is in the object's namespace, and the reference is optional.
func TestAdmissionPolicyForNamespacedKinds(t *testing.T) {
	NewWithT(t).Expect(strings.Contains(config.Manifests(), "latchkey-tenant-serviceaccount")).
		To(BeFalse(), "the default manifests do not include an example")
	ns, elsewhere := namespace(t), namespace(t)
	k := guarded{
		gvk: defineKind(t, "Tenant", "Namespaced",
			"serviceAccountName: {type: string}, size: {type: integer}"),
		resource:  "tenants",
		namespace: ns,
		path:      []string{"spec", "serviceAccountName"},
	}
	k.object = func(serviceAccount string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{
			Object: map[string]any{"spec": map[string]any{"serviceAccountName": serviceAccount, "size": int64(1)}},
		}
		o.SetGroupVersionKind(k.gvk)
		o.SetNamespace(ns)
		o.SetName("guarded")
		return o
	}
	k.allowUsers(t)
	k.apply(t, config.Manifests(config.AdmissionNamespaced))
	k.expectGuarded(t)

	t.Run("another version of the kind", func(t *testing.T) {
		create(t, k.object("target"))
		expectRefused(t, edits["update in another version"](k.poor, k.object("target"), k.object("next")), "poor", ns,
			"next")
	})
	t.Run("another field of the spec", func(t *testing.T) {
		g := NewWithT(t)
		o := k.object("target")
		create(t, o)
		g.Expect(unstructured.SetNestedField(o.Object, int64(2), "spec", "size")).To(Succeed())
		g.Expect(k.poor.Update(t.Context(), o)).To(Succeed())
	})
	t.Run("without a reference, setting one again needs permission to impersonate", func(t *testing.T) {
		g := NewWithT(t)
		o := k.object("target")
		unstructured.RemoveNestedField(o.Object, k.path...)
		g.Expect(k.poor.Create(t.Context(), o)).To(Succeed())
		t.Cleanup(func() { g.Expect(admin.Delete(context.Background(), o)).To(Succeed()) })
		expectRefused(t, edits["merge patch"](k.poor, o, k.object("target")), "poor", ns, "target")
		g.Expect(edits["merge patch"](k.rich, o, k.object("target"))).To(Succeed())

		g.Expect(k.poor.Patch(t.Context(), o,
			client.RawPatch(types.MergePatchType, []byte(`{"spec":{"serviceAccountName":null}}`)))).To(Succeed())
		_, found, _ := unstructured.NestedString(o.Object, k.path...)
		g.Expect(found).To(BeFalse())
		expectRefused(t, edits["merge patch"](k.poor, o, k.object("target")), "poor", ns, "target")
		g.Expect(k.poor.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":null}`)))).To(Succeed())
		expectRefused(t, edits["server-side apply"](k.poor, o, k.object("target")), "poor", ns, "target")
	})
	t.Run("another namespace", func(t *testing.T) {
		for _, name := range []string{"target", ns + "/target"} {
			o := k.object(name)
			o.SetNamespace(elsewhere)
			expectRefused(t, k.rich.Create(t.Context(), o), "rich", elsewhere, name)
		}
	})
}

// TestAdmissionPolicyForKubeconfigs checks the policy for kubeconfigs. Anyone who may name a
// kubeconfig acts as its user. Therefore the reference needs permission to read the Secret.
func TestAdmissionPolicyForKubeconfigs(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	gvk := defineKind(t, "Cluster", "Namespaced",
		"kubeconfig: {type: object, properties: {name: {type: string}}}, size: {type: integer}")
	everything := rbacv1.PolicyRule{APIGroups: []string{gvk.Group}, Resources: []string{"clusters"}, Verbs: []string{"*"}}
	mayRead := func(name string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups:     []string{""},
			Resources:     []string{"secrets"},
			ResourceNames: []string{name},
			Verbs:         []string{"get"},
		}
	}
	for user, secret := range map[string]string{"poor": "nothing", "neighbour": "own", "rich": "target"} {
		allowUser(t, user, ns, everything)
		allowUser(t, user, ns, mayRead(secret))
	}
	poor, neighbour, rich := clientOf(t, "poor"), clientOf(t, "neighbour"), clientOf(t, "rich")
	object := func(secret string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(1)}}}
		if secret != "" {
			o.Object["spec"].(map[string]any)["kubeconfig"] = map[string]any{"name": secret}
		}
		o.SetGroupVersionKind(gvk)
		o.SetNamespace(ns)
		o.SetName("guarded")
		return o
	}
	dryRun := func() error { return poor.Create(context.Background(), object("target"), client.DryRunAll) }
	g.Eventually(dryRun).WithTimeout(patience).Should(Succeed())
	policy := config.Manifests(config.AdmissionKubeconfigs)
	_, err := cp.KubectlInput(t.Context(), policy, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := cp.KubectlInput(context.Background(), policy, "delete", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	})
	beDenied := func(user string) gomegatypes.GomegaMatcher {
		return MatchError(ContainSubstring(fmt.Sprintf(
			`denied request: user "%s" may not use the kubeconfig in Secret "%s/target": it takes the verb "get" on secrets "target" in namespace "%s"`, user, ns, ns)))
	}
	g.Eventually(dryRun).WithTimeout(patience).Should(beDenied("poor"))
	g.Expect(neighbour.Create(t.Context(), object("target"))).To(beDenied("neighbour"))
	noReference := object("")
	g.Expect(poor.Create(t.Context(), noReference)).To(Succeed())
	t.Cleanup(func() { g.Expect(admin.Delete(context.Background(), noReference)).To(Succeed()) })
	for way, edit := range edits {
		if way == "update in another version" {
			continue
		}
		g.Expect(edit(poor, object(""), object("target"))).To(beDenied("poor"), way)
	}
	g.Expect(replaceSpec(rich, object(""), object("target"))).To(Succeed())
	unrelated := object("target")
	g.Expect(unstructured.SetNestedField(unrelated.Object, int64(2), "spec", "size")).To(Succeed())
	g.Expect(replaceSpec(poor, object("target"), unrelated)).To(Succeed(), "an edit that leaves the reference as it is")
	g.Expect(replaceSpec(poor, object("target"), object(""))).To(Succeed(), "an edit that removes the reference")
	g.Expect(replaceSpec(poor, object(""), object("target"))).To(beDenied("poor"))
}

// guarded is a kind whose objects refer to a ServiceAccount. A policy guards that reference. The
// users poor, neighbour and rich have full access to the objects. poor may impersonate no
// ServiceAccount. neighbour may impersonate the ServiceAccount "own", and rich may impersonate
// "target" and "next". reporter may only update the status.
type guarded struct {
	gvk       schema.GroupVersionKind
	resource  string
	namespace string   // namespace of the ServiceAccounts
	path      []string // path of the field with the ServiceAccount's name
	object    func(serviceAccount string) *unstructured.Unstructured

	poor, neighbour, rich, reporter client.Client
}

// allowUsers grants the users their permissions and creates their clients.
func (k *guarded) allowUsers(t *testing.T) {
	t.Helper()
	for _, user := range []string{"poor", "neighbour", "rich"} {
		allowUser(t, user, "",
			rbacv1.PolicyRule{APIGroups: []string{k.gvk.Group}, Resources: []string{k.resource}, Verbs: []string{"*"}})
	}
	allowUser(t, "reporter", "",
		rbacv1.PolicyRule{
			APIGroups: []string{k.gvk.Group},
			Resources: []string{k.resource + "/status"},
			Verbs:     []string{"update"},
		})
	mayActAs := func(names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups:     []string{""},
			Resources:     []string{"serviceaccounts"},
			ResourceNames: names,
			Verbs:         []string{"impersonate"},
		}
	}
	allowUser(t, "neighbour", k.namespace, mayActAs("own"))
	allowUser(t, "rich", k.namespace, mayActAs("target", "next"))
	k.poor, k.neighbour, k.rich, k.reporter = clientOf(t, "poor"), clientOf(t, "neighbour"), clientOf(t, "rich"),
		clientOf(t, "reporter")
}

// apply applies a policy, and deletes the policy after the test. The API server's cache receives
// each of these changes a moment later. apply and its cleanup wait for that.
func (k *guarded) apply(t *testing.T, policy string) {
	t.Helper()
	dryRun := func() error { return k.poor.Create(context.Background(), k.object("target"), client.DryRunAll) }
	NewWithT(t).Eventually(dryRun).WithTimeout(patience).
		Should(Succeed(), "without the policy, permission to edit is enough")
	_, err := cp.KubectlInput(t.Context(), policy, "apply", "-f", "-")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := cp.KubectlInput(context.Background(), policy, "delete", "-f", "-")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Eventually(dryRun).WithTimeout(patience).Should(Succeed())
	})
	NewWithT(t).Eventually(dryRun).WithTimeout(patience).Should(MatchError(ContainSubstring("denied request")))
}

// edits are the ways to change a reference. Each gives the object current, which exists, the
// reference of the object desired.
var edits = map[string]func(c client.Client, current, desired *unstructured.Unstructured) error{
	"update": replaceSpec,
	"update in another version": func(c client.Client, current, desired *unstructured.Unstructured) error {
		current, desired = current.DeepCopy(), desired.DeepCopy()
		current.SetAPIVersion(otherVersion.String())
		desired.SetAPIVersion(otherVersion.String())
		return replaceSpec(c, current, desired)
	},
	"merge patch": func(c client.Client, current, desired *unstructured.Unstructured) error {
		patch, err := json.Marshal(map[string]any{"spec": desired.Object["spec"]})
		if err != nil {
			return err
		}
		return c.Patch(context.Background(), current.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	},
	"JSON patch": func(c client.Client, current, desired *unstructured.Unstructured) error {
		patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": desired.Object["spec"]}})
		if err != nil {
			return err
		}
		return c.Patch(context.Background(), current.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	},
	"server-side apply": func(c client.Client, _, desired *unstructured.Unstructured) error {
		return c.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(desired.DeepCopy()),
			client.FieldOwner("editor"), client.ForceOwnership)
	},
}

func replaceSpec(c client.Client, current, desired *unstructured.Unstructured) error {
	object := current.DeepCopy()
	if err := c.Get(context.Background(), client.ObjectKeyFromObject(current), object); err != nil {
		return err
	}
	object.Object["spec"] = desired.DeepCopy().Object["spec"]
	return c.Update(context.Background(), object)
}

// expectGuarded runs the checks that are the same for all kinds.
func (k *guarded) expectGuarded(t *testing.T) {
	reference := func(t *testing.T) string {
		t.Helper()
		o := k.object("")
		NewWithT(t).Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
		name, _, _ := unstructured.NestedString(o.Object, k.path...)
		return name
	}
	t.Run("setting the reference needs permission to impersonate", func(t *testing.T) {
		g := NewWithT(t)
		t.Cleanup(func() {
			g.Expect(client.IgnoreNotFound(admin.Delete(context.Background(), k.object("")))).To(Succeed())
		})
		expectRefused(t, k.poor.Create(t.Context(), k.object("target")), "poor", k.namespace, "target")
		expectRefused(t, k.neighbour.Create(t.Context(), k.object("target")), "neighbour", k.namespace, "target")
		expectRefused(t, edits["server-side apply"](k.poor, nil, k.object("target")), "poor", k.namespace, "target")

		o := k.object("target")
		g.Expect(k.rich.Create(t.Context(), o)).To(Succeed())
		g.Expect(admin.Delete(t.Context(), o)).To(Succeed())
		g.Expect(edits["server-side apply"](k.rich, nil, k.object("target"))).To(Succeed())
	})
	for _, way := range []string{"update", "merge patch", "JSON patch", "server-side apply"} {
		t.Run("changing the reference needs permission to impersonate: "+way, func(t *testing.T) {
			g := NewWithT(t)
			create(t, k.object("target"))
			expectRefused(t, edits[way](k.poor, k.object("target"), k.object("next")), "poor", k.namespace, "next")
			expectRefused(t, edits[way](k.neighbour, k.object("target"), k.object("next")), "neighbour", k.namespace, "next")
			g.Expect(reference(t)).To(Equal("target"))

			g.Expect(edits[way](k.rich, k.object("target"), k.object("next"))).To(Succeed())
			g.Expect(reference(t)).To(Equal("next"))
			g.Expect(edits[way](k.neighbour, k.object("next"), k.object("own"))).
				To(Succeed(), "permission on the previous ServiceAccount is not required")
			expectRefused(t, edits[way](k.poor, k.object("own"), k.object("target")), "poor", k.namespace, "target")
		})
	}
	t.Run("edits that leave the reference as it is pass", func(t *testing.T) {
		g := NewWithT(t)
		o := k.object("target")
		create(t, o)
		o.SetLabels(map[string]string{"unrelated": "edit"})
		g.Expect(k.poor.Update(t.Context(), o)).To(Succeed())
		g.Expect(k.poor.Patch(t.Context(), o,
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"unrelated":"patch"}}}`)))).To(Succeed())
		o = k.object("target")
		o.SetLabels(map[string]string{"unrelated": "apply"})
		g.Expect(edits["server-side apply"](k.poor, nil, o)).To(Succeed(), "naming the same ServiceAccount again")
	})
	t.Run("status updates pass and change no reference", func(t *testing.T) {
		g := NewWithT(t)
		o := k.object("target")
		create(t, o)
		o.Object["spec"] = k.object("next").Object["spec"]
		o.Object["status"] = map[string]any{"conditions": []any{map[string]any{
			"type": "Installed", "status": "True", "reason": "Fine", "message": "",
			"lastTransitionTime": "2026-01-01T00:00:00Z",
		}}}
		g.Expect(k.reporter.Status().Update(t.Context(), o)).To(Succeed())
		g.Expect(o.Object).To(HaveKey("status"))
		g.Expect(reference(t)).To(Equal("target"))
		g.Expect(k.reporter.Update(t.Context(), o)).To(MatchError(ContainSubstring(`cannot update resource`)))
	})
}

// expectRefused checks that the policy denies the request. The error must name the user and the
// missing permission.
func expectRefused(t *testing.T, err error, user, namespace, name string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring(
		`denied request: user "%s" may not act as ServiceAccount "%s/%s": it takes the verb "impersonate" on serviceaccounts "%s" in namespace "%s"`,
		user, namespace, name, name, namespace)))
}

// clientOf returns a client that acts as the user.
func clientOf(t *testing.T, user string) client.Client {
	t.Helper()
	g := NewWithT(t)
	config, err := cp.UserConfig(user)
	g.Expect(err).NotTo(HaveOccurred())
	c, err := client.New(config, client.Options{HTTPClient: httpClientFor(t, config)})
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

// allowUser grants a user the permissions of the rule in the namespace. Without a namespace, the
// grant is for the whole cluster. allowUser waits until the API server applies the grant.
func allowUser(t *testing.T, user, namespace string, rule rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{GenerateName: user + "-", Namespace: namespace}
	subjects := []rbacv1.Subject{{Kind: "User", Name: user}}
	if namespace == "" {
		role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}
		create(t, role)
		create(t, &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			Subjects:   subjects,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		})
	} else {
		role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}
		create(t, role)
		create(t, &rbacv1.RoleBinding{
			ObjectMeta: meta,
			Subjects:   subjects,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		})
	}
	attributes := &authorizationv1.ResourceAttributes{Namespace: namespace, Group: rule.APIGroups[0], Verb: rule.Verbs[0]}
	attributes.Resource, attributes.Subresource, _ = strings.Cut(rule.Resources[0], "/")
	if len(rule.ResourceNames) > 0 {
		attributes.Name = rule.ResourceNames[0]
	}
	NewWithT(t).Eventually(func() (bool, error) {
		review := &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: attributes},
		}
		err := admin.Create(t.Context(), review)
		return review.Status.Allowed, err
	}).WithTimeout(patience).Should(BeTrue())
}

// otherVersion is the second version of the kinds that defineKind defines. The policies do not
// mention this version.
var otherVersion = schema.GroupVersion{Group: "example.com", Version: "v1beta1"}

// defineKind defines a kind for the test in two versions, and returns the first version. The kind's
// spec may have the given fields.
func defineKind(t *testing.T, kind, scope, fields string) schema.GroupVersionKind {
	t.Helper()
	g := NewWithT(t)
	singular := strings.ToLower(kind)
	name := singular + "s." + otherVersion.Group
	manifest := fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %s
spec:
  group: %s
  scope: %s
  names: {kind: %s, plural: %ss, singular: %s}
  versions:
  - &version
    name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {%s}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
  - <<: *version
    name: %s
    storage: false
`, name, otherVersion.Group, scope, kind, singular, singular, fields, otherVersion.Version)
	_, err := cp.KubectlInput(t.Context(), manifest, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := cp.Kubectl(context.Background(), "delete", "crd", name)
		g.Expect(err).NotTo(HaveOccurred())
	})
	_, err = cp.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crd/"+name)
	g.Expect(err).NotTo(HaveOccurred())
	gvk := schema.GroupVersionKind{Group: otherVersion.Group, Version: "v1", Kind: kind}
	waitForSchema(t, gvk)
	return gvk
}

// waitForSchema waits until the API server publishes the schema of a kind, which it does some
// moments after it serves the kind. Without the schema, setup does not check paths.
func waitForSchema(t *testing.T, gvk schema.GroupVersionKind) {
	t.Helper()
	NewWithT(t).Eventually(func() (string, error) {
		return cp.Kubectl(t.Context(), "get", "--raw", "/openapi/v3/apis/"+gvk.GroupVersion().String())
	}).WithTimeout(patience).Should(ContainSubstring(fmt.Sprintf(`"kind":"%s"`, gvk.Kind)))
}

func TestAllowIdentity(t *testing.T) {
	g := NewWithT(t)
	ns, other := namespace(t), namespace(t)
	mgr, err := ctrl.NewManager(cp.Config(), manager.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(mgr.GetHTTPClient().CloseIdleConnections)
	_, err = clustercache.SetupWithManager(t.Context(), mgr,
		clustercache.Options{Client: clustercache.ClientOptions{UserAgent: userAgent}}, unnamed())
	g.Expect(err).To(MatchError(ContainSubstring("AllowIdentity must be set for a cluster-scoped kind")))

	// Any kind can be an extension. A namespaced extension may only name a ServiceAccount of its
	// own namespace, unless the author of the operator sets another rule. Here a ConfigMap names
	// its ServiceAccount in two of its keys.
	options := clustercache.Options{
		Object: &corev1.ConfigMap{},
		Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			NamespacePath: ".data.namespace",
			NamePath:      ".data.serviceAccount",
		}),
	}
	grantOperatorConfigMaps(t)
	newExtension := func(name, namespace string) *corev1.ConfigMap {
		cm := configMap(ns, name)
		cm.Data = map[string]string{"namespace": namespace, "serviceAccount": "sa"}
		return cm
	}
	create(t, serviceAccount(ns, "sa"))
	create(t, serviceAccount(other, "sa"))
	create(t, newExtension("own", ns))
	create(t, newExtension("foreign", other))
	o := startOperatorWithoutGuard(t, options)
	stateOf := func(name string) func() clustercache.ConnectionState {
		return func() clustercache.ConnectionState {
			state, _ := o.GetConnectionState(t.Context(), client.ObjectKey{Namespace: ns, Name: name})
			return state
		}
	}
	g.Eventually(stateOf("own")).WithTimeout(patience).Should(HaveField("Phase", clustercache.PhaseConnected))
	g.Eventually(stateOf("foreign")).WithTimeout(patience).Should(And(
		HaveField("Reason", clustercache.ReasonNotAllowed), HaveField("Message", ContainSubstring("its own namespace"))))
}

func grantOperatorConfigMaps(t *testing.T) {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "configmaps-"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
		},
	}
	create(t, role)
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "configmaps-"},
		RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName,
			Kind:     "ClusterRole",
			Name:     role.Name,
		},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: operatorUser}},
	})
}
