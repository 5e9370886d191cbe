package serviceprovider

import (
	"context"

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

// reconcileExisting is Reconcile for an object that is being deleted: requests are updated, and
// never created.
func (a *clusterAccess) reconcileExisting(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return a.reconcile(ctx, request, false)
}

func (a *clusterAccess) reconcile(ctx context.Context, request reconcile.Request, create bool) (reconcile.Result,
	error) {
	granted, failure := true, error(nil)
	for _, kind := range a.kinds { // all of them, so that the platform works on all at the same time
		id := identify(a.controllerName, request.NamespacedName, kind)
		ok, err := a.reconcileKind(ctx, request, kind, id, create)
		granted = granted && ok
		if err != nil && failure == nil {
			failure = err
		}
	}
	if failure != nil || granted {
		return reconcile.Result{}, failure
	}
	return reconcile.Result{RequeueAfter: a.retryInterval}, nil
}

// reconcileKind requests access to one cluster, and reports whether access is granted.
func (a *clusterAccess) reconcileKind(ctx context.Context, request reconcile.Request, kind clusterKind,
	id requestIdentity, create bool) (granted bool, err error) {
	clusterRequest := client.ObjectKey{Namespace: id.key.Namespace, Name: request.Name} // the tenant's own
	if kind == workloadCluster {
		clusterRequest = id.key
		if granted, err = a.reconcileClusterRequest(ctx, id, create); err != nil || !granted {
			return false, err
		}
	}
	return a.reconcileAccessRequest(ctx, kind, id, clusterRequest, create)
}

// reconcileClusterRequest requests a workload cluster.
func (a *clusterAccess) reconcileClusterRequest(ctx context.Context, id requestIdentity, create bool) (granted bool,
	err error) {
	found := &clustersv1alpha1.ClusterRequest{}
	isSettled := func() bool { return id.isMarked(found) && describeProgress(found) == "" }
	exists, err := a.read(ctx, id, found, isSettled)
	switch {
	case err != nil:
		return false, err
	case !exists && !create:
		return false, nil
	case !exists:
		wanted := &clustersv1alpha1.ClusterRequest{
			ObjectMeta: metav1.ObjectMeta{Namespace: id.key.Namespace, Name: id.key.Name},
			Spec:       clustersv1alpha1.ClusterRequestSpec{Purpose: clustersv1alpha1.PurposeWorkload},
		}
		id.mark(wanted)
		return false, a.create(ctx, wanted)
	case !found.DeletionTimestamp.IsZero():
		return false, a.release(ctx, found, create)
	}
	if !id.isMarked(found) {
		wanted := found.DeepCopy()
		id.mark(wanted)
		if err := a.patch(ctx, found, wanted); err != nil {
			return false, err
		}
	}
	if found.Status.Phase == clustersv1alpha1.PhaseDenied {
		return false, errors.Wrap(ErrAccessDenied, describeProgress(found))
	}
	return describeProgress(found) == "", nil
}

// reconcileAccessRequest requests access to the cluster of a ClusterRequest.
func (a *clusterAccess) reconcileAccessRequest(ctx context.Context, kind clusterKind, id requestIdentity,
	clusterRequest client.ObjectKey, create bool) (granted bool, err error) {
	token := a.token(kind)
	found := &clustersv1alpha1.AccessRequest{}
	isSettled := func() bool { return id.isCurrent(found, token) && describeProgress(found) == "" }
	exists, err := a.read(ctx, id, found, isSettled)
	switch {
	case err != nil:
		return false, err
	case !exists && !create:
		return false, nil
	case !exists:
		wanted := &clustersv1alpha1.AccessRequest{
			ObjectMeta: metav1.ObjectMeta{Namespace: id.key.Namespace, Name: id.key.Name},
			Spec: clustersv1alpha1.AccessRequestSpec{Token: token, RequestRef: &clustersv1alpha1.ObjectReference{
				Namespace: clusterRequest.Namespace, Name: clusterRequest.Name}},
		}
		id.mark(wanted)
		return false, a.create(ctx, wanted)
	case !found.DeletionTimestamp.IsZero():
		return false, a.release(ctx, found, create)
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

// read reads a request, and reports whether it exists. The cache answers if what it has is settled:
// a reconcile of an object that has access sends no request to the platform cluster. An error means
// that the request is not this identity's, too.
func (a *clusterAccess) read(ctx context.Context, id requestIdentity, found client.Object,
	isSettled func() bool) (exists bool, err error) {
	if err := a.requests.GetClient().Get(ctx, id.key, found); err == nil && id.owns(found) == nil && isSettled() {
		return true, nil
	}
	err = a.requests.GetAPIReader().Get(ctx, id.key, found)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, errors.Wrapf(err, "reading the request %s", id.key)
	}
	return true, id.owns(found)
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
func (a *clusterAccess) release(ctx context.Context, found client.Object, create bool) error {
	if !create || !isOnlyOurs(found) {
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
	waiting := reconcile.Result{RequeueAfter: a.retryInterval}
	gone := true
	for _, kind := range []clusterKind{mcpCluster, workloadCluster} {
		ok, err := a.delete(ctx, identify(a.controllerName, request.NamespacedName, kind),
			&clustersv1alpha1.AccessRequest{})
		if err != nil {
			return reconcile.Result{}, err
		}
		gone = gone && ok
	}
	if !gone {
		return waiting, nil
	}
	id := identify(a.controllerName, request.NamespacedName, workloadCluster)
	if ok, err := a.delete(ctx, id, &clustersv1alpha1.ClusterRequest{}); err != nil {
		return reconcile.Result{}, err
	} else if !ok {
		return waiting, nil
	}
	return reconcile.Result{}, nil
}

// delete deletes a request of this identity, and reports whether it is gone. A request of another
// identity stays, and counts as gone.
func (a *clusterAccess) delete(ctx context.Context, id requestIdentity, found client.Object) (gone bool, err error) {
	live := a.requests.GetAPIReader()
	err = live.Get(ctx, id.key, found)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, errors.Wrapf(err, "reading the request %s", id.key)
	case id.owns(found) != nil:
		return true, nil
	}
	if found.GetDeletionTimestamp().IsZero() {
		uid := found.GetUID()
		if err := a.requests.GetClient().Delete(ctx, found, client.Preconditions{UID: &uid}); err != nil {
			return false, errors.Wrapf(client.IgnoreNotFound(err), "deleting %s", describeRequest(found))
		}
		if err := live.Get(ctx, id.key, found); err != nil {
			return apierrors.IsNotFound(err), errors.Wrapf(client.IgnoreNotFound(err), "reading the request %s", id.key)
		}
	}
	if err := a.removeFinalizer(ctx, found); err != nil {
		return false, err
	}
	err = live.Get(ctx, id.key, found)
	return apierrors.IsNotFound(err), errors.Wrapf(client.IgnoreNotFound(err), "reading the request %s", id.key)
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
