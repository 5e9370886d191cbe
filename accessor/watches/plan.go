package watches

import (
	"slices"
	"unique"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
)

// changes are what makes the watches of a name match a Spec.
type changes struct {
	leave []unique.Handle[part] // have a watch that the dependent needs no more
	join  []unique.Handle[part] // have a watch that the dependent needs as well
	start []partObject          // have no watch
}

// planFor returns what a registration needs to match wanted, or an ErrConflict. content says by
// which method the name was registered. planFor is pure: it reads the dependents of the parts, and
// changes nothing.
func planFor(content bool, parts map[unique.Handle[part]]*watch, wanted Spec) (plan changes, err error) {
	switch {
	case content && !wanted.content:
		return changes{}, errors.WithMessage(ErrConflict,
			"WatchContent registered the name; call Unwatch first, or use another name")
	case wanted.content && !content:
		return changes{}, errors.WithMessage(ErrConflict,
			"Watch registered the name, not WatchContent; call Unwatch first, or use another name")
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
	for registered, w := range parts {
		switch {
		case isWanted[registered]:
		case !content: // a Watch has one part
			return changes{}, errors.WithMessagef(ErrConflict,
				"the registered watch is %s, the requested watch is %s; call Unwatch first, use another name, or use "+
					"WatchContent for kinds and namespaces that change", registered.Value(), wanted.parts[0].part.Value())
		case slices.Contains(w.dependents, wanted.dependent):
			plan.leave = append(plan.leave, registered)
		}
	}
	return plan, nil
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
