package stage

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
	"github.com/latchkey-dev/latchkey/clustercache"
)

// fleet returns a stage that measures identities that are connected and idle.
func fleet(scenario string) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		p := e.peer.(*peer.LatchkeyPeer)
		before, began := measure(), time.Now()
		if err := p.Connect(ctx, e.n); err != nil {
			return err
		}
		e.values.set(scenario, "connect_s", time.Since(began).Seconds())
		if err := pause(ctx, time.Minute); err != nil { // until what only the connects needed is gone
			return err
		}
		connected := time.Now()
		idle, err := e.spent(ctx, func() error { return pause(ctx, e.idle) })
		if err != nil {
			return err
		}
		e.values.set(scenario, "cores", idle.cpu.Seconds()/idle.took.Seconds())
		e.values.set(scenario, "requests_per_s", idle.requests/idle.took.Seconds())
		if err := e.reportSize(scenario, ""); err != nil {
			return err
		}
		unhealthy := e.n
		for _, state := range p.ClusterCache().ListConnectionStates(ctx) {
			if state.Phase == clustercache.PhaseConnected && state.Since.Before(connected) {
				unhealthy--
			}
		}
		e.values.set(scenario, "unhealthy", float64(unhealthy))
		return e.idleHeap(ctx, before)
	}
}

// churn measures GetClient while another tenant connects and disconnects, and then what is left of
// tenants that are deleted.
func churn(ctx context.Context, e *env) error {
	before := measure()
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	churning, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		for churning.Err() == nil && failed == nil {
			failed = e.reconnect(ctx, e.n-1)
		}
	})
	result := e.getClients(ctx, min(10, e.n-1))
	stop()
	wg.Wait()
	if failed != nil {
		return failed
	}
	e.values.set("getclient_churn", "ns", float64(result.T.Nanoseconds())/float64(result.N))

	began := time.Now()
	if err := e.each(ctx, e.remove); err != nil {
		return err
	}
	if err := until(ctx, 100*time.Millisecond, "all have disconnected", func() (left int) {
		for tenant := range e.n {
			if _, err := e.peer.GetClient(ctx, tenant); err == nil {
				left++
			}
		}
		return left
	}); err != nil {
		return err
	}
	e.values.set("delete_1000", "wall_ms", time.Since(began).Seconds()*1000/float64(e.n))
	if err := pause(ctx, e.patient); err != nil {
		return err
	}
	left := measure().per(before, e.n)
	e.values.set("delete_1000", "bytes_left", left.heap)
	e.values.set("delete_1000", "goroutines_left", left.goroutines)
	return e.each(ctx, func(ctx context.Context, tenant int) error {
		return peer.Register(ctx, e.admin, e.peer, tenant)
	})
}

func (e *env) remove(ctx context.Context, tenant int) error {
	host, err := e.peer.Host(tenant)
	if err != nil {
		return err
	}
	return errors.WithStack(e.admin.Delete(ctx, host))
}

// reconnect deletes and creates a tenant, and returns when it is connected.
func (e *env) reconnect(ctx context.Context, tenant int) error {
	if err := e.remove(ctx, tenant); err != nil {
		return err
	}
	connected := func() int {
		if _, err := e.peer.GetClient(ctx, tenant); err == nil {
			return 1
		}
		return 0
	}
	if err := until(ctx, 10*time.Millisecond, "it has disconnected", connected); err != nil {
		return err
	}
	if err := peer.Register(ctx, e.admin, e.peer, tenant); err != nil {
		return err
	}
	return until(ctx, 10*time.Millisecond, "it is connected", func() int { return 1 - connected() })
}

// restart measures how long after a restart of the API server all tenants see a new object.
func restart(ctx context.Context, e *env) error {
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	if err := e.readAll(ctx, func(c client.Client) error {
		return errors.WithStack(c.List(ctx, &corev1.LimitRangeList{}, client.InNamespace(Hundred)))
	}); err != nil {
		return err
	}
	if err := e.outage(10 * time.Second); err != nil {
		return err
	}
	began := time.Now()
	object := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{
		Namespace: Hundred,
		Name:      fmt.Sprintf("restart-%s-%s", e.name, strconv.FormatInt(began.UnixMilli(), 10)),
	}}
	if err := e.admin.Create(ctx, object); err != nil {
		return errors.WithStack(err)
	}
	tenant := 0 // those before see the object
	if err := until(ctx, 100*time.Millisecond, "all tenants see a new object", func() int {
		for ; tenant < e.n; tenant++ {
			c, err := e.peer.GetClient(ctx, tenant)
			if err != nil || c.Get(ctx, client.ObjectKeyFromObject(object), &corev1.LimitRange{}) != nil {
				break
			}
		}
		return e.n - tenant
	}); err != nil {
		return err
	}
	e.values.set("restart", "s", time.Since(began).Seconds())
	return errors.WithStack(e.admin.Delete(ctx, object))
}
