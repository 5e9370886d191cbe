package rooms

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
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

// Room is what its members share.
type Room struct {
	evidence Evidence
	key      Key
	members  []*Membership // guarded by the mu of the set
}

// Set holds the rooms that have members. The zero value is ready to use. The methods may be called
// from any goroutine, and under any lock: none of them calls a member.
type Set struct {
	mu    sync.Mutex
	rooms map[Key]*Room // guarded by mu
}

// Join adds a member to its room, which exists as long as it has members. doubted is called when
// the API server rejects the identity of another member. It must not block.
func (s *Set) Join(key Key, doubted func()) *Membership {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := s.rooms[key]
	if room == nil {
		room = &Room{key: key}
		if s.rooms == nil {
			s.rooms = map[Key]*Room{}
		}
		s.rooms[key] = room
	}
	m := &Membership{set: s, room: room, doubted: doubted}
	room.members = append(room.members, m)
	return m
}

// Membership is one connection's use of a room, from [Set.Join] to Leave. The methods may be called
// from any goroutine.
type Membership struct {
	set     *Set
	room    *Room
	doubted func()
}

// Evidence returns what proves the identity of all members.
func (m *Membership) Evidence() *Evidence { return &m.room.evidence }

// Leave ends the membership. Later calls have no effect.
func (m *Membership) Leave() {
	m.set.mu.Lock()
	defer m.set.mu.Unlock()
	m.room.members = slices.DeleteFunc(m.room.members, func(other *Membership) bool { return other == m })
	if len(m.room.members) == 0 && m.set.rooms[m.room.key] == m.room {
		delete(m.set.rooms, m.room.key)
	}
}

// Doubt tells the other members that the API server has rejected the identity of this one, which
// may have left meanwhile.
func (m *Membership) Doubt() {
	m.set.mu.Lock()
	members := slices.Clone(m.room.members)
	m.set.mu.Unlock()
	for _, other := range members {
		if other != m {
			other.doubted()
		}
	}
}
