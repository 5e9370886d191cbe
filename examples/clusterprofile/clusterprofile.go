package clusterprofile

import (
	"cmp"
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

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

// Namespace is where ConfigMaps are written, at each cluster.
const Namespace = "default"

// conditionWritten is the condition type that reports whether the ConfigMap was written.
const conditionWritten = "Written"

// ConfigMapOf returns what is written for a ClusterProfile.
func ConfigMapOf(profile client.ObjectKey) client.ObjectKey {
	return client.ObjectKey{Namespace: Namespace, Name: name + "." + profile.Namespace + "." + profile.Name}
}

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
		For(&ClusterProfile{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: isNews})).
		WatchesRawSource(connections.GetExtensionSource(name, clustercache.EnqueueExtension)).
		Complete(&reconciler{client: mgr.GetClient(), connections: connections})
}

// isNews reports whether there is more than new conditions, such as those that the cluster manager
// renews each minute.
func isNews(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*ClusterProfile), e.ObjectNew.(*ClusterProfile)
	return before.Generation != after.Generation ||
		!equality.Semantic.DeepEqual(before.Status.AccessProviders, after.Status.AccessProviders)
}

// reconciler writes the names of clusters.
type reconciler struct {
	client      client.Client // as the operator itself: ClusterProfiles only
	connections clustercache.ClusterCache
}

// Reconcile writes the ConfigMap, and the conditions. While there is no connection it returns no
// error: the extension source requests the next reconcile.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	profile := &ClusterProfile{}
	if err := r.client.Get(ctx, req.NamespacedName, profile); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	err := r.write(ctx, profile)
	if clustercache.ReportedElsewhere(err) {
		return ctrl.Result{}, nil
	}
	reported := r.report(ctx, profile, err)
	if errors.Is(err, clustercache.ErrNotConnected) {
		err = nil
	}
	return ctrl.Result{}, errors.Join(err, reported)
}

// write writes the ConfigMap as the identity of the ClusterProfile.
func (r *reconciler) write(ctx context.Context, profile *ClusterProfile) error {
	c, err := r.connections.For(ctx, profile).GetClient(ctx)
	if err != nil {
		return err
	}
	key := ConfigMapOf(client.ObjectKeyFromObject(profile))
	wanted := corev1apply.ConfigMap(key.Name, key.Namespace).
		WithData(map[string]string{"profile": client.ObjectKeyFromObject(profile).String()})
	return c.Apply(ctx, wanted, client.FieldOwner(name), client.ForceOwnership)
}

// report writes the conditions for the result of write.
func (r *reconciler) report(ctx context.Context, profile *ClusterProfile, err error) error {
	before := profile.DeepCopyObject().(*ClusterProfile)
	written := metav1.Condition{
		Type:               conditionWritten,
		Status:             metav1.ConditionTrue,
		Reason:             "Applied",
		ObservedGeneration: profile.Generation,
	}
	if err != nil {
		written.Status, written.Message = metav1.ConditionFalse, err.Error()
		written.Reason = cmp.Or(string(apierrors.ReasonForError(err)), "Failed")
	}
	changed := meta.SetStatusCondition(&profile.Status.Conditions, clustercache.Condition(err, profile.Generation))
	if !meta.SetStatusCondition(&profile.Status.Conditions, written) && !changed {
		return nil
	}
	// A patch, because the rest of the status is the cluster manager's. The resourceVersion makes one
	// of two writers of the conditions try again.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return client.IgnoreNotFound(r.client.Status().Patch(ctx, profile, patch))
}
