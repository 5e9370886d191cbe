package contentoperator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

const patience = 60 * time.Second

// The test follows one extension and its content through their life cycle, on a real API server.
func TestContentOperator(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	cp := testenv.Start(t, controlplane.Options{CRDs: []string{"../../config/crd"}})
	_, err := cp.KubectlInput(ctx, config.Manifests(config.RBAC), "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.Kubectl(ctx, "create", "clusterrolebinding", "operator", "--clusterrole=latchkey-operator",
		"--user=operator")
	g.Expect(err).NotTo(HaveOccurred())
	admin, err := client.New(cp.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())

	operatorConfig, err := cp.UserConfig("operator")
	g.Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(operatorConfig, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	connections, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Client:        clustercache.ClientOptions{UserAgent: "contentoperator"},
		AllowIdentity: clustercache.GuardedByAdmission,
		Permissions:   clustercache.PermissionOptions{Record: true},
	}, controller.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(SetupWithManager(mgr, connections, controller.Options{})).To(Succeed())
	managerCtx, stop := context.WithCancel(context.Background())
	managerErr := make(chan error, 1)
	go func() { managerErr <- mgr.Start(managerCtx) }()
	t.Cleanup(func() {
		stop()
		g.Expect(<-managerErr).To(Succeed())
	})

	condition := func(conditionType string) func() metav1.Condition {
		return func() metav1.Condition {
			extension := newExtension()
			g.Expect(admin.Get(ctx, client.ObjectKey{Name: "red"}, extension)).To(Succeed())
			var object struct {
				Status struct {
					Conditions []metav1.Condition `json:"conditions"`
				} `json:"status"`
			}
			g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(extension.Object, &object)).To(Succeed())
			if found := meta.FindStatusCondition(object.Status.Conditions, conditionType); found != nil {
				return *found
			}
			return metav1.Condition{}
		}
	}
	is := func(status metav1.ConditionStatus, reason string) func(metav1.Condition) bool {
		return func(c metav1.Condition) bool { return c.Status == status && c.Reason == reason }
	}
	eventually := func(actual any) AsyncAssertion {
		return g.Eventually(actual).WithTimeout(patience).WithPolling(20 * time.Millisecond)
	}

	// Not connected: the ServiceAccount does not exist yet.
	extension := newExtension()
	extension.SetName("red")
	g.Expect(unstructured.SetNestedField(extension.Object, "default", "spec", "namespace")).To(Succeed())
	g.Expect(unstructured.SetNestedField(extension.Object, "red", "spec", "serviceAccount", "name")).To(Succeed())
	g.Expect(admin.Create(ctx, extension)).To(Succeed())
	eventually(condition(Connected)).Should(Satisfy(is(metav1.ConditionFalse, "ServiceAccountNotFound")))
	g.Expect(condition(Connected)().Message).To(ContainSubstring("default/red"))
	g.Expect(condition(Installed)()).To(Satisfy(is(metav1.ConditionUnknown, "NotConnected")))

	// Connected, but without permission to read the content.
	g.Expect(admin.Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "red"}})).To(Succeed())
	eventually(condition(Connected)).Should(Satisfy(is(metav1.ConditionTrue, "Connected")))
	eventually(condition(Installed)).Should(Satisfy(is(metav1.ConditionFalse, "Forbidden")))
	g.Expect(condition(Installed)().Message).To(ContainSubstring("system:serviceaccount:default:red"))

	// With the permission, but without content.
	g.Expect(admin.Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "red"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps", "services"}, Verbs: []string{"*"}},
		},
	})).To(Succeed())
	g.Expect(admin.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "red"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "red"},
		Subjects: []rbacv1.Subject{
			{Kind: "ServiceAccount", Namespace: "default", Name: "red"},
		},
	})).To(Succeed())
	eventually(condition(Installed)).Should(Satisfy(is(metav1.ConditionFalse, "NotFound")))

	// The content appears and is installed for extension red.
	content := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "red"},
		Data: map[string]string{
			"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: greeting}\ndata: {hello: world}\n---\n",
			"b.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec: {selector: {app: shop}, ports: " +
				"[{port: 80}]}\n",
		},
	}
	g.Expect(admin.Create(ctx, content)).To(Succeed())
	eventually(condition(Installed)).Should(Satisfy(is(metav1.ConditionTrue, "Applied")))
	greeting := &corev1.ConfigMap{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "greeting"}, greeting)).To(Succeed())
	red := newExtension()
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: "red"}, red)).To(Succeed())
	g.Expect(greeting.Labels).To(HaveKeyWithValue(ownerLabel, string(red.GetUID())))

	// The operator repairs drift after an edit, and after a deletion.
	greeting.Data["hello"] = "moon"
	g.Expect(admin.Update(ctx, greeting)).To(Succeed())
	eventually(func() map[string]string {
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(greeting), greeting)).To(Succeed())
		return greeting.Data
	}).Should(HaveKeyWithValue("hello", "world"))
	shop := &corev1.Service{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "shop"}, shop)).To(Succeed())
	uid := shop.UID
	g.Expect(admin.Delete(ctx, shop)).To(Succeed())
	eventually(func() bool {
		err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "shop"}, shop)
		return err == nil && shop.UID != uid
	}).Should(BeTrue())

	// Watches of kinds that leave the content end.
	watches := func() (names []string) {
		state, _ := connections.GetConnectionState(ctx, client.ObjectKey{Name: "red"})
		for _, watch := range state.Watches {
			names = append(names, watch.Name+" "+watch.Kind.Kind+"/"+watch.Scope.Namespace)
		}
		return names
	}
	g.Expect(watches()).
		To(ConsistOf("contentoperator/manifests ConfigMap/default", "contentoperator/content ConfigMap/default",
			"contentoperator/content Service/default"))
	delete(content.Data, "b.yaml")
	g.Expect(admin.Update(ctx, content)).To(Succeed())
	eventually(watches).
		Should(ConsistOf("contentoperator/manifests ConfigMap/default", "contentoperator/content ConfigMap/default"))

	// Content that is not valid YAML.
	content.Data["a.yaml"] = "{"
	g.Expect(admin.Update(ctx, content)).To(Succeed())
	eventually(condition(Installed)).Should(Satisfy(is(metav1.ConditionFalse, "Failed")))
	g.Expect(condition(Installed)().Message).To(ContainSubstring("a.yaml"))

	// The reference may change to a ServiceAccount in another namespace. The conditions then
	// describe the new ServiceAccount.
	_, err = cp.Kubectl(ctx, "create", "namespace", "elsewhere")
	g.Expect(err).NotTo(HaveOccurred())
	moveTo := func(serviceAccount string) {
		g.Expect(admin.Get(ctx, client.ObjectKey{Name: "red"}, extension)).To(Succeed())
		g.Expect(unstructured.SetNestedField(extension.Object, "elsewhere", "spec", "namespace")).To(Succeed())
		g.Expect(unstructured.SetNestedField(extension.Object, serviceAccount, "spec", "serviceAccount", "name")).
			To(Succeed())
		g.Expect(admin.Update(ctx, extension)).To(Succeed())
	}
	for _, wrong := range []string{"bleu", "bloo"} {
		moveTo(wrong)
		eventually(func() string { return condition(Connected)().Message }).Should(ContainSubstring("elsewhere/" + wrong))
	}
	g.Expect(admin.Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "blue"}})).To(Succeed())
	g.Expect(admin.Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "blue"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}}},
	})).
		To(Succeed())
	g.Expect(admin.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "blue"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "blue"},
		Subjects: []rbacv1.Subject{
			{Kind: "ServiceAccount", Namespace: "elsewhere", Name: "blue"},
		},
	})).To(Succeed())
	g.Expect(admin.Create(ctx,
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "red"},
			Data: map[string]string{
				"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: greeting}\n",
			},
		})).To(Succeed())
	moveTo("blue")
	eventually(condition(Installed)).Should(Satisfy(is(metav1.ConditionTrue, "Applied")))
	eventually(watches).
		Should(ConsistOf("contentoperator/manifests ConfigMap/elsewhere", "contentoperator/content ConfigMap/elsewhere"))
}

func TestConditions(t *testing.T) {
	configMaps := schema.GroupResource{Resource: "configmaps"}
	for name, tc := range map[string]struct {
		err                  error
		connected, installed metav1.ConditionStatus
		reason               string
	}{
		"installed": {nil, metav1.ConditionTrue, metav1.ConditionTrue, "Applied"},
		"not connected": {fmt.Errorf("x: %w", &clustercache.NotConnectedError{Reason: clustercache.ReasonUnreachable}),
			metav1.ConditionFalse, metav1.ConditionUnknown, "NotConnected"},
		"forbidden": {fmt.Errorf("x: %w", apierrors.NewForbidden(configMaps, "x", nil)), metav1.ConditionTrue,
			metav1.ConditionFalse, "Forbidden"},
		"any other error": {errors.New("x"), metav1.ConditionTrue, metav1.ConditionFalse, "Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got := conditions(tc.err)
			g.Expect(meta.FindStatusCondition(got, Connected).Status).To(Equal(tc.connected))
			g.Expect(meta.FindStatusCondition(got, Installed).Status).To(Equal(tc.installed))
			g.Expect(meta.FindStatusCondition(got, Installed).Reason).To(Equal(tc.reason))
		})
	}
}

func TestParse(t *testing.T) {
	g := NewWithT(t)
	parsed, err := parse(&corev1.ConfigMap{Data: map[string]string{
		"b": `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "second"}}`,
		"a": "---\n# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: first\n",
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(parsed).To(HaveLen(2))
	g.Expect(parsed[0].GetName()).To(Equal("first"))
	g.Expect(parsed[1].GetName()).To(Equal("second"))
	for _, bad := range []string{"{", "kind: ConfigMap", "just text"} {
		_, err := parse(&corev1.ConfigMap{Data: map[string]string{"bad": bad}})
		g.Expect(err).To(MatchError(ContainSubstring("bad of the content")), bad)
	}
}

// A content of which the ServiceAccount may not apply a part is not applied at all, and the error
// names all that is missing.
func TestNothingIsHalfApplied(t *testing.T) {
	g := NewWithT(t)
	content := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "red"},
		Data: map[string]string{
			"a": "{apiVersion: v1, kind: ConfigMap, metadata: {name: greeting}}",
			"b": "{apiVersion: v1, kind: Service, metadata: {name: shop}}",
		},
	}
	c := fakeclient.NewClientBuilder().WithObjects(content).Build()
	key := client.ObjectKey{Name: "red"}
	cache := fake.NewFakeCache(c, key)
	t.Cleanup(cache.Close)
	service := corev1.SchemeGroupVersion.WithKind("Service")
	cache.ForbidWrites(key, service, "n", "create", "patch")
	extension := newExtension()
	extension.SetName("red")
	extension.SetUID("fake-red")
	g.Expect(unstructured.SetNestedField(extension.Object, "n", "spec", "namespace")).To(Succeed())
	r := &reconciler{connections: cache, controller: fake.NewController(t)}
	report, err := r.install(t.Context(), extension)
	g.Expect(clustercache.PermissionsCondition(report, nil, 1).Reason).To(Equal("MissingPermissions"))
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("create, patch services shop in namespace n")))
	greeting := client.ObjectKey{Namespace: "n", Name: "greeting"}
	g.Expect(apierrors.IsNotFound(c.Get(t.Context(), greeting, &corev1.ConfigMap{}))).To(BeTrue())
	cache.AllowWrites(key, service, "n")
	_, err = r.install(t.Context(), extension)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Get(t.Context(), greeting, &corev1.ConfigMap{})).To(Succeed())
	cache.ForbidWrites(key, service, "n")
	report, err = r.install(t.Context(), extension)
	g.Expect(err).To(MatchError(ContainSubstring("applying Service shop")))
	g.Expect(report).To(BeNil(), "the same content is not checked again")
}
