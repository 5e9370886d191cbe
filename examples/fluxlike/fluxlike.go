package fluxlike

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

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
	// Release says, and is watched.
	conditionReleased = "Released"
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
		Client:      clustercache.ClientOptions{UserAgent: name},
		Permissions: clustercache.PermissionOptions{Record: true}, // the source calls when they are granted
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

// Reconcile releases, or deletes what was released. While the Release is not connected, or its
// ServiceAccount lacks a permission, Reconcile returns no error: the extension source requests the
// next reconcile.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	release := &Release{}
	if err := r.client.Get(ctx, req.NamespacedName, release); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	connection := r.connections.For(ctx, release)
	if !release.DeletionTimestamp.IsZero() {
		return r.finalize(ctx, connection, release)
	}
	if controllerutil.AddFinalizer(release, finalizer) {
		// Go on afterwards: the predicate drops the event of this update, which changes no generation.
		if err := r.client.Update(ctx, release); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	return r.report(ctx, connection, release, r.release(ctx, connection, release))
}

// release watches and writes the ConfigMap as the Release's ServiceAccount.
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
	// A read from the cache waits for the first list of the watch, and fails if that is Forbidden.
	err = c.Get(ctx, client.ObjectKeyFromObject(release), &corev1.ConfigMap{})
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return c.Apply(ctx, corev1apply.ConfigMap(release.Name, release.Namespace).WithData(release.Spec.Data),
		client.FieldOwner(name), client.ForceOwnership)
}

// finalize deletes the ConfigMap as the Release's ServiceAccount, and then lets the Release go. It
// never uses the operator's own permissions: the name is the tenant's choice.
func (r *reconciler) finalize(ctx context.Context, connection clustercache.Bound, release *Release) (
	ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(release, finalizer) {
		return ctrl.Result{}, nil
	}
	if release.Annotations[OrphanAnnotation] == "" {
		c, err := connection.GetClient(ctx)
		if err == nil {
			err = client.IgnoreNotFound(c.Delete(ctx, configMapOf(release)))
		}
		if err != nil {
			return r.report(ctx, connection, release, fmt.Errorf(
				"deleting the ConfigMap; the annotation %s leaves it where it is: %w", OrphanAnnotation, err))
		}
	}
	controllerutil.RemoveFinalizer(release, finalizer)
	return ctrl.Result{}, client.IgnoreNotFound(r.client.Update(ctx, release))
}

// report writes the conditions, and returns when the controller should try again: at once only
// after an error that no event follows.
func (r *reconciler) report(ctx context.Context, connection clustercache.Bound, release *Release, err error) (
	result ctrl.Result, retry error) {
	released := metav1.Condition{
		Type:               conditionReleased,
		Status:             metav1.ConditionTrue,
		Reason:             "Applied",
		ObservedGeneration: release.Generation,
	}
	switch {
	case clustercache.ReportedElsewhere(err):
		// A newer version of the Release or of the connection leads here again, or on another replica.
		return ctrl.Result{}, nil
	case errors.Is(err, clustercache.ErrNotConnected): // the extension source calls after the connect
		released.Status, released.Reason, released.Message = metav1.ConditionUnknown, "NotConnected", err.Error()
	case apierrors.IsForbidden(err):
		released.Status, released.Reason, released.Message = metav1.ConditionFalse, "Forbidden", err.Error()
		if missing := missingPermissions(ctx, connection, release); missing != nil {
			released.Message += "; " + missing.Error() // the extension source calls when one is granted
		}
		result.RequeueAfter = time.Minute // or a quota or a policy refuses it, of which no event tells
	case err != nil:
		released.Status, released.Reason, released.Message = metav1.ConditionFalse, reasonOf(err), err.Error()
		retry = err
	}
	changed := meta.SetStatusCondition(&release.Status.Conditions, clustercache.Condition(err, release.Generation))
	changed = meta.SetStatusCondition(&release.Status.Conditions, released) || changed
	if changed {
		if err := r.client.Status().Update(ctx, release); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	return result, retry
}

// missingPermissions returns an error that names all permissions that the ServiceAccount lacks for
// what is to be done, nil if none is missing or the API server does not answer.
func missingPermissions(ctx context.Context, connection clustercache.Bound, release *Release) error {
	check := clustercache.PermissionCheck{
		Objects: []client.Object{configMapOf(release)},
		Verbs:   []string{"list", "watch", "create", "patch", "delete"},
	}
	if !release.DeletionTimestamp.IsZero() {
		check.Verbs = []string{"delete"}
	}
	permissions, _ := connection.CheckPermissions(ctx, check)
	return permissions.Err()
}

func configMapOf(release *Release) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: release.Namespace, Name: release.Name}}
}

// reasonOf returns the reason of an error of an API server, such as Conflict.
func reasonOf(err error) string {
	return cmp.Or(string(apierrors.ReasonForError(err)), "Failed")
}
