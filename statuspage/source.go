package statuspage

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// source has what the page shows.
type source interface {
	// follow reports all extensions, and then those that have changed, until ctx is done.
	follow(ctx context.Context, report func([]client.ObjectKey))
	// get returns what is shown of an extension, and false if there is none.
	get(ctx context.Context, key client.ObjectKey) (shown, bool)
	// ask is get with what changes all the time.
	ask(ctx context.Context, key client.ObjectKey) (shown, bool)
	// list returns all extensions, sorted.
	list(ctx context.Context) []shown
}

// ownSource has the connections of this process.
type ownSource struct{ connections clustercache.ClusterCache }

func (o ownSource) follow(ctx context.Context, report func([]client.ObjectKey)) {
	o.connections.SubscribeStates(ctx, report)
}

func (o ownSource) get(ctx context.Context, key client.ObjectKey) (shown, bool) {
	state, known := o.connections.GetConnectionState(ctx, key)
	return own(state), known
}

func (o ownSource) ask(ctx context.Context, key client.ObjectKey) (shown, bool) {
	return o.get(ctx, key)
}

func (o ownSource) list(ctx context.Context) (all []shown) {
	for _, state := range o.connections.ListConnectionStates(ctx) {
		all = append(all, own(state))
	}
	return all
}

// fleetSource has the connections of all replicas.
type fleetSource struct {
	replicas Replicas
	known    func() []client.ObjectKey // the extensions that were reported, sorted
}

func (f fleetSource) follow(ctx context.Context, report func([]client.ObjectKey)) {
	f.replicas.Follow(ctx, report)
}

func (f fleetSource) get(_ context.Context, key client.ObjectKey) (shown, bool) {
	c, scopes, known := f.replicas.Show(key)
	if !known {
		return shown{}, false
	}
	return ofFleet(c, scopes), true
}

// askTimeout is how long the replica that has an extension may take to answer.
const askTimeout = 3 * time.Second

func (f fleetSource) ask(ctx context.Context, key client.ObjectKey) (shown, bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, scopes, known := f.replicas.Ask(ctx, key)
	if !known {
		return shown{}, false
	}
	return ofFleet(c, scopes), true
}

func (f fleetSource) list(ctx context.Context) (all []shown) {
	for _, key := range f.known() {
		if s, known := f.get(ctx, key); known {
			all = append(all, s)
		}
	}
	return all
}
