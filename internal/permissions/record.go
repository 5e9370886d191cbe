package permissions

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

const (
	// MaxBytes bounds the memory of a record.
	MaxBytes = 4096
	// maxNames is how many names a record has of one resource in one namespace.
	maxNames = 16
	// refusalLasts is how long a refusal counts that nothing has followed.
	refusalLasts = time.Hour
)

// Record has the permissions that an identity used, and that it was refused. A nil Record keeps
// nothing. Its methods may be called from any goroutine.
type Record struct {
	mu         sync.Mutex
	resources  []resource // guarded by mu
	last       int        // guarded by mu: where the latest one is
	incomplete bool       // guarded by mu: something was left out
}

// key is a resource in one namespace, or a path. A path is in the place of the resource, and begins
// with a slash.
type key struct{ group, resource, subresource, namespace string }

func keyOf(p Permission) key {
	if p.Path != "" {
		return key{resource: p.Path}
	}
	return key{p.Group, p.Resource, p.Subresource, p.Namespace}
}

// permission returns what a verb of the resource is.
func (k key) permission(verb string) Permission {
	if strings.HasPrefix(k.resource, "/") {
		return Permission{Verb: verb, Path: k.resource}
	}
	return Permission{Verb: verb, Group: k.group, Resource: k.resource, Subresource: k.subresource, Namespace: k.namespace}
}

// own makes the strings the record's own: those of a request are parts of a longer one.
func (k key) own() key {
	return key{strings.Clone(k.group), strings.Clone(k.resource), strings.Clone(k.subresource), strings.Clone(k.namespace)}
}

// resource is what was done with the objects of one resource in one namespace, or with a path.
type resource struct {
	key
	anyNamespace bool // of several namespaces, which are not on record
	anyName      bool // of more objects than there are names
	names        []string
	uses         []use
}

// use is what was done with one verb. A bit of a set stands for the name at that index.
type use struct {
	verb                      verb
	servedAll, refusedAll     bool   // without a name, or with one that is not on record
	first, latest             uint32 // served; in seconds since 1970
	refusal                   uint32 // the latest
	served, refused           uint32 // how often
	servedNames, refusedNames uint16
}

// verb is the index of a verb in knownVerbs.
type verb uint8

var knownVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy",
	"head", "post", "put", "options"} // all that Of returns

// Note records that the API server served a request, or refused it for lack of the permission.
func (r *Record) Note(p Permission, refused bool, at time.Time) {
	v := slices.Index(knownVerbs, p.Verb)
	if r == nil || v < 0 || !refused && isEverybodys(p) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.find(p)
	if found == nil || !found.has(verb(v)) {
		if found = r.add(p); found == nil {
			r.incomplete = true
			return
		}
	}
	names := len(found.names)
	found.note(verb(v), p.Name, refused, uint32(at.Unix())) //nolint:gosec // until 2106
	for len(found.names) > names && r.size() > MaxBytes {
		r.widen() // there are names
	}
}

// isEverybodys reports whether the default roles of Kubernetes give the permission to each user: to
// discover, and to ask about oneself.
func isEverybodys(p Permission) bool {
	if p.Path != "" || p.Resource == "" {
		switch p.Path {
		case "/api", "/apis", "/openapi", "/version", "/version/", "/healthz", "/livez", "/readyz":
			return p.Verb == "get"
		}
		return p.Verb == "get" && (strings.HasPrefix(p.Path, "/api/") || strings.HasPrefix(p.Path, "/apis/") ||
			strings.HasPrefix(p.Path, "/openapi/"))
	}
	return p.Verb == "create" && strings.HasPrefix(p.Resource, "selfsubject") &&
		(p.Group == "authorization.k8s.io" || p.Group == "authentication.k8s.io")
}

// find returns the resource of a permission, nil if it is not on record. The caller holds mu.
func (r *Record) find(p Permission) *resource {
	k := keyOf(p)
	if r.last < len(r.resources) && r.resources[r.last].matches(k) {
		return &r.resources[r.last]
	}
	for n := range r.resources {
		if r.resources[n].matches(k) {
			r.last = n
			return &r.resources[n]
		}
	}
	return nil
}

// matches reports whether the resource is that of a request. A request about all namespaces is not
// one about several.
func (s *resource) matches(k key) bool {
	return s.resource == k.resource && s.subresource == k.subresource && s.group == k.group &&
		(s.namespace == k.namespace && !s.anyNamespace || s.anyNamespace && k.namespace != "")
}

// add returns the resource of a permission, and makes room there for another verb. It returns nil
// if there is not enough memory. The caller holds mu.
func (r *Record) add(p Permission) *resource {
	added := resource{key: keyOf(p)}
	if !added.isPresentable() || added.size() > MaxBytes/4 {
		return nil // others would have to make room
	}
	for {
		found, needed := r.find(p), int(unsafe.Sizeof(use{}))
		if found == nil {
			needed += added.size()
		}
		if r.size()+needed <= MaxBytes {
			if found != nil {
				return found
			}
			break
		}
		if needed > MaxBytes || !r.widen() {
			return nil
		}
	}
	added.key = added.own()
	r.resources = grown(r.resources, added)
	return &r.resources[len(r.resources)-1]
}

// grown is append without room for more, which would be half of the record.
func grown[T any](all []T, one T) []T {
	more := make([]T, len(all), len(all)+1)
	copy(more, all)
	return append(more, one)
}

// isPresentable reports whether the key may be shown to people. What a request names may be
// anything.
func (k key) isPresentable() bool {
	for _, text := range []string{k.group, k.resource, k.subresource, k.namespace} {
		if !untrusted.IsPresentable(text) {
			return false
		}
	}
	return true
}

// has reports whether a verb is on record.
func (s *resource) has(v verb) bool {
	return slices.ContainsFunc(s.uses, func(u use) bool { return u.verb == v })
}

// note records one request. It allocates nothing if the verb and the name are on record.
func (s *resource) note(v verb, name string, refused bool, at uint32) {
	u := s.use(v)
	var bit uint16
	if name != "" && !s.anyName {
		bit = s.bit(name)
	}
	if refused {
		if u.refusal+uint32(refusalLasts/time.Second) <= at { // those before do not count any more
			u.refused, u.refusedNames, u.refusedAll = 0, 0, false
		}
		u.refused = increased(u.refused, 1)
		u.refusal = at
		u.refusedNames |= bit
		u.refusedAll = u.refusedAll || bit == 0
		return
	}
	if u.first == 0 {
		u.first = at
	}
	u.served = increased(u.served, 1)
	u.latest = max(u.latest, at)
	u.servedNames |= bit
	u.servedAll = u.servedAll || bit == 0
	u.refusedNames &^= bit
	if name == "" && !s.anyNamespace { // another object or namespace may still be refused
		u.refusedNames, u.refusedAll = 0, false
	}
	if u.refusedNames == 0 && !u.refusedAll {
		u.refused = 0
	}
}

// increased is a sum that does not begin again.
func increased(n, by uint32) uint32 {
	if n > math.MaxUint32-by {
		return math.MaxUint32
	}
	return n + by
}

// use returns what was done with a verb. The result is valid until the next call.
func (s *resource) use(v verb) *use {
	for n := range s.uses {
		if s.uses[n].verb == v {
			return &s.uses[n]
		}
	}
	s.uses = grown(s.uses, use{verb: v})
	return &s.uses[len(s.uses)-1]
}

// bit returns the bit of a name, and 0 if there are too many names, or one that may not be shown.
func (s *resource) bit(name string) uint16 {
	at := slices.Index(s.names, name)
	if at < 0 {
		if len(s.names) == maxNames || !untrusted.IsPresentable(name) {
			s.forgetNames()
			return 0
		}
		at = len(s.names)
		s.names = grown(s.names, strings.Clone(name))
	}
	return 1 << at
}

// forgetNames makes the uses those of any name.
func (s *resource) forgetNames() {
	for n := range s.uses {
		u := &s.uses[n]
		u.servedAll = u.servedAll || u.servedNames != 0
		u.refusedAll = u.refusedAll || u.refusedNames != 0
		u.servedNames, u.refusedNames = 0, 0
	}
	s.names, s.anyName = nil, true
}

// widen saves memory: it forgets the names of the resource whose names take the most, or else the
// namespaces of the one that is in the most of them. It returns false if there is nothing to
// forget. The caller holds mu.
func (r *Record) widen() bool {
	most, named := 0, -1
	for n := range r.resources {
		if size := r.resources[n].sizeOfNames(); size > most {
			most, named = size, n
		}
	}
	if named >= 0 {
		r.resources[named].forgetNames()
		return true
	}
	namespaces := map[key]int{}
	var widest key
	for n := range r.resources {
		if k, several := r.resources[n].everywhere(); several {
			namespaces[k]++
			if namespaces[k] > max(1, namespaces[widest]) {
				widest = k
			}
		}
	}
	if namespaces[widest] < 2 {
		return false
	}
	r.mergeNamespaces(widest)
	return true
}

// everywhere returns the key without its namespace, and whether there was one.
func (s *resource) everywhere() (key, bool) {
	k := s.key
	k.namespace = ""
	return k, s.namespace != "" || s.anyNamespace
}

// mergeNamespaces makes one resource of those that differ in the namespace only. The caller holds
// mu.
func (r *Record) mergeNamespaces(into key) {
	merged := resource{key: into, anyNamespace: true, anyName: true}
	kept := make([]resource, 0, len(r.resources))
	for _, s := range r.resources {
		if k, several := s.everywhere(); k != into || !several {
			kept = append(kept, s)
			continue
		}
		s.forgetNames()
		for _, u := range s.uses {
			merged.use(u.verb).merge(u)
		}
	}
	r.resources, r.last = append(kept, merged), 0
}

// merge adds a use without names.
func (u *use) merge(other use) {
	switch {
	case u.first == 0:
		u.first = other.first
	case other.first != 0:
		u.first = min(u.first, other.first)
	}
	u.latest, u.refusal = max(u.latest, other.latest), max(u.refusal, other.refusal)
	u.served, u.refused = increased(u.served, other.served), increased(u.refused, other.refused)
	u.servedAll = u.servedAll || other.servedAll
	u.refusedAll = u.refusedAll || other.refusedAll
}

// size returns the memory of the record. The caller holds mu.
func (r *Record) size() (bytes int) {
	for n := range r.resources {
		bytes += r.resources[n].size()
	}
	return bytes
}

func (s *resource) size() int {
	return int(unsafe.Sizeof(*s)) + len(s.group) + len(s.resource) + len(s.subresource) + len(s.namespace) +
		len(s.uses)*int(unsafe.Sizeof(use{})) + s.sizeOfNames()
}

func (s *resource) sizeOfNames() (bytes int) {
	for _, name := range s.names {
		bytes += int(unsafe.Sizeof(name)) + len(name)
	}
	return bytes
}

// Use is a permission that was used, or refused.
type Use struct {
	Permission            // without Name
	AnyNamespace bool     // in several namespaces, which are not on record
	AnyName      bool     // of objects whose names are not on record, among others
	Names        []string // sorted; nil for requests without a name, and with AnyName
	Count        int64
	First        time.Time // zero for refusals
	Last         time.Time
}

// Uses returns what was used, and what was refused since it was last served and less than an hour
// ago, sorted. complete is false if the record had no room for something.
func (r *Record) Uses(now time.Time) (used, refused []Use, complete bool) {
	if r == nil {
		return nil, nil, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.resources {
		s := &r.resources[n]
		for m := range s.uses {
			u := &s.uses[m]
			one := Use{Permission: s.permission(knownVerbs[u.verb]), AnyNamespace: s.anyNamespace, AnyName: s.anyName}
			if u.servedAll || u.servedNames != 0 {
				one.Names = s.namesOf(u.servedNames, u.servedAll)
				one.Count, one.First, one.Last = int64(u.served), time.Unix(int64(u.first), 0), time.Unix(int64(u.latest), 0)
				used = append(used, one)
			}
			last := time.Unix(int64(u.refusal), 0)
			if (u.refusedAll || u.refusedNames != 0) && now.Sub(last) < refusalLasts {
				one.Names = s.namesOf(u.refusedNames, u.refusedAll)
				one.Count, one.First, one.Last = int64(u.refused), time.Time{}, last
				refused = append(refused, one)
			}
		}
	}
	slices.SortFunc(used, compare)
	slices.SortFunc(refused, compare)
	return used, refused, !r.incomplete
}

func (s *resource) namesOf(bits uint16, all bool) (names []string) {
	if all {
		return nil
	}
	for n, name := range s.names {
		if bits&(1<<n) != 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func compare(x, y Use) int {
	return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Resource, y.Resource),
		cmp.Compare(x.Subresource, y.Subresource), cmp.Compare(x.Path, y.Path), cmp.Compare(x.Namespace, y.Namespace),
		cmp.Compare(x.Verb, y.Verb))
}
