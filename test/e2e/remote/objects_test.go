package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

func key(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

// waitFor waits until the extension's state satisfies wanted, and returns the state.
func (o *operator) waitFor(t *testing.T, name string,
	wanted func(clustercache.ConnectionState) bool) clustercache.ConnectionState {
	t.Helper()
	var state clustercache.ConnectionState
	NewWithT(t).Eventually(func() clustercache.ConnectionState {
		state, _ = o.GetConnectionState(context.Background(), key(name))
		return state
	}).WithTimeout(patience).WithPolling(10 * time.Millisecond).Should(Satisfy(wanted))
	return state
}

func (o *operator) waitConnected(t *testing.T, name string) clustercache.ConnectionState {
	t.Helper()
	return o.waitFor(t, name, connected)
}

func connected(s clustercache.ConnectionState) bool { return s.Phase == clustercache.PhaseConnected }

func (o *operator) waitReason(t *testing.T, name string, reason clustercache.Reason) clustercache.ConnectionState {
	t.Helper()
	return o.waitFor(t, name, func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseDisconnected && s.Reason == reason
	})
}

// create creates an object, and deletes it after the test.
func create(t *testing.T, env *testenv.Env, object client.Object) {
	t.Helper()
	NewWithT(t).Expect(env.Admin.Create(t.Context(), object)).To(Succeed())
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(env.Admin.Delete(context.Background(), object)); err != nil {
			t.Errorf("deleting %T %s: %v", object, object.GetName(), err)
		}
	})
}

func serviceAccount(namespace, name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// extension returns an extension that names a ServiceAccount of the same name.
func extension(namespace, name string) *unstructured.Unstructured {
	e := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"namespace":      namespace,
		"serviceAccount": map[string]any{"name": name},
	}}}
	e.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	e.SetName(name)
	return e
}

// namespace creates a namespace at host and at the remote API servers.
func namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "remote-"}}
	create(t, &host, ns)
	for _, env := range []*testenv.Env{second, third} {
		create(t, env, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns.Name}})
	}
	return ns.Name
}

// tenant creates an extension with a ServiceAccount of the same name at host, which may do
// everything with ConfigMaps of the namespace at the remote API servers.
func tenant(t *testing.T, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	create(t, &host, serviceAccount(namespace, name))
	for _, env := range []*testenv.Env{second, third} {
		create(t, env, &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}}},
		})
		create(t, env, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{
				APIGroup: rbacv1.GroupName,
				Kind:     "User",
				Name:     usernameOf(types.NamespacedName{Namespace: namespace, Name: name}),
			}},
		})
	}
	e := extension(namespace, name)
	create(t, &host, e)
	return e
}

// acts checks that the extension reads and writes as its ServiceAccount.
func (o *operator) acts(t *testing.T, namespace, name string) {
	t.Helper()
	g := NewWithT(t)
	c, err := o.GetClient(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "by-" + name},
	})).To(Succeed())
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "by-" + name}}
	g.Expect(c.Delete(t.Context(), object)).To(Succeed())
}

// watches waits until the extension's informer of ConfigMaps has seen an object that the
// administrator of env creates.
func (o *operator) watches(t *testing.T, env *testenv.Env, namespace, name, object string) {
	t.Helper()
	g := NewWithT(t)
	reader, err := o.GetReader(t.Context(), key(name))
	g.Expect(err).NotTo(HaveOccurred())
	create(t, env, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: object}})
	g.Eventually(func() error {
		return reader.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: object}, &corev1.ConfigMap{})
	}).WithTimeout(patience).Should(Succeed())
}

// watchesOf returns how many watches of ConfigMaps the user began.
func watchesOf(events []auditv1.Event, user string) int {
	began := map[types.UID]bool{}
	for _, event := range events {
		if event.Verb == "watch" && event.User.Username == user && event.ObjectRef.Resource == "configmaps" {
			began[event.AuditID] = true
		}
	}
	return len(began)
}

// audit returns the events that the API server has finished since.
func audit(t *testing.T, env *testenv.Env, since time.Time) (events []auditv1.Event) {
	t.Helper()
	content, err := os.ReadFile(env.AuditLog())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for line := range bytes.Lines(content) {
		var event auditv1.Event
		if json.Unmarshal(line, &event) == nil && event.RequestReceivedTimestamp.After(since) {
			events = append(events, event)
		}
	}
	return events
}

// isRefused reports whether the API server did not accept the credential of a request.
func isRefused(event auditv1.Event) bool {
	return event.ResponseStatus != nil && event.ResponseStatus.Code == http.StatusUnauthorized
}

// users returns who sent the events that were not refused, and with which tokens of host.
func users(events []auditv1.Event) (names, tokens []string) {
	for _, event := range events {
		if isRefused(event) {
			continue
		}
		names = append(names, event.User.Username)
		if !strings.HasPrefix(event.User.Username, "host:") {
			continue
		}
		for _, id := range event.User.Extra["authentication.kubernetes.io/credential-id"] {
			tokens = append(tokens, strings.TrimPrefix(id, "JTI="))
		}
	}
	return names, tokens
}
