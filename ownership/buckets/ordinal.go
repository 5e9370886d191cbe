package buckets

import (
	"context"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/ownership"
)

// ForOrdinal returns an engine without Leases, for the Pods of a StatefulSet: the Pod with this
// ordinal, which counts from 0 (label apps.kubernetes.io/pod-index), has one of as many buckets as
// the StatefulSet has replicas. The StatefulSet ensures that no two Pods have one ordinal, so do
// not delete its Pods with --force. While a Pod does not run, its extensions have no replica. To
// change the number of replicas, scale to 0 first: Pods that count to different numbers would serve
// the same extensions.
func ForOrdinal(ordinal, replicas int) (ownership.Engine, error) {
	if replicas < 1 {
		return nil, errors.Errorf("the number of replicas must be 1 at least, not %d", replicas)
	}
	if ordinal < 0 || ordinal >= replicas {
		return nil, errors.Errorf("the ordinal must be from 0 to %d, not %d", replicas-1, ordinal)
	}
	return &ordinalEngine{ordinal: ordinal, replicas: replicas}, nil
}

type ordinalEngine struct {
	ordinal, replicas int
	running           atomic.Bool
}

// Kind implements ownership.Engine.
func (*ordinalEngine) Kind() ownership.Kind { return ownership.Shared }

// Check implements ownership.Engine.
func (*ordinalEngine) Check(schema.GroupKind, bool) error { return nil }

// Owns implements ownership.Engine.
func (o *ordinalEngine) Owns(extension client.Object) (term *fence.Term, owned bool) {
	return nil, o.running.Load() && o.has(extension)
}

func (o *ordinalEngine) has(extension client.Object) bool {
	return bucketOf(extension.GetUID(), o.replicas) == o.ordinal
}

// Run implements ownership.Engine.
func (o *ordinalEngine) Run(ctx context.Context, replica ownership.Replica) error {
	o.running.Store(true)
	defer o.running.Store(false)
	if err := replica.Take(ctx, o.has); err != nil && ctx.Err() == nil {
		ctrl.LoggerFrom(ctx).Info("Not all extensions could be tried yet", "error", err.Error())
	}
	<-ctx.Done()
	o.running.Store(false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holding.GiveUpTimeout)
	defer cancel()
	return replica.GiveUp(ctx, o.has)
}
