package fake

import (
	"context"
	"sync"
	"testing"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// Controller stands for a controller in a test: it starts the sources and watches that it gets, and
// records the requests that they enqueue, in place of a Reconcile. Its methods may be called from
// any goroutine.
type Controller struct {
	ctx   context.Context
	queue workqueue.TypedRateLimitingInterface[ctrl.Request]

	mu       sync.Mutex
	requests []ctrl.Request // guarded by mu; not returned yet
	changed  chan struct{}  // guarded by mu; closed when the next request is recorded
}

var _ clustercache.SourceWatcher[ctrl.Request] = (*Controller)(nil)

// NewController returns a Controller that ends with the test. Pass it to sources with Watch, and to
// watches as WatcherOptions.Watcher.
func NewController(t testing.TB) *Controller {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &Controller{
		ctx:     ctx,
		changed: make(chan struct{}),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]()),
	}
	var running sync.WaitGroup
	running.Go(c.record)
	t.Cleanup(func() {
		cancel()
		c.queue.ShutDown()
		running.Wait()
	})
	return c
}

// Watch starts the source.
func (c *Controller) Watch(src source.Source) error { return src.Start(c.ctx, c.queue) }

// record moves requests from the queue to requests.
func (c *Controller) record() {
	for {
		request, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		c.queue.Forget(request)
		c.queue.Done(request)
		c.mu.Lock()
		c.requests = append(c.requests, request)
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
}

// Next returns the next request, after waiting for it if necessary. Next returns the context's
// error if ctx ends first.
func (c *Controller) Next(ctx context.Context) (ctrl.Request, error) {
	for {
		c.mu.Lock()
		changed := c.changed
		if len(c.requests) > 0 {
			next := c.requests[0]
			c.requests = c.requests[1:]
			c.mu.Unlock()
			return next, nil
		}
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctrl.Request{}, context.Cause(ctx)
		}
	}
}

// Requests returns the requests since the last call of Requests or Next, and does not wait. A
// request that was enqueued several times before it was recorded is there once, as in any queue.
func (c *Controller) Requests() []ctrl.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests := c.requests
	c.requests = nil
	return requests
}
