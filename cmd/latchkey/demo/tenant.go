package demo

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// tenant is an extension, its ServiceAccount and that ServiceAccount's permissions. Extension and
// ServiceAccount have the same name.
type tenant struct {
	name      string
	resources []string // core resources that its Role grants write access to, in its namespace
	readOnly  bool     // at first its Role grants read access only
	content   string   // manifests
}

func (t tenant) namespace() string { return "team-" + t.name }

const greeting = `apiVersion: v1
kind: ConfigMap
metadata:
  name: greeting
data:
  hello: world
`

const service = `apiVersion: v1
kind: Service
metadata:
  name: shop
spec:
  selector: {app: shop}
  ports: [{port: 80}]
`

// tenants differ in their permissions. yellow has no write access until a step grants it.
var tenants = []tenant{
	{name: "red", resources: []string{"configmaps"}, content: greeting},
	{name: "green", resources: []string{"configmaps", "services"}, content: greeting + "---\n" + service},
	{name: "blue", resources: []string{"configmaps", "services"}, content: service},
	{name: "yellow", resources: []string{"configmaps"}, readOnly: true, content: greeting},
	{name: "violet", resources: []string{"*"}, content: greeting},
}

// objects returns all objects of a tenant except its ServiceAccount, in the order of creation.
func (t tenant) objects() []client.Object {
	extension := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"namespace":      t.namespace(),
		"serviceAccount": map[string]any{"name": t.name},
	}}}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	extension.SetName(t.name)
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace()}},
		t.role(),
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: "content"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "content"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: t.namespace(), Name: t.name}},
		},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: t.name},
			Data:       map[string]string{"manifests.yaml": t.content},
		},
		extension,
	}
}

func (t tenant) serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: t.name}}
}

func (t tenant) role() *rbacv1.Role {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}
	if !t.readOnly {
		rules = append(rules,
			rbacv1.PolicyRule{
				APIGroups: []string{""},
				Resources: t.resources,
				Verbs:     []string{"get", "list", "watch", "create", "patch", "delete"},
			})
	}
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: "content"}, Rules: rules}
}
