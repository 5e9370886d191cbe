package merge

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Times are the times of a View.
type Times struct {
	// Silence is how long a replica is heard after the last news of it.
	Silence time.Duration
	// Forget is after how long a term that no replica claims any more is forgotten: the Lease that
	// it was counted by was deleted, and counts from the beginning.
	Forget time.Duration
}

// Row is what a replica says of an extension.
type Row[T any] struct {
	UID  types.UID
	Term int64
	Row  T
}

// View has what the replicas of a fleet say of the extensions. Its methods return the extensions of
// which another Choice may be shown than before.
type View[T any] struct {
	times      Times
	extensions map[client.ObjectKey]*extension[T]
	replicas   map[string]*replica
	order      uint64
	met        bool                      // members is known
	members    []string                  // of the fleet, but for this replica
	unheard    []string                  // members that are not heard, or in doubt
	doubts     map[string]Doubt          // of replicas
	hidden     Doubt                     // whether all members are known
	unclaimed  map[client.ObjectKey]bool // extensions that are shown as Unclaimed or Unsure
}

type extension[T any] struct {
	known  types.UID // "" if it is not known to exist
	claims map[string]claim[T]
	floor  Floor
	late   time.Time // since when claims are late; zero if none is
}

type claim[T any] struct {
	Row[T]
	order uint64
}

type replica struct {
	heardAt time.Time
	heard   bool
	claims  map[client.ObjectKey]bool
}

// New returns a View of nothing.
func New[T any](times Times) *View[T] {
	return &View[T]{
		times:      times,
		extensions: map[client.ObjectKey]*extension[T]{},
		replicas:   map[string]*replica{},
		doubts:     map[string]Doubt{},
		unclaimed:  map[client.ObjectKey]bool{},
	}
}

func (v *View[T]) extension(key client.ObjectKey) *extension[T] {
	e := v.extensions[key]
	if e == nil {
		e = &extension[T]{claims: map[string]claim[T]{}}
		v.extensions[key] = e
	}
	return e
}

func (v *View[T]) replica(name string) *replica {
	r := v.replicas[name]
	if r == nil {
		r = &replica{claims: map[client.ObjectKey]bool{}}
		v.replicas[name] = r
	}
	return r
}

// Know says that an extension exists.
func (v *View[T]) Know(key client.ObjectKey, uid types.UID) { v.extension(key).known = uid }

// Gone says that an extension that was known does not exist any more. Claims of it by replicas that
// are not heard are forgotten.
func (v *View[T]) Gone(key client.ObjectKey) {
	e := v.extensions[key]
	if e == nil {
		return
	}
	for name, c := range e.claims {
		if c.UID == e.known && !v.replicas[name].heard {
			v.drop(name, key)
		}
	}
	e.known = ""
	v.tidy(key)
}

// Claim says that a replica has an extension, and what it says of it.
func (v *View[T]) Claim(name string, key client.ObjectKey, row Row[T]) {
	e := v.extension(key)
	before, claimed := e.claims[name]
	order := before.order
	if !claimed || before.UID != row.UID || before.Term != row.Term {
		v.order++
		order = v.order
	}
	e.claims[name] = claim[T]{row, order}
	v.replica(name).claims[key] = true
}

// Unclaim says that a replica does not have an extension any more.
func (v *View[T]) Unclaim(name string, key client.ObjectKey) {
	v.drop(name, key)
	v.tidy(key)
}

func (v *View[T]) drop(name string, key client.ObjectKey) {
	if e := v.extensions[key]; e != nil {
		delete(e.claims, name)
	}
	if r := v.replicas[name]; r != nil {
		delete(r.claims, key)
	}
}

// tidy forgets an extension of which nothing is known.
func (v *View[T]) tidy(key client.ObjectKey) {
	if e := v.extensions[key]; e != nil && e.known == "" && len(e.claims) == 0 {
		delete(v.extensions, key)
	}
}

// Replace says what a replica has, and that it has nothing else.
func (v *View[T]) Replace(name string, rows map[client.ObjectKey]Row[T]) (changed []client.ObjectKey) {
	for key := range v.replica(name).claims {
		if _, still := rows[key]; !still {
			changed = append(changed, key)
		}
	}
	for _, key := range changed {
		v.Unclaim(name, key)
	}
	for key, row := range rows {
		v.Claim(name, key, row)
		changed = append(changed, key)
	}
	return changed
}

// Members says which replicas there are, but for the one whose View this is. They are heard when
// Hear says it. Before the first call there may be others that have what is not claimed.
func (v *View[T]) Members(names []string) (changed []client.ObjectKey) {
	v.members = slices.Sorted(slices.Values(names))
	maps.DeleteFunc(v.doubts, func(name string, _ Doubt) bool { return !v.mayDoubt(name) })
	if changed = v.notice(); !v.met {
		v.met, changed = true, slices.Collect(maps.Keys(v.unclaimed))
	}
	return changed
}

// notice notices which members are not heard.
func (v *View[T]) notice() (changed []client.ObjectKey) {
	var unheard []string
	for _, name := range v.members {
		if _, heard := v.HeardAt(name); !heard || v.isDoubted(name) {
			unheard = append(unheard, name)
		}
	}
	if slices.Equal(unheard, v.unheard) {
		return nil
	}
	v.unheard = unheard
	return slices.Collect(maps.Keys(v.unclaimed))
}

// Unheard returns the members that are not heard, or in doubt, sorted. There are none while they
// are not known.
func (v *View[T]) Unheard() []string { return slices.Clone(v.unheard) }

// Hear says that a replica was heard at that time.
func (v *View[T]) Hear(name string, at time.Time) (changed []client.ObjectKey) {
	r := v.replica(name)
	if at.After(r.heardAt) {
		r.heardAt = at
	}
	if r.heard {
		return nil
	}
	r.heard = true
	return append(claimsOf(r), v.notice()...)
}

// Forget forgets a replica, and what it said. What it says later begins with a Replace.
func (v *View[T]) Forget(name string) (changed []client.ObjectKey) {
	delete(v.doubts, name)
	r := v.replicas[name]
	if r == nil {
		return v.notice()
	}
	changed = claimsOf(r)
	for _, key := range changed {
		v.Unclaim(name, key)
	}
	delete(v.replicas, name)
	return append(changed, v.notice()...)
}

// Tick says what time it is.
func (v *View[T]) Tick(now time.Time) (changed []client.ObjectKey) {
	for _, r := range v.replicas {
		if r.heard && now.Sub(r.heardAt) > v.times.Silence {
			r.heard = false
			changed = append(changed, claimsOf(r)...)
		}
	}
	for key, e := range v.extensions {
		if !e.late.IsZero() && now.Sub(e.late) > v.times.Forget {
			e.floor, e.late = Floor{}, time.Time{}
			changed = append(changed, key)
		}
	}
	return append(changed, v.notice()...)
}

func claimsOf(r *replica) (keys []client.ObjectKey) {
	for key := range r.claims {
		keys = append(keys, key)
	}
	return keys
}

// Show decides what is shown of an extension, with what the chosen replica says of it.
func (v *View[T]) Show(key client.ObjectKey, now time.Time) (choice Choice, row T) {
	e := v.extensions[key]
	if e == nil {
		delete(v.unclaimed, key)
		return Choice{}, row
	}
	_, hidden := v.hidden.Raised()
	choice = Choose(e.known, v.claims(e), e.floor, !v.met || hidden || len(v.unheard) > 0)
	if choice.Kind == Unclaimed || choice.Kind == Unsure {
		v.unclaimed[key] = true
	} else {
		delete(v.unclaimed, key)
	}
	e.floor = e.floor.raise(choice)
	switch {
	case !choice.Late:
		e.late = time.Time{}
	case e.late.IsZero():
		e.late = now
	}
	return choice, e.claims[choice.Replica].Row.Row
}

func (v *View[T]) claims(e *extension[T]) []Claim {
	claims := make([]Claim, 0, len(e.claims))
	for name, c := range e.claims {
		claims = append(claims, Claim{
			Replica: name,
			UID:     c.UID,
			Term:    c.Term,
			Heard:   v.replicas[name].heard,
			Doubted: v.isDoubted(name),
			Order:   c.order,
		})
	}
	return claims
}

// Claimants returns the replicas that claim an extension, sorted.
func (v *View[T]) Claimants(key client.ObjectKey) []string {
	if e := v.extensions[key]; e != nil {
		return sortedReplicas(v.claims(e))
	}
	return nil
}

// HeardAt returns when a replica was last heard, and whether it still is.
func (v *View[T]) HeardAt(name string) (at time.Time, heard bool) {
	if r := v.replicas[name]; r != nil {
		return r.heardAt, r.heard
	}
	return at, false
}

// Replicas returns the replicas, sorted.
func (v *View[T]) Replicas() (names []string) {
	for name := range v.replicas {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
