package scopedcache

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func representationOf(object runtime.Object) Representation {
	switch object.(type) {
	case runtime.Unstructured:
		return Unstructured
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return Metadata
	default:
		return Typed
	}
}

// scope is one informer in a controller-runtime cache of its own.
type scope struct {
	key      key
	cache    cache.Cache
	informer cache.Informer
	store    toolscache.Store
	stop     context.CancelFunc // set under scoped.mu when it is started
	holders  int                // guarded by scoped.mu: those who Hold it
	read     bool               // guarded by scoped.mu: somebody reads it, so it stays when the holders have gone

	telling sync.Mutex // held while a state is noted and told, so that observers hear of states in their order; before mu

	mu        sync.Mutex
	state     State                      // guarded by mu
	since     time.Time                  // guarded by mu
	lastError error                      // guarded by mu
	changed   chan struct{}              // guarded by mu: closed and replaced when the state changes
	observers map[*Held]func(ScopeState) // guarded by mu
}

func (s *scoped) newScope(k key, example client.Object) (*scope, error) {
	made := &scope{key: k, state: Syncing, since: time.Now(), changed: make(chan struct{})}
	options := s.options
	options.ByObject = nil
	if own, ok := s.byObject[k.gvk]; ok {
		if k.namespace != "" {
			own.settings.Field = inNamespace(k.namespace, own.settings.Field)
		}
		options.ByObject = map[client.Object]cache.ByObject{own.object: own.settings}
	} else if k.namespace != "" {
		// controller-runtime turns this selector into the path of the namespace, so a Role suffices.
		options.DefaultFieldSelector = inNamespace(k.namespace, options.DefaultFieldSelector)
	}
	options.NewInformer = func(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := toolscache.NewSharedIndexInformer(drained(lw, made.watching), object, resync, indexers)
		made.store = informer.GetStore()
		// It fails only on an informer that runs already.
		_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
			made.watchFailed(err)
			if apierrors.IsForbidden(err) {
				// Readers are told, and an identity without a right is nothing unusual: no error in the host's log.
				klog.FromContext(ctx).V(1).Info("The identity may not list or watch", "kind", k.gvk, "namespace", k.namespace, "error", err.Error())
				return
			}
			if handler := s.options.DefaultWatchErrorHandler; handler != nil {
				handler(ctx, r, err)
				return
			}
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
		})
		return informer
	}
	options.DefaultWatchErrorHandler = nil // ours calls it

	var err error
	if made.cache, err = cache.New(s.config, options); err != nil {
		return nil, errors.Wrapf(err, "cache of %s", k.gvk)
	}
	// This does not block: the mapping was just looked up and the cache does not run.
	if made.informer, err = made.cache.GetInformer(context.Background(), example, cache.BlockUntilSynced(false)); err != nil {
		return nil, errors.Wrapf(err, "informer of %s", k.gvk)
	}
	return made, nil
}

// addIndexes adds those that are of the scope's representation.
func (s *scope) addIndexes(indexes []index) error {
	for _, index := range indexes {
		if representationOf(index.object) != s.key.representation {
			continue
		}
		if err := s.cache.IndexField(context.Background(), index.object, index.field, index.extract); err != nil {
			return errors.Wrapf(err, "index %q of %s", index.field, s.key.gvk)
		}
	}
	return nil
}

func inNamespace(namespace string, selector fields.Selector) fields.Selector {
	restricted := fields.OneTermEqualSelector("metadata.namespace", namespace)
	if selector == nil || selector.Empty() {
		return restricted
	}
	return fields.AndSelectors(restricted, selector)
}

// watchFailed notes why the informer does not work. What happens to every watch now and then says nothing.
func (s *scope) watchFailed(err error) {
	switch {
	case apierrors.IsForbidden(err):
		s.become(Forbidden, err)
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		s.become(NotServed, err)
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), errors.Is(err, io.EOF):
	default:
		s.become(Failing, err)
	}
}

// watching notes that the API server lets the informer watch.
func (s *scope) watching() { s.become(Syncing, nil) }

// awaitSync notes when the informer has synced for the first time.
func (s *scope) awaitSync(ctx context.Context) {
	select {
	case <-s.informer.HasSyncedChecker().Done():
		s.become(Synced, nil)
	case <-ctx.Done():
	}
}

// become notes a state and tells who wants to know, unless it is so already. What is synced is not syncing.
func (s *scope) become(state State, err error) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	if state == Syncing && s.synced() {
		state = Synced
	}
	if s.state == state && errorText(s.lastError) == errorText(err) {
		s.mu.Unlock()
		return
	}
	if s.state != state {
		s.state, s.since = state, time.Now()
	}
	s.lastError = err
	close(s.changed)
	s.changed = make(chan struct{})
	observers := slices.Collect(maps.Values(s.observers))
	picture := s.pictureLocked()
	s.mu.Unlock()
	for _, observe := range observers {
		observe(picture)
	}
}

// observe has an observer told from now on, and what the state is unless that is Syncing.
func (s *scope) observe(held *Held, observe func(ScopeState)) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	if s.observers == nil {
		s.observers = map[*Held]func(ScopeState){}
	}
	s.observers[held] = observe
	picture := s.pictureLocked()
	s.mu.Unlock()
	if picture.State != Syncing {
		observe(picture)
	}
}

// picture counts the objects too, which takes time in proportion to them.
func (s *scope) picture() ScopeState {
	s.mu.Lock()
	picture := s.pictureLocked()
	s.mu.Unlock()
	picture.Objects = len(s.store.ListKeys())
	return picture
}

func (s *scope) pictureLocked() ScopeState {
	return ScopeState{
		GVK: s.key.gvk, Representation: s.key.representation, Scope: Scope{Namespace: s.key.namespace},
		State: s.state, Since: s.since, LastError: s.lastError,
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *scope) synced() bool { return s.informer.HasSynced() }

// wait returns nil once the informer has synced, and the reason as soon as it is known that it may not.
func (s *scope) wait(ctx context.Context) error {
	synced := s.informer.HasSyncedChecker().Done()
	for {
		select {
		case <-synced:
			return nil
		default:
		}
		s.mu.Lock()
		state, lastError, changed := s.state, s.lastError, s.changed
		s.mu.Unlock()
		if state == Forbidden {
			return lastError
		}
		select {
		case <-synced:
			return nil
		case <-changed:
		case <-ctx.Done():
			return errors.Wrapf(context.Cause(ctx), "waiting for the informer of %s", s.key.gvk)
		}
	}
}
