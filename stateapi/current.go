package stateapi

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/internal/merge"
)

const (
	// overlap is for how long after a replica has begun to serve the one before may do so, too: it
	// hands over, and then its server ends.
	overlap = handOverTimeout + handOverGrace + 3*time.Second
	// catchUpTimeout bounds how long it may take to hear what the other replicas have.
	catchUpTimeout = 2 * silence
	// lastReads is for how long reads still wait after the end of their server has begun.
	lastReads = 2 * time.Second
)

// current makes the reads of a server wait for what the other replicas have, while one of them may
// serve, too, or has just done so: it may have shown what this replica has not heard yet, and what
// is shown never goes back. This is how Kubernetes serves consistent reads from a cache (KEP-2340).
// Its methods may be called from any goroutine.
type current struct {
	term *fence.Term // in which this replica serves
	// catchUp waits until this replica has heard what all others had when it was called, or ctx is
	// done. It returns an error if that is not known of one of them, which is shown as Unknown then.
	catchUp func(ctx context.Context) error
	wanted  chan struct{} // has one if a read waits
	ended   chan struct{} // closed when run ends

	mu     sync.Mutex
	reads  merge.Reads   // guarded by mu
	until  time.Time     // guarded by mu; by when this replica has handed over; zero while it does not
	caught chan struct{} // guarded by mu; closed when the reads that wait now may be answered
}

// newCurrent returns the current of a server that begins: the one before may serve, too.
func newCurrent(term *fence.Term, catchUp func(ctx context.Context) error) *current {
	c := &current{
		term:    term,
		catchUp: catchUp,
		wanted:  make(chan struct{}, 1),
		ended:   make(chan struct{}),
		caught:  make(chan struct{}),
		reads:   merge.NewReads(overlap),
	}
	c.reads.Shared(time.Now())
	return c
}

// handOver says that this replica gives up its term, and serves on until another one serves: from
// now on another one may. If the term is over already, another one may have served for long.
func (c *current) handOver() {
	now := time.Now() // before the term is looked at: the process may be suspended in between
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads.Shared(now)
	if c.term.Err() == nil {
		c.until = now.Add(overlap)
	}
}

// check returns an error if another replica may serve that does not reckon with this one any more.
// The server ends then, but may not have done so yet: its process may have been suspended.
func (c *current) check() error {
	c.mu.Lock()
	until := c.until
	c.mu.Unlock()
	if until.IsZero() && c.term.Err() == nil || time.Now().Before(until) {
		return nil
	}
	return errAnotherServes()
}

// errAnotherServes returns an error after which clients try again.
func errAnotherServes() error {
	err := apierrors.NewServiceUnavailable("another replica serves")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// run catches up whenever reads wait, once for all that wait when it begins, until ctx is done. So
// it goes on when a read gives up.
func (c *current) run(ctx context.Context) {
	defer close(c.ended)
	logged := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-c.wanted:
		}
		c.mu.Lock()
		answers := c.caught
		c.caught = make(chan struct{})
		c.mu.Unlock()
		begun := time.Now()
		bounded, cancel := context.WithTimeout(ctx, catchUpTimeout)
		err := c.catchUp(bounded)
		cancel()
		if err != nil && !logged && ctx.Err() == nil {
			logged = true
			log.FromContext(ctx).Info("What a replica has is Unknown until it is heard out: another one may have shown more",
				"reason", untrusted.Shorten(err.Error()))
		}
		if ctx.Err() != nil { // those that wait get an error, and not what there is
			return
		}
		c.mu.Lock()
		c.reads.CaughtUp(begun)
		c.mu.Unlock()
		close(answers)
	}
}

// read waits until a read that comes now may be answered, calls answer, and checks that this
// replica still serves.
func (c *current) read(ctx context.Context, answer func() error) error {
	if err := c.await(ctx); err != nil {
		return err
	}
	if err := answer(); err != nil {
		return err
	}
	return c.check() // last, since the process may be suspended at any time
}

// await waits until a read that comes now may be answered.
func (c *current) await(ctx context.Context) error {
	c.mu.Lock()
	wait, caught := c.reads.MustWait(), c.caught
	c.mu.Unlock()
	if !wait {
		return nil
	}
	select {
	case c.wanted <- struct{}{}:
	default:
	}
	select {
	case <-caught:
		return nil
	case <-c.ended:
		select {
		case <-caught: // at the same time
			return nil
		default:
			return errAnotherServes()
		}
	case <-ctx.Done():
		return apierrors.NewTimeoutError("waiting for what the other replicas have", 1)
	}
}

// currentStore is a store whose reads are current.
type currentStore[T, TList runtime.Object] struct {
	*apiserver.MemoryStore[T, TList]
	current *current
}

// List implements apiserver.Lister.
func (s *currentStore[T, TList]) List(ctx apiserver.Context, options *metav1.ListOptions) (list TList, err error) {
	err = s.current.read(ctx, func() error {
		list, err = s.MemoryStore.List(ctx, options)
		return err
	})
	return list, err
}

// Get implements apiserver.Getter.
func (s *currentStore[T, TList]) Get(ctx apiserver.Context, name string, options *metav1.GetOptions) (object T,
	err error) {
	err = s.current.read(ctx, func() error {
		object, err = s.MemoryStore.Get(ctx, name, options)
		return err
	})
	return object, err
}

// Watch implements apiserver.Watcher. A watch may begin with what there is.
func (s *currentStore[T, TList]) Watch(ctx apiserver.Context, options *metav1.ListOptions) (
	events <-chan apiserver.WatchEvent[T], err error) {
	err = s.current.read(ctx, func() error {
		events, err = s.MemoryStore.Watch(ctx, options)
		return err
	})
	return events, err
}
