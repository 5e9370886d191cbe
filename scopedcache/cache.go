package scopedcache

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// Cache is a cache.Cache whose informers can be had by scope. Its methods may be called from any
// goroutine.
//
// An informer from GetInformer outlives the loss of its right or kind, until RemoveInformer, which
// stops all informers of the kind but those that somebody holds. IndexField applies to all
// informers of a kind and representation, also those to come; a second index of the same name is an
// error.
type Cache interface {
	cache.Cache

	// Hold returns a handle on the part of the object's kind, in the object's representation, that
	// scope selects. The same scope is one informer, whoever holds or reads it. It does no I/O and
	// does not wait: the kind need not be served, nor the right be there. It is an error if the
	// scheme does not know the type, an unstructured or metadata object has no apiVersion and kind,
	// the scope selects nothing, or the cache has stopped. The selectors of the cache's options
	// apply to it; the namespaces that they name do not restrict it.
	Hold(ctx context.Context, object client.Object, scope Scope, options HoldOptions) (*Handle, error)

	// States returns a snapshot of every scope, in no order. It takes time in proportion to the
	// objects.
	States() []ScopeState
}

// kindKey names a kind in a representation.
type kindKey struct {
	gvk            schema.GroupVersionKind
	representation Representation
}

// kind is what all scopes of a kind have in common. It stays when they have gone.
type kind struct {
	kindKey
	config kindConfig
	goType reflect.Type // of typed objects

	mapping atomic.Pointer[meta.RESTMapping] // as last found out; only to know whether there are namespaces
	// of *scope by namespace: those without selectors of their own. Written under cache.mu
	scopes sync.Map
	count  int // of those; guarded by cache.mu
	// that of all namespaces while there is no other, for reads to find it in one step. Written
	// under cache.mu
	only atomic.Pointer[scope]
}

// countLocked notes that a scope has come or gone. cache.mu is held.
func (k *kind) countLocked(change int) {
	var only *scope
	everywhere, ok := k.scopes.Load(metav1.NamespaceAll)
	if k.count += change; ok && k.count == 1 && len(k.config.namespaces) == 0 {
		only = everywhere.(*scope)
	}
	k.only.Store(only)
}

// example returns a new object of the kind.
func (k *kind) example() client.Object {
	switch k.representation {
	case Unstructured:
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(k.gvk)
		return object
	case Metadata:
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(k.gvk)
		return object
	default:
		return reflect.New(k.goType).Interface().(client.Object)
	}
}

// index is a field index, to be added to every informer of its kind.
type index struct {
	object  client.Object
	field   string
	extract client.IndexerFunc
}

// selectedKey names a scope with selectors of its own.
type selectedKey struct {
	kind *kind
	scopeKey
}

type scopedCache struct {
	config     *rest.Config
	options    cache.Options
	own        Options
	configs    configs
	reviewer   *reviewer
	rbacEvents *RBACWatcher // its own, if it watches RBAC
	monitoring *monitor.Config

	kinds sync.Map // of *kind by kindKey
	// of typed objects and lists. Copied to be written: every read looks here first
	types atomic.Pointer[map[reflect.Type]*kind]

	started chan struct{} // closed by Start
	over    chan struct{} // closed when the cache has stopped
	finding singleflight.Group

	mu       sync.Mutex             // after scope.mu
	life     context.Context        // guarded by mu; nil before Start, never changed after
	ended    bool                   // guarded by mu
	running  sync.WaitGroup         // grows only under mu and before ended, or while it is not zero
	scopes   map[*scope]struct{}    // guarded by mu
	selected map[selectedKey]*scope // guarded by mu: those with selectors of their own
	indexes  map[kindKey][]index    // guarded by mu; slices are only appended to
}

var _ Cache = (*scopedCache)(nil)

func newScopedCache(config *rest.Config, opts cache.Options, own Options) (*scopedCache, error) {
	config, opts, err := withDefaults(config, opts)
	if err != nil {
		return nil, err
	}
	configs, err := newConfigs(opts)
	if err != nil {
		return nil, err
	}
	reviewer, err := newReviewer(config, opts.HTTPClient, own.Username, own.HideServerMessages)
	if err != nil {
		return nil, err
	}
	made := &scopedCache{config: config, options: opts, own: own, configs: configs, reviewer: reviewer,
		monitoring: &monitor.Config{Interval: own.AccessReviewInterval, PollWithoutWatch: own.PollWithoutWatch,
			Timing: monitor.DefaultTiming},
		started: make(chan struct{}), over: make(chan struct{}),
		scopes: map[*scope]struct{}{}, selected: map[selectedKey]*scope{}, indexes: map[kindKey][]index{}}
	made.types.Store(&map[reflect.Type]*kind{})
	if own.WatchRBAC {
		if made.rbacEvents, err = NewRBACWatcher(config, opts, own); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// NeedLeaderElection tells managers to start the cache on every replica.
func (s *scopedCache) NeedLeaderElection() bool { return false }

// Start runs the informers, those there are and those to come, until ctx is done. It blocks until
// they have stopped. What is called after that fails with the cause of ctx, or ErrStopped.
func (s *scopedCache) Start(ctx context.Context) error {
	s.mu.Lock()
	if s.life != nil {
		s.mu.Unlock()
		return errors.New("informer already started")
	}
	s.life = ctx
	for of := range s.scopes {
		s.startLocked(of)
	}
	stopListening := s.listenToRBACLocked()
	close(s.started)
	s.mu.Unlock()
	context.AfterFunc(ctx, func() { close(s.over) })

	<-ctx.Done()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	stopListening()
	s.running.Wait()
	return nil
}

// startLocked runs a scope, unless the cache does not run.
func (s *scopedCache) startLocked(of *scope) {
	if s.life == nil || s.ended {
		return
	}
	var ctx context.Context
	ctx, of.end = context.WithCancel(s.life)
	s.running.Go(func() {
		defer of.end()
		of.keep(ctx)
	})
}

// stopped is closed when the cache has stopped.
func (s *scopedCache) stopped() <-chan struct{} { return s.over }

// stopError is why the cache has stopped.
func (s *scopedCache) stopError() error {
	if cause := context.Cause(s.life); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return errors.WithStack(ErrStopped)
}

// check returns why nothing can be read.
func (s *scopedCache) check() error {
	select {
	case <-s.started:
	default:
		return &cache.ErrCacheNotStarted{}
	}
	if s.life.Err() != nil {
		return s.stopError()
	}
	return nil
}

// kindOf returns what is known of the kind of an object or list.
func (s *scopedCache) kindOf(object runtime.Object) (*kind, error) {
	goType := reflect.TypeOf(object)
	types := s.types.Load()
	if known, ok := (*types)[goType]; ok {
		return known, nil
	}
	if representation := representationOf(object); representation != Typed {
		return s.kind(kindKey{gvk: itemKind(object, object.GetObjectKind().GroupVersionKind()),
			representation: representation}, nil)
	}
	gvk, err := apiutil.GVKForObject(object, s.options.Scheme)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	gvk = itemKind(object, gvk)
	example, err := s.options.Scheme.New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if _, ok := example.(client.Object); !ok {
		return nil, errors.Errorf("%T is no client.Object", example)
	}
	k, err := s.kind(kindKey{gvk: gvk, representation: Typed}, reflect.TypeOf(example).Elem())
	if err != nil {
		return nil, err
	}
	more := maps.Clone(*types)
	more[goType] = k
	s.types.CompareAndSwap(types, &more) // or else the next read tries again
	return k, nil
}

func (s *scopedCache) kind(key kindKey, goType reflect.Type) (*kind, error) {
	if key.gvk.Kind == "" || key.gvk.Version == "" {
		return nil,
			errors.Errorf("an object that is %s needs its apiVersion and kind set",
				strings.ToLower(string(key.representation)))
	}
	if known, ok := s.kinds.Load(key); ok {
		return known.(*kind), nil
	}
	made, _ := s.kinds.LoadOrStore(key, &kind{kindKey: key, goType: goType, config: s.configs.of(key.gvk)})
	return made.(*kind), nil
}

// itemKind is the kind of an object, or of a list's items.
func itemKind(object runtime.Object, gvk schema.GroupVersionKind) schema.GroupVersionKind {
	if _, isList := object.(client.ObjectList); isList {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	return gvk
}

// scopeLocked returns the scope, made on first use. mu is held.
func (s *scopedCache) scopeLocked(k *kind, where Scope) *scope {
	key := where.key()
	own := key.labels != "" || key.fields != ""
	if own {
		if existing := s.selected[selectedKey{k, key}]; existing != nil {
			return existing
		}
	} else if existing, ok := k.scopes.Load(key.namespace); ok {
		return existing.(*scope)
	}
	made := newScope(s, k, where)
	s.scopes[made] = struct{}{}
	if own {
		s.selected[selectedKey{k, key}] = made
	} else {
		k.scopes.Store(key.namespace, made)
		k.countLocked(1)
	}
	s.startLocked(made)
	return made
}

// neededLocked reports whether somebody needs the scope. cache.mu is held.
func (s *scope) neededLocked() bool {
	return len(s.handles) > 0 || s.pinned || s.recent.Load() || s.waiting > 0
}

// dropUnusedLocked ends a scope that nobody needs. mu is held.
func (s *scopedCache) dropUnusedLocked(of *scope) {
	if !of.neededLocked() {
		s.dropLocked(of)
	}
}

func (s *scopedCache) dropLocked(of *scope) {
	if _, ok := s.scopes[of]; !ok {
		return
	}
	delete(s.scopes, of)
	key := of.where.key()
	if s.selected[selectedKey{of.kind, key}] == of {
		delete(s.selected, selectedKey{of.kind, key})
	} else {
		of.kind.scopes.Delete(key.namespace)
		of.kind.countLocked(-1)
	}
	close(of.gone)
	if of.end != nil {
		of.end()
	}
}

// dropIfIdle ends a scope that nobody has read for a while, unless somebody holds it.
func (s *scopedCache) dropIfIdle(of *scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !of.neededLocked() {
		of.idle = true
		s.dropLocked(of)
	}
}

// States implements Cache.
func (s *scopedCache) States() []ScopeState {
	s.mu.Lock()
	scopes := make([]*scope, 0, len(s.scopes))
	for of := range s.scopes {
		scopes = append(scopes, of)
	}
	s.mu.Unlock()
	states := make([]ScopeState, 0, len(scopes))
	for _, of := range scopes {
		states = append(states, of.snapshot())
	}
	return states
}

// IndexField adds an index to all informers of the object's kind and representation, those there
// are and those to come.
func (s *scopedCache) IndexField(_ context.Context, object client.Object, field string,
	extract client.IndexerFunc) error {
	k, err := s.kindOf(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	for _, other := range s.indexes[k.kindKey] {
		if other.field == field {
			s.mu.Unlock()
			return errors.Errorf("there is an index %q of %s already", field, k.gvk)
		}
	}
	s.indexes[k.kindKey] = append(s.indexes[k.kindKey], index{object: object, field: field, extract: extract})
	var existing []*scope
	for of := range s.scopes {
		if of.kind == k {
			existing = append(existing, of)
		}
	}
	s.mu.Unlock()
	for _, of := range existing {
		if err := of.reindex(); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.indexes[k.kindKey] = slices.DeleteFunc(slices.Clone(s.indexes[k.kindKey]), func(i index) bool {
				return i.field == field
			})
			return err
		}
	}
	return nil
}

func (s *scopedCache) indexesOf(k *kind) []index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes[k.kindKey]
}
