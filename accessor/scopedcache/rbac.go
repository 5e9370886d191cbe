package scopedcache

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// gathering is how long changes of RBAC are gathered before caches are told.
const gathering = 50 * time.Millisecond

// RBACEvents tell caches that Roles, ClusterRoles or their bindings have changed. They are watched by their metadata, with
// one identity for all caches that want to know; whether it may is asked and re-checked like all rights. Without the
// right nobody is told anything, and the log says so. Roles and RoleBindings change the rights in their namespace; whom a
// change is about is not looked at. Methods may be called from any goroutine.
type RBACEvents struct {
	cache    *scoped
	logger   logr.Logger
	observer func(before State, now ScopeState) // nil for nobody
	silent   atomic.Bool                        // the log says that RBAC may not be watched

	mu        sync.Mutex
	closed    bool                           // guarded by mu
	listeners map[int]func(namespace string) // guarded by mu
	next      int                            // guarded by mu
	changed   map[string]bool                // guarded by mu: namespaces, "" for all; not told yet
	timer     *time.Timer                    // guarded by mu: set while something is gathered
}

// NewRBACEvents makes what Start runs: add it to a manager, and give it to Options.RBACEvents of as many caches as there are.
// It does no I/O. config is of the identity that watches, which needs config/rbac/rbac-events.yaml. Of opts HTTPClient, Scheme
// and Mapper are used, of options CheckInterval, Username, Discreet, Logger and Observe.
func NewRBACEvents(config *rest.Config, opts cache.Options, options Options) (*RBACEvents, error) {
	options.setDefaults()
	made := &RBACEvents{logger: options.Logger, observer: options.Observe, listeners: map[int]func(string){}, changed: map[string]bool{}}
	var err error
	// A cache of its own: what the options of others select does not apply here.
	made.cache, err = newScoped(config, cache.Options{HTTPClient: opts.HTTPClient, Scheme: opts.Scheme, Mapper: opts.Mapper, DefaultTransform: onlyNames}, Options{
		CheckInterval: options.CheckInterval, ReadTimeout: options.ReadTimeout, Username: options.Username, Discreet: options.Discreet,
		Logger: options.Logger.WithValues("for", "RBAC events").V(1), Observe: made.observe,
	})
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(kind))
		unseen := true // what happens; told one after the other
		handle, err := made.cache.Hold(context.Background(), object, Scope{}, HoldOptions{Name: "RBAC events", Observe: func(state ScopeState) {
			switch state.State {
			case Forbidden, NotServed:
				unseen = true
			case Synced:
				if unseen {
					made.notify("") // it may have happened before
				}
				unseen = false
			}
		}})
		if err != nil {
			return nil, err
		}
		_, err = handle.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(object any, isInInitialList bool) {
				if !isInInitialList {
					made.notifyOf(object)
				}
			},
			UpdateFunc: func(before, object any) {
				if one, ok := before.(client.Object); !ok || one.GetResourceVersion() != object.(client.Object).GetResourceVersion() {
					made.notifyOf(object)
				}
			},
			DeleteFunc: made.notifyOf,
		})
		if err != nil {
			return nil, err
		}
	}
	return made, nil
}

// Start watches until ctx is done, and waits until that has ended. It is called once. Then nobody is told anything any more.
func (e *RBACEvents) Start(ctx context.Context) error {
	defer e.close()
	return e.cache.Start(ctx)
}

func (e *RBACEvents) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
}

// observe says once that rights are not noticed as quickly as somebody wants.
func (e *RBACEvents) observe(before State, now ScopeState) {
	if e.observer != nil {
		e.observer(before, now)
	}
	switch now.State {
	case Forbidden, NotServed:
		if !e.silent.Swap(true) {
			e.logger.Info("RBAC may not be watched, so rights are asked for every CheckInterval only; config/rbac/rbac-events.yaml is the right that it takes", "kind", now.GVK.Kind, "error", now.LastError.Error())
		}
	case Synced:
		e.silent.Store(false)
	}
}

// onlyNames keeps of an object what it takes to hear of its changes.
func onlyNames(object any) (any, error) {
	if found, ok := object.(*metav1.PartialObjectMetadata); ok {
		found.ObjectMeta = metav1.ObjectMeta{Namespace: found.Namespace, Name: found.Name, UID: found.UID, ResourceVersion: found.ResourceVersion}
	}
	return object, nil
}

// listen has f told of namespaces in which rights may have changed, "" for all, until stop is called.
func (e *RBACEvents) listen(f func(namespace string)) (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	id := e.next
	e.listeners[id] = f
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, id)
	}
}

func (e *RBACEvents) notifyOf(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if object, ok := object.(client.Object); ok {
		e.notify(object.GetNamespace())
	}
}

// notify gathers a change.
func (e *RBACEvents) notify(namespace string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changed[namespace] = true
	if e.timer == nil && !e.closed {
		e.timer = time.AfterFunc(gathering, e.tell)
	}
}

// tell tells what was gathered.
func (e *RBACEvents) tell() {
	e.mu.Lock()
	changed, listeners := e.changed, slices.Collect(maps.Values(e.listeners))
	e.changed, e.timer = map[string]bool{}, nil
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return
	}
	if changed[""] {
		changed = map[string]bool{"": true}
	}
	for _, listener := range listeners {
		for namespace := range changed {
			listener(namespace)
		}
	}
}

// listenToRBACLocked has the cache ask again about rights when RBAC changes, as its options say. mu is held.
func (s *scoped) listenToRBACLocked() (stop func()) {
	var stops []func()
	if s.own.RBACEvents != nil {
		stops = append(stops, s.own.RBACEvents.listen(s.rightsMayHaveChanged))
	}
	if s.rbacEvents != nil {
		stops = append(stops, s.rbacEvents.listen(s.rightsMayHaveChanged))
		s.running.Go(func() { _ = s.rbacEvents.Start(s.life) }) // ends with it and never fails otherwise
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
