package scopedcache

import (
	"maps"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespaceView is the namespaces that an identity sees, and which of them have which labels. It
// reads the informer's store, and uses events only to learn that something has changed: events may
// be older than the store.
type namespaceView struct {
	shown func(error) error // what may be said of a reason

	mu      sync.Mutex
	of      *use                    // guarded by mu
	known   bool                    // guarded by mu: the informer serves reads
	failing bool                    // guarded by mu: what it serves may be old
	reason  error                   // guarded by mu: why it does not serve reads
	queries map[*nameQuery]struct{} // guarded by mu
}

func newNamespaceView(shown func(error) error) *namespaceView {
	return &namespaceView{shown: shown, reason: errNotYet, queries: map[*nameQuery]struct{}{}}
}

// nameQuery asks a view for the namespaces with some labels.
type nameQuery struct {
	view     *namespaceView
	selector labels.Selector // nil selects nothing
	changed  func()          // called when names or the existence of a namespace has changed
	release  func()          // called by stop; may be nil

	found map[string]struct{} // guarded by view.mu
}

// begin makes the view follow the namespaces in a scope, until release is called.
func (v *namespaceView) begin(s *scopedCache, scope Scope, holder string) (release func(), err error) {
	handle, err := s.holdScope(s.env.namespaces, scope, HoldOptions{Name: holder})
	if err != nil {
		return nil, err
	}
	of := handle.held.(heldScope).use()
	e := of.entry
	v.mu.Lock()
	v.of = of
	v.mu.Unlock()
	registration, err := of.add(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    v.look,
		UpdateFunc: func(_, object any) { v.look(object) },
		DeleteFunc: v.look,
	}, toolscache.HandlerOptions{}, registrationEvents{delivered: func() {
		if of.user.since > 0 { // it may have become fresh
			v.stateChanged(e.snapshotOfState())
		}
	}})
	if err != nil {
		handle.Release()
		return nil, err
	}
	if e.observe(handle, v.stateChanged); handle.dead.Load() {
		e.unobserve(handle) // its user has ended meanwhile
	}
	return func() {
		_ = e.remove(registration) // fails only for another informer's handler
		handle.Release()
	}, nil
}

// stateChanged looks at all namespaces when the informer begins to serve reads.
func (v *namespaceView) stateChanged(now ScopeState) {
	v.mu.Lock()
	running := v.servingLocked()
	v.failing = now.State != StateSynced
	switch {
	case now.State == StateFailing && v.known:
		v.mu.Unlock()
		return // with the last known namespaces
	case now.State == StateSynced && running != nil:
		v.known, v.reason = true, nil
		for query := range v.queries {
			query.lookLocked(running)
		}
	case now.State == StateFailing:
		v.known, v.reason = false, &notYetError{v.shown(now.LastError)}
	case now.LastError != nil:
		v.known, v.reason = false, v.shown(now.LastError)
	default:
		v.known, v.reason = false, errNotYet
	}
	queries := slices.Collect(maps.Keys(v.queries))
	v.mu.Unlock()
	for _, query := range queries {
		query.changed()
	}
}

// servingLocked returns the informer that serves reads of the view's user; nil for none. The caller
// holds mu.
func (v *namespaceView) servingLocked() *informer {
	if running := v.of.entry.current.Load(); v.of.isFresh(running) {
		return running
	}
	return nil
}

// look looks at a namespace of which an event came.
func (v *namespaceView) look(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	namespace, ok := object.(client.Object)
	if !ok {
		return
	}
	var changed []*nameQuery
	v.mu.Lock()
	running := v.servingLocked()
	if !v.known || running == nil {
		v.mu.Unlock()
		return // all are looked at when it is known
	}
	has, exists := labelsOf(running, namespace.GetName())
	for query := range v.queries {
		if query.noteLocked(namespace.GetName(), has, exists) {
			changed = append(changed, query)
		}
	}
	v.mu.Unlock()
	for _, query := range changed {
		query.changed()
	}
}

// labelsOf returns the labels of a namespace in the store.
func labelsOf(running *informer, name string) (has labels.Set, exists bool) {
	object, exists, _ := running.Indexer.GetByKey(name) // fails for no store of ours
	if namespace, ok := object.(client.Object); ok && exists {
		return namespace.GetLabels(), true
	}
	return nil, false
}

// ask adds a query for the namespaces with labels. A nil selector only asks to hear of deletions.
func (v *namespaceView) ask(selector labels.Selector, changed func()) *nameQuery {
	query := &nameQuery{view: v, selector: selector, changed: changed, found: map[string]struct{}{}}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.queries[query] = struct{}{}
	if running := v.servingLocked(); v.known && running != nil {
		query.lookLocked(running)
	}
	return query
}

// has reports whether a namespace exists. known is false if the view does not know.
func (v *namespaceView) has(name string) (exists, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	running := v.servingLocked()
	if !v.known || v.failing || running == nil {
		return false, false
	}
	_, exists = labelsOf(running, name)
	return exists, true
}

// lookLocked finds the namespaces in the store. The caller holds view.mu.
func (q *nameQuery) lookLocked(running *informer) {
	clear(q.found)
	if q.selector == nil {
		return
	}
	for _, object := range running.Indexer.List() {
		if namespace, ok := object.(client.Object); ok && q.selector.Matches(labels.Set(namespace.GetLabels())) {
			q.found[namespace.GetName()] = struct{}{}
		}
	}
}

// noteLocked records a namespace, and reports whether that may change a set. The caller holds
// view.mu.
func (q *nameQuery) noteLocked(name string, has labels.Set, exists bool) bool {
	if q.selector == nil {
		return !exists
	}
	_, was := q.found[name]
	matches := exists && q.selector.Matches(has)
	if matches {
		q.found[name] = struct{}{}
	} else {
		delete(q.found, name)
	}
	return was != matches
}

// names implements nameSource.
func (q *nameQuery) names() ([]string, error) {
	q.view.mu.Lock()
	defer q.view.mu.Unlock()
	if !q.view.known {
		return nil, errors.WithMessage(q.view.reason, "listing namespaces")
	}
	return slices.Sorted(maps.Keys(q.found)), nil
}

// stop implements nameSource.
func (q *nameQuery) stop() {
	if q == nil {
		return
	}
	q.view.mu.Lock()
	_, asks := q.view.queries[q]
	delete(q.view.queries, q)
	q.view.mu.Unlock()
	if asks && q.release != nil {
		q.release()
	}
}
