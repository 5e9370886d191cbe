package ownwrites

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/versions"
)

// Informer is what one informer has of a kind.
type Informer interface {
	// ID returns a number that no other informer has.
	ID() uint64
	// Since returns how many writes had been recorded when the informer sent its first list, 0 if that
	// list was not consistent.
	Since() uint64
	// Version returns the version that the store has reached; empty before it has had a list.
	Version() string
	// Stored returns the object of that key.
	Stored(key types.NamespacedName) (Object, bool)
	// Covers reports whether objects of a namespace and name may be in the store. An empty one stands
	// for all.
	Covers(namespace, name string) bool
	// Selects reports whether the informer's selectors select objects with these labels.
	Selects(labels map[string]string) Selection
	// Polls reports whether the informer lists now and then, and has no watch.
	Polls() bool
	// HasSelectors reports whether there are selectors at all, except of namespace and name.
	HasSelectors() bool
}

// Object is a state of an object.
type Object struct {
	UID     types.UID
	Version string
}

// Selection is whether an informer selects an object.
type Selection int

// The values of Selection.
const (
	SelectionUnknown Selection = iota // only the API server knows the fields that it selects by
	Selected
	NotSelected
)

// requirement is what an informer needs to have, so that a read of it is not older than the writes
// of one object, or of all objects in a namespace.
type requirement struct {
	namespace string
	name      string // empty for all names: unknown or barrier is set
	seq       uint64 // of the latest write

	Object                    // the state that the latest write left; with gone, the last known one before
	gone    bool              // the object of that UID was deleted
	unknown bool              // what the writes did is unknown
	labels  map[string]string // that the latest write left; nil if unknown

	// barrier, if set, is the version of a list that was sent after the write: an informer that has
	// this version has the write.
	barrier string
	// absentIn are the informers whose selectors such a list had that did not have the object.
	absentIn []uint64
}

// verdict is whether a read of an informer may be older than a write.
type verdict int

const (
	has    verdict = iota // it never is
	shows                 // it is not now: the informer does not select the object
	lacks                 // it is; the informer will have the write
	unsure                // only the API server can tell
)

// judge compares an informer with a requirement. judge has no effects. No read waits for the next
// list of an informer that polls.
func (r *requirement) judge(informer Informer) verdict {
	result := r.compare(informer)
	if result == lacks && informer.Polls() {
		return unsure
	}
	return result
}

// compare is judge for an informer with a watch. The informer may receive events meanwhile: its
// store changes before its version, so compare looks at the version first.
func (r *requirement) compare(informer Informer) verdict {
	if !informer.Covers(r.namespace, r.name) || informer.Since() >= r.seq {
		return has
	}
	version := informer.Version()
	if r.barrier != "" && versions.Reached(version, r.barrier) {
		return has
	}
	stored, found := informer.Stored(r.key())
	absent := slices.Contains(r.absentIn, informer.ID())
	switch {
	case absent && found && !versions.IsAfter(stored.Version, r.barrier):
		return lacks
	case absent:
		return shows
	case r.unknown:
		return unsure
	case r.gone:
		return r.judgeDeletion(informer, version, stored, found)
	case versions.Reached(version, r.Version):
		return has
	case found, !informer.HasSelectors():
		return lacks
	}
	return r.judgeSelection(informer)
}

// judgeDeletion is judge for the deletion of an object. An informer without selectors that has seen
// the object has it until the deletion. One with selectors may not have it now, and have it again
// before the deletion. A transform may have taken the UID away.
func (r *requirement) judgeDeletion(informer Informer, version string, stored Object, found bool) verdict {
	switch {
	case found && stored.UID == r.UID:
		return lacks
	case informer.HasSelectors(), found && stored.UID == "":
		return unsure
	case versions.Reached(version, r.Version):
		return has
	}
	return lacks
}

// judgeSelection is judge for an informer without the object, and with selectors. If it does not
// select the object, it will not see the version. It does not have the object then, either, unless
// an event is on its way that is older than the write. So the requirement stays.
func (r *requirement) judgeSelection(informer Informer) verdict {
	if r.labels == nil {
		return unsure
	}
	switch informer.Selects(r.labels) {
	case NotSelected:
		return shows
	case Selected:
		return lacks
	}
	return unsure
}

func (r *requirement) key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.namespace, Name: r.name}
}

// concerns reports whether a read may contain the object: one of a namespace and name, or of all if
// one of them is empty.
func (r *requirement) concerns(namespace, name string) bool {
	return (r.name == "" || name == "" || r.name == name) &&
		(r.namespace == "" || namespace == "" || r.namespace == namespace)
}

// add adds a later write to the requirement. Writes at the same time are added in any order.
func (r *requirement) add(w *Write, seq uint64) {
	before := *r
	r.seq, r.barrier, r.absentIn = seq, "", nil
	switch {
	case w.Unknown:
		r.Object, r.gone, r.labels = Object{}, false, nil
	case before.unknown && before.UID == "":
		return // what is unknown may have come after this write: a list will tell
	case w.UID == before.UID && before.seq > 0:
		r.gone = before.gone || w.Gone
		if !versions.IsAfter(before.Version, w.Version) {
			r.labels = w.Labels
		}
		r.Version = versions.Later(before.Version, w.Version)
	case before.seq == 0, !versions.IsAfter(before.Version, w.Version):
		r.Object, r.gone, r.labels = w.Object, w.Gone, w.Labels
	default: // the object of the earlier one was created after this one had been deleted
	}
	r.unknown = r.Version == "" // an informer may not have seen the object yet
}

// learn takes what a list says that was sent after the write, and that had the selectors of an
// informer: its version, and the state of the object if that was in it.
func (r *requirement) learn(informer Informer, version string, found *Object, labels map[string]string) {
	if found == nil || r.name == "" || found.Version == "" {
		if r.barrier == "" {
			r.barrier = version
		}
		if found == nil && r.name != "" {
			r.absentIn = append(r.absentIn[:len(r.absentIn):len(r.absentIn)], informer.ID())
		}
		return
	}
	r.Object, r.gone, r.unknown, r.labels = *found, false, false, copyOf(labels)
}

// copyOf returns a copy of labels that are known: those of an object belong to its owner.
func copyOf(labels map[string]string) map[string]string {
	known := make(map[string]string, len(labels))
	maps.Copy(known, labels)
	return known
}
