package ownership

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
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
	return &insteadOfLeader{Engine: engine, options: options, times: times, leases: leases}, nil
}

// insteadOfLeader holds the Lease of a leader election while its engine runs.
type insteadOfLeader struct {
	Engine
	options LeaderOptions
	times   holding.Times
	leases  coordinationclient.LeasesGetter
	fence   atomic.Pointer[fence.Fence] // nil before the Lease is held
}

// Owns implements Engine. Requests pass the fence of the engine, and that of the Lease: a replica that was
// suspended finds out there that a leader may act.
func (e *insteadOfLeader) Owns(extension client.Object) (f *fence.Fence, owned bool) {
	outer := e.fence.Load()
	if outer == nil {
		return nil, false
	}
	f, owned = e.Engine.Owns(extension)
	switch {
	case !owned:
		return nil, false
	case f == nil:
		return outer, true
	}
	return f.Within(outer), true
}

// Run implements Engine.
func (e *insteadOfLeader) Run(ctx context.Context, replica Replica) (err error) {
	logger := ctrl.LoggerFrom(ctx).WithValues("lease", e.options.Lease)
	options := holding.Options{Times: e.times, Keep: holding.KeepAlways,
		Margin: holding.GiveUpPatience, // the fence closes, all is given up, and only then a leader can take the Lease
		Waits:  func(holder string) { logger.Info("Waits until the leader has ended", "holder", holder) }}
	held := holding.Hold(ctx, options, togetherLock{e.lock(), logger}, func(holds context.Context, f *fence.Fence) {
		e.fence.Store(f)
		err = e.Engine.Run(holds, replica)
		if cause := context.Cause(holds); err == nil && errors.Is(cause, fence.ErrClosed) {
			err = errors.WithMessagef(cause, "Lease %s, which keeps leaders away", e.options.Lease)
		}
	})
	if !held && ctx.Err() == nil {
		err = errors.Errorf("Lease %s, which keeps leaders away, was lost at once", e.options.Lease)
	}
	return err
}

func (e *insteadOfLeader) lock() resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.options.Lease.Namespace, Name: e.options.Lease.Name},
		Client:     e.leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.options.Holder},
	}
}

// togetherLock is a lock that replicas hold together: each renewal of one makes the version that the others
// know an old one. It logs why it cannot be read or written, which a LeaderElector does at a verbosity only.
type togetherLock struct {
	resourcelock.Interface
	logger logr.Logger
}

// conflictTries is how often an update of a Lease that is still held by all is tried.
const conflictTries = 10

// Get implements resourcelock.Interface.
func (l togetherLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	return record, raw, l.report(err)
}

// Create implements resourcelock.Interface.
func (l togetherLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.report(l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l togetherLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	for try := 1; ; try++ {
		err := l.Interface.Update(ctx, record)
		if !apierrors.IsConflict(err) || try == conflictTries {
			return l.report(err)
		}
		if held, _, failed := l.Get(ctx); failed != nil || held.HolderIdentity != l.Identity() {
			return err
		}
	}
}

// report logs an error, except those that are a part of the protocol: another replica was faster.
func (l togetherLock) report(err error) error {
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) &&
		!errors.Is(err, context.Canceled) {
		l.logger.Info("Cannot hold the Lease that keeps leaders away; this program needs get, create and update on it",
			"error", err.Error())
	}
	return err
}
