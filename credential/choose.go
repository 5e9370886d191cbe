package credential

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Choose is the provider for kinds whose objects have different kinds of credentials: for example a
// kubeconfig where the object names one, and a ServiceAccount of the operator's own cluster
// otherwise. choose returns the name of one of the providers. A change of its result is another
// connection, even if both providers lead to the same identity.
//
// choose is called for each reconcile and each For, from any goroutine. The function must depend on
// the object only, must not change the object, and must not do I/O. The text of its errors is shown
// to users: an error that wraps ErrNotAllowed has the reason NotAllowed. Any other error, and a
// name that is not in providers, have the reason InvalidReference.
//
// If one of the providers uses ServiceAccounts, Options.AllowIdentity of clustercache applies to
// the objects for which that provider is chosen. The author of an object thus decides which guard
// applies to it: AllowIdentity for ServiceAccounts, KubeconfigOptions.Allow or Reference for
// Secrets. Each guard must hold on its own. The policies in config/admission refuse objects that
// name no ServiceAccount.
func Choose(choose func(client.Object) (string, error), providers map[string]Provider) Provider {
	return chosen{choose: choose, providers: maps.Clone(providers)}
}

type chosen struct {
	choose    func(client.Object) (string, error)
	providers map[string]Provider
}

func (chosen) sealed() {}

func (c chosen) Bind(host cluster.Cluster, kind identity.Kind,
	counts *metrics.Cache, tracer *tracing.Tracer) (identity.Resolver, error) {
	switch {
	case c.choose == nil:
		return nil, errors.New("Choose needs a function")
	case len(c.providers) == 0:
		return nil, errors.New("Choose needs providers")
	}
	r := &choosingResolver{choose: c.choose, resolvers: map[string]identity.Resolver{}}
	for _, name := range slices.Sorted(maps.Keys(c.providers)) {
		if c.providers[name] == nil {
			return nil, errors.Errorf("the provider %q of Choose is nil", name)
		}
		resolver, err := c.providers[name].Bind(host, kind, counts, tracer)
		if err != nil {
			return nil, errors.WithMessagef(err, "the provider %q of Choose", name)
		}
		r.resolvers[name] = resolver
	}
	return r, nil
}

// choosingResolver passes each extension to the resolver that is chosen for it.
type choosingResolver struct {
	choose    func(client.Object) (string, error)
	resolvers map[string]identity.Resolver
}

// of returns the resolver for an object, and its name.
func (r *choosingResolver) of(object client.Object) (string, identity.Resolver, error) {
	name, err := r.choose(object)
	if err != nil {
		return "", nil, referenceError(err, "choosing a kind of credential")
	}
	resolver, ok := r.resolvers[name]
	if !ok {
		return "", nil, errors.Wrapf(ErrInvalidReference, "choosing a kind of credential: %s is none of %s",
			untrusted.Quote(name), strings.Join(slices.Sorted(maps.Keys(r.resolvers)), ", "))
	}
	return name, resolver, nil
}

func (r *choosingResolver) ServiceAccount(object client.Object) (types.NamespacedName, error) {
	_, resolver, err := r.of(object)
	if err != nil {
		return types.NamespacedName{}, err
	}
	return resolver.ServiceAccount(object)
}

func (r *choosingResolver) UsesServiceAccounts() bool {
	for _, resolver := range r.resolvers {
		if resolver.UsesServiceAccounts() {
			return true
		}
	}
	return false
}

func (r *choosingResolver) Reference(object client.Object) (identity.Reference, error) {
	name, resolver, err := r.of(object)
	if err != nil {
		return identity.Reference{}, err
	}
	reference, err := resolver.Reference(object)
	return qualified(reference, name), err
}

// qualified returns the reference with the name of its provider.
func qualified(reference identity.Reference, provider string) identity.Reference {
	reference.Name = strings.TrimSuffix(provider+": "+reference.Name, ": ")
	return reference
}

func (r *choosingResolver) Resolve(ctx context.Context, object client.Object) (identity.Resolution, error) {
	chosen, resolver, err := r.of(object)
	for name, other := range r.resolvers {
		if err != nil || name != chosen {
			other.Forget(client.ObjectKeyFromObject(object))
		}
	}
	if err != nil {
		return identity.Resolution{}, err
	}
	resolved, err := resolver.Resolve(ctx, object)
	resolved.Key = chosen + "\x00" + resolved.Key
	resolved.Reference = qualified(resolved.Reference, chosen)
	return resolved, err
}

func (r *choosingResolver) Forget(extension client.ObjectKey) {
	for _, resolver := range r.resolvers {
		resolver.Forget(extension)
	}
}

func (r *choosingResolver) Run(ctx context.Context, wake func(client.ObjectKey)) {
	var running sync.WaitGroup
	for _, resolver := range r.resolvers {
		running.Go(func() { resolver.Run(ctx, wake) })
	}
	running.Wait()
}
