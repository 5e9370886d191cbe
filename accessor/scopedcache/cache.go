package scopedcache

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pkg/errors"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Scope is the part of a kind that one informer sees. The zero value is all of it.
type Scope struct {
	// Namespace restricts a namespaced kind; it is ignored for kinds that have none.
	Namespace string
}

// Cache is a cache.Cache whose informers can be had by scope. Its methods may be called from any goroutine.
type Cache interface {
	cache.Cache

	// Hold returns the informer of the object's kind and representation in scope, started if need be. It does not
	// wait for it to sync. It is an error if the kind is not served. The informer runs at least until Release. observe,
	// if not nil, is told when the state of the scope changes, from any goroutine, but one
	// after the other; it must not block, nor call the cache. What the state is
	// at the time of the call it is told too, unless that is Syncing.
	Hold(ctx context.Context, object client.Object, scope Scope, observe func(ScopeState)) (*Held, error)

	// States returns a picture of every scope, in no order. It takes time in proportion to the objects.
	States() []ScopeState
}

// Held is an informer that somebody holds.
type Held struct {
	cache.Informer
	store   toolscache.Store
	release func()
}

// Has reports whether the informer has seen an object of that key, "namespace/name" or "name", that was not deleted since.
func (h *Held) Has(key string) bool {
	_, found, err := h.store.GetByKey(key)
	return found && err == nil
}

// Release gives the informer back; it may be called again. The informer stops with the last holder, unless it is
// read too. Handlers must have been removed.
func (h *Held) Release() { h.release() }

// New makes a cache; the result is a [Cache]. It does no I/O. config needs no credential if opts.HTTPClient
// authenticates; opts.HTTPClient and opts.Mapper must be set.
func New(config *rest.Config, opts cache.Options) (cache.Cache, error) {
	if opts.HTTPClient == nil || opts.Mapper == nil || opts.Scheme == nil {
		return nil, errors.New("scopedcache needs HTTPClient, Mapper and Scheme")
	}
	if len(opts.DefaultNamespaces) > 0 {
		return nil, errors.New("scopedcache takes no DefaultNamespaces: what is cached follows from what is read")
	}
	s := &scoped{config: config, options: opts, byObject: map[schema.GroupVersionKind]byObject{}, started: make(chan struct{}), scopes: map[key]*scope{}}
	for object, settings := range opts.ByObject {
		if len(settings.Namespaces) > 0 {
			return nil, errors.Errorf("scopedcache takes no ByObject.Namespaces (for %T): what is cached follows from what is read", object)
		}
		gvk, err := apiutil.GVKForObject(object, opts.Scheme)
		if err != nil {
			return nil, errors.Wrapf(err, "ByObject[%T]", object)
		}
		s.byObject[gvk] = byObject{object: object, settings: settings}
	}
	return s, nil
}

type byObject struct {
	object   client.Object
	settings cache.ByObject
}

// index is a field index, to be added to every informer of its kind.
type index struct {
	object  client.Object
	field   string
	extract client.IndexerFunc
}

// key names a scope.
type key struct {
	gvk            schema.GroupVersionKind
	representation Representation
	namespace      string
}

func (k key) String() string {
	return strings.Join([]string{k.gvk.String(), string(k.representation), k.namespace}, "\x00")
}

type scoped struct {
	config   *rest.Config
	options  cache.Options
	byObject map[schema.GroupVersionKind]byObject // never written after New

	building singleflight.Group
	started  chan struct{} // closed by Start

	mu      sync.Mutex
	life    context.Context                     // guarded by mu; nil before Start
	ended   bool                                // guarded by mu
	running sync.WaitGroup                      // grows only under mu and before ended
	scopes  map[key]*scope                      // guarded by mu
	indexes map[schema.GroupVersionKind][]index // guarded by mu; slices are only appended to
}

var _ Cache = (*scoped)(nil)

// Start runs the informers, those there are and those to come, until ctx is done. It blocks.
func (s *scoped) Start(ctx context.Context) error {
	s.mu.Lock()
	if s.life != nil {
		s.mu.Unlock()
		return errors.New("the cache was started already")
	}
	s.life = ctx
	for _, scope := range s.scopes {
		s.runLocked(scope)
	}
	close(s.started)
	s.mu.Unlock()

	<-ctx.Done()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// runLocked starts a scope unless the cache has ended or does not run yet.
func (s *scoped) runLocked(scope *scope) {
	if s.life == nil || s.ended {
		return
	}
	ctx, cancel := context.WithCancel(s.life)
	scope.stop = cancel
	s.running.Go(func() { scope.awaitSync(ctx) })
	s.running.Go(func() {
		defer cancel()
		_ = scope.cache.Start(ctx) // ends with ctx and never fails otherwise
	})
}

// Get reads an object from the informer of its namespace.
func (s *scoped) Get(ctx context.Context, name client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	scope, err := s.forReading(ctx, object, name.Namespace)
	if err != nil {
		return err
	}
	return scope.cache.Get(ctx, name, object, opts...)
}

// List reads from the informer of the namespace that opts name, or of all.
func (s *scoped) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	scope, err := s.forReading(ctx, list, options.Namespace)
	if err != nil {
		return err
	}
	return scope.cache.List(ctx, list, opts...)
}

// forReading returns a synced scope: that of the exact namespace, or of all namespaces if only that exists.
func (s *scoped) forReading(ctx context.Context, object runtime.Object, namespace string) (*scope, error) {
	select {
	case <-s.started:
	default:
		return nil, &cache.ErrCacheNotStarted{}
	}
	if s.options.ReaderFailOnMissingInformer {
		return nil, errors.New("scopedcache does not support ReaderFailOnMissingInformer")
	}
	wanted, example, err := s.keyOf(ctx, object, namespace)
	if err != nil {
		return nil, err
	}
	if everywhere := s.everywhereOnly(wanted); everywhere != nil {
		return everywhere, nil
	}
	scope, err := s.scope(wanted, example, forReaders)
	if err != nil {
		return nil, err
	}
	return scope, scope.wait(ctx)
}

// Hold implements Cache.
func (s *scoped) Hold(ctx context.Context, object client.Object, where Scope, observe func(ScopeState)) (*Held, error) {
	wanted, example, err := s.keyOf(ctx, object, where.Namespace)
	if err != nil {
		return nil, err
	}
	scope, err := s.scope(wanted, example, func(scope *scope) { scope.holders++ })
	if err != nil {
		return nil, err
	}
	held := &Held{Informer: scope.informer, store: scope.store}
	held.release = sync.OnceFunc(func() {
		scope.mu.Lock()
		delete(scope.observers, held)
		scope.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		scope.holders--
		s.dropUnusedLocked(scope)
	})
	if observe != nil {
		scope.observe(held, observe)
	}
	return held, nil
}

// dropUnusedLocked stops a scope that nobody holds or reads.
func (s *scoped) dropUnusedLocked(scope *scope) {
	if scope.holders > 0 || scope.read || s.scopes[scope.key] != scope {
		return
	}
	delete(s.scopes, scope.key)
	if scope.stop != nil {
		scope.stop()
	}
}

// States implements Cache.
func (s *scoped) States() []ScopeState {
	s.mu.Lock()
	scopes := slices.Collect(maps.Values(s.scopes))
	s.mu.Unlock()
	states := make([]ScopeState, 0, len(scopes))
	for _, scope := range scopes {
		states = append(states, scope.picture())
	}
	return states
}

// forReaders marks a scope as read, so that it stays.
func forReaders(scope *scope) { scope.read = true }

// GetInformer returns the informer of all namespaces.
func (s *scoped) GetInformer(ctx context.Context, object client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	wanted, example, err := s.keyOf(ctx, object, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	scope, err := s.scope(wanted, example, forReaders)
	if err != nil {
		return nil, err
	}
	var options cache.InformerGetOptions
	for _, opt := range opts {
		opt(&options)
	}
	if options.BlockUntilSynced == nil || *options.BlockUntilSynced {
		select {
		case <-s.started:
			if err := scope.wait(ctx); err != nil {
				return nil, err
			}
		default: // like controller-runtime: before Start there is nothing to wait for
		}
	}
	return scope.informer, nil
}

// GetInformerForKind returns the informer of all namespaces. The scheme must know the kind.
func (s *scoped) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	object, err := s.options.Scheme.New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	typed, ok := object.(client.Object)
	if !ok {
		return nil, errors.Errorf("%T is no client.Object", object)
	}
	return s.GetInformer(ctx, typed, opts...)
}

// RemoveInformer stops the informers of the object's kind and representation, in whatever namespace, but for those that
// somebody holds: they stop when they are released.
func (s *scoped) RemoveInformer(_ context.Context, object client.Object) error {
	gvk, err := apiutil.GVKForObject(object, s.options.Scheme)
	if err != nil {
		return errors.WithStack(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, scope := range s.scopes {
		if k.gvk == gvk && k.representation == representationOf(object) {
			scope.read = false
			s.dropUnusedLocked(scope)
		}
	}
	return nil
}

// WaitForCacheSync waits until the cache runs and every scope is settled: synced, or refused by the API server.
func (s *scoped) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-s.started:
	case <-ctx.Done():
		return false
	}
	s.mu.Lock()
	scopes := make([]*scope, 0, len(s.scopes))
	for _, scope := range s.scopes {
		scopes = append(scopes, scope)
	}
	s.mu.Unlock()
	for _, scope := range scopes {
		if scope.wait(ctx) != nil && ctx.Err() != nil {
			return false
		}
	}
	return true
}

// IndexField adds an index to all scopes of the object's kind and representation, those there are and those to come.
func (s *scoped) IndexField(ctx context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	gvk, err := apiutil.GVKForObject(object, s.options.Scheme)
	if err != nil {
		return errors.WithStack(err)
	}
	s.mu.Lock()
	for _, other := range s.indexes[gvk] {
		if other.field == field && representationOf(other.object) == representationOf(object) {
			s.mu.Unlock()
			return errors.Errorf("there is an index %q of %s already", field, gvk)
		}
	}
	if s.indexes == nil {
		s.indexes = map[schema.GroupVersionKind][]index{}
	}
	s.indexes[gvk] = append(s.indexes[gvk], index{object: object, field: field, extract: extract})
	var existing []*scope
	for k, scope := range s.scopes {
		if k.gvk == gvk && k.representation == representationOf(object) {
			existing = append(existing, scope)
		}
	}
	s.mu.Unlock()
	for _, scope := range existing {
		if err := scope.cache.IndexField(ctx, object, field, extract); err != nil {
			return errors.WithStack(err)
		}
	}
	return nil
}

// keyOf returns the scope that serves reads of object (or of a list of such) in a namespace, and an object of
// the kind. It asks the mapper, which may ask the API server.
func (s *scoped) keyOf(ctx context.Context, object runtime.Object, namespace string) (key, client.Object, error) {
	gvk, err := apiutil.GVKForObject(object, s.options.Scheme)
	if err != nil {
		return key{}, nil, errors.WithStack(err)
	}
	if _, isObject := object.(client.Object); !isObject || meta.IsListType(object) {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	mapping, err := s.mapping(ctx, gvk)
	if err != nil {
		return key{}, nil, errors.WithStack(err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		namespace = metav1.NamespaceAll
	}
	k := key{gvk: gvk, representation: representationOf(object), namespace: namespace}
	example, err := s.example(k)
	return k, example, err
}

// mapping asks the mapper, until ctx is done if the mapper allows for that.
func (s *scoped) mapping(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if mapper, ok := s.options.Mapper.(interface {
		RESTMappingWithContext(ctx context.Context, gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
	}); ok {
		return mapper.RESTMappingWithContext(ctx, gvk.GroupKind(), gvk.Version)
	}
	return s.options.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
}

func (s *scoped) example(k key) (client.Object, error) {
	switch k.representation {
	case Unstructured:
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(k.gvk)
		return object, nil
	case Metadata:
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(k.gvk)
		return object, nil
	}
	object, err := s.options.Scheme.New(k.gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	typed, ok := object.(client.Object)
	if !ok {
		return nil, errors.Errorf("%T is no client.Object", object)
	}
	return typed, nil
}

// everywhereOnly returns the scope of all namespaces, marked as read, if it works and there is none of the wanted
// namespace.
func (s *scoped) everywhereOnly(wanted key) *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	everywhere := s.scopes[key{gvk: wanted.gvk, representation: wanted.representation}]
	if everywhere == nil || s.scopes[wanted] != nil || !everywhere.synced() {
		return nil
	}
	forReaders(everywhere)
	return everywhere
}

// existing returns a scope that is there, after use has noted what for.
func (s *scoped) existing(k key, use func(*scope)) *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	existing := s.scopes[k]
	if existing != nil {
		use(existing)
	}
	return existing
}

// scope returns the scope of that name, made on first use, after use has noted what for. Making one may ask the API
// server for its mapping, so it happens in one flight and outside of the lock.
func (s *scoped) scope(k key, example client.Object, use func(*scope)) (*scope, error) {
	for {
		if existing := s.existing(k, use); existing != nil {
			return existing, nil
		}
		// Whoever makes it does not use it, for others may be in the flight.
		if _, err, _ := s.building.Do(k.String(), func() (any, error) { return nil, s.build(k, example) }); err != nil {
			return nil, err
		}
	}
}

// build makes a scope and starts it, unless it is there.
func (s *scoped) build(k key, example client.Object) error {
	s.mu.Lock()
	existing, indexes := s.scopes[k], s.indexes[k.gvk]
	s.mu.Unlock()
	if existing != nil {
		return nil
	}
	made, err := s.newScope(k, example)
	if err != nil {
		return err
	}
	for added := 0; ; {
		if err := made.addIndexes(indexes[added:]); err != nil {
			return err
		}
		added = len(indexes)
		s.mu.Lock()
		if indexes = s.indexes[k.gvk]; len(indexes) == added { // none came meanwhile
			defer s.mu.Unlock()
			s.scopes[k] = made
			s.runLocked(made)
			return nil
		}
		s.mu.Unlock()
	}
}
