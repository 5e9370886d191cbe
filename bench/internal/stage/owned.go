package stage

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// counter counts events, by tenant and kind.
type counter struct{ created, deleted []atomic.Int32 }

// watcher starts sources with a queue that nothing reads, because handlers only count.
type watcher struct {
	ctx   context.Context //nolint:containedctx // a controller's context
	queue workqueue.TypedRateLimitingInterface[ctrl.Request]
}

func (w *watcher) Watch(src source.Source) error { return src.Start(w.ctx, w.queue) }

// watchOwned makes each tenant watch so many kinds in the namespace of its ServiceAccount, and
// returns when all have synced.
func (e *env) watchOwned(ctx context.Context, p *peer.LatchkeyPeer, each int) (*counter, error) {
	counts := &counter{make([]atomic.Int32, e.n*each), make([]atomic.Int32, e.n*each)}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	controller := &watcher{ctx: ctx, queue: queue}
	if err := e.each(ctx, func(ctx context.Context, tenant int) error {
		for k, kind := range kinds[:each] {
			n := tenant*each + k
			if err := p.ClusterCache().Watch(ctx, p.Key(tenant), clustercache.NewWatcher(clustercache.WatcherOptions{
				Name:    kind.resource,
				Watcher: controller,
				Kind:    kind.object(metav1.ObjectMeta{}),
				Scope:   clustercache.Scope{Namespace: e.fleet.Account(tenant)},
				EventHandler: handler.Funcs{
					CreateFunc: func(context.Context, event.CreateEvent, workqueue.TypedRateLimitingInterface[ctrl.Request]) {
						counts.created[n].Add(1)
					},
					DeleteFunc: func(context.Context, event.DeleteEvent, workqueue.TypedRateLimitingInterface[ctrl.Request]) {
						counts.deleted[n].Add(1)
					}},
			})); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return counts, e.untilSynced(ctx, p, each)
}

// untilSynced waits until each tenant has so many scopes that are synced. It asks about one tenant
// at a time, and about each until then only, so that the answers leave little garbage.
func (e *env) untilSynced(ctx context.Context, p *peer.LatchkeyPeer, each int) error {
	first := 0
	return until(ctx, time.Second, "all informers have synced", func() int {
		for ; first < e.n; first++ {
			state, _ := p.ClusterCache().GetConnectionState(ctx, p.Key(first))
			synced := 0
			for _, scope := range state.Scopes {
				if scope.State == scopedcache.StateSynced {
					synced++
				}
			}
			if synced < each {
				break
			}
		}
		return e.n - first
	})
}

// fewer returns how many of the counts are less than n, and more how many are greater.
func fewer(counts []atomic.Int32, n int32) (found int) {
	for i := range counts {
		if counts[i].Load() < n {
			found++
		}
	}
	return found
}

func more(counts []atomic.Int32, n int32) int { return len(counts) - fewer(counts, n+1) }

// change creates or deletes an object of each watched kind in each namespace, and returns when all
// handlers have received as many events as wanted.
func (e *env) change(ctx context.Context, what, name string, delivered []atomic.Int32, want int32,
	do func(context.Context, client.Object) error) error {
	each := len(delivered) / e.n
	if err := e.each(ctx, func(ctx context.Context, tenant int) error {
		if tenant >= e.fleet.Accounts(e.n) { // another has changed its namespace
			return nil
		}
		for _, kind := range kinds[:each] {
			if err := do(ctx, kind.object(metav1.ObjectMeta{Namespace: e.fleet.Account(tenant), Name: name})); err != nil {
				return errors.Wrapf(err, "%s", kind.resource)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return until(ctx, time.Second, fmt.Sprintf("all handlers have received %s %d times", what, want), func() int {
		return fewer(delivered, want)
	})
}

// owned returns a stage that measures tenants that each watch so many kinds in the namespace of
// their ServiceAccount, and what they do when the API server is down for a minute.
func owned(scenario string, each int) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error { return e.measureOwned(ctx, scenario, each) }
}

func (e *env) measureOwned(ctx context.Context, scenario string, each int) error {
	p := e.peer.(*peer.LatchkeyPeer)
	if err := p.Connect(ctx, e.n); err != nil {
		return err
	}
	began := time.Now()
	counts, err := e.watchOwned(ctx, p, each)
	if err != nil {
		return err
	}
	e.values.set(scenario, "sync_s", time.Since(began).Seconds())
	create := func(ctx context.Context, object client.Object) error { return e.admin.Create(ctx, object) }
	remove := func(ctx context.Context, object client.Object) error { return e.admin.Delete(ctx, object) }
	name := fmt.Sprintf("event-%d", began.UnixMilli())
	if err := e.change(ctx, "a creation", name, counts.created, 1, create); err != nil {
		return err
	}
	if err := pause(ctx, e.patient); err != nil {
		return err
	}
	if err := e.reportSize(scenario, ""); err != nil {
		return err
	}
	live := measure() // the rest is garbage, and holes between what is live
	e.values.set(scenario, "live_heap_mib", live.heap/(1<<20))
	e.values.set(scenario, "live_stacks_mib", live.stacks/(1<<20))
	if err := e.profile(scenario + "_live"); err != nil {
		return err
	}

	if err := e.outage(time.Minute); err != nil {
		return err
	}
	began = time.Now()
	if err := e.change(ctx, "a deletion", name, counts.deleted, 1, remove); err != nil { // while the watches come back
		return err
	}
	if err := e.untilSynced(ctx, p, each); err != nil {
		return err
	}
	e.values.set(scenario, "recovery_s", time.Since(began).Seconds())
	tokens, err := e.requests(ctx, `subresource="token"`) // counted since the API server is back
	if err != nil {
		return err
	}
	e.values.set(scenario, "token_requests", tokens)
	if err := e.change(ctx, "a creation", name+"-again", counts.created, 2, create); err != nil {
		return err
	}
	if err := pause(ctx, e.patient); err != nil {
		return err
	}
	e.values.set(scenario, "deleted_twice", float64(more(counts.deleted, 1)))
	// A connection that was lost delivers all objects again when it is back, as documented.
	e.values.set(scenario, "created_again", float64(more(counts.created, 2)))
	if err := e.reportSize(scenario, "_afterwards"); err != nil {
		return err
	}
	return e.change(ctx, "a deletion", name+"-again", counts.deleted, 2, remove)
}

// rbacEdit measures how many reviews of access the API server receives from 1,000 identities with
// five informers each: when nothing changes, and for each edit of a ClusterRole that concerns one
// identity.
func rbacEdit(ctx context.Context, e *env) error {
	const scenario, each, edits = "rbac_edit", 5, 100
	p := e.peer.(*peer.LatchkeyPeer)
	p.WatchRBAC = true
	if err := p.Connect(ctx, e.n); err != nil {
		return err
	}
	if _, err := e.watchOwned(ctx, p, each); err != nil {
		return err
	}
	if err := pause(ctx, 70*time.Second); err != nil { // until the reviews that the start caused are over
		return err
	}
	// count returns the reviews while the function runs, and the following 70 s, in which a change is
	// reviewed twice.
	count := func(change func() error) (reviews, seconds float64, err error) {
		label := `resource="selfsubjectaccessreviews"`
		before, err := e.requests(ctx, label)
		if err != nil {
			return 0, 0, err
		}
		began := time.Now()
		if err := change(); err != nil {
			return 0, 0, err
		}
		if err := pause(ctx, 70*time.Second); err != nil {
			return 0, 0, err
		}
		after, err := e.requests(ctx, label)
		return after - before, time.Since(began).Seconds(), err
	}
	reviews, seconds, err := count(func() error { return pause(ctx, e.idle) })
	if err != nil {
		return err
	}
	atRest := reviews / seconds
	e.values.set(scenario, "reviews_per_s_at_rest", atRest)
	reviews, seconds, err = count(func() error {
		for tenant := range min(edits, e.n) {
			if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				role := &rbacv1.ClusterRole{}
				if err := e.admin.Get(ctx, client.ObjectKey{Name: peer.Name(tenant)}, role); err != nil {
					return err
				}
				role.Rules = append(role.Rules, rbacv1.PolicyRule{
					APIGroups: []string{""},
					Resources: []string{"pods"},
					Verbs:     []string{fmt.Sprintf("verb%d", time.Now().UnixNano())},
				})
				return e.admin.Update(ctx, role)
			}); err != nil {
				return errors.WithStack(err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.values.set(scenario, "reviews_per_edit", (reviews-atRest*seconds)/float64(min(edits, e.n)))
	return nil
}
