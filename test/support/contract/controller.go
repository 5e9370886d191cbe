package contract

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// controller is a started controller without a queue: its handlers record the events.
type controller struct {
	before func(context.Context) // called first by every handler, if not nil

	mu      sync.Mutex
	started int             // guarded by mu; number of started sources
	events  []string        // guarded by mu
	seen    map[string]bool // guarded by mu; types of objects
}

func newController() *controller {
	return &controller{seen: map[string]bool{}}
}

// Watch starts a source.
func (c *controller) Watch(src source.Source) error {
	c.mu.Lock()
	c.started++
	c.mu.Unlock()
	return src.Start(context.Background(), nil)
}

func (c *controller) note(ctx context.Context, verb string, object client.Object) {
	if c.before != nil {
		c.before(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[fmt.Sprintf("%T", object)] = true
	c.events = append(c.events, verb+" "+object.GetName())
	object.SetName("handlers get copies") // and may change them
}

func (c *controller) Create(ctx context.Context, e event.CreateEvent,
	_ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	c.note(ctx, "create", e.Object)
}

func (c *controller) Update(ctx context.Context, e event.UpdateEvent,
	_ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	c.note(ctx, "update", e.ObjectNew)
}

func (c *controller) Delete(ctx context.Context, e event.DeleteEvent,
	_ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	c.note(ctx, "delete", e.Object)
}

func (c *controller) Generic(context.Context, event.GenericEvent,
	workqueue.TypedRateLimitingInterface[reconcile.Request]) {
}

func (c *controller) heard() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.events...)
}

func (c *controller) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = nil
}

func (c *controller) sources() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started
}

func (c *controller) types() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}
