package rooms

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Evidence is what proves an identity: when the API server last served a request, and when it last
// stated the identity in answer to a review. The zero value has none. The methods may be called
// from any goroutine.
type Evidence struct {
	served, verified atomic.Pointer[time.Time]
}

// Served records that a request of the identity was served.
func (e *Evidence) Served(at time.Time) { note(&e.served, at) }

// Verified records that the API server stated the identity in answer to a review.
func (e *Evidence) Verified(at time.Time) { note(&e.verified, at) }

// LastServed returns when a request of the identity was last served; zero if never.
func (e *Evidence) LastServed() time.Time { return last(&e.served) }

// LastVerified returns when the API server last stated the identity; zero if never.
func (e *Evidence) LastVerified() time.Time { return last(&e.verified) }

// note sets the time, unless a later one is known.
func note(latest *atomic.Pointer[time.Time], at time.Time) {
	for {
		known := latest.Load()
		if known != nil && !at.After(*known) || latest.CompareAndSwap(known, &at) {
			return
		}
	}
}

func last(latest *atomic.Pointer[time.Time]) time.Time {
	if at := latest.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// nameLength makes names differ, in all processes.
const nameLength = 12

// Member is a connection in a room.
type Member interface {
	// RoundTrip sends a request as the connection does, in its term, and on behalf of its extension.
	http.RoundTripper
	// Err returns why the connection may send nothing any more, nil as long as it may. An error is for
	// ever. Err must not block, and must not call the room.
	Err() error
	// Doubt is called when the API server rejects the identity of another member. It must not block.
	Doubt()
}

// Room is what its members share.
type Room struct {
	name     string // random, so that no two rooms have the same, in any process
	key      Key
	evidence Evidence
	life     context.Context // ends with the last member
	end      context.CancelFunc
	building sync.Mutex                        // while a member creates the cache
	cache    atomic.Pointer[scopedcache.Cache] // nil before a member needs it

	members []*Membership // guarded by the mu of the set; in the order in which they joined
}

// Set holds the rooms that have members. The zero value is ready to use. The methods may be called
// from any goroutine. Join and Leave wait for nothing, and call no member, so that they may be
// called under any lock.
type Set struct {
	mu    sync.Mutex
	rooms map[Key]*Room // guarded by mu
}

// Join adds a member to its room, which exists as long as it has members.
func (s *Set) Join(key Key, member Member) *Membership {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := s.rooms[key]
	if room == nil {
		room = &Room{name: rand.String(nameLength), key: key}
		room.life, room.end = context.WithCancel(context.Background())
		if s.rooms == nil {
			s.rooms = map[Key]*Room{}
		}
		s.rooms[key] = room
	}
	m := &Membership{set: s, room: room, member: member}
	room.members = append(room.members, m)
	return m
}

// Scopes returns the states of the scopes of all rooms, each once, however many members share it.
func (s *Set) Scopes() (states []scopedcache.ScopeState) {
	s.mu.Lock()
	rooms := slices.Collect(maps.Values(s.rooms))
	s.mu.Unlock()
	for _, room := range rooms {
		cache := room.cache.Load()
		if cache == nil {
			continue
		}
		if all, ok := (*cache).(interface {
			AllStates() []scopedcache.ScopeState
		}); ok {
			states = append(states, all.AllStates()...)
		}
	}
	return states
}

// Membership is one connection's use of a room, from [Set.Join] to Leave. The methods may be called
// from any goroutine.
type Membership struct {
	set    *Set
	room   *Room
	member Member
}

// Name returns the name of the room, which is the same for all members.
func (m *Membership) Name() string { return m.room.name }

// Evidence returns what proves the identity of all members.
func (m *Membership) Evidence() *Evidence { return &m.room.evidence }

// Cache returns the cache that all members use. The first member that needs it creates it: life
// ends with the last member, and requests go through transport. After an error, the next member
// tries again.
func (m *Membership) Cache(create func(life context.Context, transport http.RoundTripper) (scopedcache.Cache,
	error)) (scopedcache.Cache, error) {
	m.room.building.Lock()
	defer m.room.building.Unlock()
	if cache := m.room.cache.Load(); cache != nil {
		return *cache, nil
	}
	created, err := create(m.room.life, carrier{m.set, m.room})
	if err == nil {
		m.room.cache.Store(&created)
	}
	return created, err
}

// Leave ends the membership. Later calls have no effect.
func (m *Membership) Leave() {
	m.set.mu.Lock()
	defer m.set.mu.Unlock()
	m.room.members = slices.DeleteFunc(m.room.members, func(other *Membership) bool { return other == m })
	if len(m.room.members) > 0 {
		return
	}
	m.room.end()
	if m.set.rooms[m.room.key] == m.room {
		delete(m.set.rooms, m.room.key)
	}
}

// Doubt passes on that the API server has rejected the identity of this member, which may have left
// meanwhile. Each member decides what that means for it: one that already asks for itself does
// nothing.
func (m *Membership) Doubt() {
	m.set.mu.Lock()
	members := slices.Clone(m.room.members)
	m.set.mu.Unlock()
	for _, other := range members {
		if other != m {
			other.member.Doubt()
		}
	}
}
