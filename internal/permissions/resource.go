package permissions

import (
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// key is a resource in one namespace, or a path. A path is in the place of the resource, and begins
// with a slash.
type key struct{ group, resource, subresource, namespace string }

func keyOf(p *Permission) key {
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
	entailed     bool // uses has verbs that another verb grants
	names        []string
	uses         []use
}

// use is what was done with one verb. A bit of a set stands for the name at that index.
type use struct {
	verb                      verb
	servedAll, refusedAll     bool   // without a name, or with one that is not on record
	refusedMore               bool   // for names for which there was no room
	first, latest             uint32 // served; in seconds since 1970
	refusal                   uint32 // the latest
	served, refused           uint32 // how often
	servedNames, refusedNames uint16
}

// verb is the index of a verb in knownVerbs.
type verb uint8

// knownVerbs are all that Of returns, and those that only an answer names. ImpersonateOn and one of
// the first verbs is that of the same request, for the user who impersonates.
var knownVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy",
	"head", "post", "put", "options",
	ImpersonateOn + "get", ImpersonateOn + "list", ImpersonateOn + "watch", ImpersonateOn + "create",
	ImpersonateOn + "update", ImpersonateOn + "patch", ImpersonateOn + "delete", ImpersonateOn + "deletecollection",
	Bind, Escalate}

const (
	// ImpersonateOn begins the verbs that constrained impersonation of a ServiceAccount needs.
	ImpersonateOn = "impersonate-on:serviceaccount:"
	// Bind is the verb for a binding that gives what its writer does not have. On record it is that
	// of the binding, because the answer does not name the role.
	Bind = "bind"
	// Escalate is the same for a role.
	Escalate = "escalate"
)

// grants reports whether a request with this verb that was served had the other permission, too.
func (v verb) grants(other verb) bool {
	if other >= bind {
		return v >= create && v <= patch
	}
	return other >= impersonateOnGet && other-impersonateOnGet == v
}

// Places in knownVerbs.
const (
	create, patch          verb = 3, 5
	impersonateOnGet, bind verb = 13, 21
)

// matches reports whether the resource is that of a request. A request about all namespaces is not
// one about several.
func (s *resource) matches(k key) bool {
	return s.resource == k.resource && s.subresource == k.subresource && s.group == k.group &&
		(s.namespace == k.namespace && !s.anyNamespace || s.anyNamespace && k.namespace != "")
}

// everywhere returns the key without its namespace, and whether there was one.
func (s *resource) everywhere() (key, bool) {
	k := s.key
	k.namespace = ""
	return k, s.namespace != "" || s.anyNamespace
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
		if !untrusted.IsPresentable(text) || strings.Contains(text, "*") { // no API server has such a resource
			return false
		}
	}
	return true
}

// has reports whether a verb is on record.
func (s *resource) has(v verb) bool {
	return slices.ContainsFunc(s.uses, func(u use) bool { return u.verb == v })
}

// refuse records that a request was refused. A new name must fit into room, and takes that of no
// other one.
func (s *resource) refuse(v verb, name string, at uint32, room int) {
	u := s.use(v)
	if u.refusal+uint32(refusalLasts/time.Second) <= at { // those before do not count any more
		u.refused, u.refusedNames, u.refusedAll, u.refusedMore = 0, 0, false, false
	}
	u.refused = increased(u.refused, 1)
	u.refusal = at
	switch n := slices.Index(s.names, name); {
	case name == "" || s.anyName:
		u.refusedAll = true
	case n >= 0:
		u.refusedNames |= 1 << n
	case len(s.names) < maxNames && len(name)+int(unsafe.Sizeof(name)) <= room && untrusted.IsPresentable(name):
		u.refusedNames |= s.bit(name) // there is room for it
	default:
		u.refusedMore = true
	}
}

// serve records that a request was served. cleared says that a refusal does not count any more, and
// isNew that the name takes memory. It allocates nothing if the verb and the name are on record.
func (s *resource) serve(v verb, name string, at uint32) (cleared, isNew bool) {
	u := s.use(v)
	var bit uint16
	if name != "" && !s.anyName {
		if n := slices.Index(s.names, name); n >= 0 {
			bit = 1 << n
		} else {
			bit, isNew = s.bit(name), true
		}
	}
	if u.first == 0 {
		u.first = at
	}
	u.served = increased(u.served, 1)
	u.latest = max(u.latest, at)
	u.servedNames |= bit
	u.servedAll = u.servedAll || bit == 0
	all := name == "" && !s.anyNamespace // another object or namespace may still be refused
	cleared = u.forgive(bit, all)
	for n := 0; s.entailed && n < len(s.uses); n++ {
		if v.grants(s.uses[n].verb) {
			cleared = s.uses[n].forgive(bit, all) || cleared
		}
	}
	return cleared, isNew
}

// isRefused reports whether something was refused and not granted since.
func (u *use) isRefused() bool { return u.refusedAll || u.refusedMore || u.refusedNames != 0 }

// lastRefusal returns when something was refused, and whether something was served.
func (s *resource) lastRefusal() (at uint32, served bool) {
	for n := range s.uses {
		at = max(at, s.uses[n].refusal)
		served = served || s.uses[n].served > 0
	}
	return at, served
}

// granted forgets that a verb was refused for a name, or for all without one. It returns false if
// it was not.
func (s *resource) granted(v verb, name string) bool {
	at := slices.IndexFunc(s.uses, func(u use) bool { return u.verb == v && u.refused > 0 })
	if at < 0 {
		return false
	}
	bit, all := uint16(0), name == "" && !s.anyNamespace
	if n := slices.Index(s.names, name); n >= 0 {
		bit = 1 << n
	}
	return s.uses[at].forgive(bit, all)
}

// forgive forgets a refusal of some names, or of all. It returns false if there was none.
func (u *use) forgive(names uint16, all bool) bool {
	if !u.isRefused() {
		return false
	}
	before := *u
	u.refusedNames &^= names
	if all {
		u.refusedNames, u.refusedAll, u.refusedMore = 0, false, false
	}
	if !u.isRefused() {
		u.refused = 0
	}
	return *u != before
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
	s.entailed = s.entailed || v >= impersonateOnGet
	s.uses = grown(s.uses, use{verb: v})
	return &s.uses[len(s.uses)-1]
}

// bit adds a name and returns its bit. It returns 0 if there are too many names, or this one may
// not be shown.
func (s *resource) bit(name string) uint16 {
	if len(s.names) == maxNames {
		s.dropRefusedName()
	}
	if len(s.names) == maxNames || !untrusted.IsPresentable(name) {
		s.forgetNames()
		return 0
	}
	s.names = grown(s.names, strings.Clone(name))
	return 1 << (len(s.names) - 1)
}

// dropRefusedName makes room for a name: that of one that was only refused, if there is one.
func (s *resource) dropRefusedName() {
	var served uint16
	for n := range s.uses {
		served |= s.uses[n].servedNames
	}
	for at := range s.names {
		if served&(1<<at) != 0 {
			continue
		}
		for n := range s.uses {
			u := &s.uses[n]
			u.refusedMore = u.refusedMore || u.refusedNames&(1<<at) != 0
			u.refusedNames, u.servedNames = without(u.refusedNames, at), without(u.servedNames, at)
		}
		s.names = slices.Delete(s.names, at, at+1)
		return
	}
}

// without returns a set of names without the one at a place, whose followers move there.
func without(set uint16, at int) uint16 {
	below := uint16(1)<<at - 1
	return set&below | set>>1&^below
}

// forgetNames makes the uses those of any name.
func (s *resource) forgetNames() {
	for n := range s.uses {
		u := &s.uses[n]
		u.servedAll = u.servedAll || u.servedNames != 0
		u.refusedAll, u.refusedMore = u.isRefused(), false
		u.servedNames, u.refusedNames = 0, 0
	}
	s.names, s.anyName = nil, true
}

// merge adds a use without names.
func (u *use) merge(other use) {
	switch {
	case u.first == 0:
		u.first = other.first
	case other.first != 0:
		u.first = min(u.first, other.first)
	}
	u.latest = max(u.latest, other.latest)
	u.served = increased(u.served, other.served)
	u.servedAll = u.servedAll || other.servedAll
	if other.refusedAll { // the time of a refusal that was granted since does not count
		u.refusal, u.refused = max(u.refusal, other.refusal), increased(u.refused, other.refused)
		u.refusedAll = true
	}
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
