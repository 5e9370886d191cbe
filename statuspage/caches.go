package statuspage

import (
	"hash/maphash"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// sharedScope is a scope of a cache that extensions share.
type sharedScope struct {
	cache string
	scope uint64 // hash of what is read
}

// sharedCaches counts what extensions use of the caches that they share, so that sums have each
// scope once.
type sharedCaches struct {
	extensions map[string]int      // by cache
	scopes     map[sharedScope]int // extensions that use it
	troubled   map[sharedScope]int // extensions to which it delivers nothing, or nothing new
}

func newSharedCaches() sharedCaches {
	return sharedCaches{map[string]int{}, map[sharedScope]int{}, map[sharedScope]int{}}
}

// add counts what the extension of a row uses, n times. A nil row uses nothing.
func (s *sharedCaches) add(r *row, n int) {
	if r == nil || r.cache == "" {
		return
	}
	addTo(s.extensions, r.cache, n)
	for _, scope := range r.scopes {
		addTo(s.scopes, sharedScope{r.cache, scope.hash}, n)
		if scope.troubled {
			addTo(s.troubled, sharedScope{r.cache, scope.hash}, n)
		}
	}
}

func addTo[K comparable](counts map[K]int, key K, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// usedScope is a scope that an extension uses of a shared cache.
type usedScope struct {
	hash     uint64
	troubled bool
}

var scopeSeed = maphash.MakeSeed()

func hashOf(scope clustercache.ScopeState) uint64 {
	return maphash.Comparable(scopeSeed, [3]string{scope.GVK.String(), string(scope.Representation), scope.Scope.String()})
}
