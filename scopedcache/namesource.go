package scopedcache

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/rbacindex"
)

// nameSource knows which namespaces a set may have.
type nameSource interface {
	// names returns the namespaces, sorted, or why they are not known. The caller must not change
	// them.
	names() ([]string, error)
	// stop ends the calls that say that something has changed. Later calls have no effect.
	stop()
}

// sourceOf returns the source of a set, which pokes the set.
func (s *scopedCache) sourceOf(set *namespaceSet) (nameSource, error) {
	definition, watcher := set.scope.Namespaces, s.env.options.NamespaceWatcher
	if definition.kind == members.Labelled && watcher == nil {
		return s.ownLabels(definition.labels, set)
	}
	var query *nameQuery
	if watcher != nil {
		view, err := watcher.follow()
		if err != nil {
			return nil, err
		}
		query = view.ask(definition.labels, set.poke)
	}
	switch definition.kind {
	case members.Labelled:
		return query, nil
	case members.Allowed:
		return &bindings{nameQuery: query, cache: s}, nil
	}
	return &listedNames{nameQuery: query, listed: definition.names}, nil
}

// ownLabels returns the namespaces with labels that the cache's own identity sees. The cache's
// options for namespaces do not apply: they are about what callers read.
func (s *scopedCache) ownLabels(selector labels.Selector, set *namespaceSet) (nameSource, error) {
	view := newNamespaceView(func(err error) error { return err })
	release, err := view.begin(s, Scope{LabelSelector: selector}, set.holderName())
	if err != nil {
		return nil, err
	}
	query := view.ask(labels.Everything(), set.poke)
	query.release = release
	return query, nil
}

// listedNames are the namespaces of a definition.
type listedNames struct {
	*nameQuery // says that a namespace is deleted; may be nil
	listed     []string
}

func (l *listedNames) names() ([]string, error) { return l.listed, nil }

// bindings are the namespaces in which a RoleBinding names the identity of a cache.
type bindings struct {
	*nameQuery // says that a namespace is deleted; may be nil
	cache      *scopedCache
}

// errNeedsRBAC is why WhereverAllowed does not know where.
var errNeedsRBAC = errors.New("WhereverAllowed needs WatchRBAC or an RBACWatcher of this API server, unless the " +
	"identity may list and watch all namespaces: set one of them, or use InNamespaces or NamespacesWithLabels")

// errNotOurs stands for an error of an identity that watches for others.
var errNotOurs = errors.New("the log of the operator that watches says why")

func (b *bindings) names() ([]string, error) {
	env := b.cache.env
	if env.options.RBACWatcher == nil && env.rbacWatcher == nil {
		return nil, errNeedsRBAC
	}
	subjects := b.cache.entries.subjects.Load()
	if subjects == nil {
		return nil, errNotYet
	}
	found, err := map[string]struct{}{}, error(nil)
	for _, watcher := range []*RBACWatcher{env.options.RBACWatcher, env.rbacWatcher} {
		if watcher == nil {
			continue
		}
		shown := func(error) error { return errNotOurs } // another identity's denial is not this one's
		if watcher == env.rbacWatcher {
			shown = func(err error) error { return err }
		}
		names, problem := watcher.namespacesOf(*subjects, shown)
		if problem != nil {
			err = problem
			continue
		}
		for _, name := range names {
			found[name] = struct{}{}
		}
	}
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// namespacesOf returns the namespaces in which one of the subjects has a RoleBinding, or why they
// are not known. shown returns what may be said of a reason.
func (e *RBACWatcher) namespacesOf(subjects []rbacindex.Subject, shown func(error) error) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := len(e.kinds) == watchedKinds
	for _, gvk := range slices.SortedFunc(maps.Keys(e.kinds), func(x, y schema.GroupVersionKind) int {
		return cmp.Compare(x.Kind, y.Kind)
	}) {
		kind := e.kinds[gvk]
		switch {
		case kind.reason != nil && !kind.failingSince.IsZero() && !kind.indexed:
			return nil, &notYetError{errors.WithMessage(shown(kind.reason), "the RBACWatcher fails")}
		case kind.reason != nil && !kind.indexed:
			return nil, errors.WithMessage(shown(kind.reason), "the RBACWatcher cannot watch RBAC")
		}
		known = known && kind.indexed
	}
	if !known {
		return nil, errNotYet
	}
	return e.index.Namespaces(subjects), nil
}

// notYetError is why something is not known yet, although it may be soon.
type notYetError struct{ reason error }

func (e *notYetError) Error() string        { return e.reason.Error() }
func (e *notYetError) Unwrap() error        { return e.reason }
func (e *notYetError) Is(target error) bool { return target == errNotYet }

// isNotYet reports whether an error says that something is not known yet.
func isNotYet(err error) bool { return errors.Is(err, errNotYet) }

// isOnlyNotYet reports whether an error says no more than that.
func isOnlyNotYet(err error) bool { return isNotYet(err) && !errors.As(err, new(*notYetError)) }

// pokeSets makes the sets that RBAC decides look again, or all.
func (s *entrySet) pokeSets(all bool) {
	s.mu.Lock()
	sets := slices.Collect(maps.Keys(s.sets))
	s.mu.Unlock()
	for _, set := range sets {
		if all || set.scope.Namespaces.kind == members.Allowed {
			set.poke()
		}
	}
}

// goWhileRunning runs f in a goroutine that the stop of the cache waits for. goWhileRunning reports
// false if the cache does not run.
func (s *entrySet) goWhileRunning(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.ended {
		return false
	}
	s.running.Go(f)
	return true
}
