package stage

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
)

// readAll makes each tenant read.
func (e *env) readAll(ctx context.Context, read func(client.Client) error) error {
	return e.each(ctx, func(ctx context.Context, tenant int) error {
		c, err := e.peer.GetClient(ctx, tenant)
		if err != nil {
			return err
		}
		return read(c)
	})
}

// objects measures what it costs that all tenants see the same 1,000 ConfigMaps of 1 KiB.
func objects(ctx context.Context, e *env) error {
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	before := measure()
	if err := e.readAll(ctx, func(c client.Client) error {
		return readOne(ctx, c)
	}); err != nil {
		return err
	}
	e.values.set("same_objects_1000", "bytes", measure().per(before, e.n).heap)
	return nil
}

// disjoint measures what it costs that each tenant sees 100 ConfigMaps of 1 KiB of its own.
func disjoint(ctx context.Context, e *env) error {
	const each = 100
	if err := e.each(ctx, func(ctx context.Context, tenant int) error {
		for n := range each {
			err := e.admin.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: peer.Name(tenant), Name: fmt.Sprintf("object-%04d", n)},
				Data:       map[string]string{"content": strings.Repeat(fmt.Sprintf("%04d ", n), 200)}})
			if client.IgnoreAlreadyExists(err) != nil {
				return errors.WithStack(err)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if plain, ok := e.peer.(*peer.PlainPeer); ok {
		plain.OwnNamespaces = true
	}
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	before := measure()
	if err := e.each(ctx, func(ctx context.Context, tenant int) error {
		c, err := e.peer.GetClient(ctx, tenant)
		if err != nil {
			return err
		}
		list := &corev1.ConfigMapList{}
		if err := c.List(ctx, list, client.InNamespace(peer.Name(tenant))); err != nil {
			return errors.WithStack(err)
		}
		if len(list.Items) != each {
			return errors.Errorf("read %d objects, want %d", len(list.Items), each)
		}
		return nil
	}); err != nil {
		return err
	}
	e.values.set("disjoint_objects", "bytes", measure().per(before, e.n).heap)
	return nil
}

// readOne reads one ConfigMap, which starts the informer of all in its namespace, or of all.
func readOne(ctx context.Context, c client.Client) error {
	return errors.WithStack(c.Get(ctx, client.ObjectKey{Namespace: Shared, Name: "object-0000"}, &corev1.ConfigMap{}))
}

// informers measures the TCP connections of an informer for each tenant, and what another informer
// costs, of a kind without objects.
func informers(ctx context.Context, e *env) error {
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	// The first informer also makes clients and caches that are made when they are first used.
	peak, err := e.whileCountingConnections(ctx, func() error {
		return e.readAll(ctx, func(c client.Client) error {
			return c.List(ctx, &corev1.LimitRangeList{}, client.InNamespace(peer.Namespace))
		})
	})
	if err != nil {
		return err
	}
	if err := pause(ctx, e.patient); err != nil {
		return err
	}
	open, err := connections(e.config.Host)
	if err != nil {
		return err
	}
	e.values.set("tcp_connections", "connections", float64(open))
	e.values.set("tcp_connections", "peak", float64(max(peak, open)))

	before := measure()
	if err := e.profile("empty_informer_before"); err != nil {
		return err
	}
	if err := e.readAll(ctx, func(c client.Client) error { return c.List(ctx, &corev1.PodTemplateList{}) }); err != nil {
		return err
	}
	if err := pause(ctx, e.patient); err != nil {
		return err
	}
	added := measure().per(before, e.n)
	e.values.set("empty_informer", "heap_bytes", added.heap)
	e.values.set("empty_informer", "stack_bytes", added.stacks)
	e.values.set("empty_informer", "bytes", added.heap+added.stacks)
	e.values.set("empty_informer", "goroutines", added.goroutines)
	return e.profile("empty_informer")
}

// whileCountingConnections returns the most TCP connections that were open while f ran.
func (e *env) whileCountingConnections(ctx context.Context, f func() error) (peak int, err error) {
	counting, stop := context.WithCancel(ctx)
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		for counting.Err() == nil {
			if open, err := connections(e.config.Host); err == nil {
				peak = max(peak, open)
			}
			select {
			case <-counting.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	err = f()
	stop()
	<-counted
	return peak, err
}

// reads measures the first read of a kind, reads of a warm cache, and how long an event takes to
// reach a handler.
func reads(ctx context.Context, e *env) error {
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	var first []float64
	for tenant := range e.n {
		c, err := e.peer.GetClient(ctx, tenant)
		if err != nil {
			return err
		}
		list := &corev1.LimitRangeList{}
		began := time.Now()
		if err := c.List(ctx, list, client.InNamespace(Hundred)); err != nil {
			return errors.WithStack(err)
		}
		first = append(first, time.Since(began).Seconds()*1000)
		if len(list.Items) != 100 {
			return errors.Errorf("read %d objects, want 100", len(list.Items))
		}
	}
	e.values.set("first_read_100", "ms", median(first))
	// A process with less on its heap collects garbage more often, which is not a property of reads.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30)
	c, err := e.peer.GetClient(ctx, 0)
	if err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: Hundred, Name: "object-0000"}
	get := func() error { return c.Get(ctx, key, &corev1.LimitRange{}) }
	list := func() error { return c.List(ctx, &corev1.LimitRangeList{}, client.InNamespace(Hundred)) }
	for scenario, read := range map[string]func() error{"warm_get": get, "warm_list": list} {
		var ns []float64
		for range 5 {
			result := testing.Benchmark(func(b *testing.B) {
				for b.Loop() {
					if err := read(); err != nil {
						b.Fatal(err)
					}
				}
			})
			ns = append(ns, float64(result.T.Nanoseconds())/float64(result.N))
		}
		e.values.set(scenario, "ns", median(ns))
	}
	if err := eventLatency(ctx, e); err != nil && !errors.Is(err, peer.ErrCannot) {
		return err
	}
	return nil
}

// eventLatency measures the time from the answer to a create until a handler has the object.
func eventLatency(ctx context.Context, e *env) error {
	c, err := e.peer.Cache(ctx, 0)
	if err != nil {
		return err
	}
	admin, err := client.New(e.config, client.Options{})
	if err != nil {
		return errors.WithStack(err)
	}
	informer, err := c.GetInformer(ctx, &corev1.ConfigMap{})
	if err != nil {
		return errors.WithStack(err)
	}
	received := make(chan string, 4096) // more than there are objects
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { received <- object.(client.Object).GetName() },
	}); err != nil {
		return errors.WithStack(err)
	}
	var took []float64
	for n := range 200 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace:    Hundred,
			GenerateName: fmt.Sprintf("event-%s-%d-", e.name, n),
		}}
		began := time.Now()
		if err := admin.Create(ctx, object); err != nil {
			return errors.WithStack(err)
		}
		for name := ""; name != object.Name; {
			select {
			case name = <-received:
			case <-time.After(30 * time.Second):
				return errors.Errorf("no event of %s", object.Name)
			}
		}
		took = append(took, time.Since(began).Seconds()*1000)
		if err := admin.Delete(ctx, object); err != nil {
			return errors.WithStack(err)
		}
	}
	e.values.set("event_latency", "ms", median(took))
	return nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
