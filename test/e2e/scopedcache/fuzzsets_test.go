package scopedcache_test

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// mark is the label of a sequence's namespaces.
func (s *sequence) mark() labels.Set { return labels.Set{"sequence": s.namespaces[0]} }

// pickScope returns the scope for a handle: one namespace, all, or a set of any kind.
func (s *sequence) pickScope(namespace string) scopedcache.Scope {
	switch s.sets.IntN(6) {
	case 0:
		return scopedcache.Scope{Namespaces: scopedcache.InNamespaces(s.namespaces[:2]...)}
	case 1:
		return scopedcache.Scope{Namespaces: scopedcache.NamespacesWithLabels(labels.SelectorFromSet(s.mark()))}
	case 2, 3:
		return scopedcache.Scope{Namespaces: scopedcache.WhereverAllowed()}
	}
	return scopedcache.Scope{Namespace: namespace}
}

// changeLabel puts the label on a namespace, or takes it away.
func (s *sequence) changeLabel() {
	ns := s.namespaces[s.sets.IntN(len(s.namespaces))]
	s.labelled[ns] = !s.labelled[ns]
	if s.labelled[ns] {
		label(s.t, ns, s.mark())
	} else {
		label(s.t, ns, nil)
	}
	s.note("labelled %s: %t", ns, s.labelled[ns])
}

// checkSet compares what the handler and the reads of a set know with what the user may list in its
// namespaces. A difference must be explained by a state.
func (s *sequence) checkSet(a *actor, h *fuzzHold) error {
	set, members := h.handle.State(), h.handle.Members()
	partial := (*scopedcache.PartialError)(nil)
	_ = errors.As(set.LastError, &partial)
	everywhere, _ := a.access(h.kind, "")
	isAllowed := h.scope.Namespaces.Names() == nil && h.scope.Namespaces.LabelSelector() == nil
	followed := !isAllowed || a.options.WatchRBAC || everywhere // else the state says that it cannot be known
	want := map[types.UID]string{}
	for _, ns := range s.namespaces {
		granted, _ := a.access(h.kind, ns)
		isLabelled := h.scope.Namespaces.LabelSelector() != nil && s.labelled[ns]
		in := slices.Contains(h.scope.Namespaces.Names(), ns) || isLabelled || isAllowed && granted && followed
		known := h.ledger.versionsIn(ns)
		at := slices.IndexFunc(members, func(m scopedcache.ScopeState) bool {
			return m.Scope.Namespace == ns || m.Scope.Namespace == ""
		})
		switch {
		case in && granted:
			if at < 0 || members[at].State != scopedcache.StateSynced {
				return errors.Errorf("%s may list in %s, which is no Synced member of %s: %v", a.user.name, ns, h.scope, members)
			}
			if err := s.compare(h.kind, ns, known); err != nil {
				return errors.WithMessagef(err, "the handler of %s", h.scope)
			}
			if err := s.addVersions(want, h.kind, ns); err != nil {
				return err
			}
		case in, isAllowed && at >= 0:
			if at < 0 || members[at].State != scopedcache.StateForbidden {
				return errors.Errorf("%s may not list in %s, which is no Forbidden member of %s: %v", a.user.name, ns, h.scope,
					members)
			}
		case len(known) == 0:
		case !isAllowed:
			return errors.Errorf("the handler of %s knows %d objects in %s, which is not in the set", h.scope, len(known), ns)
		case set.State != scopedcache.StateForbidden && (partial == nil || partial.Kept == 0):
			return errors.Errorf("the handler of %s knows %d objects in %s, and the state does not say why: %v", h.scope,
				len(known), ns, set)
		}
	}
	list := fuzzKinds[h.kind].list()
	err := h.handle.List(context.Background(), list)
	switch {
	case err != nil && set.State == scopedcache.StateSynced:
		return errors.WithMessagef(err, "%s is Synced, and cannot be listed", h.scope)
	case err != nil:
		return nil // the state says why, and which namespaces it is about was compared
	}
	got := map[types.UID]string{}
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if object := item.(client.Object); slices.Contains(s.namespaces, object.GetNamespace()) {
			got[object.GetUID()] = object.GetResourceVersion()
		}
		return nil
	})
	if len(got) != len(want) {
		return errors.Errorf("List of %s has %d objects, and the namespaces have %d", h.scope, len(got), len(want))
	}
	for uid, version := range want {
		if got[uid] != version {
			return errors.Errorf("List of %s has version %q of %s, the API server has %q", h.scope, got[uid], uid, version)
		}
	}
	return nil
}

// addVersions adds the versions of the objects that the API server has.
func (s *sequence) addVersions(versions map[types.UID]string, kind int, ns string) error {
	list := fuzzKinds[kind].list()
	if err := admin.List(context.Background(), list, client.InNamespace(ns)); err != nil {
		return err
	}
	for uid, version := range versionsOf(list) {
		versions[uid] = version
	}
	return nil
}
