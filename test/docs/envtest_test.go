package docs

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// The second test of docs/guide-testing.md.

func TestGreeterEndToEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the test starts etcd and kube-apiserver")
	}
	env := &envtest.Environment{} // with a kind of yours: CRDDirectoryPaths
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := env.Start(); err != nil {
		t.Fatal(err)
	}
	cc := startOperator(t, env)

	admin, err := client.New(env.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := metav1.ObjectMeta{Namespace: "team-blue", Name: "blue"}
	create := func(objects ...client.Object) {
		t.Helper()
		for _, object := range objects {
			if err := admin.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	create(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-blue"}},
		&corev1.ServiceAccount{ObjectMeta: at},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "team-blue",
				Name:      "blue",
				Labels:    map[string]string{clustercache.WatchLabel: "greeter"},
			},
			Data: map[string]string{"serviceAccount": "blue"},
		},
	)

	// The tenant lacks a permission: the fake cannot find that out.
	eventually(t, "the tenant is refused something", func() bool {
		state, _ := cc.GetConnectionState(t.Context(), client.ObjectKey{Namespace: "team-blue", Name: "blue"})
		return state.Permissions != nil && len(state.Permissions.Refused) > 0
	})
	create(
		&rbacv1.Role{
			ObjectMeta: at,
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create", "patch"}},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: at,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "blue"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "team-blue", Name: "blue"}},
		},
	)
	eventually(t, "the greeting is written", func() bool {
		key := client.ObjectKey{Namespace: "team-blue", Name: "blue-greeting"}
		return admin.Get(t.Context(), key, &corev1.ConfigMap{}) == nil
	})
}

// startOperator starts the operator, and ends it before env stops.
func startOperator(t *testing.T, env *envtest.Environment) clustercache.ClusterCache {
	t.Helper()
	mgr, err := ctrl.NewManager(env.Config, ctrl.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, // several managers in one process
	})
	if err != nil {
		t.Fatal(err)
	}
	cc, err := setup(t.Context(), mgr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return cc
}

// eventually waits until done returns true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 2*time.Minute, true,
		func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}
