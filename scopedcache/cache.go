package scopedcache

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/ownwrites"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/listwatch"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// Cache is a cache.Cache that also gives access to informers by scope. Its methods may be called
// from any goroutine.
//
// An informer from GetInformer stays valid while access is revoked or the kind is not served. The
// informer ends with RemoveInformer, which stops all informers of the kind except those with a
// Handle. IndexField applies to all informers of a kind and representation, including later ones. A
// second index of the same name is an error.
type Cache interface {
	cache.Cache

	// Hold returns a handle on the part of the object's kind that scope selects, in the object's
	// representation. All holders and readers of one scope share one informer. The selectors of the
	// cache's options apply to the scope, but the namespaces in these options do not restrict it.
	// Hold does no I/O and does not wait: the kind need not be served, and the identity need not
	// have access yet. Hold returns an error if the scheme does not know the type, or the scope
	// selects nothing. An unstructured or metadata object without apiVersion and kind is an error
	// too, and so is a cache that has stopped.
	Hold(ctx context.Context, object client.Object, scope Scope, options HoldOptions) (*Handle, error)

	// States returns a snapshot of every scope, in no particular order.
	States() []ScopeState
}

// scopedCache is the Cache: scopes, reads of them, and what both need.
type scopedCache struct {
	env     *environment
	entries *entrySet
	user    *user
	reader  reader
}

// environment is what the scopes and reads of a cache have in common: how to ask the API server,
// and what is known of kinds. Its fields do not change.
type environment struct {
	options     Options
	informers   cache.Options
	kinds       *kinds
	discovery   *discovery
	reviewer    *access.Reviewer
	clients     *listwatch.Clients // of informers
	tracer      *tracing.Tracer
	rbacWatcher *RBACWatcher // of this cache alone; nil without WatchRBAC
	monitoring  *monitor.Config
	unstreamed  *UnstreamedKinds
	lists       *ListLimit
	writes      *ownwrites.Writes // of the cache's clients
	namespaces  *kind             // the metadata of namespaces, without the cache's options
	fresh       atomic.Bool       // the first list of each informer is of the latest state
}

var _ Cache = (*scopedCache)(nil)

func newScopedCache(config *rest.Config, opts cache.Options, options Options) (*scopedCache, error) {
	config, opts, err := withDefaults(config, opts)
	if err != nil {
		return nil, err
	}
	configs, err := newConfigs(opts)
	if err != nil {
		return nil, err
	}
	reviewer, err := access.NewReviewer(config, opts.HTTPClient, options.Username, options.HideServerMessages)
	if err != nil {
		return nil, err
	}
	if options.OnLiveGet == nil {
		options.OnLiveGet = liveGetCounter(options.Name)
	}
	env := &environment{
		options:   options,
		informers: opts,
		kinds:     &kinds{scheme: opts.Scheme, configs: configs},
		discovery: &discovery{
			config:     config,
			httpClient: opts.HTTPClient,
			mapper:     opts.Mapper,
			hideText:   options.HideServerMessages,
		},
		reviewer: reviewer,
		clients:  listwatch.NewClients(config, opts.HTTPClient, opts.Scheme),
		tracer:   tracing.New(options.TracerProvider, options.Name),
		monitoring: &monitor.Config{
			Interval:         options.AccessReviewInterval,
			PollWithoutWatch: options.PollWithoutWatch,
			Timing:           monitor.DefaultTiming,
		},
		unstreamed: cmp.Or(options.UnstreamedKinds, &UnstreamedKinds{}),
		lists:      cmp.Or(options.ListLimit, &ListLimit{}),
	}
	namespaces := kindKey{gvk: namespaceKind, representation: RepresentationMetadata}
	env.namespaces = &kind{kindKey: namespaces, example: exampleOf(namespaces, nil)}
	env.kinds.types.Store(&map[reflect.Type]*kind{})
	if options.WatchRBAC {
		if env.rbacWatcher, err = NewRBACWatcher(config, opts, options); err != nil {
			return nil, err
		}
	}
	entries := newEntrySet(env)
	env.writes = ownwrites.New(entries.informersOf)
	user := newUser(options.ReadTimeout, options.OnScopesChange, options.OnStateChange)
	return &scopedCache{
		env:     env,
		entries: entries,
		user:    user,
		reader:  reader{env: env, entries: entries, user: user},
	}, nil
}

// Get implements client.Reader.
func (s *scopedCache) Get(ctx context.Context, name client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	return s.reader.Get(ctx, name, object, opts...)
}

// List implements client.Reader.
func (s *scopedCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return s.reader.List(ctx, list, opts...)
}

// States implements Cache.
func (s *scopedCache) States() []ScopeState { return s.user.states() }

// NeedLeaderElection makes managers start the cache on every replica.
func (s *scopedCache) NeedLeaderElection() bool { return false }

// Start runs the existing informers and later ones until ctx is done. Start then blocks until the
// informers have stopped. Calls after that fail with the cause of ctx, or with ErrStopped.
func (s *scopedCache) Start(ctx context.Context) error {
	s.entries.mu.Lock()
	if s.entries.life != nil {
		s.entries.mu.Unlock()
		return errors.New("informer already started")
	}
	s.entries.life = ctx
	s.user.begin(ctx, func() {})            // before there is an informer to read from
	stopListening := s.listenToRBACLocked() // before a scope asks whether RBAC events are watched
	for e := range s.entries.entries {
		s.entries.startLocked(e)
	}
	s.entries.mu.Unlock()
	s.entries.pokeSets(true)
	if s.env.options.Name != "" {
		defer metrics.ExportInformers(s.env.options.Name, s.metricsSnapshot)()
	}

	<-ctx.Done()
	s.entries.mu.Lock()
	s.entries.ended = true
	for e := range s.entries.entries {
		if e.end != nil {
			e.end() // because the context of the entry may end after ctx
		}
	}
	sets := slices.Collect(maps.Keys(s.entries.sets))
	s.entries.mu.Unlock()
	for _, set := range sets {
		set.stopSource()
	}
	stopListening()
	s.entries.running.Wait()
	return nil
}

// liveGetCounter returns what counts Gets that go to the API server, for a cache of that name.
func liveGetCounter(name string) func() {
	if name == "" {
		return func() {}
	}
	return metrics.New(name).LiveGet
}

// metricsSnapshot returns the values that the metrics export.
func (s *scopedCache) metricsSnapshot() metrics.Snapshot {
	snapshot := metrics.Snapshot{Informers: map[string]int{}}
	for _, scope := range s.user.states() {
		if scope.State != StateLive { // not an informer
			snapshot.Informers[string(scope.State)]++
		}
		snapshot.Objects += scope.Objects
	}
	return snapshot
}

// IndexField adds an index to all informers of the object's kind and representation, including
// later ones.
func (s *scopedCache) IndexField(_ context.Context, object client.Object, field string,
	extract client.IndexerFunc) error {
	if s.user.shares {
		return errSharedIndex
	}
	k, err := s.env.kinds.kindOf(object)
	if err != nil {
		return err
	}
	s.entries.mu.Lock()
	for _, other := range s.entries.indexes[k.kindKey] {
		if other.field == field {
			s.entries.mu.Unlock()
			return errors.Errorf("there is an index %q of %s already", field, k.gvk)
		}
	}
	s.entries.indexes[k.kindKey] = append(s.entries.indexes[k.kindKey], index{field: field, extract: extract})
	var existing []*entry
	for e := range s.entries.entries {
		if e.selection.kind == k {
			existing = append(existing, e)
		}
	}
	s.entries.mu.Unlock()
	for _, e := range existing {
		if err := e.reindex(); err != nil {
			s.entries.mu.Lock()
			defer s.entries.mu.Unlock()
			s.entries.indexes[k.kindKey] = slices.DeleteFunc(slices.Clone(s.entries.indexes[k.kindKey]), func(i index) bool {
				return i.field == field
			})
			return err
		}
	}
	return nil
}
