package clusterprofile

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// What the operator itself may do here. What it may do at the clusters is granted there, to the
// ServiceAccount.
//
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=clusterprofiles,verbs=get;list;watch
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=clusterprofiles/status,verbs=update;patch
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=serviceaccounts/token,verbs=create

const name = "clusterprofile"

// ConfigMap is what is written at each cluster.
var ConfigMap = client.ObjectKey{Namespace: "default", Name: "cluster-profile"}

// SetupWithManager adds the ClusterCache and the controller to the manager, whose scheme must have
// the kinds of this package, and returns the ClusterCache.
func SetupWithManager(ctx context.Context, mgr manager.Manager, options Options,
	controllerOptions controller.Options) (clustercache.ClusterCache, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	connections, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Name:        name + "-connections",
		Object:      &ClusterProfile{},
		Credentials: options.credentials(),
		Client:      clustercache.ClientOptions{UserAgent: name},
	}, controller.Options{SkipNameValidation: controllerOptions.SkipNameValidation})
	if err != nil {
		return nil, err
	}
	return connections, ctrl.NewControllerManagedBy(mgr).Named(name).WithOptions(controllerOptions).
		For(&ClusterProfile{}).
		WatchesRawSource(connections.GetExtensionSource(name, clustercache.EnqueueExtension)).
		Complete(&reconciler{client: mgr.GetClient(), connections: connections})
}

// reconciler writes the names of clusters.
type reconciler struct {
	client      client.Client // as the operator itself: ClusterProfiles only
	connections clustercache.ClusterCache
}

// Reconcile writes the ConfigMap, and the condition Connected. While there is no connection it
// returns no error: the extension source requests the next reconcile.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	profile := &ClusterProfile{}
	if err := r.client.Get(ctx, req.NamespacedName, profile); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	err := r.write(ctx, profile)
	if clustercache.ReportedElsewhere(err) {
		return ctrl.Result{}, nil
	}
	if errors.Is(err, clustercache.ErrNotConnected) || err == nil {
		before := profile.DeepCopyObject().(*ClusterProfile)
		if !meta.SetStatusCondition(&profile.Status.Conditions, clustercache.Condition(err, profile.Generation)) {
			return ctrl.Result{}, nil
		}
		// A patch, because the rest of the status is the cluster manager's. The resourceVersion makes one
		// of two writers of the conditions try again.
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		err = client.IgnoreNotFound(r.client.Status().Patch(ctx, profile, patch))
	}
	return ctrl.Result{}, err
}

// write writes the ConfigMap as the identity of the ClusterProfile.
func (r *reconciler) write(ctx context.Context, profile *ClusterProfile) error {
	c, err := r.connections.For(ctx, profile).GetClient(ctx)
	if err != nil {
		return err
	}
	wanted := corev1apply.ConfigMap(ConfigMap.Name, ConfigMap.Namespace).
		WithData(map[string]string{"profile": client.ObjectKeyFromObject(profile).String()})
	return c.Apply(ctx, wanted, client.FieldOwner(name), client.ForceOwnership)
}
