package serviceprovider

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// delete takes an object that is being deleted to its end: the author's Delete, the requests, the
// finalizer. Each step begins when the one before has ended, and leaves a mark by which another
// process goes on: the annotation, the absence of the requests, the absence of the finalizer.
func (r *APIReconciler[T, C]) delete(ctx context.Context, request reconcile.Request, obj T) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(obj, obj.Finalizer()) {
		return reconcile.Result{}, nil // the object waits for others
	}
	used, known := usedClusters(obj)
	if neverUsed := known && len(used) == 0; !neverUsed && !isRemoved(obj) {
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
	result, err := r.settings.access.ReconcileDelete(ctx, request)
	switch {
	case err != nil:
		StatusProgressing(obj, ReasonAccessError, platformProblem(err))
		return reconcile.Result{}, errors.WithMessage(err, "withdrawing access")
	case result.RequeueAfter > 0:
		StatusProgressing(obj, ReasonAccessDeleting, r.explainAccess(ctx, request))
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
	before := ready(obj)
	clusters, reach, result, err := r.clustersOfDeleted(ctx, request, obj, config)
	switch {
	case reach == blocked && obj.GetAnnotations()[OrphanAnnotation] == "true":
		if now := ready(obj); now.Reason == before.Reason && now.ObservedGeneration == before.ObservedGeneration {
			return true, reconcile.Result{}, nil
		}
		return false, reconcile.Result{RequeueAfter: orphanDelay}, nil
	case reach != reached:
		return false, result, err
	}
	beginStatus(obj)
	before = ready(obj)
	result, err = r.settings.reconciler.Delete(ctx, obj, config, clusters)
	if err == nil && !requeues(result) {
		return true, reconcile.Result{}, nil
	}
	result, err = r.finish(obj, config, clusters, before, result, err)
	return false, result, err
}

// orphanDelay is how long the status says why Delete cannot be called before OrphanAnnotation
// counts: a reason of this moment is no reason to give up.
const orphanDelay = 5 * time.Second

// reach says whether the clusters of an object that is being deleted can be reached.
type reach int

const (
	reached reach = iota
	unclear       // something failed, or a connect is in progress
	blocked       // not until somebody does something; the status says what
)

// giveUpHint tells people what to do about a service that cannot be removed.
const giveUpHint = ": restore access, or give up what is left of the service with the annotation " +
	OrphanAnnotation + "=true"

// clustersOfDeleted returns the clusters that an object that is being deleted has used, or reports
// on the object why it cannot. Nothing is created: access that is gone would leave what it made
// behind, and only a person knows whether anything is left. A connection is enough: to wait for a
// grant could mean to wait for a request that waits for this object.
func (r *APIReconciler[T, C]) clustersOfDeleted(ctx context.Context, request reconcile.Request, obj T,
	config C) (clusters ClusterContext, _ reach, _ reconcile.Result, _ error) {
	used, known := usedClusters(obj)
	needed := slices.DeleteFunc(r.settings.accesses(), func(access accessTo) bool {
		return known && !slices.Contains(used, access.kind.id)
	})
	for _, access := range needed {
		_, err := access.request(ctx, request)
		switch {
		case apierrors.IsNotFound(err):
			StatusProgressing(obj, ReasonAccessLost, "the AccessRequest for the cluster "+access.kind.id+
				" is gone, and the service was not removed"+giveUpHint)
			return clusters, blocked, r.untilEvent(config), nil
		case err != nil:
			result, reported := r.reportAccess(ctx, request, obj, config, reconcile.Result{}, err)
			return clusters, reachAfter(err), result, reported
		}
	}
	builtIn, isBuiltIn := builtInAccess(r.settings.access)
	if !isBuiltIn {
		result, err := r.settings.access.Reconcile(ctx, request)
		if err != nil || result.RequeueAfter > 0 {
			result, reported := r.reportAccess(ctx, request, obj, config, result, err)
			return clusters, reachAfter(err), result, reported
		}
	} else if err := builtIn.updateExisting(ctx, request); err != nil && !errors.Is(err, ErrAccessDenied) {
		// Delete may need a permission that only a newer version of the provider requests.
		result, reported := r.reportAccess(ctx, request, obj, config, reconcile.Result{}, err)
		return clusters, reachAfter(err), result, reported
	}
	for _, access := range needed {
		found, err := access.request(ctx, request)
		if err != nil {
			result, reported := r.reportAccess(ctx, request, obj, config, reconcile.Result{}, err)
			return clusters, unclear, result, reported
		}
		cluster, err := access.cluster(ctx, request)
		if isBuiltIn && errors.Is(err, errNotGranted) {
			cluster, err = builtIn.clusterOf(ctx, request, access.kind, found)
		}
		if err != nil {
			reach, result, err := r.reportUnreachable(obj, config, found, err)
			return clusters, reach, result, err
		}
		clusters.set(access.kind, cluster, found)
	}
	return clusters, reached, reconcile.Result{}, nil
}

// reachAfter returns what an error of the access provider's Reconcile means for a deletion; nil
// means that access is pending.
func reachAfter(err error) reach {
	if err == nil || errors.Is(err, ErrAccessDenied) || errors.Is(err, ErrAccessConflict) {
		return blocked
	}
	return unclear
}

// reportUnreachable reports on an object that is being deleted why a cluster that it used is not
// connected.
func (r *APIReconciler[T, C]) reportUnreachable(obj T, config C, request *clustersv1alpha1.AccessRequest,
	err error) (reach, reconcile.Result, error) {
	var notConnected *clustercache.NotConnectedError
	if !errors.As(err, &notConnected) || notConnected.ReportedElsewhere() {
		result, err := r.notConnected(obj, config, err)
		return unclear, result, err
	}
	reason := ReasonAccessPending
	switch {
	case !request.DeletionTimestamp.IsZero():
		reason = ReasonAccessLost
	case request.Status.SecretRef != nil:
		result, err := r.notConnected(obj, config, err)
		if notConnected.Reason.Pending() {
			return unclear, result, err
		}
		return blocked, result, err
	case request.IsDenied():
		reason = ReasonAccessDenied
	}
	StatusProgressing(obj, reason, describeProgress(request)+giveUpHint)
	return blocked, r.untilEvent(config), nil
}
