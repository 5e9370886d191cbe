package buckets

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pkg/errors"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/ownership"
)

// before is the holder of a fleet's Lease that is new: of replicas that shared before, under a
// Lease that is gone, and may not know that yet. Such a Lease has to expire before replicas hold
// it.
const before = "replicas from before, if there are any"

// division is how replicas of this one's kind divide the fleet. It is what they hold the fleet's
// Lease as.
func (e *Engine) division() string { return fmt.Sprintf("%d buckets of %s", len(e.buckets), e.kind) }

// sameSecond is how much longer the Lease of the fleet lasts than a fence. Replicas that hold it
// together may write the same record in one second, and others then see the first of these writes
// only.
const sameSecond = 2 * time.Second

// runInFleet divides the fleet whenever this replica holds the fleet's Lease, until ctx is done.
// All replicas that divide it in the same way hold it together. It excludes those that divide it in
// another way, whose Leases for buckets exclude nothing: they are for other extensions.
func (e *Engine) runInFleet(ctx context.Context, replica ownership.Replica) error {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	logger := ctrl.LoggerFrom(ctx)
	options := holding.Options{
		Times:  e.options.times(),
		Keep:   holding.KeepAlways,
		Margin: sameSecond,
		Waits: func(holder string) {
			logger.Info("Waits for the Lease of the fleet", "lease", e.options.fleetLease(), "holder", holder)
		},
	}
	for {
		held := holding.Hold(ctx, options, holding.Together(e.fleetLock(refuse), logger),
			func(holds context.Context, fleet *fence.Term) {
				e.divide(holds, replica, fleet, func() bool { return ctx.Err() != nil })
			})
		if ctx.Err() != nil {
			break
		}
		if held {
			logger.Info("Lost the Lease of the fleet, and gave up all buckets", "lease", e.options.fleetLease())
		}
		select {
		case <-ctx.Done():
		case <-time.After(e.options.RetryPeriod):
		}
	}
	if cause := context.Cause(ctx); errors.Is(cause, errDivided) || errors.Is(cause, errNoFleet) {
		return cause
	}
	return nil
}

var (
	// errDivided is the error of a replica that divides the fleet in another way than the others.
	errDivided = errors.New("with two ways to divide a fleet, some extensions would have two replicas, and others " +
		"none. Give all replicas the same options; docs/replicas.md says how to change the number of buckets")
	errNoFleet = errors.New("it is not that of a fleet: choose another Options.Name")
)

// Fits returns an error if the fleet is divided into another number of buckets, or is one of
// another kind, as far as the API server can be asked now. Fits implements ownership.Fitter.
func (e *Engine) Fits(ctx context.Context) error {
	fleet, err := e.leases.Leases(e.options.Namespace).Get(ctx, e.options.fleetLease(), metav1.GetOptions{})
	if err != nil {
		return nil // Run says why
	}
	return e.compareFleet(fleet)
}

// joinFleet creates the Lease of the fleet, or compares it. It tries again until the API server
// answers, or ctx is done.
func (e *Engine) joinFleet(ctx context.Context) error {
	leases := e.leases.Leases(e.options.Namespace)
	for {
		fleet, err := leases.Get(ctx, e.options.fleetLease(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			fleet, err = e.createFleet(ctx, leases, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				continue // another replica was faster
			}
		}
		if err == nil {
			return e.compareFleet(fleet)
		}
		if ctx.Err() != nil {
			return nil
		}
		ctrl.LoggerFrom(ctx).Info("Cannot read or create the Lease of the fleet yet; this program needs get, list, "+
			"watch, create, update and delete on leases in the namespace", "namespace", e.options.Namespace,
			"lease", e.options.fleetLease(), "error", err.Error())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(e.options.RetryPeriod):
		}
	}
}

// createFleet creates the Lease of the fleet, which no replica holds before it expires: it may have
// been deleted while replicas run that divide the fleet in another way.
func (e *Engine) createFleet(ctx context.Context, leases coordinationclient.LeaseInterface,
	options metav1.CreateOptions) (*coordinationv1.Lease, error) {
	now := metav1.NowMicro()
	fleet, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:        e.options.fleetLease(),
			Labels:      map[string]string{FleetLabel: e.options.Name, roleLabel: roleFleet},
			Annotations: e.fleetAnnotations(),
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new(before),
			AcquireTime:          &now,
			RenewTime:            &now,
			LeaseDurationSeconds: new(int32(e.options.LeaseDuration / time.Second)),
		},
	}, options)
	if err == nil {
		ctrl.LoggerFrom(ctx).Info("Created the Lease of the fleet", "lease", e.options.fleetLease(),
			"division", e.division(), "isHeldAfter", e.options.LeaseDuration)
	}
	return fleet, err
}

func (e *Engine) fleetAnnotations() map[string]string {
	return map[string]string{bucketsAnnotation: strconv.Itoa(len(e.buckets)), kindAnnotation: e.kind.String()}
}

// compareFleet returns an error if replicas of this fleet divide it in another way.
func (e *Engine) compareFleet(fleet *coordinationv1.Lease) error {
	if fleet.Labels[roleLabel] != roleFleet {
		return errors.WithMessagef(errNoFleet, "Lease %s/%s", e.options.Namespace, e.options.fleetLease())
	}
	for key, value := range e.fleetAnnotations() {
		if is := fleet.Annotations[key]; is != value {
			return errors.WithMessagef(errDivided, "fleet %s/%s, by its Lease %s, has %s %q, and this replica has %q",
				e.options.Namespace, e.options.Name, e.options.fleetLease(), key, is, value)
		}
	}
	return nil
}

// fleetLock returns the lock of the fleet's Lease. refuse is called with the error if the fleet is
// divided in another way.
func (e *Engine) fleetLock(refuse context.CancelCauseFunc) resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.options.Namespace, Name: e.options.fleetLease()},
		Client:     fleetLeases{e.leases, e, refuse},
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.division()},
		Labels:     map[string]string{FleetLabel: e.options.Name, roleLabel: roleFleet},
	}
}

// fleetLeases is a client for the Lease of a fleet. It compares what it reads, and creates it as a
// Lease that has to expire before it is held.
type fleetLeases struct {
	coordinationclient.LeasesGetter
	engine *Engine
	refuse context.CancelCauseFunc
}

// Leases implements coordinationclient.LeasesGetter.
func (l fleetLeases) Leases(namespace string) coordinationclient.LeaseInterface {
	return fleetLease{l.LeasesGetter.Leases(namespace), l.engine, l.refuse}
}

type fleetLease struct {
	coordinationclient.LeaseInterface
	engine *Engine
	refuse context.CancelCauseFunc
}

// Get implements coordinationclient.LeaseInterface. A Lease without a holder is one that is new: a
// person, or a replica of another version, may have written it while others act.
func (l fleetLease) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	if err := l.engine.compareFleet(lease); err != nil {
		l.refuse(err)
	}
	if ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
		lease.Spec.HolderIdentity = new(before)
		lease.Spec.LeaseDurationSeconds = new(int32(l.engine.options.LeaseDuration / time.Second))
	}
	return lease, nil // what its holder says about the fence holds all the same
}

// Create implements coordinationclient.LeaseInterface. A LeaderElector would take a Lease that it
// has created for held. This one exists from then on, and is held by those before.
func (l fleetLease) Create(ctx context.Context, lease *coordinationv1.Lease,
	options metav1.CreateOptions) (*coordinationv1.Lease, error) {
	if _, err := l.engine.createFleet(ctx, l.LeaseInterface, options); err != nil {
		return nil, err
	}
	return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), lease.Name)
}
