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
	mu         sync.Mutex
	resources  []resource // guarded by mu
	last       int        // guarded by mu: where the latest one is
	incomplete bool       // guarded by mu: something was left out
	cleared    bool       // guarded by mu: a refusal does not count any more, because of what was served
	unrecorded time.Time  // guarded by mu: the latest refusal that there was no room for
}

// Note records that the API server served a request, or refused it for lack of the permission.
func (r *Record) Note(p Permission, refused bool, at time.Time) { r.note(&p, refused, at) }

func (r *Record) note(p *Permission, refused bool, at time.Time) {
	p.normalize()
	v := slices.Index(knownVerbs, p.Verb)
	if r == nil || v < 0 || !refused && isEverybodys(p) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.find(p)
	if found == nil || !found.has(verb(v)) {
		if found = r.add(p, refused); found == nil {
			r.incomplete = true
			if refused {
				r.unrecorded = at
			}
			return
		}
	}
	seconds := uint32(at.Unix()) //nolint:gosec // until 2106
	if refused {
		found.use(verb(v)) // takes memory, too
		found.refuse(verb(v), p.Name, seconds, MaxBytes-r.size())
		return
	}
	cleared, isNew := found.serve(verb(v), p.Name, seconds)
	r.cleared = r.cleared || cleared
	for isNew && r.size() > MaxBytes && r.widen() {
		continue // there are names, at least this one
	}
}

// TakeCleared reports whether a refusal does not count any more, since the last call.
func (r *Record) TakeCleared() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	cleared := r.cleared
	r.cleared = false
	return cleared
}

// Refused returns what Uses returns as refused, one for each name. others says whether there is
// more that no review of the identity can tell: of namespaces or names that are not on record, and
// what RBAC or impersonation asks for beside the request.
func (r *Record) Refused(now time.Time) (all []Permission, others bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	others = now.Sub(r.unrecorded) < refusalLasts
	for n := range r.resources {
		s := &r.resources[n]
		for _, u := range s.uses {
			if !u.isRefused() || now.Sub(time.Unix(int64(u.refusal), 0)) >= refusalLasts {
				continue
			}
			if s.anyNamespace || u.verb >= impersonateOnGet {
				others = true
				continue
			}
			p := s.permission(knownVerbs[u.verb])
			others = others || u.refusedMore || u.refusedAll && s.anyName
			if u.refusedAll {
				all = append(all, p)
			}
			for _, p.Name = range s.namesOf(u.refusedNames, false) {
				all = append(all, p)
			}
		}
	}
	return all, others
}

// Granted forgets that a permission was refused.
func (r *Record) Granted(p Permission) {
	p.normalize()
	v := slices.Index(knownVerbs, p.Verb)
	if r == nil || v < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.find(&p); s != nil {
		r.cleared = s.granted(verb(v), p.Name) || r.cleared
	}
}

// isEverybodys reports whether the default roles of Kubernetes give the permission to each user: to
// discover, and to ask about oneself.
func isEverybodys(p *Permission) bool {
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
func (r *Record) find(p *Permission) *resource {
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
// if there is not enough memory: what is refused takes none of what was used. The caller holds mu.
func (r *Record) add(p *Permission, refused bool) *resource {
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
		if needed > MaxBytes || refused || !r.widen() {
			return nil
		}
	}
	added.key = added.own()
	r.resources = grown(r.resources, added)
	return &r.resources[len(r.resources)-1]
}

// widen saves memory: it forgets resources that were only refused, or else the names of the
// resource whose names take the most, or else the namespaces of the one that is in the most of
// them. It returns false if there is nothing to forget. The caller holds mu.
func (r *Record) widen() bool {
	for n := range r.resources {
		if latest, served := r.resources[n].lastRefusal(); !served {
			r.unrecorded = maxTime(r.unrecorded, time.Unix(int64(latest), 0))
			r.resources, r.last, r.incomplete = slices.Delete(r.resources, n, n+1), 0, true
			return true
		}
	}
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
			if u.isRefused() && now.Sub(last) < refusalLasts {
				one.AnyName = s.anyName || u.refusedMore
				one.Names = s.namesOf(u.refusedNames, u.refusedAll || u.refusedMore)
				one.Count, one.First, one.Last = int64(u.refused), time.Time{}, last
				refused = append(refused, one)
			}
		}
	}
	slices.SortFunc(used, compare)
	slices.SortFunc(refused, compare)
	return used, refused, !r.incomplete
}

// Count returns how many permissions Uses returns as used and as refused.
func (r *Record) Count(now time.Time) (used, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.resources {
		for _, u := range r.resources[n].uses {
			if u.servedAll || u.servedNames != 0 {
				used++
			}
			if u.isRefused() && now.Sub(time.Unix(int64(u.refusal), 0)) < refusalLasts {
				refused++
			}
		}
	}
	return used, refused
}

func compare(x, y Use) int {
	return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Resource, y.Resource),
		cmp.Compare(x.Subresource, y.Subresource), cmp.Compare(x.Path, y.Path), cmp.Compare(x.Namespace, y.Namespace),
		cmp.Compare(x.Verb, y.Verb))
}

func maxTime(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}
