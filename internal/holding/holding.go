package holding

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/fence"
)

// GiveUpTimeout bounds giving up, which waits 5 s for event handlers that hang.
const GiveUpTimeout = 10 * time.Second

// Times are the times of a leader election.
type Times struct {
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// WithDefaults sets the times that are 0: 15 s, two thirds of the lease, a seventh of the lease.
func (t Times) WithDefaults() Times {
	if t.LeaseDuration == 0 {
		t.LeaseDuration = 15 * time.Second
	}
	if t.RenewDeadline == 0 {
		t.RenewDeadline = t.LeaseDuration * 2 / 3
	}
	if t.RetryPeriod == 0 {
		t.RetryPeriod = t.LeaseDuration / 7
	}
	return t
}

// Validate returns an error that names the field of Options that is wrong.
func (t Times) Validate() error {
	switch {
	case t.LeaseDuration < time.Second || t.LeaseDuration%time.Second != 0:
		return errors.Errorf("Options.LeaseDuration must be whole seconds, not %s", t.LeaseDuration)
	case t.RenewDeadline >= t.LeaseDuration:
		return errors.Errorf("Options.RenewDeadline %s must be less than LeaseDuration %s", t.RenewDeadline, t.LeaseDuration)
	case t.RetryPeriod <= 0 || t.RetryPeriod*6/5 >= t.RenewDeadline: // client-go's own condition
		return errors.Errorf("Options.RetryPeriod %s must be positive, and by a fifth less than RenewDeadline %s",
			t.RetryPeriod, t.RenewDeadline)
	}
	return nil
}

// Options configure Hold.
type Options struct {
	Times
	// Timeout is how long Hold tries to get the lease; 0 is no limit.
	Timeout time.Duration
	// Keep says when the lease is left to expire, instead of being released when serve has returned.
	Keep Keep
	// Margin is how much longer the lease lasts than the fence stays open.
	Margin time.Duration
	// Waits is called when another identity holds the lease; nil for nothing.
	Waits func(holder string)
}

// Keep says when a lease is left to expire.
type Keep int

// The values of Keep.
const (
	KeepNever  Keep = iota
	KeepLost        // if it could not be renewed in time
	KeepAlways      // others hold it too, with the same identity
)

// Hold takes the lease of lock, and calls serve while it holds it, with the term that lasts as
// long. The context of serve is done when the lease is lost, or ctx is done. When serve returns,
// Hold releases the lease, as Options.Keep says, and returns true. Hold returns false if it does
// not get the lease while ctx lasts, nor before Options.Timeout is over.
func Hold(ctx context.Context, options Options, lock resourcelock.Interface,
	serve func(ctx context.Context, term *fence.Term)) (held bool) {
	times := options.Times
	fenced, f := fence.ForLeaderElection(lock, times.LeaseDuration)
	deferred := &deferredRelease{Interface: fenced}
	begun, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            deferred,
		LeaseDuration:   times.LeaseDuration + options.Margin,
		RenewDeadline:   times.RenewDeadline,
		RetryPeriod:     times.RetryPeriod,
		ReleaseOnCancel: options.Keep != KeepAlways,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(begun) },
			OnStoppedLeading: func() {},
			OnNewLeader: func(holder string) {
				if options.Waits != nil && holder != "" && holder != lock.Identity() {
					options.Waits(holder)
				}
			},
		},
	})
	if err != nil { // Validate lets no such times pass
		ctrl.LoggerFrom(ctx).Error(err, "The times of the leader election are wrong")
		return false
	}
	// The election ends after serve. Its messages are logged at verbosity 2.
	election, release := context.WithCancel(ctrl.LoggerInto(context.WithoutCancel(ctx), ctrl.LoggerFrom(ctx).V(2)))
	go func() {
		defer close(ended)
		elector.Run(election)
	}()
	defer func() {
		release()
		<-ended
		if !held && options.Keep != KeepAlways {
			releaseUnseen(ctx, fenced, times)
		}
	}()
	waiting := ctx
	if options.Timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, options.Timeout)
		defer cancel()
	}
	select {
	case <-begun:
	case <-waiting.Done():
		deferred.served(ctx, times, false) // nothing is served
		return false
	}
	term := f.Term()
	if term.Err() != nil {
		deferred.served(ctx, times, false)
		return false
	}
	serving, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	defer context.AfterFunc(term.Context(), func() { lost(context.Cause(term.Context())) })()
	go func() {
		select {
		case <-ended:
			lost(fence.ErrClosed)
		case <-serving.Done():
		}
	}()
	serve(serving, term)
	lostLease := errors.Is(context.Cause(serving), fence.ErrClosed)
	deferred.served(ctx, times, options.Keep == KeepAlways || options.Keep == KeepLost && lostLease)
	return true
}

// deferredRelease releases its lock only after serve has returned. A LeaderElector that cannot
// renew its lease in time releases it by itself, at once.
type deferredRelease struct {
	resourcelock.Interface

	mu       sync.Mutex
	done     bool                               // guarded by mu; serve has returned
	kept     bool                               // guarded by mu; the lease is not released any more
	deferred *resourcelock.LeaderElectionRecord // guarded by mu
}

// Update implements resourcelock.Interface.
func (d *deferredRelease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && d.putOff(record) {
		return nil
	}
	return d.Interface.Update(ctx, record)
}

func (d *deferredRelease) putOff(record resourcelock.LeaderElectionRecord) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.done {
		d.deferred = &record
	}
	return !d.done || d.kept
}

// served lets the lock be released, and releases it if that was put off, unless it is to be kept.
func (d *deferredRelease) served(ctx context.Context, times Times, keep bool) {
	d.mu.Lock()
	d.done, d.kept = true, keep
	record := d.deferred
	d.mu.Unlock()
	if record == nil || keep {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), times.RenewDeadline)
	defer cancel()
	_, _, err := d.Get(ctx) // the fenced lock releases no lease that has another holder by now
	if err == nil {
		err = d.Interface.Update(ctx, *record)
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("A lease that was lost is not released", "lock", d.Describe(), "error", err.Error())
	}
}

// releaseUnseen releases a lease that was taken by a request whose answer did not come: the elector
// ended before, and does not know of it.
func releaseUnseen(ctx context.Context, lock resourcelock.Interface, times Times) {
	timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), times.RenewDeadline)
	defer cancel()
	record, _, err := lock.Get(timeout)
	if err != nil || record.HolderIdentity != lock.Identity() {
		return
	}
	now := metav1.Now()
	err = lock.Update(timeout, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1,
		RenewTime:            now,
		AcquireTime:          now,
		LeaderTransitions:    record.LeaderTransitions,
	})
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("A lease was not released, and will expire", "lock", lock.Describe(),
			"error", err.Error())
	}
}
