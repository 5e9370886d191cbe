package fake

import (
	"context"
	"slices"
	"sync"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/internal/objectlist"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// informer feeds its subscriptions from one informer of client-go after another: while Forbid
// forbids the kind, there is none. The informer ends with Release, or with its connection.
type informer struct {
	conn      *connection
	example   client.Object
	gvk       schema.GroupVersionKind
	namespace string
	name      string // of the only object that the scope selects; empty for all
	observe   func(scopedcache.ScopeState)
	create    func() toolscache.SharedIndexInformer
	onAccess  func() // called after a change of what Forbid forbids, which then has no effect; may be nil

	mu            sync.Mutex
	released      bool                           // guarded by mu
	running       toolscache.SharedIndexInformer // guarded by mu; nil while forbidden
	stop          context.CancelFunc             // guarded by mu; with running
	life          context.Context                // guarded by mu; with running
	subscriptions []*subscription                // guarded by mu
}

// applyAccess starts the informer, or stops it if Forbid forbids its scope.
func (i *informer) applyAccess() {
	i.mu.Lock()
	permitted := i.onAccess != nil || i.conn.access.permits(i.gvk.GroupKind(), i.namespace, i.name, "watch")
	switch {
	case i.released || i.conn.Err() != nil:
		permitted = true // nothing to report
	case !permitted && i.running != nil:
		i.stop()
		i.running = nil
		for _, s := range i.subscriptions {
			s.Pause()
		}
	case permitted && i.running == nil:
		i.running = i.create()
		i.life, i.stop = context.WithCancel(i.conn.life)
		for _, s := range i.subscriptions {
			_ = s.attachLocked() // fails only for an informer that has stopped
		}
		running, life := i.running, i.life
		i.conn.Go(func() { running.RunWithContext(life) })
		i.conn.Go(func() {
			select {
			case <-running.HasSyncedChecker().Done():
				i.conn.changed()
			case <-life.Done():
			}
		})
	}
	i.mu.Unlock()
	if !permitted {
		i.observe(scopedcache.ScopeState{
			State:     scopedcache.StateForbidden,
			LastError: i.conn.forbidden(i.gvk, i.namespace, "", "list"),
		})
	}
}

// state returns the state of the informer, as in ConnectionState.Scopes.
func (i *informer) state() scopedcache.ScopeState {
	state := scopedcache.ScopeState{
		GVK:   i.gvk,
		Scope: scopedcache.Scope{Namespace: i.namespace},
		State: scopedcache.StateForbidden,
	}
	switch running := i.current(); {
	case running == nil:
		state.LastError, state.Missed = i.conn.forbidden(i.gvk, i.namespace, "", "list"), true
	case running.HasSynced():
		state.State, state.Objects = scopedcache.StateSynced, len(running.GetStore().ListKeys())
	default:
		state.State = scopedcache.StateSyncing
	}
	return state
}

// current returns the running informer, nil while Forbid forbids the scope.
func (i *informer) current() toolscache.SharedIndexInformer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.running
}

func (i *informer) Release() {
	i.conn.mu.Lock()
	delete(i.conn.informers, i)
	i.conn.mu.Unlock()
	i.conn.changed()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.released = true
	if i.running != nil {
		i.stop()
	}
}

// Subscribe implements watches.Informer.
func (i *informer) Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Subscription,
	error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := &subscription{Feed: replay.New(handler, i.example, options), informer: i}
	if i.running != nil {
		if err := s.attachLocked(); err != nil {
			return nil, err
		}
	}
	i.subscriptions = append(i.subscriptions, s)
	return s, nil
}

// subscription is a handler that receives events from an informer.
type subscription struct {
	*replay.Feed
	informer *informer
	handle   toolscache.ResourceEventHandlerRegistration // guarded by informer.mu; at the running informer
}

// attachLocked feeds the subscription from the running informer.
func (s *subscription) attachLocked() error {
	running, life := s.informer.running, s.informer.life
	source := s.Begin()
	handle, err := running.AddEventHandler(source)
	if err != nil {
		return errors.WithStack(err)
	}
	s.handle = handle
	s.informer.conn.Go(func() {
		select {
		case <-handle.HasSyncedChecker().Done():
			source.EmitMissingDeletes(func(key string) bool {
				_, found, err := running.GetStore().GetByKey(key)
				return found && err == nil
			})
		case <-life.Done():
		}
	})
	return nil
}

// Remove implements watches.Subscription.
func (s *subscription) Remove() {
	s.Pause()
	i := s.informer
	i.mu.Lock()
	i.subscriptions = slices.DeleteFunc(i.subscriptions, func(other *subscription) bool { return other == s })
	running, handle := i.running, s.handle
	i.mu.Unlock()
	if running != nil && handle != nil {
		_ = running.RemoveEventHandler(handle) // fails only for a handle of another informer
	}
}

// newInformer creates an informer. If onAccess is not nil, what Forbid forbids has no effect on it.
func (c *connection) newInformer(object client.Object, scope scopedcache.Scope,
	observe func(scopedcache.ScopeState), onAccess func()) (*informer, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	list, err := objectlist.New(object, c.testClient.Scheme())
	if err != nil {
		return nil, err
	}
	if scope.Namespace, err = c.served(object, scope.Namespace); err != nil {
		return nil, err
	}
	gvk, err := apiutil.GVKForObject(object, c.testClient.Scheme())
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if observe == nil {
		observe = func(scopedcache.ScopeState) {}
	}
	i := &informer{
		conn:      c,
		example:   object,
		gvk:       gvk,
		namespace: scope.Namespace,
		name:      nameIn(scope.FieldSelector),
		observe:   observe,
		onAccess:  onAccess,
	}
	i.create = func() toolscache.SharedIndexInformer {
		lw := &listerWatcher{
			client: c.testClient,
			list:   list,
			scope:  scope,
			onList: func() {
				observe(scopedcache.ScopeState{State: scopedcache.StateSynced})
			},
		}
		shared := toolscache.NewSharedIndexInformer(lw, object, 0, toolscache.Indexers{})
		// These calls fail only if the informer is running.
		_ = shared.SetTransform(func(object any) (any, error) { return convert(object, list, c.testClient.Scheme()) })
		_ = shared.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *toolscache.Reflector, err error) {
			state := scopedcache.ScopeState{State: scopedcache.StateFailing, LastError: err}
			if apierrors.IsForbidden(err) {
				state.State = scopedcache.StateForbidden
			}
			observe(state)
		})
		return shared
	}
	c.mu.Lock()
	c.informers[i] = true
	c.mu.Unlock()
	i.applyAccess()
	return i, nil
}

// served returns the namespace to list, empty if the client's mapper reports the kind as
// cluster-scoped. A kind that neither mapper nor scheme knows is not served: the error is that of
// the mapper.
func (c *connection) served(object client.Object, namespace string) (string, error) {
	gvk, err := apiutil.GVKForObject(object, c.testClient.Scheme())
	if err != nil {
		return "", errors.WithStack(err)
	}
	mapping, err := c.testClient.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	switch {
	case err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot:
		return "", nil
	case err == nil, c.testClient.Scheme().Recognizes(gvk):
		return namespace, nil
	default:
		return "", err
	}
}
