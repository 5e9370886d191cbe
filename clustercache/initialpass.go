package clustercache

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// initialPass finds out when every extension has been reconciled once, whatever the result: those
// of the first list, and those that appear before the controller runs. With EnableWarmup the list
// is complete long before the replica leads. Its methods may be called from any goroutine.
type initialPass struct {
	done chan struct{} // closed then

	mu      sync.Mutex
	listed  bool                          // guarded by mu; whether waiting has had the whole list
	runs    bool                          // guarded by mu; whether the controller runs and can read extensions
	past    map[client.ObjectKey]struct{} // guarded by mu; reconciled already; nil when done is closed
	waiting map[client.ObjectKey]struct{} // guarded by mu; nil when done is closed
}

func newInitialPass() *initialPass {
	return &initialPass{
		done:    make(chan struct{}),
		waiting: map[client.ObjectKey]struct{}{},
		past:    map[client.ObjectKey]struct{}{},
	}
}

// found notes an extension.
func (p *initialPass) found(key client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.foundLocked(key)
}

func (p *initialPass) foundLocked(key client.ObjectKey) {
	if _, past := p.past[key]; !past && p.waiting != nil {
		p.waiting[key] = struct{}{}
	}
}

// complete notes that found has been called for the whole list.
func (p *initialPass) complete() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed = true
	p.finishLocked()
}

// begins notes that the controller runs, and can read the extensions, of which these are all. A
// cache of which nothing may be read counts as listed, so the list alone proves nothing.
func (p *initialPass) begins(all ...client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range all {
		p.foundLocked(key)
	}
	p.runs = true
	p.finishLocked()
}

// reconciled notes that an extension has been reconciled.
func (p *initialPass) reconciled(key client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		return
	}
	delete(p.waiting, key)
	p.past[key] = struct{}{}
	p.finishLocked()
}

func (p *initialPass) finishLocked() {
	if p.listed && p.runs && p.waiting != nil && len(p.waiting) == 0 {
		p.waiting, p.past = nil, nil
		close(p.done)
	}
}

// trackingHandler notes the extensions whose creations it hands on.
type trackingHandler struct {
	handler.EventHandler
	pass *initialPass
}

// Create implements handler.EventHandler.
func (h trackingHandler) Create(ctx context.Context, e event.CreateEvent,
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	h.pass.found(client.ObjectKeyFromObject(e.Object))
	h.EventHandler.Create(ctx, e, queue)
}

// trackingSource notes when its handler has received the whole list. Controllers wait for that
// before they reconcile.
type trackingSource struct {
	source.SyncingSource
	pass *initialPass
}

// WaitForSync implements source.SyncingSource.
func (s trackingSource) WaitForSync(ctx context.Context) error {
	err := s.SyncingSource.WaitForSync(ctx)
	if err == nil && ctx.Err() == nil { // the library returns nil when ctx is done
		s.pass.complete()
	}
	return err
}

// String implements fmt.Stringer, for the log.
func (s trackingSource) String() string { return fmt.Sprint(s.SyncingSource) }
