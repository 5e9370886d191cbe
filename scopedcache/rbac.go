package scopedcache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/rbacindex"
)

// gatherInterval is how long changes of RBAC are gathered before caches are notified.
const gatherInterval = 50 * time.Millisecond

// RBACWatcher notifies caches when Roles, ClusterRoles or their bindings change. One identity
// watches them for all caches that use the RBACWatcher. Its access is reviewed repeatedly, like all
// access of a cache. Without access no cache receives a notification, and the log reports it. A
// change concerns the users, groups and ServiceAccounts in the binding, or in all bindings of the
// role. Only caches of such identities are notified. The notified caches ask the API server, whose
// answer alone decides. Methods may be called from any goroutine.
type RBACWatcher struct {
	cache    *scopedCache
	logger   logr.Logger
	observer func(before State, now ScopeState) // may be nil
	silent   atomic.Bool                        // the log has reported that RBAC cannot be watched
	working  atomic.Bool                        // all changes are reported
	latest   atomic.Pointer[time.Time]          // when the latest change came; nil for never
	grace    time.Duration                      // how long a watch may fail; its changes come later

	mu        sync.Mutex
	index     *rbacindex.Index                                 // guarded by mu
	closed    bool                                             // guarded by mu
	listeners map[*rbacListener]struct{}                       // guarded by mu: all listeners
	undecided map[*rbacListener]struct{}                       // guarded by mu: any change may concern these
	bySubject map[rbacindex.Subject]map[*rbacListener]struct{} // guarded by mu: the others, by subject
	changed   map[rbacindex.Concern]struct{}                   // guarded by mu: changes not delivered yet
	missed    bool                                             // guarded by mu: notify all; not delivered yet
	timer     *time.Timer                                      // guarded by mu: set while changes are gathered
	kinds     map[schema.GroupVersionKind]watchedKind          // guarded by mu
	recheck   *time.Timer                                      // guarded by mu: calls update
}

// rbacListener is a cache that RBACWatcher notifies. subjects are those of its identity.
type rbacListener struct {
	subjects []rbacindex.Subject
	notify   func(namespace string) // namespace "" means all
	watched  func()                 // called when working has changed
}

// NewRBACWatcher creates an RBACWatcher, which Start runs. Add it to a manager, and set
// Options.RBACWatcher of any number of caches to it. config is for the identity that watches, which
// needs the permissions in config/rbac/rbac-events.yaml. NewRBACWatcher uses HTTPClient and Mapper
// of opts. Of options it uses AccessReviewInterval, ReadTimeout, Username, HideServerMessages,
// Logger and OnStateChange. NewRBACWatcher does no I/O.
func NewRBACWatcher(config *rest.Config, opts cache.Options, options Options) (*RBACWatcher, error) {
	options.setDefaults()
	result := &RBACWatcher{
		logger:    options.Logger,
		observer:  options.OnStateChange,
		index:     rbacindex.New(),
		listeners: map[*rbacListener]struct{}{},
		undecided: map[*rbacListener]struct{}{},
		bySubject: map[rbacindex.Subject]map[*rbacListener]struct{}{},
		changed:   map[rbacindex.Concern]struct{}{},
		kinds:     map[schema.GroupVersionKind]watchedKind{},
		grace:     options.AccessReviewInterval,
	}
	var err error
	// The watcher has a cache of its own, so that selectors in the options of other caches do not
	// apply.
	result.cache, err = newScopedCache(config,
		cache.Options{
			HTTPClient:       opts.HTTPClient,
			Scheme:           scheme.Scheme,
			Mapper:           opts.Mapper,
			DefaultTransform: onlyRBAC,
		}, Options{
			noHints:              true,
			AccessReviewInterval: options.AccessReviewInterval,
			ReadTimeout:          options.ReadTimeout,
			Username:             options.Username,
			HideServerMessages:   options.HideServerMessages,
			Logger:               options.Logger.WithValues("for", "RBAC events").V(1),
			OnStateChange:        result.observe,
		})
	if err != nil {
		return nil, err
	}
	for _, kind := range []client.Object{&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}, &rbacv1.Role{},
		&rbacv1.RoleBinding{}} {
		// Calls of OnStateChange come one at a time.
		unseen := true
		handle, err := result.cache.Hold(context.Background(), kind, Scope{},
			HoldOptions{
				Name: "RBAC events",
				OnStateChange: func(state ScopeState) {
					result.record(state)
					switch state.State {
					case StateForbidden, StateNotServed:
						unseen = true
					case StateSynced:
						if unseen {
							result.mayHaveMissed()
						}
						unseen = false
					}
				},
			})
		if err != nil {
			return nil, err
		}
		of, gvk := handle.held.(heldScope).use(), handle.kind.gvk
		_, err = of.add(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    result.set,
			UpdateFunc: func(_, object any) { result.set(object) },
			DeleteFunc: result.remove,
		}, toolscache.HandlerOptions{}, registrationEvents{delivered: func() { result.delivered(gvk) }})
		if err != nil {
			return nil, err
		}
	}
	return result, nil
}

// Start watches until ctx is done, and returns when the watches have ended. After that no cache is
// notified. Call Start once.
func (e *RBACWatcher) Start(ctx context.Context) error {
	defer e.close()
	return e.cache.Start(ctx)
}

// NeedLeaderElection makes managers start the watcher on every replica: so do caches.
func (e *RBACWatcher) NeedLeaderElection() bool { return false }

func (e *RBACWatcher) close() {
	e.mu.Lock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.recheck != nil {
		e.recheck.Stop()
	}
	e.mu.Unlock()
	e.update()
}

// observe logs once that RBAC cannot be watched, so that changes are noticed later than the options
// ask for.
func (e *RBACWatcher) observe(before State, now ScopeState) {
	if e.observer != nil {
		e.observer(before, now)
	}
	switch now.State {
	case StateForbidden, StateNotServed:
		if !e.silent.Swap(true) {
			e.logger.Info(
				"Cannot watch RBAC, so access is reviewed every AccessReviewInterval only; "+
					"config/rbac/rbac-events.yaml has the missing permissions", "kind", now.GVK.Kind, "error",
				untrusted.Shorten(now.LastError.Error()))
		}
	case StateSynced:
		e.silent.Store(false)
	}
}

// onlyRBAC removes the fields of an object that do not affect RBAC.
func onlyRBAC(object any) (any, error) {
	if o, ok := object.(client.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
		o.SetLabels(nil)
	}
	return object, nil
}

// set records a role or binding.
func (e *RBACWatcher) set(object any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gatherLocked(e.index.Set(object))
}

// remove records the deletion of a role or binding. The index has its last content.
func (e *RBACWatcher) remove(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gatherLocked(e.index.Remove(object))
}

// mayHaveMissed notifies all caches, because the watch of RBAC has just begun, or was interrupted.
func (e *RBACWatcher) mayHaveMissed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.missed = true
	e.deliverSoonLocked()
}

// gatherLocked records the subjects that a change concerns. The caller holds mu.
func (e *RBACWatcher) gatherLocked(concerns []rbacindex.Concern) {
	for _, c := range concerns {
		e.changed[c] = struct{}{}
	}
	if len(concerns) > 0 {
		e.deliverSoonLocked()
	}
}

func (e *RBACWatcher) deliverSoonLocked() {
	now := time.Now()
	e.latest.Store(&now)
	if e.timer == nil && !e.closed {
		e.timer = time.AfterFunc(gatherInterval, e.deliver)
	}
}

// OnChange calls f with each namespace in which the permissions of an identity may have changed, ""
// for all, until stop is called. If username or groups are not known well enough, each change may
// concern it. f is called from one goroutine and must not block. A change that the API server's
// authorizer does not know of yet may be reported. After stop, a last call may be under way.
func (e *RBACWatcher) OnChange(username string, groups []string, f func(namespace string)) (stop func()) {
	return e.listen(username, groups, f, func() {})
}

// listen calls notify with each namespace in which the permissions of an identity may have changed,
// until stop is called. "" means all namespaces. It calls watched when working has changed.
func (e *RBACWatcher) listen(username string, groups []string, notify func(namespace string),
	watched func()) (stop func()) {
	subjects, complete := rbacindex.SubjectsOf(username, groups)
	if !complete {
		subjects = nil
	}
	listener := &rbacListener{subjects: subjects, notify: notify, watched: watched}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listeners[listener] = struct{}{}
	if subjects == nil {
		e.undecided[listener] = struct{}{}
	}
	for _, s := range subjects {
		if e.bySubject[s] == nil {
			e.bySubject[s] = map[*rbacListener]struct{}{}
		}
		e.bySubject[s][listener] = struct{}{}
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, listener)
		delete(e.undecided, listener)
		for _, s := range subjects {
			if delete(e.bySubject[s], listener); len(e.bySubject[s]) == 0 {
				delete(e.bySubject, s)
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
		for listener := range e.bySubject[c.Subject] {
			add(listener, c.Namespace)
		}
		for listener := range e.undecided {
			add(listener, c.Namespace)
		}
	}
	if e.missed {
		for listener := range e.listeners {
			add(listener, "")
		}
	}
	e.changed, e.missed, e.timer = map[rbacindex.Concern]struct{}{}, false, nil
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

// listenToRBACLocked makes the cache review access again when RBAC changes, if its options ask for
// that. The caller holds mu.
func (s *scopedCache) listenToRBACLocked() (stop func()) {
	var stops []func()
	if s.env.options.RBACWatcher != nil {
		stops = append(stops, s.listenAsIdentityLocked(s.env.options.RBACWatcher))
	}
	if s.env.rbacWatcher != nil {
		stops = append(stops, s.listenAsIdentityLocked(s.env.rbacWatcher))
		// Start returns when life ends, and never fails otherwise.
		s.entries.running.Go(func() { _ = s.env.rbacWatcher.Start(s.entries.life) })
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// listenAsIdentityLocked listens to changes that concern the cache's identity. Until the identity
// is known, every change concerns it. The caller holds mu.
func (s *scopedCache) listenAsIdentityLocked(events *RBACWatcher) (stop func()) {
	stopListening := events.listen(s.env.options.Username, s.env.options.Groups, s.entries.accessMayHaveChanged,
		s.entries.eventsWatchedChanged)
	if subjects, complete := rbacindex.SubjectsOf(s.env.options.Username, s.env.options.Groups); complete {
		s.entries.subjects.Store(&subjects)
		return stopListening
	}
	var mu sync.Mutex
	stopped := false
	s.entries.running.Go(func() { // only after Start, which waits for this goroutine
		var username string
		var groups []string
		var subjects []rbacindex.Subject
		pauses := monitor.DefaultTiming.Failing
		for complete := false; !complete; { // until then every change may concern the cache
			username, groups = s.env.reviewer.Identity(s.entries.life)
			if subjects, complete = rbacindex.SubjectsOf(username, groups); complete {
				break
			}
			select {
			case <-s.entries.life.Done():
				return
			case <-time.After(pauses.Step()):
			}
		}
		s.entries.subjects.Store(&subjects)
		s.entries.pokeSets(false)
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			// Register before the first registration ends.
			narrower := events.listen(username, groups, s.entries.accessMayHaveChanged, s.entries.eventsWatchedChanged)
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
