package permissions

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"
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
	// OnRefused, if set before the first use, is called for each refusal. It must not block.
	OnRefused func()

	mu         sync.Mutex
	resources  []resource // guarded by mu
	last       int        // guarded by mu: where the latest one is
	incomplete bool       // guarded by mu: something was left out
}

// Note records that the API server served a request, or refused it for lack of the permission.
func (r *Record) Note(p Permission, refused bool, at time.Time) {
	p.normalize()
	v := slices.Index(knownVerbs, p.Verb)
	if r == nil || v < 0 || !refused && isEverybodys(p) {
		return
	}
	r.note(p, verb(v), refused, at)
	if refused && r.OnRefused != nil {
		r.OnRefused()
	}
}

func (r *Record) note(p Permission, v verb, refused bool, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.find(p)
	if found == nil || !found.has(v) {
		if found = r.add(p); found == nil {
			r.incomplete = true
			return
		}
	}
	names := len(found.names)
	found.note(v, p.Name, refused, uint32(at.Unix())) //nolint:gosec // until 2106
	for len(found.names) > names && r.size() > MaxBytes {
		r.widen() // there are names
	}
}

// Refused returns what Uses returns as refused, one for each name. others says whether there is
// more that no review of the identity can tell: of namespaces or names that are not on record, and
// what RBAC or impersonation asks for beside the request.
func (r *Record) Refused(now time.Time) (all []Permission, others bool) {
	_, refused, _ := r.Uses(now)
	for _, use := range refused {
		if use.AnyNamespace || use.AnyName || use.Verb == Bind || use.Verb == Escalate ||
			strings.HasPrefix(use.Verb, ImpersonateOn) {
			others = true
			continue
		}
		names := use.Names
		if len(names) == 0 {
			names = []string{""}
		}
		for _, name := range names {
			p := use.Permission
			p.Name = name
			all = append(all, p)
		}
	}
	return all, others
}

// Granted forgets that a permission was refused. It returns false if it was not on record.
func (r *Record) Granted(p Permission) bool {
	p.normalize()
	v := slices.Index(knownVerbs, p.Verb)
	if r == nil || v < 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.find(p); s != nil {
		return s.granted(verb(v), p.Name)
	}
	return false
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

// size returns the memory of the record. The caller holds mu.
func (r *Record) size() (bytes int) {
	for n := range r.resources {
		bytes += r.resources[n].size()
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

func compare(x, y Use) int {
	return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Resource, y.Resource),
		cmp.Compare(x.Subresource, y.Subresource), cmp.Compare(x.Path, y.Path), cmp.Compare(x.Namespace, y.Namespace),
		cmp.Compare(x.Verb, y.Verb))
}
