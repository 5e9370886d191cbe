package serviceprovider

import (
	"context"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// delete takes an object that is being deleted to its end: the author's Delete, the requests, the
// finalizer. Each step begins when the one before has ended, and leaves a mark by which another
// process goes on: the annotation, the absence of the requests, the absence of the finalizer.
func (r *APIReconciler[T, C]) delete(ctx context.Context, request reconcile.Request, obj T) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(obj, obj.Finalizer()) {
		return reconcile.Result{}, nil // the object waits for others
	}
	if !isMarkedBy(obj, removedAnnotation) && !isMarkedBy(obj, untouchedAnnotation) {
		done, result, err := r.remove(ctx, request, obj)
		if !done {
			return result, err
		}
		// Recorded before the first request is deleted: from then on its absence is right.
		if err := r.patchMetadata(ctx, obj, func(obj T) {
			setAnnotation(obj, removedAnnotation, string(obj.GetUID()))
		}); err != nil {
			return reconcile.Result{}, errors.Wrap(client.IgnoreNotFound(err), "recording that the service is removed")
		}
	}
	result, err := r.access.ReconcileDelete(ctx, request)
	switch {
	case err != nil:
		terminating(obj, ReasonAccessError, err.Error())
		return reconcile.Result{}, errors.WithMessage(err, "withdrawing access")
	case result.RequeueAfter > 0:
		terminating(obj, ReasonAccessDeleting, r.explainAccess(ctx, request))
		return result, nil
	}
	err = r.patchMetadata(ctx, obj, func(obj T) { controllerutil.RemoveFinalizer(obj, obj.Finalizer()) })
	return reconcile.Result{}, errors.Wrap(client.IgnoreNotFound(err), "removing the finalizer")
}

// remove calls the author's Delete, and reports whether the service is removed, or given up.
func (r *APIReconciler[T, C]) remove(ctx context.Context, request reconcile.Request, obj T) (done bool,
	_ reconcile.Result, _ error) {
	config, ok := r.configFor(obj)
	if !ok {
		return false, reconcile.Result{}, nil
	}
	clusters, ok, result, err := r.clustersOfDeleted(ctx, request, obj, config)
	if !ok {
		// Any other error says nothing about the access.
		isCertain := err == nil || errors.Is(err, ErrAccessConflict)
		if isCertain && obj.GetAnnotations()[OrphanAnnotation] == "true" {
			return true, reconcile.Result{}, nil
		}
		return false, result, err
	}
	begin(obj)
	before := ready(obj)
	result, err = r.reconciler.Delete(ctx, obj, config, clusters)
	if err == nil && result.RequeueAfter <= 0 {
		return true, reconcile.Result{}, nil
	}
	result, err = r.finish(obj, config, before, result, err)
	return false, result, err
}

// clustersOfDeleted returns the clusters of an object that is being deleted, or false after it
// reported on the object why there are none. Nothing is created: access that is gone would leave
// what it made behind, and only a person knows whether anything is left.
func (r *APIReconciler[T, C]) clustersOfDeleted(ctx context.Context, request reconcile.Request, obj T,
	config C) (clusters ClusterContext, ok bool, _ reconcile.Result, _ error) {
	for _, read := range r.accessRequests() {
		_, err := read(ctx, request)
		switch {
		case apierrors.IsNotFound(err):
			terminating(obj, ReasonAccessLost, "the AccessRequest is gone, and the service was not removed: "+
				"restore it, or give up what is left of the service with the annotation "+OrphanAnnotation+"=true")
			return clusters, false, reconcile.Result{RequeueAfter: config.PollInterval()}, nil
		case err != nil:
			_, result, err := r.reportAccess(ctx, request, obj, config, reconcile.Result{}, err)
			return clusters, false, result, err
		}
	}
	// Also for an object that is being deleted: Delete may need a permission that a newer version
	// of the provider requests.
	update := r.access.Reconcile
	if builtIn, ok := builtInAccess(r.access); ok {
		update = builtIn.reconcileExisting
	}
	result, err := update(ctx, request)
	if stop, result, err := r.reportAccess(ctx, request, obj, config, result, err); stop {
		return clusters, false, result, err
	}
	if clusters, err = r.clusters(ctx, request); err != nil {
		result, err := r.notConnected(obj, config, err)
		return clusters, false, result, err
	}
	return clusters, true, reconcile.Result{}, nil
}

// accessRequests returns the functions that read the AccessRequests of an object.
func (r *APIReconciler[T, C]) accessRequests() []func(context.Context,
	reconcile.Request) (*clustersv1alpha1.AccessRequest, error) {
	reads := []func(context.Context, reconcile.Request) (*clustersv1alpha1.AccessRequest, error){r.access.MCPAccessRequest}
	if r.workload {
		reads = append(reads, r.access.WorkloadAccessRequest)
	}
	return reads
}

// secretKey returns the Secret of an AccessRequest.
func secretKey(request *clustersv1alpha1.AccessRequest) client.ObjectKey {
	if request == nil || request.Status.SecretRef == nil {
		return client.ObjectKey{}
	}
	return client.ObjectKey{Namespace: request.Namespace, Name: request.Status.SecretRef.Name}
}

// isMarkedBy reports whether the object has the annotation of this runtime, for this very object.
func isMarkedBy(obj client.Object, annotation string) bool {
	return obj.GetUID() != "" && obj.GetAnnotations()[annotation] == string(obj.GetUID())
}

// setAnnotation sets an annotation, or removes it if the value is empty.
func setAnnotation(obj client.Object, annotation, value string) {
	annotations := merged(obj.GetAnnotations(), nil)
	if value == "" {
		delete(annotations, annotation)
	} else {
		annotations[annotation] = value
	}
	obj.SetAnnotations(annotations)
}
