package scopedcache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// gathering is how long changes of RBAC are gathered before caches are told.
const gathering = 50 * time.Millisecond

// RBACWatcher notify caches when Roles, ClusterRoles or their bindings change. One identity watches
// them for all caches that want to know; whether it may is asked and re-checked like all rights.
// Without the right no cache hears anything, and the log says so. A change concerns the users,
// groups and ServiceAccounts that the binding, or all bindings of the role, name; only caches of
// such identities ask the API server, which alone decides. Methods may be called from any
// goroutine.
type RBACWatcher struct {
	cache    *scopedCache
	logger   logr.Logger
	observer func(before State, now ScopeState) // nil for nobody
	silent   atomic.Bool                        // the log says that RBAC may not be watched

	mu        sync.Mutex
	index     *rbacIndex                             // guarded by mu
	closed    bool                                   // guarded by mu
	listeners map[*rbacListener]struct{}             // guarded by mu: all
	undecided map[*rbacListener]struct{}             // guarded by mu: those that any change may concern
	concerned map[subject]map[*rbacListener]struct{} // guarded by mu: the others, by each of their subjects
	changed   map[concern]struct{}                   // guarded by mu: not delivered yet
	missed    bool                                   // guarded by mu: changes may have happened unseen; not delivered yet
	timer     *time.Timer                            // guarded by mu: set while something is gathered
}

// rbacListener is a cache of an identity.
type rbacListener struct {
	subjects []subject
	notify   func(namespace string) // "" for all
}

// NewRBACWatcher makes what Start runs: add it to a manager, and give it to Options.RBACWatcher of
// as many caches as there are. It does no I/O. config is of the identity that watches, which needs
// config/rbac/rbac-events.yaml. Of opts HTTPClient and Mapper are used, of options
// AccessReviewInterval, Username, HideServerMessages, Logger and Observe.
func NewRBACWatcher(config *rest.Config, opts cache.Options, options Options) (*RBACWatcher, error) {
	options.setDefaults()
	result := &RBACWatcher{logger: options.Logger, observer: options.Observe, index: newRBACIndex(),
		listeners: map[*rbacListener]struct{}{}, undecided: map[*rbacListener]struct{}{},
		concerned: map[subject]map[*rbacListener]struct{}{},
		changed:   map[concern]struct{}{}}
	var err error
	// A cache of its own: what the options of others select does not apply here.
	result.cache, err = newScopedCache(config,
		cache.Options{HTTPClient: opts.HTTPClient, Scheme: scheme.Scheme, Mapper: opts.Mapper,
			DefaultTransform: onlyRBAC}, Options{
			AccessReviewInterval: options.AccessReviewInterval, ReadTimeout: options.ReadTimeout, Username: options.Username,
			HideServerMessages: options.HideServerMessages,
			Logger:             options.Logger.WithValues("for", "RBAC events").V(1), Observe: result.observe,
		})
	if err != nil {
		return nil, err
	}
	for _, kind := range []client.Object{&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}, &rbacv1.Role{},
		&rbacv1.RoleBinding{}} {
		unseen := true // what happens; called one after the other
		handle, err := result.cache.Hold(context.Background(), kind, Scope{},
			HoldOptions{Name: "RBAC events", Observe: func(state ScopeState) {
				switch state.State {
				case Forbidden, NotServed:
					unseen = true
				case Synced:
					if unseen {
						result.mayHaveMissed()
					}
					unseen = false
				}
			}})
		if err != nil {
			return nil, err
		}
		_, err = handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    result.set,
			UpdateFunc: func(_, object any) { result.set(object) },
			DeleteFunc: result.remove,
		})
		if err != nil {
			return nil, err
		}
	}
	return result, nil
}

// Start watches until ctx is done, and waits until that has ended. It is called once. Then nobody
// is told anything any more.
func (e *RBACWatcher) Start(ctx context.Context) error {
	defer e.close()
	return e.cache.Start(ctx)
}

func (e *RBACWatcher) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
}

// observe says once that rights are not noticed as quickly as somebody wants.
func (e *RBACWatcher) observe(before State, now ScopeState) {
	if e.observer != nil {
		e.observer(before, now)
	}
	switch now.State {
	case Forbidden, NotServed:
		if !e.silent.Swap(true) {
			e.logger.Info(
				"RBAC may not be watched, so rights are asked for every AccessReviewInterval only; "+
					"config/rbac/rbac-events.yaml is the right that it takes", "kind", now.GVK.Kind, "error",
				now.LastError.Error())
		}
	case Synced:
		e.silent.Store(false)
	}
}

// onlyRBAC drops what does not count of an object.
func onlyRBAC(object any) (any, error) {
	if found, ok := object.(client.Object); ok {
		found.SetManagedFields(nil)
		found.SetAnnotations(nil)
		found.SetLabels(nil)
	}
	return object, nil
}

// set takes note of a role or binding.
func (e *RBACWatcher) set(object any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		e.gatherLocked(e.index.setRole(roleKey{name: o.Name}, o.Rules))
	case *rbacv1.Role:
		e.gatherLocked(e.index.setRole(roleKey{o.Namespace, o.Name}, o.Rules))
	case *rbacv1.ClusterRoleBinding:
		e.gatherLocked(e.index.setBinding(bindingKey{name: o.Name}, o.RoleRef, o.Subjects))
	case *rbacv1.RoleBinding:
		e.gatherLocked(e.index.setBinding(bindingKey{o.Namespace, o.Name}, o.RoleRef, o.Subjects))
	}
}

// remove takes note that a role or binding has gone. What it was is in the index.
func (e *RBACWatcher) remove(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		e.gatherLocked(e.index.removeRole(roleKey{name: o.Name}))
	case *rbacv1.Role:
		e.gatherLocked(e.index.removeRole(roleKey{o.Namespace, o.Name}))
	case *rbacv1.ClusterRoleBinding:
		e.gatherLocked(e.index.removeBinding(bindingKey{name: o.Name}))
	case *rbacv1.RoleBinding:
		e.gatherLocked(e.index.removeBinding(bindingKey{o.Namespace, o.Name}))
	}
}

// mayHaveMissed has all caches ask: RBAC could not be watched, or was not yet.
func (e *RBACWatcher) mayHaveMissed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.missed = true
	e.deliverSoonLocked()
}

// gatherLocked gathers whom a change concerns.
func (e *RBACWatcher) gatherLocked(concerns []concern) {
	for _, c := range concerns {
		e.changed[c] = struct{}{}
	}
	if len(concerns) > 0 {
		e.deliverSoonLocked()
	}
}

func (e *RBACWatcher) deliverSoonLocked() {
	if e.timer == nil && !e.closed {
		e.timer = time.AfterFunc(gathering, e.deliver)
	}
}

// listen has notify called with namespaces in which the rights of an identity may have changed, ""
// for all, until stop is called.
func (e *RBACWatcher) listen(username string, groups []string, notify func(namespace string)) (stop func()) {
	subjects, complete := subjectsOf(username, groups)
	if !complete {
		subjects = nil
	}
	listener := &rbacListener{subjects: subjects, notify: notify}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listeners[listener] = struct{}{}
	if subjects == nil {
		e.undecided[listener] = struct{}{}
	}
	for _, s := range subjects {
		if e.concerned[s] == nil {
			e.concerned[s] = map[*rbacListener]struct{}{}
		}
		e.concerned[s][listener] = struct{}{}
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, listener)
		delete(e.undecided, listener)
		for _, s := range subjects {
			if delete(e.concerned[s], listener); len(e.concerned[s]) == 0 {
				delete(e.concerned, s)
			}
		}
	}
}

// deliver notifies the caches that the gathered changes concern.
func (e *RBACWatcher) deliver() {
	notify := map[*rbacListener]map[string]struct{}{}
	add := func(listener *rbacListener, namespace string) {
		if notify[listener] == nil {
			notify[listener] = map[string]struct{}{}
		}
		notify[listener][namespace] = struct{}{}
	}
	e.mu.Lock()
	for c := range e.changed {
		for listener := range e.concerned[c.subject] {
			add(listener, c.namespace)
		}
		for listener := range e.undecided {
			add(listener, c.namespace)
		}
	}
	if e.missed {
		for listener := range e.listeners {
			add(listener, "")
		}
	}
	e.changed, e.missed, e.timer = map[concern]struct{}{}, false, nil
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return
	}
	for listener, namespaces := range notify {
		if _, everywhere := namespaces[""]; everywhere {
			listener.notify("")
			continue
		}
		for namespace := range namespaces {
			listener.notify(namespace)
		}
	}
}

// listenToRBACLocked has the cache ask again about rights when RBAC changes, as its options say. mu
// is held.
func (s *scopedCache) listenToRBACLocked() (stop func()) {
	var stops []func()
	if s.options.RBACWatcher != nil {
		stops = append(stops, s.listenAsIdentityLocked(s.options.RBACWatcher))
	}
	if s.rbacEvents != nil {
		stops = append(stops, s.listenAsIdentityLocked(s.rbacEvents))
		s.running.Go(func() { _ = s.rbacEvents.Start(s.life) }) // ends with it and never fails otherwise
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// listenAsIdentityLocked listens to changes that concern the cache's identity. While that is not
// known every change does. mu is held.
func (s *scopedCache) listenAsIdentityLocked(events *RBACWatcher) (stop func()) {
	stopListening := events.listen(s.options.Username, s.options.Groups, s.rightsMayHaveChanged)
	if _, complete := subjectsOf(s.options.Username, s.options.Groups); complete {
		return stopListening
	}
	var mu sync.Mutex
	stopped := false
	s.running.Go(func() { // not before Start, which waits for it
		var username string
		var groups []string
		pauses := monitor.DefaultTiming.Failing
		for complete := false; !complete; { // until then every change may concern it
			username, groups = s.reviewer.identity(s.life)
			if _, complete = subjectsOf(username, groups); complete {
				break
			}
			select {
			case <-s.life.Done():
				return
			case <-time.After(pauses.Step()):
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			narrower := events.listen(username, groups, s.rightsMayHaveChanged) // before the other one ends
			stopListening()
			stopListening = narrower
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		stopListening()
	}
}
