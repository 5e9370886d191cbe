package ownership

import (
	"context"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
)

// Leader returns an engine for a host operator with leader election: the replica that holds the
// lease of f has all extensions. [fence.ForLeaderElection] returns f.
//
// While f is closed, no request of a connection starts, and requests under way end. A replica that
// was suspended or cut off thus sends nothing as a tenant that another replica may already serve.
// Streams such as those of exec do not end: client-go dials their TCP connections itself.
// Connections end with the lease, with the reason NotLeading. When f opens again, the extensions
// are connected again.
//
// Several ClusterCaches may each have a Leader of the same f.
func Leader(f *fence.Fence) Engine { return leader{f} }

// leader is an engine of a replica that has all extensions while its fence is open.
type leader struct{ fence *fence.Fence }

// Kind implements Engine.
func (leader) Kind() Kind { return OneLeads }

// Check implements Engine.
func (l leader) Check(schema.GroupKind, bool) error {
	if l.fence == nil {
		return errors.New("the fence of ownership.Leader is nil: fence.ForLeaderElection returns one")
	}
	return nil
}

// Owns implements Engine.
func (l leader) Owns(client.Object) (term *fence.Term, owned bool) {
	return l.fence.Term(), l.fence.Open()
}

// Run implements Engine. What the replica has ends with the lease, so Run gives nothing up.
func (l leader) Run(ctx context.Context, replica Replica) error {
	var taking sync.WaitGroup
	defer taking.Wait()
	end := func() {}
	l.fence.Watch(ctx, func() {
		end() // of the term before
		taking.Wait()
		var term context.Context
		if term, end = context.WithCancel(ctx); l.fence.Open() {
			taking.Go(func() { _ = replica.Take(term, func(client.Object) bool { return true }) })
		}
	})
	end()
	return nil
}
