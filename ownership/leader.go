package ownership

import (
	"context"
	"time"

	"github.com/pkg/errors"
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
	// When the Lease is lost, the extensions are given up before a leader can take it.
	lasts := times.LeaseDuration + holding.GiveUpPatience
	e := &insteadOfLeader{Engine: engine, options: options, times: times, lasts: lasts}
	e.lock, e.fence = fence.ForLeaderElection(&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: options.Lease.Namespace, Name: options.Lease.Name},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: options.Holder},
	}, lasts)
	return e, nil
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

// Owns implements Engine. A replica that was suspended finds out here that a leader may act.
func (e *insteadOfLeader) Owns(extension client.Object) (f *fence.Fence, owned bool) {
	if !e.fence.Open() {
		return nil, false
	}
	return e.Engine.Owns(extension)
}

// Run implements Engine.
func (e *insteadOfLeader) Run(ctx context.Context, replica Replica) error {
	logger := ctrl.LoggerFrom(ctx).WithValues("lease", e.options.Lease)
	begun, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, LeaseDuration: e.lasts, RenewDeadline: e.times.RenewDeadline, RetryPeriod: e.times.RetryPeriod,
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
