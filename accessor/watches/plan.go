package watches

import (
	"slices"
	"unique"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// changes are what makes the watches of a name match a Spec.
type changes struct {
	leave []unique.Handle[part] // have a watch that the dependent needs no more
	join  []unique.Handle[part] // have a watch that the dependent needs as well
	start []partObject          // have no watch
}

// planFor returns what a registration needs to match wanted, or an ErrConflict. content says by
// which method the name was registered. planFor is pure: it reads the dependents of what is
// registered, and changes nothing.
func planFor(content bool, registered []*watch, wanted Spec) (plan changes, err error) {
	switch {
	case content && !wanted.content:
		return changes{}, errors.WithMessage(ErrConflict,
			"WatchContent registered the name; call Unwatch first, or use another name")
	case wanted.content && !content:
		return changes{}, errors.WithMessage(ErrConflict,
			"Watch registered the name, not WatchContent; call Unwatch first, or use another name")
	}
	parts := make(map[unique.Handle[part]]*watch, len(registered))
	for _, w := range registered {
		parts[w.part] = w
	}
	isWanted := map[unique.Handle[part]]bool{}
	for _, p := range wanted.parts {
		isWanted[p.part] = true
		switch w := parts[p.part]; {
		case w == nil:
			plan.start = append(plan.start, p)
		case !slices.Contains(w.dependents, wanted.dependent):
			plan.join = append(plan.join, p.part)
		}
	}
	for _, w := range registered {
		switch {
		case isWanted[w.part]:
		case !content: // a Watch has one part
			return changes{}, errors.WithMessagef(ErrConflict,
				"the registered watch is %s, the requested watch is %s; call Unwatch first, use another name, or use "+
					"WatchContent for kinds and namespaces that change", w.part.Value(), wanted.parts[0].part.Value())
		case slices.Contains(w.dependents, wanted.dependent):
			plan.leave = append(plan.leave, w.part)
		}
	}
	return plan, nil
}

// mergeClusterScoped returns the wanted parts, where a cluster-scoped kind has one part, without a
// namespace: manifests often give such objects one, and each namespace would have an informer that
// delivers all objects. isClusterScoped is called only for kinds in several namespaces, registered
// or wanted, because it may ask the API server.
func mergeClusterScoped(parts []partObject, registered []unique.Handle[part],
	isClusterScoped func(schema.GroupVersionKind) bool) []partObject {
	scopes := map[kindInPart]map[string]bool{}
	note := func(p unique.Handle[part]) {
		kind := kindIn(p)
		if scopes[kind] == nil {
			scopes[kind] = map[string]bool{}
		}
		scopes[kind][p.Value().scope] = true
	}
	for _, p := range registered {
		note(p)
	}
	for _, p := range parts {
		note(p.part)
	}
	merged := make([]partObject, 0, len(parts))
	added, asked := map[unique.Handle[part]]bool{}, map[schema.GroupVersionKind]bool{}
	for _, p := range parts {
		kind, several := kindIn(p.part), p.scope.Namespaces != nil
		if several || len(scopes[kind]) > 1 && p.scope.Namespace != "" {
			clusterScoped, known := asked[kind.gvk]
			if !known {
				clusterScoped = isClusterScoped(kind.gvk)
				asked[kind.gvk] = clusterScoped
			}
			if clusterScoped {
				p = p.withoutNamespace()
			}
		}
		if !added[p.part] {
			added[p.part] = true
			merged = append(merged, p)
		}
	}
	return merged
}

// addDependent returns dependents with one more, sorted and without duplicates. The argument does
// not change.
func addDependent(dependents []types.UID, dependent types.UID) []types.UID {
	if at, found := slices.BinarySearch(dependents, dependent); !found {
		return slices.Insert(slices.Clone(dependents), at, dependent)
	}
	return dependents
}

// removeDependents returns dependents without those in gone. An empty gone removes all.
func removeDependents(dependents, gone []types.UID) []types.UID {
	if len(gone) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(dependents), func(uid types.UID) bool { return slices.Contains(gone, uid) })
}
