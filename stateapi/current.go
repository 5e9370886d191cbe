package stateapi

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

const (
	// overlap is for how long after a replica has begun to serve the one before may do so, too: it
	// hands over, and then its server ends.
	overlap = handOverTimeout + handOverGrace + 3*time.Second
	// catchUpTimeout bounds how long a read waits for what the other replicas have.
	catchUpTimeout = 2 * silence
	// catchUpAtMost is for how long after the overlap reads wait, if there is a replica that never
	// says that it was heard out.
	catchUpAtMost = 4 * catchUpTimeout
)

// current lets reads wait for what the other replicas have, while one of them may serve, too, or
// has just done so: it may have shown what this replica has not heard yet, and what is shown never
// goes back. This is how Kubernetes serves consistent reads from a cache (KEP-2340). Its methods
// may be called from any goroutine.
type current struct {
	// catchUp waits until this replica has heard what all others had when it was called. It returns
	// false if that is not known of one of them.
	catchUp func(ctx context.Context) bool
	turn    *semaphore.Weighted // one catches up at a time, for all that wait

	mu    sync.Mutex
	reads reads // guarded by mu
}

// reads says which reads must wait. It decides only.
type reads struct {
	wait  bool
	alone time.Time // when no other replica serves any more
	last  time.Time // when that which ended last began to catch up
}

func newCurrent(catchUp func(ctx context.Context) bool) *current {
	return &current{catchUp: catchUp, turn: semaphore.NewWeighted(1)}
}

// shared says that from now on another replica may serve, for the time of overlap.
func (r *reads) shared(now time.Time) { *r = reads{wait: true, alone: now.Add(overlap)} }

// mustWait reports whether a read must wait that has come at some time.
func (r *reads) mustWait(arrived time.Time) bool { return r.wait && r.last.Before(arrived) }

// caughtUp says that what all had at a time was heard, or what all had that could be asked.
func (r *reads) caughtUp(begun time.Time, all bool) {
	r.last = begun
	if all && begun.After(r.alone) || begun.After(r.alone.Add(catchUpAtMost)) {
		r.wait = false
	}
}

func (c *current) shared() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads.shared(time.Now())
}

func (c *current) mustWait(arrived time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads.mustWait(arrived)
}

// await waits until a read that comes now may be answered.
func (c *current) await(ctx context.Context) error {
	arrived := time.Now()
	if !c.mustWait(arrived) {
		return nil
	}
	if err := c.turn.Acquire(ctx, 1); err != nil {
		return errors.Wrap(err, "waiting for the other replicas")
	}
	defer c.turn.Release(1)
	if !c.mustWait(arrived) { // another read has caught up meanwhile
		return nil
	}
	begun := time.Now()
	bounded, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	all := c.catchUp(bounded)
	if err := ctx.Err(); err != nil {
		return errors.Wrap(err, "waiting for the other replicas")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads.caughtUp(begun, all)
	return nil
}

// currentStore is a store whose reads are current.
type currentStore[T, TList runtime.Object] struct {
	*apiserver.MemoryStore[T, TList]
	current *current
}

// List implements apiserver.Lister.
func (s *currentStore[T, TList]) List(ctx apiserver.Context, options *metav1.ListOptions) (list TList, err error) {
	if err := s.current.await(ctx); err != nil {
		return list, err
	}
	return s.MemoryStore.List(ctx, options)
}

// Get implements apiserver.Getter.
func (s *currentStore[T, TList]) Get(ctx apiserver.Context, name string, options *metav1.GetOptions) (object T,
	err error) {
	if err := s.current.await(ctx); err != nil {
		return object, err
	}
	return s.MemoryStore.Get(ctx, name, options)
}

// Watch implements apiserver.Watcher. A watch may begin with what there is.
func (s *currentStore[T, TList]) Watch(ctx apiserver.Context, options *metav1.ListOptions) (
	<-chan apiserver.WatchEvent[T], error) {
	if err := s.current.await(ctx); err != nil {
		return nil, err
	}
	return s.MemoryStore.Watch(ctx, options)
}
