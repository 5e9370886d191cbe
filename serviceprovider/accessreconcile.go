package serviceprovider

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// Reconcile implements ClusterAccessProvider.
func (a *clusterAccess) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return a.reconcile(ctx, request, true)
}

// updateExisting is Reconcile for an object that is being deleted: AccessRequests are updated, and
// nothing is created.
func (a *clusterAccess) updateExisting(ctx context.Context, request reconcile.Request) error {
	_, err := a.reconcile(ctx, request, false)
	return err
}

func (a *clusterAccess) reconcile(ctx context.Context, request reconcile.Request, create bool) (reconcile.Result,
	error) {
	granted, retry, failure := true, a.retryInterval, error(nil)
	for _, kind := range a.kinds { // all of them, so that the platform works on all at the same time
		ok, err := a.reconcileKind(ctx, request, kind, create)
		granted = granted && ok
		switch {
		case isTransient(err):
			retry = min(retry, transientRetry)
		case err != nil && failure == nil:
			failure = err
		}
	}
	if failure != nil || granted {
		return reconcile.Result{}, failure
	}
	return reconcile.Result{RequeueAfter: retry}, nil
}

// transientRetry is when to try again after a write at a wrong moment.
const transientRetry = 2 * time.Second

// isTransient reports whether a write came at a wrong moment: another controller wrote at the same
// time, or the namespace is being deleted.
func isTransient(err error) bool {
	return apierrors.IsConflict(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// reconcileKind requests access to one cluster, and reports whether access is granted.
func (a *clusterAccess) reconcileKind(ctx context.Context, request reconcile.Request, kind clusterKind,
	create bool) (granted bool, err error) {
	id := identify(a.controllerName, request.NamespacedName, kind)
	clusterRequest := client.ObjectKey{Namespace: id.key.Namespace, Name: request.Name} // the tenant's own
	if kind == workloadCluster {
		clusterRequest = id.key
		if create {
			if granted, err = a.reconcileClusterRequest(ctx, id); err != nil || !granted {
				return false, err
			}
		}
	}
	return a.reconcileAccessRequest(ctx, kind, id, clusterRequest, create)
}

// reconcileClusterRequest requests a workload cluster.
func (a *clusterAccess) reconcileClusterRequest(ctx context.Context, id requestIdentity) (granted bool, err error) {
	read, err := a.read(ctx, id, &clustersv1alpha1.ClusterRequest{}, func(found client.Object) bool {
		return id.isMarked(found) && describeProgress(found) == ""
	})
	switch {
	case err != nil:
		return false, err
	case read == nil:
		wanted := &clustersv1alpha1.ClusterRequest{
			ObjectMeta: metav1.ObjectMeta{Namespace: id.key.Namespace, Name: id.key.Name},
			Spec:       clustersv1alpha1.ClusterRequestSpec{Purpose: clustersv1alpha1.PurposeWorkload},
		}
		id.mark(wanted)
		return false, a.create(ctx, wanted)
	case !read.GetDeletionTimestamp().IsZero():
		return false, a.release(ctx, read)
	}
	found := read.(*clustersv1alpha1.ClusterRequest)
	if !id.isMarked(found) {
		wanted := found.DeepCopy()
		id.mark(wanted)
		if err := a.patch(ctx, found, wanted); err != nil {
			return false, err
		}
	}
	if found.IsDenied() {
		return false, errors.Wrap(ErrAccessDenied, describeProgress(found))
	}
	return describeProgress(found) == "", nil
}

// reconcileAccessRequest requests access to the cluster of a ClusterRequest.
func (a *clusterAccess) reconcileAccessRequest(ctx context.Context, kind clusterKind, id requestIdentity,
	clusterRequest client.ObjectKey, create bool) (granted bool, err error) {
	token := a.token(kind)
	requestRef := clustersv1alpha1.ObjectReference{Namespace: clusterRequest.Namespace, Name: clusterRequest.Name}
	read, err := a.read(ctx, id, &clustersv1alpha1.AccessRequest{}, func(found client.Object) bool {
		current := found.(*clustersv1alpha1.AccessRequest)
		return id.isCurrent(current, token) && describeProgress(found) == "" && leadsTo(current, requestRef) == nil
	})
	switch {
	case err != nil:
		return false, err
	case read == nil && !create:
		return false, nil
	case read == nil:
		wanted := &clustersv1alpha1.AccessRequest{
			ObjectMeta: metav1.ObjectMeta{Namespace: id.key.Namespace, Name: id.key.Name},
			Spec:       clustersv1alpha1.AccessRequestSpec{Token: token, RequestRef: &requestRef},
		}
		id.mark(wanted)
		return false, a.create(ctx, wanted)
	case !read.GetDeletionTimestamp().IsZero() && create:
		return false, a.release(ctx, read)
	case !read.GetDeletionTimestamp().IsZero():
		return false, nil
	}
	found := read.(*clustersv1alpha1.AccessRequest)
	if err := leadsTo(found, requestRef); err != nil {
		return false, err
	}
	if !id.isCurrent(found, token) {
		wanted := found.DeepCopy()
		id.mark(wanted)
		wanted.Spec.Token, wanted.Spec.OIDC = token, nil
		if err := a.patch(ctx, found, wanted); err != nil {
			return false, err
		}
		found = wanted
	}
	if found.IsDenied() {
		return false, errors.Wrap(ErrAccessDenied, describeProgress(found))
	}
	return isUsable(found), nil
}

// read returns a request, or nil if there is none. empty is an empty request. The cache answers if
// what it has is settled: a reconcile of an object that has access sends no request to the platform
// cluster. An error means that the request is not this identity's, too.
func (a *clusterAccess) read(ctx context.Context, id requestIdentity, empty client.Object,
	isSettled func(client.Object) bool) (client.Object, error) {
	cached := empty.DeepCopyObject().(client.Object)
	if err := a.requests.GetClient().Get(ctx, id.key, cached); err == nil && id.owns(cached) == nil && isSettled(cached) {
		return cached, nil
	}
	live := empty.DeepCopyObject().(client.Object) // decoding leaves fields that the answer lacks
	err := a.requests.GetAPIReader().Get(ctx, id.key, live)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, errors.Wrapf(err, "reading the request %s", id.key)
	}
	return live, id.owns(live)
}

// create creates a request, and its namespace if that is missing.
func (a *clusterAccess) create(ctx context.Context, wanted client.Object) error {
	err := a.requests.GetClient().Create(ctx, wanted)
	if apierrors.IsNotFound(err) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: wanted.GetNamespace()}}
		if err := a.requests.GetClient().Create(ctx, namespace); client.IgnoreAlreadyExists(err) != nil {
			return errors.Wrapf(err, "creating the namespace %s", wanted.GetNamespace())
		}
		err = a.requests.GetClient().Create(ctx, wanted)
	}
	return errors.Wrapf(err, "creating %s", describeRequest(wanted))
}

// patch changes a request, unless another controller has changed it since it was read. Fields that
// this version does not know stay as they are.
func (a *clusterAccess) patch(ctx context.Context, found, wanted client.Object) error {
	err := a.requests.GetClient().Patch(ctx, wanted,
		client.MergeFromWithOptions(found, client.MergeFromWithOptimisticLock{}))
	return errors.Wrapf(err, "updating %s", describeRequest(wanted))
}

// release lets go of a request that others delete, once they are done with it. A new request then
// takes its place.
func (a *clusterAccess) release(ctx context.Context, found client.Object) error {
	if !isOnlyOurs(found) {
		return nil
	}
	return a.removeFinalizer(ctx, found)
}

func (a *clusterAccess) removeFinalizer(ctx context.Context, found client.Object) error {
	wanted := found.DeepCopyObject().(client.Object)
	if !controllerutil.RemoveFinalizer(wanted, requestFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(a.patch(ctx, found, wanted))
}

// ReconcileDelete implements ClusterAccessProvider. The requests for a workload cluster are deleted
// also if this version of the provider does not request one.
func (a *clusterAccess) ReconcileDelete(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	mcp := identify(a.controllerName, request.NamespacedName, mcpCluster)
	workload := identify(a.controllerName, request.NamespacedName, workloadCluster)
	for _, step := range [][]func() (bool, error){
		{
			func() (bool, error) { return a.delete(ctx, mcp, &clustersv1alpha1.AccessRequest{}) },
			func() (bool, error) { return a.delete(ctx, workload, &clustersv1alpha1.AccessRequest{}) },
		},
		{func() (bool, error) { return a.delete(ctx, workload, &clustersv1alpha1.ClusterRequest{}) }},
	} {
		allGone := true
		for _, deleteRequest := range step {
			gone, err := deleteRequest()
			switch {
			case isTransient(err):
				return reconcile.Result{RequeueAfter: min(a.retryInterval, transientRetry)}, nil
			case err != nil:
				return reconcile.Result{}, err
			}
			allGone = allGone && gone
		}
		if !allGone {
			return reconcile.Result{RequeueAfter: a.retryInterval}, nil
		}
	}
	return reconcile.Result{}, nil
}

// delete deletes a request of this identity, and reports whether it is gone. A request of another
// identity stays, and counts as gone.
func (a *clusterAccess) delete(ctx context.Context, id requestIdentity, empty client.Object) (gone bool, err error) {
	never := func(client.Object) bool { return false } // read live
	found, err := a.read(ctx, id, empty, never)
	switch {
	case errors.Is(err, ErrAccessConflict), err == nil && found == nil:
		return true, nil
	case err != nil:
		return false, err
	}
	if found.GetDeletionTimestamp().IsZero() {
		uid := found.GetUID()
		err := a.requests.GetClient().Delete(ctx, found, client.Preconditions{UID: &uid})
		if client.IgnoreNotFound(err) != nil {
			return false, errors.Wrapf(err, "deleting %s", describeRequest(found))
		}
		if found, err = a.read(ctx, id, empty, never); err != nil || found == nil {
			return err == nil, err
		}
	}
	if err := a.removeFinalizer(ctx, found); err != nil {
		return false, err
	}
	found, err = a.read(ctx, id, empty, never)
	return err == nil && found == nil, err
}

// explain returns what the object's access waits for.
func (a *clusterAccess) explain(ctx context.Context, request reconcile.Request) (text string) {
	for _, kind := range []clusterKind{mcpCluster, workloadCluster} {
		id := identify(a.controllerName, request.NamespacedName, kind)
		for _, found := range []client.Object{&clustersv1alpha1.ClusterRequest{}, &clustersv1alpha1.AccessRequest{}} {
			if err := a.requests.GetAPIReader().Get(ctx, id.key, found); err != nil {
				continue
			}
			text = joined(text, describeProgress(found))
			// The platform answers once the tenant's own ClusterRequest is there.
			ref := client.ObjectKey{Namespace: id.key.Namespace, Name: request.Name}
			if _, ok := found.(*clustersv1alpha1.AccessRequest); ok && kind == mcpCluster && describeProgress(found) != "" &&
				apierrors.IsNotFound(a.requests.GetAPIReader().Get(ctx, ref, &clustersv1alpha1.ClusterRequest{})) {
				text = joined(text, "ClusterRequest "+ref.String()+" does not exist")
			}
		}
	}
	return text
}

// joined joins two texts; either may be empty.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}
