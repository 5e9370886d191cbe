package scopedcache

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// gathering is how long changes of RBAC are gathered before caches are told.
const gathering = 50 * time.Millisecond

// RBACEvents tell caches that Roles, ClusterRoles or their bindings have changed. They are watched by their metadata, with
// one cache for all who want to know; whether its identity may is asked and re-checked like all rights. Without the
// right nobody is told anything. Roles and RoleBindings change the rights in their namespace; whom a change is about is
// not looked at.
type RBACEvents struct {
	handles []*Handle

	mu        sync.Mutex
	closed    bool                           // guarded by mu
	listeners map[int]func(namespace string) // guarded by mu
	next      int                            // guarded by mu
	changed   map[string]bool                // guarded by mu: namespaces, "" for all; not told yet
	timer     *time.Timer                    // guarded by mu: set while something is gathered
}

// NewRBACEvents watches RBAC with a cache until Close. The watches begin when the cache runs.
func NewRBACEvents(with Cache) (*RBACEvents, error) {
	made := &RBACEvents{listeners: map[int]func(string){}, changed: map[string]bool{}}
	for _, kind := range []string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(kind))
		lost := false // told one after the other
		handle, err := with.Hold(context.Background(), object, Scope{}, HoldOptions{Name: "RBAC events", Observe: func(state ScopeState) {
			switch state.State {
			case Forbidden, NotServed:
				lost = true
			case Synced:
				if lost {
					made.notify("") // what happened meanwhile was not seen
				}
				lost = false
			}
		}})
		if err == nil {
			made.handles = append(made.handles, handle)
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
		}
		if err != nil {
			made.Close()
			return nil, err
		}
	}
	return made, nil
}

// Close ends the watches. Nobody is told anything any more.
func (e *RBACEvents) Close() {
	e.mu.Lock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	e.mu.Unlock()
	for _, handle := range e.handles {
		handle.Release()
	}
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

// listenToRBAC has the cache ask again about rights when RBAC changes, as its options say.
func (s *scoped) listenToRBAC() (stop func()) {
	var stops []func()
	if s.own.RBACEvents != nil {
		stops = append(stops, s.own.RBACEvents.listen(s.rightsMayHaveChanged))
	}
	if s.own.WatchRBAC {
		if events, err := NewRBACEvents(s); err == nil { // else the cache has stopped already
			stops = append(stops, events.listen(s.rightsMayHaveChanged), events.Close)
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
