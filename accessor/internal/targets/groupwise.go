package targets

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/restmapper"
)

// tooMuchFor is how long a server whose discovery was too much is asked for single groups only.
// What was read until then was in vain, and more than anything else that members read.
const tooMuchFor = 5 * time.Minute

// tooMuchError says that a whole discovery is too much.
type tooMuchError struct{ error }

// Unwrap returns the reason.
func (e *tooMuchError) Unwrap() error { return e.error }

// groupwise holds the kinds of single groups, of a server whose whole discovery is too much. The
// zero value is ready to use.
type groupwise struct {
	mu     sync.Mutex
	reason *tooMuchError     // guarded by mu; of the latest discovery that was too much; nil for none
	until  time.Time         // guarded by mu; when the next one may be tried
	kinds  map[string]*kinds // guarded by mu; by group
}

// tooMuch returns the reason if no discovery is to be tried at that time.
func (g *groupwise) tooMuch(now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reason == nil || !now.Before(g.until) {
		return nil
	}
	return g.reason
}

// setTooMuch records that a discovery was too much.
func (g *groupwise) setTooMuch(now time.Time, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reason, g.until = &tooMuchError{err}, now.Add(tooMuchFor)
	return g.reason
}

func (g *groupwise) known(group string) *kinds {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kinds[group]
}

func (g *groupwise) set(group string, found *kinds) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.kinds == nil {
		g.kinds = map[string]*kinds{}
	}
	if earlier := g.kinds[group]; earlier == nil || earlier.at.Before(found.at) {
		g.kinds[group] = found
	}
}

// forget makes the next lookups ask again.
func (g *groupwise) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.kinds {
		k.stale.Store(true)
	}
}

// lookupGroup is lookup where a whole discovery is too much, for a reason. Each member asks for
// itself, within its own rate limit, and all use what is found.
func lookupGroup[T any](ctx context.Context, m *Mapper, group string, reason error,
	ask func(meta.RESTMapper) (T, error)) (T, error) {
	explain := func(result T, err error) (T, error) {
		if noResource := (*meta.NoResourceMatchError)(nil); errors.As(err, &noResource) && group == "" {
			err = reason // a resource without its group may be in any
		}
		return result, err
	}
	known := m.kinds.groups.known(group)
	if known != nil {
		result, err := ask(known.mapper)
		if known.fresh() || (!meta.IsNoMatchError(err) && !known.stale.Load()) {
			return explain(result, err)
		}
	}
	found, err := m.askGroup(ctx, group)
	switch {
	case err == nil:
		m.kinds.groups.set(group, found)
		return explain(ask(found.mapper))
	case known != nil && known.stale.Load():
		return explain(ask(known.mapper)) // stale kinds are better than none
	default:
		var none T
		return none, errors.WithMessagef(err, "%v; discovering group %q alone", reason, group)
	}
}

// askGroup discovers one group, with our own credential. The group need not exist.
func (m *Mapper) askGroup(ctx context.Context, group string) (*kinds, error) {
	ctx, cancel := m.bounded(ctx)
	defer cancel()
	client, limit, err := m.discoveryClient(m.config)
	if err != nil {
		return nil, err
	}
	result := &kinds{at: time.Now()}
	description := metav1.APIGroup{Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "v1", Version: "v1"}}}
	if group != "" {
		description = metav1.APIGroup{}
		err = client.RESTClient().Get().AbsPath("/apis", group).Do(ctx).Into(&description)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	description.Name = group
	resources := &restmapper.APIGroupResources{Group: description, VersionedResources: map[string][]metav1.APIResource{}}
	for _, version := range description.Versions {
		list, err := client.ServerResourcesForGroupVersionWithContext(ctx, version.GroupVersion)
		switch {
		case limit.Exceeded() != nil:
			return nil, limit.Exceeded()
		case apierrors.IsNotFound(err): // it has just gone
		case err != nil:
			return nil, err
		default:
			resources.VersionedResources[version.Version] = list.APIResources
		}
	}
	result.groups = []*restmapper.APIGroupResources{resources}
	trim(result.groups)
	result.mapper = restmapper.NewDiscoveryRESTMapper(result.groups)
	return result, nil
}
