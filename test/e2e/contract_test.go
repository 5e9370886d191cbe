package e2e

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/test/support/contract"
)

// world is a contract.World with a real API server.
type world struct {
	*operator
	namespace string
}

func newWorld(t *testing.T, options clustercache.Options) *world {
	return &world{operator: startOperator(t, options), namespace: namespace(t)}
}

func (w *world) Cache() clustercache.ClusterCache { return w.ClusterCache }
func (w *world) Namespace() string                { return w.namespace }
func (w *world) Content() client.Client           { return admin }

func (w *world) Object(t *testing.T, name string) client.Object {
	t.Helper()
	object := extension(w.namespace, name)
	NewWithT(t).Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
	return object
}

// Connect creates the ServiceAccount, its permissions and the extension, each if it is missing.
func (w *world) Connect(t *testing.T, name string) {
	t.Helper()
	missing := func(object client.Object) bool {
		err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)
		NewWithT(t).Expect(client.IgnoreNotFound(err)).To(Succeed())
		return apierrors.IsNotFound(err)
	}
	if account := serviceAccount(w.namespace, name); missing(account) {
		create(t, serviceAccount(w.namespace, name))
	}
	if missing(&rbacv1.Role{ObjectMeta: serviceAccount(w.namespace, name).ObjectMeta}) {
		grant(t, w.namespace, name, everythingInCore)
	}
	if e := extension(w.namespace, name); missing(e) {
		create(t, extension(w.namespace, name))
	}
}

func (w *world) Disconnect(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Expect(admin.Delete(t.Context(), serviceAccount(w.namespace, name))).To(Succeed())
}

func (w *world) Delete(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Expect(admin.Delete(t.Context(), extension(w.namespace, name))).To(Succeed())
}

func (w *world) Restrict(t *testing.T, name string, names ...string) {
	t.Helper()
	g := NewWithT(t)
	role := &rbacv1.Role{}
	g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, role)).To(Succeed())
	rule := rbacv1.PolicyRule{
		APIGroups:     []string{""},
		Resources:     []string{"configmaps"},
		ResourceNames: names,
		Verbs:         []string{"get"},
	}
	if len(names) > 0 {
		rule.Verbs = []string{"get", "list", "watch"}
	}
	role.Rules = []rbacv1.PolicyRule{rule}
	g.Expect(admin.Update(t.Context(), role)).To(Succeed())
}

func (w *world) Permit(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	role := &rbacv1.Role{}
	g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, role)).To(Succeed())
	role.Rules = []rbacv1.PolicyRule{everythingInCore}
	g.Expect(admin.Update(t.Context(), role)).To(Succeed())
}

// TestContract runs the contract with a real API server. The fake fulfills the same contract.
func TestContract(t *testing.T) {
	contract.Test(t, func(t *testing.T) contract.World {
		options := clustercache.Options{
			Client: clustercache.ClientOptions{Cache: clustercache.ClientCacheOptions{LiveGet: true}},
			Cache:  clustercache.CacheOptions{AccessReviewInterval: 500 * time.Millisecond},
		}
		if strings.HasSuffix(t.Name(), "/ReadYourWrites") {
			options.Client.Cache.ReadYourWrites = true
			options.Client.QPS, options.Client.Burst = 500, 500
		}
		if strings.HasSuffix(t.Name(), "/WatchAllowed") {
			bindOperator(t, "latchkey-rbac-events")
			options.Cache.WatchRBAC = true
		}
		if strings.HasSuffix(t.Name(), "/WatchLabels") {
			bindOperator(t, "latchkey-namespaces")
		}
		return newWorld(t, options)
	})
}

// bindOperator gives the host operator a ClusterRole of config/rbac.
func bindOperator(t *testing.T, clusterRole string) {
	t.Helper()
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: clusterRole + "-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: operatorUser}},
	})
}

// failing is a world behind a proxy. The proxy can cut the connections.
type failing struct {
	*world
	*proxy
}

func (f failing) Fail(*testing.T)     { f.setCut(true) }
func (f failing) Recover(*testing.T)  { f.setCut(false) }
func (f failing) Long() time.Duration { return 300 * time.Millisecond }

func TestProbeFailureContract(t *testing.T) {
	contract.TestProbeFailure(t, func(t *testing.T) contract.Failing {
		ns := namespace(t)
		create(t, serviceAccount(ns, "red"))
		p := newProxy(t)
		w := newWorld(t, clustercache.Options{
			Credentials: elsewhere(token(t, ns, "red"), map[string]string{"red": p.url()}),
			HealthProbe: healthprobe.Options{
				Interval:         50 * time.Millisecond,
				IdentityInterval: 50 * time.Millisecond,
				Timeout:          time.Second,
				FailureThreshold: 1 << 30,
			},
		})
		return failing{w, p}
	})
}
