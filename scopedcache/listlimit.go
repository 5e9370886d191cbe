package scopedcache

import (
	"context"
	"sync"
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
// of them at most are of one kind, and each counts for ten seconds at most, so that an API server
// that stops in the middle of some lists does not keep the others for long. A list whose answer has
// not begun does not count. The zero value reads 20 at a time. The idea comes from Argo CD, which
// has a semaphore for the lists of its cluster cache.
type ListLimit struct {
	atOnce int64

	start sync.Once
	all   *semaphore.Weighted

	mu    sync.Mutex
	kinds map[schema.GroupVersionResource]*semaphore.Weighted // guarded by mu
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
	ofKind := l.ofKind(kind)
	if err := ofKind.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := l.all.Acquire(ctx, 1); err != nil {
		ofKind.Release(1)
		return nil, err
	}
	giveBack := sync.OnceFunc(func() {
		l.all.Release(1)
		ofKind.Release(1)
	})
	timer := time.AfterFunc(longList, giveBack)
	return func() {
		timer.Stop()
		giveBack()
	}, nil
}

// ofKind returns the limit of one kind.
func (l *ListLimit) ofKind(kind schema.GroupVersionResource) *semaphore.Weighted {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.kinds[kind]
	if known == nil {
		known = semaphore.NewWeighted((l.atOnce + 1) / 2)
		if l.kinds == nil {
			l.kinds = map[schema.GroupVersionResource]*semaphore.Weighted{}
		}
		l.kinds[kind] = known
	}
	return known
}
