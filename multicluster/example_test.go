package multicluster_test

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/multicluster"
)

// These are types of multicluster-runtime.
type (
	ClusterName string
	Aware       interface {
		Engage(ctx context.Context, name ClusterName, cluster cluster.Cluster) error
	}
	Request struct {
		ctrl.Request

		ClusterName ClusterName
	}
	Manager interface {
		GetCluster(ctx context.Context, name ClusterName) (cluster.Cluster, error)
	}
)

var ErrClusterNotFound = errors.New("cluster not found")

// The types ClusterName and Aware, and ErrClusterNotFound, are those of multicluster-runtime.
func Example() {
	setup := func(ctx context.Context, mgr manager.Manager) (*multicluster.Provider[ClusterName, Aware], error) {
		cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			Client:        clustercache.ClientOptions{UserAgent: "my-operator/v1"},
			AllowIdentity: clustercache.GuardedByAdmission,
		}, controller.Options{})
		if err != nil {
			return nil, err
		}
		return multicluster.New[ClusterName, Aware](cc, multicluster.Options[ClusterName]{ErrNotFound: ErrClusterNotFound})
	}
	_ = setup
}

type reconciler struct{ manager Manager }

func (r *reconciler) Reconcile(ctx context.Context, request Request) (ctrl.Result, error) {
	tenant, err := r.manager.GetCluster(ctx, request.ClusterName)
	if err != nil {
		return ctrl.Result{}, err // a tenant that is not connected is not found, which ends the request
	}
	configMap := &corev1.ConfigMap{}
	if err := tenant.GetClient().Get(ctx, request.NamespacedName, configMap); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // Forbidden names the permission that is missing
	}
	return ctrl.Result{}, tenant.GetClient().Update(ctx, configMap) // as the tenant
}

var _ = (&reconciler{}).Reconcile
