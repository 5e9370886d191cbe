package targets

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// rediscoverAfter is how long "no such kind" stays cached, and therefore the shortest time between
// two discoveries.
const rediscoverAfter = 5 * time.Second

// maxRequests bounds the requests of one discovery, atOnce how many of them are under way at a
// time, and MaxDiscoveryBytes the memory, as untrusted.Budget counts it. A server that a kubeconfig
// names may answer anything. A thousand CustomResourceDefinitions take 4 MB, and cost one request
// or two, or one for each group and version.
const (
	maxRequests       = 10_000
	atOnce            = 50
	MaxDiscoveryBytes = 64 << 20
)

// numbers counts the discoveries of this process.
var numbers atomic.Uint64

// discovered holds the kinds that a target serves, as its members discovered them.
type discovered struct {
	shared sharedDiscovery
	latest atomic.Pointer[kinds] // nil before the first discovery
	groups groupwise             // groups that were asked for alone since
	anew   recent                // the discoveries of single groups that members share
}

// kinds is the outcome of one discovery.
type kinds struct {
	number uint64 // of the discovery
	mapper meta.RESTMapper
	groups []*restmapper.APIGroupResources // what mapper is made of
	failed map[string]error                // why a group's kinds are not known, by group
	at     time.Time                       // start of the discovery
	memory int64                           // how much of the budget the discovery took
	stale  atomic.Bool                     // a path in the result turned out not to exist
}

func (k *kinds) fresh() bool { return time.Since(k.at) < rediscoverAfter }

func (d *discovered) forget() {
	if k := d.latest.Load(); k != nil {
		k.stale.Store(true)
	}
	d.groups.forget()
}

// Mapper is a meta.RESTMapper based on the discovery results of all members of a target. On a miss,
// Mapper runs a discovery with its own client, one for all concurrent callers, and holds no lock
// meanwhile. Mapper may be used from any goroutine.
//
// "No such kind" stays cached for 5 s, so a kind that was just installed is found within that time.
// Where a whole discovery is too much, Mapper asks for the group that a lookup names.
type Mapper struct {
	tries     tries
	target    *Target
	kinds     *discovered // of the target
	userAgent string
	client    *http.Client
	maxBytes  int64
}

var _ meta.RESTMapper = (*Mapper)(nil)

// Mapper returns a mapper that discovers through client, which authenticates, and within its
// timeout. userAgent is sent along, client-go's if it is empty. maxBytes bounds the memory of one
// discovery; 0 for the default.
func (t *Target) Mapper(userAgent string, client *http.Client, maxBytes int64) *Mapper {
	return &Mapper{
		target:    t,
		kinds:     &t.kinds,
		userAgent: userAgent,
		client:    client,
		maxBytes:  cmp.Or(maxBytes, MaxDiscoveryBytes),
	}
}

// lookup answers from the cached kinds, and runs a discovery if they do not suffice. lookup returns
// when ctx is done. A discovery under way continues for other callers, bounded by the client's
// timeout and life. group is the group of what is looked up, which is asked for alone where a whole
// discovery is too much, or takes too long.
func lookup[T any](ctx context.Context, m *Mapper, group string, ask func(meta.RESTMapper) (T, error)) (T, error) {
	cached := m.kinds.latest.Load()
	if group != "" { // without a group, a resource may be in any
		cached = m.current(group)
	}
	if cached != nil {
		result, err := ask(cached.mapper)
		if cached.fresh() || (!meta.IsNoMatchError(err) && !cached.stale.Load()) {
			return result, cached.explain(err)
		}
	}
	var result T
	newKinds, err := m.discover(ctx)
	if err == nil {
		result, err = answer(newKinds, ask)
	}
	// All groups may take too long, although one alone does not.
	if isTooMuch(err) || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		result, err = lookupGroup(ctx, m, group, err, ask)
	}
	if err == nil || meta.IsNoMatchError(err) {
		return result, err
	}
	if cached != nil {
		if result, known := answer(cached, ask); known == nil {
			return result, nil // stale kinds are better than none
		}
	}
	var none T
	return none, err
}

// discover returns all kinds, by a discovery that the members share.
func (m *Mapper) discover(ctx context.Context) (*kinds, error) {
	return m.kinds.shared.discover(ctx, m.ask, m.kinds.latest.Load)
}

// answer answers from the kinds. A kind of a group whose discovery failed may exist.
func answer[T any](k *kinds, ask func(meta.RESTMapper) (T, error)) (T, error) {
	result, err := ask(k.mapper)
	return result, k.explain(err)
}

// explain returns err or, if there was no match in a group whose discovery failed, the reason of
// that.
func (k *kinds) explain(err error) error {
	var noKind *meta.NoKindMatchError
	var noResource *meta.NoResourceMatchError
	switch {
	case len(k.failed) == 0:
	case errors.As(err, &noKind):
		if failure := k.failed[noKind.GroupKind.Group]; failure != nil {
			return failure
		}
	case errors.As(err, &noResource):
		group := noResource.PartialResource.Group
		for name, failure := range k.failed {
			if name == group || group == "" { // a resource without its group may be in any
				return failure
			}
		}
	}
	return err
}

// newKinds returns the kinds of a discovery that begins now.
func newKinds() *kinds { return &kinds{number: numbers.Add(1), at: time.Now()} }

// ask runs a discovery with our own credential, within the timeout of our client, and calls publish
// if it is the latest.
func (m *Mapper) ask(publish func()) (*kinds, error) {
	if err := m.kinds.groups.tooMuch(time.Now()); err != nil {
		return nil, err
	}
	ctx, cancel := m.bounded(context.Background())
	defer cancel()
	client, limit, err := m.discoveryClient()
	if err != nil {
		return nil, err
	}
	result := newKinds()
	partial := &partialDiscovery{DiscoveryInterfaceWithContext: discovery.ToDiscoveryInterfaceWithContext(client)}
	groups, err := restmapper.GetAPIGroupResourcesWithContext(ctx, partial)
	if exceeded := limit.Exceeded(); exceeded != nil { // err may be nil, and groups not all
		return nil, m.kinds.groups.setTooMuch(time.Now(),
			errors.WithMessagef(exceeded, "discovering the kinds that %s serves", m.target.Host()))
	}
	if err != nil {
		return nil, errors.WithMessagef(err, "discovering the kinds that %s serves", m.target.Host())
	}
	if len(groups) == 0 {
		return nil, errors.Errorf("discovering the kinds that %s serves: the server named none", m.target.Host())
	}
	trim(groups)
	result.groups = groups
	if last := m.kinds.latest.Load(); len(partial.failed) > 0 {
		result.groups, result.failed = carryOver(last, groups, partial.failed)
	}
	for group, failure := range result.failed {
		result.failed[group] = errors.WithMessagef(forOthers(failure), "discovering the kinds that %s serves in group %q",
			m.target.Host(), group)
	}
	result.memory = limit.Used()
	result.mapper = restmapper.NewDiscoveryRESTMapper(result.groups)
	for {
		latest := m.kinds.latest.Load()
		if latest != nil && latest.at.After(result.at) {
			return latest, nil // a later discovery was faster
		}
		if m.kinds.latest.CompareAndSwap(latest, result) {
			m.kinds.groups.replaced(result.at)
			publish()
			return result, nil
		}
	}
}

// bounded returns a context with the timeout of our client.
func (m *Mapper) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if m.client.Timeout > 0 {
		return context.WithTimeout(ctx, m.client.Timeout)
	}
	return context.WithCancel(ctx)
}

// forOthers returns a failure as other members may see it: the API server's text about a request
// that it denies has the name of the user.
func forOthers(failure error) error {
	if status, ok := untrusted.StatusText(failure); ok && isDenied(failure) {
		return untrusted.Show("the API server answered "+status, failure)
	}
	return failure
}

// isDenied reports whether an identity may not discover.
func isDenied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// discoveryClient returns a client for one discovery, with its limit. The discovery is not subject
// to our rate limit, because other members may wait for it.
func (m *Mapper) discoveryClient() (*discovery.DiscoveryClient, *untrusted.LimitedRoundTripper, error) {
	config := m.target.Config()
	config.UserAgent, config.Timeout, config.QPS = m.userAgent, m.client.Timeout, -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	limit := untrusted.LimitAll(m.client.Transport,
		untrusted.Budget{Requests: maxRequests, AtOnce: atOnce, Bytes: m.maxBytes})
	limited := *m.client
	limited.Transport = limit
	client, err := discovery.NewDiscoveryClientForConfigAndClient(config, &limited)
	return client, limit, errors.Wrap(err, "preparing discovery")
}

// KindFor implements meta.RESTMapper.
func (m *Mapper) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return lookup(context.Background(), m, resource.Group, func(mapper meta.RESTMapper) (schema.GroupVersionKind, error) {
		return mapper.KindFor(resource)
	})
}

// KindsFor implements meta.RESTMapper.
func (m *Mapper) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return lookup(context.Background(), m, resource.Group,
		func(mapper meta.RESTMapper) ([]schema.GroupVersionKind, error) { return mapper.KindsFor(resource) })
}

// ResourceFor implements meta.RESTMapper.
func (m *Mapper) ResourceFor(input schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return lookup(context.Background(), m, input.Group, func(mapper meta.RESTMapper) (schema.GroupVersionResource, error) {
		return mapper.ResourceFor(input)
	})
}

// ResourcesFor implements meta.RESTMapper.
func (m *Mapper) ResourcesFor(input schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return lookup(context.Background(), m, input.Group,
		func(mapper meta.RESTMapper) ([]schema.GroupVersionResource, error) { return mapper.ResourcesFor(input) })
}

// RESTMapping implements meta.RESTMapper.
func (m *Mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.RESTMappingWithContext(context.Background(), gk, versions...)
}

// RESTMappingWithContext is RESTMapping that ends with ctx.
func (m *Mapper) RESTMappingWithContext(ctx context.Context, gk schema.GroupKind,
	versions ...string) (*meta.RESTMapping, error) {
	return lookup(ctx, m, gk.Group, func(mapper meta.RESTMapper) (*meta.RESTMapping, error) {
		return mapper.RESTMapping(gk, versions...)
	})
}

// RESTMappings implements meta.RESTMapper.
func (m *Mapper) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return lookup(context.Background(), m, gk.Group, func(mapper meta.RESTMapper) ([]*meta.RESTMapping, error) {
		return mapper.RESTMappings(gk, versions...)
	})
}

// ResourceSingularizer implements meta.RESTMapper.
func (m *Mapper) ResourceSingularizer(resource string) (string, error) {
	return lookup(context.Background(), m, "", func(mapper meta.RESTMapper) (string, error) {
		return mapper.ResourceSingularizer(resource)
	})
}
