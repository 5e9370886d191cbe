package merge

import (
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// HeardOut says whether all was heard that a replica had at begun. Until it is, the replica is in
// doubt, and what it says is taken for that of one that is not heard.
func (v *View[T]) HeardOut(name string, begun time.Time, all bool) (changed []client.ObjectKey) {
	if !v.mayDoubt(name) {
		return nil
	}
	before := v.isDoubted(name)
	doubt := v.doubts[name]
	doubt.answer(begun, all)
	if _, raised := doubt.Raised(); raised {
		v.doubts[name] = doubt
	} else {
		delete(v.doubts, name)
	}
	v.notice()
	if v.isDoubted(name) == before {
		return nil
	}
	// If it was just silent, these may not have been shown yet.
	return append(v.claimsOf(name), slices.Collect(maps.Keys(v.unclaimed))...)
}

// Met says whether all members are known that there were at begun. Until they are, an extension
// that no replica has may be that of one that is not known.
func (v *View[T]) Met(begun time.Time, all bool) (changed []client.ObjectKey) {
	_, before := v.hidden.Raised()
	v.hidden.answer(begun, all)
	if _, after := v.hidden.Raised(); after != before {
		changed = slices.Collect(maps.Keys(v.unclaimed))
	}
	return changed
}

func (d *Doubt) answer(begun time.Time, all bool) {
	if all {
		d.Settle(begun)
	} else {
		d.Raise(begun)
	}
}

// Settle says that this replica does not serve any more: it shows what it has heard.
func (v *View[T]) Settle() (changed []client.ObjectKey) {
	for name := range v.doubts {
		changed = append(changed, v.claimsOf(name)...)
	}
	clear(v.doubts)
	if _, raised := v.hidden.Raised(); raised {
		v.hidden = Doubt{}
		changed = slices.AppendSeq(changed, maps.Keys(v.unclaimed))
	}
	return append(changed, v.notice()...)
}

// Doubts returns the replicas that are in doubt, sorted, and whether there may be members that are
// not known.
func (v *View[T]) Doubts() (replicas []string, members bool) {
	_, members = v.hidden.Raised()
	return slices.Sorted(maps.Keys(v.doubts)), members
}

// DoubtedSince returns since when a replica is in doubt, and whether it is.
func (v *View[T]) DoubtedSince(name string) (since time.Time, is bool) {
	return v.doubts[name].Raised()
}

// mayDoubt reports whether a replica is known: one that is forgotten comes with what it has then.
func (v *View[T]) mayDoubt(name string) bool {
	return v.replicas[name] != nil || slices.Contains(v.members, name)
}

func (v *View[T]) isDoubted(name string) bool {
	_, is := v.doubts[name]
	return is
}

func (v *View[T]) claimsOf(name string) []client.ObjectKey {
	if r := v.replicas[name]; r != nil {
		return claimsOf(r)
	}
	return nil
}
