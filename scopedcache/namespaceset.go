package scopedcache

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

// Namespaces is a set of namespaces for a [Scope]. Create one with [InNamespaces],
// [NamespacesWithLabels] or [WhereverAllowed]. A Namespaces is the definition of the set and does
// not change; which namespaces are in the set may. Each namespace has an informer, which other
// watches and reads of that namespace share. With WhereverAllowed, one informer may have all
// namespaces.
//
// Each namespace is on its own: one in which the identity may not list and watch, or whose informer
// hangs or fails, delays no other, and its state changes nothing for the objects of the others. A
// handler of a set gets one call at a time, whatever the number of namespaces; so a handler that
// hangs delays the events of all of them.
//
// While it is not known which namespaces there are, because they or RBAC cannot be watched, the set
// stays as it is, and its state says why. A cluster-scoped kind has no sets: with one, it would
// have an informer of all objects for each namespace.
type Namespaces struct {
	kind   members.Kind
	names  []string        // of a Listed set
	labels labels.Selector // of a Labelled set
}

// InNamespaces returns the set of exactly these namespaces, which need not exist. A permission in
// each of them suffices, for example a Role. If NamespaceWatcher of [Options] sees that one of them
// is deleted, and the identity may not read there any more, handlers receive
// DeletedFinalStateUnknown for each of its objects that they know. The namespace stays in the set.
func InNamespaces(names ...string) *Namespaces {
	return &Namespaces{names: slices.Compact(slices.Sorted(slices.Values(names)))}
}

// NamespacesWithLabels returns the set of the namespaces whose labels match, now and later. A
// permission in each of them suffices, for example a Role. The labels are those that
// NamespaceWatcher of [Options] sees or, without one, the cache's own identity, which then needs
// permission to list and watch namespaces. An empty selector matches every namespace. With one that
// matches nothing, such as nil or labels.Nothing, Hold and Watch return an error.
//
// When a namespace leaves the set, by its labels or because it is deleted, handlers receive
// DeletedFinalStateUnknown for each of its objects that they know.
func NamespacesWithLabels(selector labels.Selector) *Namespaces {
	if selector == nil {
		selector = labels.Nothing()
	}
	return &Namespaces{kind: members.Labelled, labels: selector}
}

// WhereverAllowed returns the set of the namespaces in which the identity may list and watch the
// kind, now and later. While it may in all namespaces, one informer has all objects. Otherwise each
// namespace in which a RoleBinding names the identity, or one of its groups, is tried. So the set
// needs WatchRBAC or RBACWatcher of [Options]; without one it is Forbidden unless the identity may
// list and watch everywhere. MaxNamespaces of [Options] bounds how many it has.
//
// A namespace whose permission is revoked stays in the set, with the state Forbidden, so that List
// fails: see [Handle]. Handlers hear of what changed when access is back. If NamespaceWatcher of
// [Options] sees that the namespace is deleted, they receive DeletedFinalStateUnknown for each of
// its objects that they know, and it leaves the set. When a permission for all namespaces is
// revoked, handlers keep what they know of the namespaces that are not in the set any more.
//
// Hold returns an error if the cache's options name namespaces for the kind.
func WhereverAllowed() *Namespaces { return &Namespaces{kind: members.Allowed} }

// Names returns the namespaces of [InNamespaces], sorted, each once. Names returns nil for other
// sets.
func (n *Namespaces) Names() []string {
	if n == nil {
		return nil
	}
	return slices.Clone(n.names)
}

// LabelSelector returns the selector of [NamespacesWithLabels], nil for other sets.
func (n *Namespaces) LabelSelector() labels.Selector {
	if n == nil {
		return nil
	}
	return n.labels
}

// String returns the definition: the names with commas between them, "with the labels" and the
// selector, or "wherever allowed". A set that can have no namespace is "nothing".
func (n *Namespaces) String() string {
	switch {
	case n == nil:
		return ""
	case n.selectsNothing():
		return "nothing"
	case n.kind == members.Allowed:
		return "wherever allowed"
	case n.kind == members.Labelled && n.labels.Empty():
		return "with or without labels"
	case n.kind == members.Labelled:
		return "with the labels " + labelKey(n.labels)
	}
	return strings.Join(n.names, ", ")
}

// selectsNothing reports whether the set never has a namespace.
func (n *Namespaces) selectsNothing() bool {
	return n.kind == members.Listed && len(n.names) == 0 || noLabels(n.labels)
}

// place describes the namespaces.
func (s Scope) place() string {
	if s.Namespaces != nil {
		return "the namespaces " + s.Namespaces.String()
	}
	return fmt.Sprintf("namespace %q", s.Namespace)
}

// Members returns the scopes that have an informer each: one for each of Namespaces, or the scope
// itself. Members returns none for a set whose namespaces change; see Members of [Handle]. Members
// returns an error if no informer can have the scope.
func (s Scope) Members() ([]Scope, error) {
	if s.selectsNothing() {
		return nil, errors.Errorf("the scope selects nothing (%s): an API server would return all objects", s)
	}
	if s.Namespaces == nil {
		return []Scope{s}, nil
	}
	if s.Namespace != "" {
		return nil, errors.Errorf("the scope has a Namespace (%s) and Namespaces (%s): set one of them", s.Namespace,
			s.Namespaces)
	}
	scopes := make([]Scope, 0, len(s.Namespaces.names))
	for _, name := range s.Namespaces.names {
		if !isPathSegment(name) {
			return nil, errors.Errorf("the scope has Namespaces of which one cannot exist: %q", name)
		}
		scopes = append(scopes, s.in(name))
	}
	return scopes, nil
}

// in returns the scope of one namespace of a set.
func (s Scope) in(namespace string) Scope {
	s.Namespace, s.Namespaces = namespace, nil
	return s
}
