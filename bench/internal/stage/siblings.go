package stage

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
)

// siblings measures tenants of which many have one ServiceAccount. First one of each ServiceAccount
// reads two kinds, then all others do, and then each writes once. What a further tenant costs is on
// top of what it costs while it is idle.
func siblings(ctx context.Context, e *env) error {
	const scenario = "shared_identity"
	idle := measure()
	if err := e.peer.Connect(ctx, e.n); err != nil {
		return err
	}
	connected := measure()
	e.values.set(scenario, "idle_bytes", connected.per(idle, e.n).heap+connected.per(idle, e.n).stacks)
	watches, err := e.watches(ctx)
	if err != nil {
		return err
	}
	reviews, err := e.requests(ctx, `resource="selfsubjectaccessreviews"`)
	if err != nil {
		return err
	}
	accounts := peer.Siblings.Accounts(e.n)
	took := make([]time.Duration, e.n)
	read := func(ctx context.Context, tenant int) error {
		c, err := e.peer.GetClient(ctx, tenant)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := c.List(ctx, &corev1.LimitRangeList{}, client.InNamespace(Hundred)); err != nil {
			return errors.WithStack(err)
		}
		took[tenant] = time.Since(began)
		return errors.WithStack(c.List(ctx, &corev1.PodTemplateList{}, client.InNamespace(Hundred)))
	}
	all := e.n
	e.n = accounts
	if err := e.each(ctx, read); err != nil {
		return err
	}
	e.n = all
	first := measure()
	if err := e.each(ctx, func(ctx context.Context, tenant int) error {
		if tenant < accounts {
			return nil
		}
		return read(ctx, tenant)
	}); err != nil {
		return err
	}
	reading := measure()
	further := reading.per(first, all-accounts)
	e.values.set(scenario, "reader_bytes", further.heap+further.stacks)
	e.values.set(scenario, "reader_goroutines", further.goroutines)
	e.values.set(scenario, "goroutines", reading.goroutines-connected.goroutines)
	later := took[accounts:]
	slices.Sort(later)
	e.values.set(scenario, "first_read_us", float64(later[len(later)/2].Nanoseconds())/1000)
	if err := e.reportWatches(ctx, scenario, watches, reviews); err != nil {
		return err
	}
	if err := e.each(ctx, func(ctx context.Context, tenant int) error {
		c, err := e.peer.GetClient(ctx, tenant)
		if err != nil {
			return err
		}
		return errors.WithStack(c.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"},
			},
		}))
	}); err != nil {
		return err
	}
	writing := measure().per(reading, all)
	e.values.set(scenario, "writer_bytes", writing.heap+writing.stacks)
	return e.reportProbes(ctx, scenario)
}

// reportWatches sets the watches and access reviews since there were so many.
func (e *env) reportWatches(ctx context.Context, scenario string, watches, reviews float64) error {
	watchesNow, err := e.watches(ctx)
	if err != nil {
		return err
	}
	reviewsNow, err := e.requests(ctx, `resource="selfsubjectaccessreviews"`)
	if err != nil {
		return err
	}
	e.values.set(scenario, "watches_per_kind", (watchesNow-watches)/2)
	e.values.set(scenario, "access_reviews", reviewsNow-reviews)
	return nil
}

// reportProbes sets how many requests an idle minute takes: probes, and watches that are renewed.
func (e *env) reportProbes(ctx context.Context, scenario string) error {
	before, err := e.requests(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, time.Minute); err != nil {
		return err
	}
	after, err := e.requests(ctx)
	e.values.set(scenario, "requests_per_minute", after-before)
	return err
}
