package ownership

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/internal/term"
)

// LeaderOptions configure WithLeaderLease. Lease and Holder are required.
type LeaderOptions struct {
	// Lease is that of the leader election.
	Lease types.NamespacedName
	// Holder is the holder of the Lease while replicas share, for example "replicas that share by 64
	// buckets". All replicas that share in the same way have the same Holder. Replicas that share in
	// another way have another one. A leader must not have it as its identity.
	Holder string
	// LeaseDuration is that of the engine. Defaults to 15 s.
	LeaseDuration time.Duration
}

// WithLeaderLease returns an engine for replicas that share what one leader served before. During a
// rolling update to sharing, or back, a leader and replicas that share run at the same time, and do
// not know of each other. So the replicas that share hold the Lease of the leader election
// together:
//
//   - Run waits until no leader holds the Lease. Then it runs engine. The result is a Waiter.
//   - No leader can take the Lease while one replica runs, nor for the LeaseDuration and 10 s after
//     the last one.
//   - If the Lease is lost, Run ends engine and returns an error, which ends the manager. Run also
//     returns an error if engine is a Fitter and does not fit.
//
// Do not use the Lease of a leader election that goes on beside the sharing. config has the
// permissions of the host operator, which needs get, create and update on the Lease.
// WithLeaderLease sends no request.
func WithLeaderLease(engine Engine, config *rest.Config, options LeaderOptions) (Engine, error) {
	if options.Lease.Name == "" || options.Lease.Namespace == "" || options.Holder == "" {
		return nil, errors.New("LeaderOptions.Lease and LeaderOptions.Holder must be set")
	}
	if engine.Kind() != Shared {
		return nil, errors.New("the engine must be one with which replicas share the extensions")
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
	return &withLeaderLease{Engine: engine, options: options, times: times, leases: leases}, nil
}

// withLeaderLease holds the Lease of a leader election while its engine runs.
type withLeaderLease struct {
	Engine
	options LeaderOptions
	times   holding.Times
	leases  coordinationclient.LeasesGetter
	term    atomic.Pointer[fence.Term] // in which the Lease is held; nil before
	joined  joinedTerms                // of the engine's terms with that
}

// Waiting implements Waiter.
func (e *withLeaderLease) Waiting() bool { return e.term.Load() == nil }

// Owns implements Engine. Requests need the term of the engine, and that of the Lease: a replica
// that was suspended finds out there that a leader may act.
func (e *withLeaderLease) Owns(extension client.Object) (term *fence.Term, owned bool) {
	leaderLease := e.term.Load()
	if leaderLease == nil {
		return nil, false
	}
	term, owned = e.Engine.Owns(extension)
	switch {
	case !owned:
		return nil, false
	case term == nil:
		return leaderLease, true
	}
	return e.joined.of(term, leaderLease), true
}

// Run implements Engine.
func (e *withLeaderLease) Run(ctx context.Context, replica Replica) (err error) {
	logger := ctrl.LoggerFrom(ctx).WithValues("lease", e.options.Lease)
	if err := e.fits(ctx); err != nil {
		return err
	}
	ctx, refuse := context.WithCancel(ctx)
	defer refuse()
	stopAsking := e.askWhileItWaits(ctx, refuse)
	defer func() { err = cmp.Or(stopAsking(), err) }()
	options := holding.Options{
		Times:  e.times,
		Keep:   holding.KeepAlways,
		Margin: holding.GiveUpTimeout, // the fence closes, all is given up, and only then a leader can take the Lease
		Waits:  func(holder string) { logger.Info("Waits until the leader has ended", "holder", holder) },
	}
	held := holding.Hold(ctx, options, holding.Together(e.lock(), logger), func(holds context.Context, term *fence.Term) {
		e.term.Store(term)
		if err = stopAsking(); err != nil {
			return
		}
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

// fits returns an error if the engine knows that other replicas divide the extensions in another
// way: they may hold the Lease for good.
func (e *withLeaderLease) fits(ctx context.Context) error {
	if engine, ok := e.Engine.(Fitter); ok {
		return engine.Fits(ctx)
	}
	return nil
}

// askWhileItWaits calls fits now and then, until stop is called, which returns its error. After an
// error, refuse is called.
func (e *withLeaderLease) askWhileItWaits(ctx context.Context, refuse func()) (stop func() error) {
	asking, cancel := context.WithCancel(ctx)
	misfit := make(chan error, 1)
	go func() {
		defer close(misfit)
		err := wait.PollUntilContextCancel(asking, e.times.RetryPeriod, false, func(ctx context.Context) (bool, error) {
			return false, e.fits(ctx)
		})
		if asking.Err() == nil {
			misfit <- err
			refuse()
		}
	}()
	return sync.OnceValue(func() error {
		cancel()
		return <-misfit
	})
}

func (e *withLeaderLease) lock() resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.options.Lease.Namespace, Name: e.options.Lease.Name},
		Client:     e.leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.options.Holder},
	}
}

// joinedTerms returns the same term for the same two terms, while both last.
type joinedTerms struct {
	mu    sync.Mutex
	terms map[[2]*fence.Term]*fence.Term // guarded by mu; those that last
}

func (j *joinedTerms) of(a, b *fence.Term) *fence.Term {
	both := [2]*fence.Term{a, b}
	j.mu.Lock()
	defer j.mu.Unlock()
	if joined, ok := j.terms[both]; ok {
		return joined
	}
	joined, _ := term.Join(a, b)
	if j.terms == nil {
		j.terms = map[[2]*fence.Term]*fence.Term{}
	}
	j.terms[both] = joined
	context.AfterFunc(joined.Context(), func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.terms, both)
	})
	return joined
}
