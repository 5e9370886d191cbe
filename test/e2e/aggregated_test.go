package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// thing is the kind that the aggregated API serves.
var thing = schema.GroupVersionKind{Group: "aggregated.example.test", Version: "v1", Kind: "Thing"}

// things is the path of the objects of that kind.
const things = "/apis/aggregated.example.test/v1/namespaces/default/things"

// aggregate serves an aggregated API behind the API server. aggregate itself answers discovery
// requests, and handler answers requests for things. aggregate returns when the API server reports
// the aggregated API as available. Every authenticated user has full access to things. quiet closes
// the TCP connections from the API server to the aggregated API.
func aggregate(t *testing.T, handler http.Handler) (quiet func()) {
	t.Helper()
	g := NewWithT(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case things:
			handler.ServeHTTP(w, req)
		case "/apis/aggregated.example.test/v1":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"aggregated.example.test/v1","resources":[
				{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["create","get","list","watch"]}]}`)
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	g.Expect(err).NotTo(HaveOccurred())
	number, err := strconv.Atoi(port)
	g.Expect(err).NotTo(HaveOccurred())
	ns := namespace(t)
	// The API server reaches an external name without endpoints and without a proxy.
	create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "aggregated"},
		Spec: corev1.ServiceSpec{
			Type:         corev1.ServiceTypeExternalName,
			ExternalName: "localhost",
			Ports:        []corev1.ServicePort{{Port: int32(number)}},
		},
	})
	service := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": thing.Group, "version": thing.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(
			100), "insecureSkipTLSVerify": true,
		"service": map[string]any{"namespace": ns, "name": "aggregated", "port": int64(number)},
	}}}
	service.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   "apiregistration.k8s.io",
		Version: "v1",
		Kind:    "APIService",
	})
	service.SetName(thing.Version + "." + thing.Group)
	create(t, service)
	create(t,
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "things"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{thing.Group}, Resources: []string{"*"}, Verbs: []string{"*"}}},
		})
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "things"},
		RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName,
			Kind:     "ClusterRole",
			Name:     "things",
		},
		Subjects: []rbacv1.Subject{{Kind: "Group", Name: "system:authenticated"}},
	})
	_, err = cp.Kubectl(t.Context(), "wait", "--for=condition=Available", "--timeout=60s",
		"apiservice/"+service.GetName())
	g.Expect(err).NotTo(HaveOccurred())
	return server.CloseClientConnections
}

// An aggregated API whose server does not answer is not taken for one that does not exist, also if
// the first tenant that asks for anything asks for a kind that no API server has.
func TestAggregatedAPIThatIsDown(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	down := schema.GroupVersionKind{Group: "down.example.test", Version: "v1", Kind: "Thing"}
	create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "down"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}) // without endpoints
	service := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": down.Group, "version": down.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
		"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": ns, "name": "down"},
	}}}
	service.SetGroupVersionKind(schema.GroupVersionKind{
		Group:   "apiregistration.k8s.io",
		Version: "v1",
		Kind:    "APIService",
	})
	service.SetName(down.Version + "." + down.Group)
	create(t, service)
	_, err := cp.Kubectl(ctx, "wait", "--for=condition=Available=false", "--timeout=60s", "apiservice/"+service.GetName())
	g.Expect(err).NotTo(HaveOccurred())

	tenant(t, ns, "first")
	tenant(t, ns, "second")
	o := startOperator(t, clustercache.Options{})
	list := func(name string, gvk schema.GroupVersionKind) error {
		o.waitConnected(t, name)
		c, err := o.GetUncachedClient(ctx, key(name))
		g.Expect(err).NotTo(HaveOccurred())
		objects := &unstructured.UnstructuredList{}
		objects.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		return c.List(ctx, objects)
	}
	g.Expect(meta.IsNoMatchError(list("first", schema.GroupVersionKind{
		Group:   "no.example.test",
		Version: "v1",
		Kind:    "Unknown",
	}))).To(BeTrue())
	g.Eventually(func() error { return list("second", down) }).WithTimeout(patience).
		Should(And(HaveOccurred(), Satisfy(func(err error) bool { return !meta.IsNoMatchError(err) }),
			MatchError(ContainSubstring(down.Group))))
}
