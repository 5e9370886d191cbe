package fluxlike

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// What the operator itself may do; everything else is done as the tenants' ServiceAccounts.
//
// +kubebuilder:rbac:groups=fluxlike.example.com,resources=releases,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=fluxlike.example.com,resources=releases/status,verbs=update;patch
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=serviceaccounts/token,verbs=create

const (
	name      = "fluxlike"
	finalizer = "fluxlike.example.com/configmap"
	// conditionReleased is the condition type that reports whether the ConfigMap was written as the
	// Release says.
	conditionReleased = "Released"
	// conditionWatched is the condition type that reports whether changes of the ConfigMap are
	// noticed.
	conditionWatched = "Watched"
)

// serviceAccountOf returns the ServiceAccount that a Release acts as.
func serviceAccountOf(object client.Object) (types.NamespacedName, error) {
	release := object.(*Release)
	return types.NamespacedName{
		Namespace: release.Namespace,
		Name:      cmp.Or(release.Spec.ServiceAccountName, DefaultServiceAccount),
	}, nil
}

// SetupWithManager adds the ClusterCache and the controller to the manager, whose scheme must have
// the kinds of this package.
func SetupWithManager(ctx context.Context, mgr manager.Manager, options controller.Options) error {
	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Name:   name + "-connections",
		Object: &Release{},
		Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			Reference: serviceAccountOf,
		}),
		Client: clustercache.ClientOptions{UserAgent: name},
	}, controller.Options{SkipNameValidation: options.SkipNameValidation})
	if err != nil {
		return err
	}
	r := &reconciler{client: mgr.GetClient(), connections: cc}
	c, err := ctrl.NewControllerManagedBy(mgr).Named(name).WithOptions(options).
		For(&Release{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{},
			predicate.AnnotationChangedPredicate{}))).
		WatchesRawSource(cc.GetExtensionSource(name, clustercache.EnqueueExtension)).
		Build(r)
	r.controller = c // before the manager starts, and so before the first Reconcile
	return err
}

// reconciler makes ConfigMaps of Releases.
type reconciler struct {
	client      client.Client // as the operator itself: Releases only
	connections clustercache.ClusterCache
	controller  clustercache.SourceWatcher[ctrl.Request] // the controller of this reconciler
}

// Reconcile releases, or deletes what was released. It returns no error while the Release is not
// connected, because the extension source requests the next reconcile.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	release := &Release{}
	if err := r.client.Get(ctx, req.NamespacedName, release); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	connection := r.connections.For(ctx, release)
	if !release.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finalize(ctx, connection, release)
	}
	if controllerutil.AddFinalizer(release, finalizer) {
		// Go on afterwards: the predicate drops the event of this update, which changes no generation.
		if err := r.client.Update(ctx, release); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	err := r.report(ctx, connection, release, r.release(ctx, connection, release))
	reported := meta.FindStatusCondition(release.Status.Conditions, conditionWatched)
	if err == nil && reported != nil && reported.Reason == string(clustercache.StateSyncing) {
		// The first list is under way. The extension source tells of later changes only.
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	return ctrl.Result{}, err
}

// release writes and watches the ConfigMap as the Release's ServiceAccount.
func (r *reconciler) release(ctx context.Context, connection clustercache.Bound, release *Release) error {
	c, err := connection.GetClient(ctx)
	if err != nil {
		return err
	}
	err = connection.Watch(ctx, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:    name + "/configmaps",
		Watcher: r.controller,
		Kind:    &corev1.ConfigMap{},
		Scope: clustercache.Scope{
			Namespace:     release.Namespace, // one object: nothing else is sent and kept
			FieldSelector: fields.OneTermEqualSelector("metadata.name", release.Name),
		},
		EventHandler: clustercache.EnqueueFor(client.ObjectKeyFromObject(release)),
	}))
	if err != nil {
		return err
	}
	return c.Apply(ctx, corev1apply.ConfigMap(release.Name, release.Namespace).WithData(release.Spec.Data),
		client.FieldOwner(name), client.ForceOwnership)
}

// finalize deletes the ConfigMap as the Release's ServiceAccount, and then lets the Release go. It
// never uses the operator's own permissions: the name is the tenant's choice.
func (r *reconciler) finalize(ctx context.Context, connection clustercache.Bound, release *Release) error {
	if !controllerutil.ContainsFinalizer(release, finalizer) {
		return nil
	}
	if release.Annotations[OrphanAnnotation] == "" {
		c, err := connection.GetClient(ctx)
		if err == nil {
			err = client.IgnoreNotFound(c.Delete(ctx,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: release.Namespace, Name: release.Name}}))
		}
		if err != nil {
			return r.report(ctx, connection, release, errors.WithMessagef(err,
				"deleting the ConfigMap; the annotation %s leaves it where it is", OrphanAnnotation))
		}
	}
	controllerutil.RemoveFinalizer(release, finalizer)
	return client.IgnoreNotFound(r.client.Update(ctx, release))
}

// report writes the conditions, and returns the error if the controller should try again.
func (r *reconciler) report(ctx context.Context, connection clustercache.Bound, release *Release, err error) error {
	connected := clustercache.Condition(err, release.Generation)
	released := metav1.Condition{
		Type:               conditionReleased,
		Status:             metav1.ConditionTrue,
		Reason:             "Applied",
		ObservedGeneration: release.Generation,
	}
	switch {
	case clustercache.ReportedElsewhere(err):
		return nil // a newer version of the Release or of the connection leads here again, or on another replica
	case errors.Is(err, clustercache.ErrNotConnected):
		released.Status, released.Reason, released.Message = metav1.ConditionUnknown, "NotConnected", err.Error()
	case err != nil:
		released.Status, released.Reason, released.Message = metav1.ConditionFalse, reasonOf(err), err.Error()
	}
	changed := meta.SetStatusCondition(&release.Status.Conditions, connected)
	changed = meta.SetStatusCondition(&release.Status.Conditions, released) || changed
	changed = meta.SetStatusCondition(&release.Status.Conditions, watched(ctx, connection, release)) || changed
	if changed {
		if err := r.client.Status().Update(ctx, release); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	if errors.Is(err, clustercache.ErrNotConnected) {
		return nil // the extension source requests a reconcile after the connect
	}
	return err
}

// watched returns the condition that says whether changes of the ConfigMap are noticed: whether the
// ServiceAccount may list and watch it.
func watched(ctx context.Context, connection clustercache.Bound, release *Release) metav1.Condition {
	condition := metav1.Condition{
		Type:               conditionWatched,
		Status:             metav1.ConditionUnknown,
		Reason:             "NotConnected",
		ObservedGeneration: release.Generation,
	}
	state, _ := connection.GetConnectionState(ctx)
	if state.Phase == clustercache.PhaseConnected {
		condition.Reason = "NotWatched"
	}
	for _, scope := range state.Scopes { // one, because the controller watches one object
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, string(scope.State), ""
		if scope.State == clustercache.StateSynced {
			condition.Status = metav1.ConditionTrue
		} else if scope.LastError != nil {
			condition.Message = scope.LastError.Error()
		}
	}
	return condition
}

// reasonOf returns the reason of an error of an API server, such as Forbidden.
func reasonOf(err error) string {
	return cmp.Or(string(apierrors.ReasonForError(err)), "Failed")
}
