package ownership

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership/internal/holding"
)

// LeaderOptions configure InsteadOfLeader. Lease and Holder are required.
type LeaderOptions struct {
	// Lease is that of the leader election.
	Lease types.NamespacedName
	// Holder is what the Lease has as its holder while replicas share. It is the same for all replicas that
	// share in one way, such as "buckets", and differs from the identities of leaders.
	Holder string
	// LeaseDuration is that of the engine. Defaults to 15 s.
	LeaseDuration time.Duration
}

// InsteadOfLeader returns an engine for replicas that share what one leader served before. The leader and
// the replicas would not know of each other while a rolling update replaces the one with the others, or
// takes that back. So the replicas that share hold the Lease of the leader election together:
//
//   - Run waits until no leader holds the Lease. Then it runs engine.
//   - No leader can take the Lease while one replica runs, nor for the LeaseDuration and 10 s after the last
//     one.
//   - If the Lease is lost, Run ends engine, and returns an error, which ends the manager.
//
// Do not use the Lease of a leader election that goes on beside the sharing. config is that of the host
// operator, which needs get, create and update on the Lease. InsteadOfLeader sends no request.
func InsteadOfLeader(engine Engine, config *rest.Config, options LeaderOptions) (Engine, error) {
	if options.Lease.Name == "" || options.Lease.Namespace == "" || options.Holder == "" {
		return nil, errors.New("LeaderOptions.Lease and LeaderOptions.Holder must be set")
	}
	times := holding.Times{LeaseDuration: options.LeaseDuration}.WithDefaults()
	if err := times.Validate(); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Timeout = times.RenewDeadline / 2 // a request that hangs leaves time for another one
	leases, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for Leases")
	}
	// The fence closes after LeaseDuration, and the Lease lasts longer, so that the extensions are given up
	// before a leader can take it.
	lasts := times.LeaseDuration + holding.GiveUpPatience
	e := &insteadOfLeader{Engine: engine, options: options, times: times, lasts: lasts}
	e.setClient(leases)
	return e, nil
}

// setClient makes the lock of the Lease, and its fence.
func (e *insteadOfLeader) setClient(leases coordinationclient.LeasesGetter) {
	e.lock, e.fence = fence.ForLeaderElection(togetherLock{&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.options.Lease.Namespace, Name: e.options.Lease.Name},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.options.Holder},
	}}, e.times.LeaseDuration)
}

// insteadOfLeader holds the Lease of a leader election while its engine runs.
type insteadOfLeader struct {
	Engine
	options LeaderOptions
	times   holding.Times
	lasts   time.Duration // how long the Lease lasts without a renewal
	lock    resourcelock.Interface
	fence   *fence.Fence
}

// Owns implements Engine. Requests pass the fence of the engine, and that of the Lease: a replica that was
// suspended finds out there that a leader may act.
func (e *insteadOfLeader) Owns(extension client.Object) (f *fence.Fence, owned bool) {
	f, owned = e.Engine.Owns(extension)
	switch {
	case !owned:
		return nil, false
	case f == nil:
		return e.fence, true
	}
	return f.Within(e.fence), true
}

// Run implements Engine.
func (e *insteadOfLeader) Run(ctx context.Context, replica Replica) error {
	logger := ctrl.LoggerFrom(ctx).WithValues("lease", e.options.Lease)
	begun, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: reportingLock{e.lock, logger}, LeaseDuration: e.lasts, RenewDeadline: e.times.RenewDeadline,
		RetryPeriod: e.times.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(begun) }, OnStoppedLeading: func() {},
			OnNewLeader: func(holder string) {
				if holder != e.options.Holder {
					logger.Info("Waits until the leader has ended", "holder", holder)
				}
			},
		},
	})
	if err != nil {
		return errors.Wrap(err, "setting up the Lease of the leader election")
	}
	// The Lease is held until the engine has ended. Messages of the elector are logged at verbosity 2.
	election, end := context.WithCancel(ctrl.LoggerInto(context.WithoutCancel(ctx), logger.V(2)))
	go func() {
		defer close(ended)
		elector.Run(election)
	}()
	defer func() {
		end()
		<-ended
	}()
	select {
	case <-begun:
	case <-ctx.Done():
		return nil
	}
	sharing, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	if term := e.fence.Term(); term == nil {
		lost(fence.ErrClosed)
	} else {
		defer context.AfterFunc(term.Context(), func() { lost(context.Cause(term.Context())) })()
	}
	go func() {
		select {
		case <-ended: // the Lease could not be renewed, and still lasts for as long as giving up takes
			lost(fence.ErrClosed)
		case <-sharing.Done():
		}
	}()
	err = e.Engine.Run(sharing, replica)
	if cause := context.Cause(sharing); err == nil && errors.Is(cause, fence.ErrClosed) {
		err = errors.WithMessagef(cause, "Lease %s, which keeps leaders away", e.options.Lease)
	}
	return err
}

// togetherLock is a lock that replicas hold together. Each renewal of one makes the version that the others
// know an old one.
type togetherLock struct{ resourcelock.Interface }

// conflictTries is how often an update of a Lease that is still held by all is tried.
const conflictTries = 10

// Update implements resourcelock.Interface.
func (l togetherLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	for try := 1; ; try++ {
		err := l.Interface.Update(ctx, record)
		if !apierrors.IsConflict(err) || try == conflictTries {
			return err
		}
		if held, _, failed := l.Get(ctx); failed != nil || held.HolderIdentity != l.Identity() {
			return err
		}
	}
}

// reportingLock logs why a lock cannot be read or written. A LeaderElector does so at a verbosity only.
type reportingLock struct {
	resourcelock.Interface
	logger logr.Logger
}

// Get implements resourcelock.Interface.
func (l reportingLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	return record, raw, l.report(err)
}

// Create implements resourcelock.Interface.
func (l reportingLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.report(l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l reportingLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.report(l.Interface.Update(ctx, record))
}

// report logs an error, except those that are a part of the protocol: another replica was faster.
func (l reportingLock) report(err error) error {
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) &&
		!errors.Is(err, context.Canceled) {
		l.logger.Info("Cannot hold the Lease that keeps leaders away; this program needs get, create and update on it",
			"error", err.Error())
	}
	return err
}
