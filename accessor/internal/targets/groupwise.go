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

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// tooMuchFor is how long a server whose discovery was too much is asked for single groups only.
// What was read until then was in vain, and more than anything else that members read.
const tooMuchFor = 5 * time.Minute

// tooMuchError says that a whole discovery is too much.
type tooMuchError struct{ error }

// Unwrap returns the reason.
func (e *tooMuchError) Unwrap() error { return e.error }

func isTooMuch(err error) bool { return errors.As(err, new(*tooMuchError)) }

// groupwise holds the kinds of single groups, of a server whose whole discovery is too much, or
// whose group has changed since the last one. The zero value is ready to use.
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

// set notes what was found of a group. All groups together take at most maxBytes, as discoveries
// count them: what was found first goes. So do groups without kinds, which any name makes, when
// they are old.
func (g *groupwise) set(group string, found *kinds, maxBytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.kinds == nil {
		g.kinds = map[string]*kinds{}
	}
	if earlier := g.kinds[group]; earlier == nil || earlier.at.Before(found.at) {
		g.kinds[group] = found
	}
	sum := int64(0)
	for name, k := range g.kinds {
		if sum += k.memory; k.empty() && !k.fresh() {
			delete(g.kinds, name)
		}
	}
	for sum > maxBytes && len(g.kinds) > 1 {
		oldest := ""
		for name, k := range g.kinds {
			if oldest == "" && name != group || name != group && k.at.Before(g.kinds[oldest].at) {
				oldest = name
			}
		}
		sum -= g.kinds[oldest].memory
		delete(g.kinds, oldest)
	}
}

// replaced drops what is older than a discovery of all groups.
func (g *groupwise) replaced(at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, k := range g.kinds {
		if k.at.Before(at) {
			delete(g.kinds, name)
		}
	}
}

// empty reports whether no version of any group was found.
func (k *kinds) empty() bool {
	for _, group := range k.groups {
		if len(group.VersionedResources) > 0 {
			return false
		}
	}
	return len(k.failed) == 0
}

// forget makes the next lookups ask again.
func (g *groupwise) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.kinds {
		k.stale.Store(true)
	}
}

// lookupGroup is lookup where a whole discovery is too much, for a reason.
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
			return explain(result, known.explain(err))
		}
	}
	found, err := m.discoverGroup(ctx, group, nil)
	if err == nil {
		if known == nil || len(found.failed) == 0 { // else more is known
			m.kinds.groups.set(group, found, m.maxBytes)
		}
		var result T
		if result, err = answer(found, ask); err == nil || meta.IsNoMatchError(err) {
			return explain(result, err)
		}
	}
	if known != nil {
		if result, err := ask(known.mapper); err == nil {
			return result, nil // stale kinds are better than none
		}
	}
	var none T
	return none, errors.WithMessagef(err, "%v; discovering group %q alone", reason, group)
}

// askGroup discovers one group, with our own credential, within the timeout of our client. The
// group need not exist. A version whose discovery fails does not hide the others.
func (m *Mapper) askGroup(group string) (*kinds, error) {
	ctx, cancel := m.bounded(context.WithValue(context.Background(), namesMayNotExist{}, true))
	defer cancel()
	client, limit, err := m.discoveryClient()
	if err != nil {
		return nil, err
	}
	result := newKinds()
	description := metav1.APIGroup{Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "v1", Version: "v1"}}}
	if group != "" {
		description = metav1.APIGroup{}
		err = client.RESTClient().Get().AbsPath("/apis", group).Do(ctx).Into(&description)
	}
	if exceeded := limit.Exceeded(); exceeded != nil {
		return nil, &tooMuchError{exceeded}
	} else if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	description.Name = group
	resources := &restmapper.APIGroupResources{Group: description, VersionedResources: map[string][]metav1.APIResource{}}
	for _, version := range description.Versions {
		list, err := client.ServerResourcesForGroupVersionWithContext(ctx, version.GroupVersion)
		switch {
		case limit.Exceeded() != nil:
			return nil, &tooMuchError{limit.Exceeded()}
		case apierrors.IsNotFound(err): // it has just gone
		case err != nil:
			result.failed = map[string]error{group: errors.WithMessagef(forOthers(err),
				"discovering the kinds that %s serves in %s", m.target.Host(), untrusted.Quote(version.GroupVersion))}
		default:
			resources.VersionedResources[version.Version] = list.APIResources
		}
	}
	if failure := result.failed[group]; failure != nil && len(resources.VersionedResources) == 0 {
		return nil, failure
	}
	result.groups = []*restmapper.APIGroupResources{resources}
	trim(result.groups)
	result.mapper = restmapper.NewDiscoveryRESTMapper(result.groups)
	result.memory = limit.Used()
	return result, nil
}

// namesMayNotExist is the key of a context whose requests are for paths that need not exist: that
// one does not exist says nothing about what is known.
type namesMayNotExist struct{}
