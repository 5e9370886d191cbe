package serviceprovider

import (
	"context"
	stderrors "errors"

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
// cannot be called, because access is lost, denied or not granted, or a cluster is not connected.
// Without the annotation the object waits for access.
const OrphanAnnotation = "serviceprovider.latchkey.dev/orphan"

// Annotations by which the runtime remembers how far an object is. Their value is the UID of the
// object, so that an object that was restored from a backup begins anew.
const (
	// untouchedAnnotation: the author's CreateOrUpdate was never called. Set together with the
	// finalizer.
	untouchedAnnotation = "serviceprovider.latchkey.dev/untouched"
	// removedAnnotation: the author's Delete has succeeded. It alone distinguishes access that we
	// withdrew from access that was lost.
	removedAnnotation = "serviceprovider.latchkey.dev/removed"
)

// APIReconciler reconciles the API objects of a service provider: finalizer, access, the author's
// Reconciler, status. NewAPIReconcilerBuilder builds one.
type APIReconciler[T API, C Config] struct {
	apiSettings[T, C]
	current currentConfig[C]
}

// Reconcile reconciles an API object.
func (r *APIReconciler[T, C]) Reconcile(ctx context.Context, request reconcile.Request) (result reconcile.Result,
	err error) {
	obj := r.empty()
	if err := r.onboarding.GetAPIReader().Get(ctx, request.NamespacedName, obj); err != nil {
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
			waiting(obj, ReasonReconcileError, "the provider panicked: see its log")
		}
		err = stderrors.Join(err, patchStatus(ctx, r.onboarding, r.empty, base, obj))
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
	if !controllerutil.ContainsFinalizer(obj, obj.Finalizer()) {
		if err := r.patchMetadata(ctx, obj, func(obj T) {
			controllerutil.AddFinalizer(obj, obj.Finalizer())
			setAnnotation(obj, untouchedAnnotation, string(obj.GetUID()))
		}); err != nil {
			return reconcile.Result{}, errors.Wrap(client.IgnoreNotFound(err), "adding the finalizer")
		}
	}
	result, err := r.access.Reconcile(ctx, request)
	if stop, result, err := r.reportAccess(ctx, request, obj, config, result, err); stop {
		return result, err
	}
	clusters, err := r.clusters(ctx, request)
	if err != nil {
		return r.notConnected(obj, config, err)
	}
	if isMarkedBy(obj, untouchedAnnotation) {
		if err := r.patchMetadata(ctx, obj, func(obj T) { setAnnotation(obj, untouchedAnnotation, "") }); err != nil {
			return reconcile.Result{}, errors.Wrap(client.IgnoreNotFound(err), "recording the first CreateOrUpdate")
		}
	}
	begin(obj)
	before := ready(obj)
	result, err = r.reconciler.CreateOrUpdate(ctx, obj, config, clusters)
	return r.finish(obj, config, before, result, err)
}

// configFor returns the config, or false after it reported on the object why there is none.
func (r *APIReconciler[T, C]) configFor(obj T) (config C, ok bool) {
	config, exists, known := r.current.get()
	switch {
	case !known && reportsCurrent(obj):
		// The process has just started. What it said before is right until the config arrives.
	case !known:
		waiting(obj, ReasonProviderConfigMissing, "the ProviderConfig is not read yet")
	case !exists:
		waiting(obj, ReasonProviderConfigMissing, "there is no ProviderConfig")
	case !config.GetDeletionTimestamp().IsZero():
		waiting(obj, ReasonProviderConfigDeleting, "the ProviderConfig is being deleted")
	default:
		return config, true
	}
	return config, false
}

// reportAccess reports on the object what the access provider's Reconcile returned, and whether to
// stop there.
func (r *APIReconciler[T, C]) reportAccess(ctx context.Context, request reconcile.Request, obj T, config C,
	result reconcile.Result, err error) (stop bool, _ reconcile.Result, _ error) {
	switch {
	case errors.Is(err, ErrAccessDenied):
		// No error for the queue: the platform's next answer leads here again.
		waiting(obj, ReasonAccessDenied, err.Error())
		return true, reconcile.Result{RequeueAfter: config.PollInterval()}, nil
	case errors.Is(err, ErrAccessConflict):
		waiting(obj, ReasonAccessConflict, err.Error())
		return true, reconcile.Result{}, err
	case err != nil:
		waiting(obj, ReasonAccessError, err.Error())
		return true, reconcile.Result{}, errors.WithMessage(err, "requesting access")
	case result.RequeueAfter > 0:
		waiting(obj, ReasonAccessPending, r.explainAccess(ctx, request))
		return true, result, nil
	}
	return false, reconcile.Result{}, nil
}

// explainAccess returns what an object's access waits for.
func (r *APIReconciler[T, C]) explainAccess(ctx context.Context, request reconcile.Request) string {
	text := ""
	if builtIn, ok := builtInAccess(r.access); ok {
		text = builtIn.explain(ctx, request)
	} else {
		for _, read := range r.accessRequests() {
			if found, err := read(ctx, request); err == nil && found != nil {
				text = joined(text, describeProgress(found))
			}
		}
	}
	if text == "" {
		return "access has just been requested"
	}
	return text
}

// clusters returns the clusters of an object that has access.
func (r *APIReconciler[T, C]) clusters(ctx context.Context, request reconcile.Request) (clusters ClusterContext,
	err error) {
	if clusters.MCPCluster, err = r.access.MCPCluster(ctx, request); err != nil {
		return clusters, err
	}
	found, err := r.access.MCPAccessRequest(ctx, request)
	if err != nil {
		return clusters, errors.Wrap(err, "reading the AccessRequest")
	}
	clusters.MCPAccessSecretKey = secretKey(found)
	if !r.workload {
		return clusters, nil
	}
	if clusters.WorkloadCluster, err = r.access.WorkloadCluster(ctx, request); err != nil {
		return clusters, err
	}
	if found, err = r.access.WorkloadAccessRequest(ctx, request); err != nil {
		return clusters, errors.Wrap(err, "reading the AccessRequest")
	}
	clusters.WorkloadAccessSecretKey = secretKey(found)
	return clusters, nil
}

// notConnected reports on the object why it has no clusters. The extension source requests the next
// reconcile of an object that is not connected.
func (r *APIReconciler[T, C]) notConnected(obj T, config C, err error) (reconcile.Result, error) {
	var notConnected *clustercache.NotConnectedError
	switch {
	case !errors.As(err, &notConnected):
		waiting(obj, ReasonAccessError, err.Error())
		return reconcile.Result{}, errors.WithMessage(err, "getting the clusters")
	case notConnected.Reason == clustercache.ReasonStale:
		return reconcile.Result{}, nil // an event for the newer reference leads here again
	}
	waiting(obj, string(notConnected.Reason), notConnected.Error())
	if _, ok := builtInAccess(r.access); !ok { // whose events nobody knows
		return reconcile.Result{RequeueAfter: config.PollInterval()}, nil
	}
	return reconcile.Result{}, nil
}

// finish turns the result of the author's Reconciler into that of the controller.
func (r *APIReconciler[T, C]) finish(obj T, config C, before metav1.Condition, result ctrl.Result,
	err error) (reconcile.Result, error) {
	var notConnected *clustercache.NotConnectedError
	switch {
	case errors.As(err, &notConnected):
		return r.notConnected(obj, config, err)
	case err != nil:
		failed(obj, before, err.Error())
		return reconcile.Result{}, err
	case result.RequeueAfter <= 0:
		result.RequeueAfter = config.PollInterval()
	}
	return result, nil
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
		err := r.onboarding.GetClient().Patch(ctx, changed,
			client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		if err == nil {
			obj.SetAnnotations(changed.GetAnnotations())
			obj.SetFinalizers(changed.GetFinalizers())
			obj.SetResourceVersion(changed.GetResourceVersion())
			return nil
		}
		if !apierrors.IsConflict(err) || attempt == maxConflicts {
			return err
		}
		base = r.empty()
		if err := r.onboarding.GetAPIReader().Get(ctx, client.ObjectKeyFromObject(obj), base); err != nil {
			return err
		}
		if base.GetUID() != obj.GetUID() || base.GetGeneration() != obj.GetGeneration() {
			return err // another object, a new spec, or a deletion, is for the next reconcile
		}
	}
}
