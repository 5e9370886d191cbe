package buckets

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

// forgetAfter is after how many durations of a lease that has expired the Lease of a member is
// deleted.
const forgetAfter = 10

// announce keeps this replica's own Lease, by which the others know of it. The function that it
// returns ends that, and deletes the Lease.
func (e *Engine) announce(ctx context.Context) (stop func()) {
	renewing, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	e.memberVersion = ""
	e.writeMember(ctx)
	go func() {
		defer close(ended)
		tick := time.NewTicker(e.options.RetryPeriod)
		defer tick.Stop()
		for {
			select {
			case <-renewing.Done():
				return
			case <-tick.C:
				e.forgetMembers(renewing)
			case <-e.refresh:
			}
			e.writeMember(renewing)
		}
	}()
	return func() {
		end()
		<-ended
		err := e.leases.Leases(e.options.Namespace).Delete(ctx, e.options.memberLease(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			ctrl.LoggerFrom(ctx).Info("The Lease of this replica stays until it expires", "error", err.Error())
		}
	}
}

// refreshMember makes this replica's own Lease be written soon.
func (e *Engine) refreshMember() {
	select {
	case e.refresh <- struct{}{}:
	default:
	}
}

// writeMember writes this replica's own Lease. A failure is repaired by the next one.
func (e *Engine) writeMember(ctx context.Context) {
	var serves []string
	for b := range e.buckets {
		if e.buckets[b].serves.Load() {
			serves = append(serves, strconv.Itoa(b))
		}
	}
	holder := e.options.Identity
	if e.isLeaving() {
		holder = ""
	}
	now := metav1.NowMicro()
	wanted := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:        e.options.memberLease(),
			Labels:      map[string]string{FleetLabel: e.options.Name, roleLabel: roleMember},
			Annotations: map[string]string{servesAnnotation: strings.Join(serves, ",")},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &holder,
			RenewTime:            &now,
			LeaseDurationSeconds: new(int32(e.options.LeaseDuration / time.Second)),
		},
	}
	if err := e.storeMember(ctx, wanted); err != nil && ctx.Err() == nil {
		ctrl.LoggerFrom(ctx).Info("Cannot renew the Lease of this replica", "error", err.Error())
	}
}

// storeMember creates or updates this replica's own Lease, which no other replica writes.
func (e *Engine) storeMember(ctx context.Context, wanted *coordinationv1.Lease) error {
	leases := e.leases.Leases(e.options.Namespace)
	if wanted.ResourceVersion = e.memberVersion; wanted.ResourceVersion == "" {
		last, err := leases.Get(ctx, wanted.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil {
			wanted.ResourceVersion = last.ResourceVersion
		}
	}
	var stored *coordinationv1.Lease
	var err error
	if wanted.ResourceVersion == "" {
		stored, err = leases.Create(ctx, wanted, metav1.CreateOptions{})
	} else {
		stored, err = leases.Update(ctx, wanted, metav1.UpdateOptions{})
	}
	if err != nil {
		e.memberVersion = "" // what is stored is not known
		return err
	}
	e.memberVersion = stored.ResourceVersion
	return nil
}

// forgetMembers deletes the Leases of members that ended long ago.
func (e *Engine) forgetMembers(ctx context.Context) {
	for _, lease := range e.observed.expiredMembers(e.observed.now(), forgetAfter*e.options.LeaseDuration) {
		err := e.leases.Leases(lease.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			ctrl.LoggerFrom(ctx).Info("Cannot delete the Lease of a replica that has ended", "lease", lease.Name,
				"error", err.Error())
		}
	}
}

// awaitOthers gives replicas that start at the same time the chance to appear, until a bucket has a
// replica: otherwise the first one takes all buckets, and hands most of them over at once.
func (e *Engine) awaitOthers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.options.RetryPeriod)
	defer cancel()
	e.await(ctx, func(p *plan) bool {
		return slices.ContainsFunc(p.holders, func(holder string) bool { return holder != "" })
	})
}
