package serviceprovider

import (
	"cmp"
	"context"
	stderrors "errors"
	"slices"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// OperationAnnotation on an API object asks for an operation: OperationIgnore or
// OperationReconcile.
const OperationAnnotation = "openmcp.cloud/operation"

// Values of OperationAnnotation.
const (
	// OperationIgnore leaves the object alone until the annotation is removed. A deletion waits,
	// too.
	OperationIgnore = "ignore"
	// OperationReconcile requests a reconcile. The runtime removes the annotation.
	OperationReconcile = "reconcile"
)

// OrphanAnnotation with the value "true" on an API object that is being deleted gives up what is
// left of the service on the clusters. The annotation counts only while the Reconciler's Delete
// cannot be called, because access is lost, denied or pending, or a cluster is not connected, and
// only if the status has said so for a moment. Without the annotation the object waits for access.
const OrphanAnnotation = "serviceprovider.latchkey.dev/orphan"

// APIReconciler reconciles the API objects of a service provider: finalizer, access, the author's
// Reconciler, status. NewAPIReconcilerBuilder builds one.
type APIReconciler[T API, C Config] struct {
	settings apiSettings[T, C]
	current  currentConfig[C]
}

// Reconcile reconciles an API object.
func (r *APIReconciler[T, C]) Reconcile(ctx context.Context, request reconcile.Request) (result reconcile.Result,
	err error) {
	obj := r.settings.empty()
	if err := r.settings.onboarding.GetAPIReader().Get(ctx, request.NamespacedName, obj); err != nil {
		return reconcile.Result{}, errors.Wrap(client.IgnoreNotFound(err), "reading the object")
	}
	switch obj.GetAnnotations()[OperationAnnotation] {
	case OperationIgnore:
		return reconcile.Result{}, nil
	case OperationReconcile:
		err := r.patchMetadata(ctx, obj, func(obj T) { setAnnotation(obj, OperationAnnotation, "") })
		if err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	base := obj.DeepCopyObject().(T)
	defer func() {
		panicked := recover()
		if panicked != nil {
			StatusProgressing(obj, ReasonReconcileError, "the provider panicked: see its log")
		}
		err = stderrors.Join(err, patchStatus(ctx, r.settings.onboarding, r.settings.empty, base, obj))
		if panicked != nil {
			panic(panicked) // controller-runtime logs and counts it
		}
	}()
	if !obj.GetDeletionTimestamp().IsZero() {
		return r.delete(ctx, request, obj)
	}
	return r.createOrUpdate(ctx, request, obj)
}

// createOrUpdate takes an object from its creation to a call of the author's CreateOrUpdate.
func (r *APIReconciler[T, C]) createOrUpdate(ctx context.Context, request reconcile.Request, obj T) (reconcile.Result,
	error) {
	config, ok := r.configFor(obj)
	if !ok {
		return reconcile.Result{}, nil
	}
	if !controllerutil.ContainsFinalizer(obj, obj.Finalizer()) || obj.GetAnnotations()[removedAnnotation] != "" {
		isNew, err := r.isNew(ctx, request, obj)
		if err != nil {
			return r.reportAccess(ctx, request, obj, config, reconcile.Result{}, err)
		}
		if err := r.addFinalizer(ctx, obj, isNew); err != nil {
			return reconcile.Result{}, errors.Wrap(client.IgnoreNotFound(err), "adding the finalizer")
		}
	}
	result, err := r.settings.access.Reconcile(ctx, request)
	if err != nil || result.RequeueAfter > 0 {
		return r.reportAccess(ctx, request, obj, config, result, err)
	}
	clusters, err := r.settings.clusters(ctx, request)
	if err != nil {
		return r.notConnected(obj, config, err)
	}
	if err := r.recordUse(ctx, obj); err != nil {
		return reconcile.Result{}, errors.Wrap(client.IgnoreNotFound(err), "recording the use of the clusters")
	}
	beginStatus(obj)
	before := ready(obj)
	result, err = r.settings.reconciler.CreateOrUpdate(ctx, obj, config, clusters)
	return r.finish(obj, config, clusters, before, result, err)
}

// isNew reports whether an object never had access. The finalizer of an object that has access was
// only lost.
func (r *APIReconciler[T, C]) isNew(ctx context.Context, request reconcile.Request, obj T) (bool, error) {
	if controllerutil.ContainsFinalizer(obj, obj.Finalizer()) {
		return false, nil
	}
	for _, access := range r.settings.accesses() {
		_, err := access.request(ctx, request)
		switch {
		case err == nil:
			return false, nil
		case !apierrors.IsNotFound(err) && !errors.Is(err, ErrAccessConflict):
			return false, err
		}
	}
	return true, nil
}

// addFinalizer adds the finalizer, before anything is requested. A new object is marked, so that
// its deletion needs no access.
func (r *APIReconciler[T, C]) addFinalizer(ctx context.Context, obj T, isNew bool) error {
	return r.patchMetadata(ctx, obj, func(obj T) {
		controllerutil.AddFinalizer(obj, obj.Finalizer())
		setAnnotation(obj, removedAnnotation, "") // never right on an object that is not being deleted
		if isNew {
			setUsed(obj, nil)
		}
	})
}

// recordUse records the clusters that the author's CreateOrUpdate is about to get.
func (r *APIReconciler[T, C]) recordUse(ctx context.Context, obj T) error {
	used, known := usedClusters(obj)
	missing := false
	for _, access := range r.settings.accesses() {
		if !slices.Contains(used, access.kind.id) {
			used, missing = append(used, access.kind.id), true
		}
	}
	if !known || !missing { // not known means: all of them
		return nil
	}
	return r.patchMetadata(ctx, obj, func(obj T) { setUsed(obj, used) })
}

// configFor returns the config, or false after it reported on the object why there is none.
func (r *APIReconciler[T, C]) configFor(obj T) (config C, ok bool) {
	config, exists, known := r.current.get()
	switch {
	case !known && reportsCurrent(obj):
		// The process has just started. What it said before is right until the config arrives.
	case !known:
		StatusProgressing(obj, ReasonProviderConfigMissing, "the ProviderConfig is not read yet")
	case !exists:
		StatusProgressing(obj, ReasonProviderConfigMissing, "there is no ProviderConfig")
	case !config.GetDeletionTimestamp().IsZero():
		StatusProgressing(obj, ReasonProviderConfigDeleting, "the ProviderConfig is being deleted")
	default:
		return config, true
	}
	return config, false
}

// reportAccess reports on the object why there is no access, by what the access provider's
// Reconcile returned.
func (r *APIReconciler[T, C]) reportAccess(ctx context.Context, request reconcile.Request, obj T, config C,
	result reconcile.Result, err error) (reconcile.Result, error) {
	switch {
	case errors.Is(err, ErrAccessDenied):
		// No error for the queue: the platform's next answer leads here again.
		StatusProgressing(obj, ReasonAccessDenied, err.Error())
		return r.untilEvent(config), nil
	case errors.Is(err, ErrAccessConflict):
		StatusProgressing(obj, ReasonAccessConflict, err.Error())
		return reconcile.Result{}, err
	case err != nil:
		StatusProgressing(obj, ReasonAccessError, platformProblem(err))
		return reconcile.Result{}, errors.WithMessage(err, "obtaining access")
	}
	StatusProgressing(obj, ReasonAccessPending, r.explainAccess(ctx, request))
	return result, nil
}

// platformProblem returns the text about an error of the platform cluster for tenants, who must not
// see its addresses and users.
func platformProblem(err error) string {
	const hint = "; the provider's log has the details"
	if reason := apierrors.ReasonForError(err); reason != "" {
		return "the platform cluster answers " + string(reason) + hint
	}
	return "the platform cluster cannot be asked" + hint
}

// explainAccess returns what an object's access waits for.
func (r *APIReconciler[T, C]) explainAccess(ctx context.Context, request reconcile.Request) string {
	text := ""
	if builtIn, ok := builtInAccess(r.settings.access); ok {
		text = builtIn.explain(ctx, request)
	} else {
		for _, access := range r.settings.accesses() {
			if found, err := access.request(ctx, request); err == nil && found != nil {
				text = joined(text, describeProgress(found))
			}
		}
	}
	if text == "" {
		return "access has just been requested"
	}
	return text
}

// notConnected reports on the object why it has no clusters. The extension source requests the next
// reconcile of an object that is not connected.
func (r *APIReconciler[T, C]) notConnected(obj T, config C, err error) (reconcile.Result, error) {
	var notConnected *clustercache.NotConnectedError
	switch {
	case !errors.As(err, &notConnected):
		StatusProgressing(obj, ReasonAccessError, platformProblem(err))
		return reconcile.Result{}, errors.WithMessage(err, "getting the clusters")
	case notConnected.ReportedElsewhere():
		return reconcile.Result{}, nil // an event leads here again, or another replica has the object
	case notConnected.Reason.Pending() && isReady(obj):
		// The process has just started. What it said before is right until the first connect ends.
	default:
		StatusProgressing(obj, string(notConnected.Reason), notConnected.Error())
	}
	return r.untilEvent(config), nil
}

// withoutEvents is when to look again if it is not known whether an event follows.
const withoutEvents = 30 * time.Second

// untilEvent is the result of a reconcile that waits for the access provider.
func (r *APIReconciler[T, C]) untilEvent(config C) reconcile.Result {
	if _, ok := builtInAccess(r.settings.access); ok {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: cmp.Or(config.PollInterval(), withoutEvents)}
}

// finish turns the result of the author's Reconciler into that of the controller.
func (r *APIReconciler[T, C]) finish(obj T, config C, clusters ClusterContext, before metav1.Condition,
	result ctrl.Result, err error) (reconcile.Result, error) {
	var notConnected *clustercache.NotConnectedError
	switch {
	case errors.As(err, &notConnected) && clusters.has(notConnected.Extension):
		return r.notConnected(obj, config, err)
	case err != nil:
		failed(obj, before, err.Error())
		return reconcile.Result{}, err
	case !requeues(result):
		result.RequeueAfter = config.PollInterval()
	}
	return result, nil
}

// requeues reports whether the author's Reconciler wants to be called again by itself.
func requeues(result ctrl.Result) bool {
	return result.RequeueAfter > 0 || result.Requeue //nolint:staticcheck // deprecated, but honored by controller-runtime
}

// maxConflicts is how often patchMetadata tries again after another controller's write.
const maxConflicts = 4

// patchMetadata changes the metadata of an object on the API server and in obj, whose status stays.
// Other controllers' changes of the metadata stay, too.
func (r *APIReconciler[T, C]) patchMetadata(ctx context.Context, obj T, change func(T)) error {
	base := obj.DeepCopyObject().(T)
	for attempt := 0; ; attempt++ {
		changed := base.DeepCopyObject().(T)
		change(changed)
		err := r.settings.onboarding.GetClient().Patch(ctx, changed,
			client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if err == nil {
			obj.SetAnnotations(changed.GetAnnotations())
			obj.SetFinalizers(changed.GetFinalizers())
			if attempt == 0 { // otherwise the status of obj is not of this version
				obj.SetResourceVersion(changed.GetResourceVersion())
			}
			return nil
		}
		if !apierrors.IsConflict(err) || attempt == maxConflicts {
			return err
		}
		base = r.settings.empty()
		if err := r.settings.onboarding.GetAPIReader().Get(ctx, client.ObjectKeyFromObject(obj), base); err != nil {
			return err
		}
		if base.GetUID() != obj.GetUID() || base.GetGeneration() != obj.GetGeneration() {
			return err // another object, a new spec, or a deletion, is for the next reconcile
		}
	}
}
