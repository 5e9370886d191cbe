package scopedcache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// defaultLists is how many lists are read at a time.
	defaultLists = 20
	// longList is how long a list counts: one that takes longer may be one whose rest never comes.
	longList = 10 * time.Second
)

// ListLimit bounds how many lists of informers are read from one API server at a time, in
// Options.ListLimit. So a restart with thousands of informers does not fill memory with lists. Half
// of them at most are of one kind, and each counts for ten seconds at most. A kind whose lists take
// longer has turns of its own until one is in time again, so that a kind whose lists hang keeps the
// others for ten seconds at most. The zero value reads 20 at a time. The idea comes from Argo CD,
// which has a semaphore for the lists of its cluster cache.
type ListLimit struct {
	atOnce int64

	start sync.Once
	all   *semaphore.Weighted

	mu    sync.Mutex
	kinds map[schema.GroupVersionResource]*kindLimit // guarded by mu
}

// kindLimit is the limit of one kind.
type kindLimit struct {
	turns *semaphore.Weighted
	slow  atomic.Bool // its latest list took too long
}

// NewListLimit returns a limit of so many lists at a time, at least 1.
func NewListLimit(atOnce int) *ListLimit { return &ListLimit{atOnce: int64(max(atOnce, 1))} }

// acquire waits for the turn of a list. The caller must call release when the list has been read.
func (l *ListLimit) acquire(ctx context.Context, kind schema.GroupVersionResource) (release func(), err error) {
	l.start.Do(func() {
		if l.atOnce == 0 {
			l.atOnce = defaultLists
		}
		l.all = semaphore.NewWeighted(l.atOnce)
	})
	own := l.ofKind(kind)
	if err := own.turns.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	among := l.all
	if own.slow.Load() {
		among = semaphore.NewWeighted(1)
	}
	if err := among.Acquire(ctx, 1); err != nil {
		own.turns.Release(1)
		return nil, err
	}
	giveBack := sync.OnceFunc(func() {
		among.Release(1)
		own.turns.Release(1)
	})
	timer := time.AfterFunc(longList, func() {
		own.slow.Store(true)
		giveBack()
	})
	return func() {
		if timer.Stop() {
			own.slow.Store(false)
		}
		giveBack()
	}, nil
}

// ofKind returns the limit of one kind.
func (l *ListLimit) ofKind(kind schema.GroupVersionResource) *kindLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.kinds[kind]
	if known == nil {
		known = &kindLimit{turns: semaphore.NewWeighted((l.atOnce + 1) / 2)}
		if l.kinds == nil {
			l.kinds = map[schema.GroupVersionResource]*kindLimit{}
		}
		l.kinds[kind] = known
	}
	return known
}
