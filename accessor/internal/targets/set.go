package targets

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// Key identifies a target. Two configs with equal keys reach the same server by the same proxy, and
// trust the same certificate authorities.
type Key struct {
	Host, APIPath, ServerName, CA string
	Insecure                      bool
	Proxy                         string // with its user and password; empty for none
}

// KeyOf returns the key of the server that config reaches. The key contains the CA bundle, so the
// caller must have loaded CAFile.
func KeyOf(config *rest.Config) Key {
	key := Key{
		Host:       config.Host,
		APIPath:    config.APIPath,
		ServerName: config.ServerName,
		CA:         string(config.CAData),
		Insecure:   config.Insecure,
	}
	if proxy := identity.ProxyOf(config); proxy != nil {
		key.Proxy = proxy.String()
	}
	return key
}

// Set holds the targets that are in use. The zero value is ready to use. Its methods may be called
// from any goroutine.
type Set struct {
	mu      sync.Mutex
	targets map[Key]*Target // guarded by mu
	lastID  atomic.Uint64
}

// Policy says how the members that joined with it treat a silent target. Members with different
// policies share a target and its answers, and each policy's members probe for themselves.
type Policy struct {
	// Probe configures how long a target may be silent, and after how many failures the target
	// counts as down.
	Probe connstate.ProbeOptions
	// FirstBackoff is how long a member waits after its first failed connect.
	FirstBackoff time.Duration
}

// Join adds the member to the target that config reaches. Leave ends the membership. Join does no
// I/O.
func (s *Set) Join(config *rest.Config, member Member, policy *Policy) (*Membership, error) {
	t, err := s.acquire(config)
	if err != nil {
		return nil, err
	}
	m := &Membership{Target: t, id: ID(s.lastID.Add(1)), member: member, policy: policy}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.memberships = append(t.memberships, m)
	t.memberCount.Add(1)
	if t.views == nil {
		t.views = map[*Policy]*view{}
	}
	if t.views[policy] == nil {
		t.views[policy] = &view{}
	}
	t.views[policy].members++
	return m, nil
}

// acquire returns the target that config reaches and counts one more user. release decrements the
// count.
func (s *Set) acquire(config *rest.Config) (*Target, error) {
	key := KeyOf(config)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.targets[key]; ok {
		t.users++
		return t, nil
	}
	t, err := newTarget(s, key, config)
	if err != nil {
		return nil, err
	}
	if s.targets == nil {
		s.targets = map[Key]*Target{}
	}
	s.targets[key] = t
	return t, nil
}

// List returns the targets in use, sorted by host.
func (s *Set) List() []*Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Target, 0, len(s.targets))
	for _, t := range s.targets {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *Target) int { return cmp.Compare(a.key.Host, b.key.Host) })
	return list
}

func (s *Set) release(t *Target) {
	s.mu.Lock()
	t.users--
	last := t.users == 0
	if last {
		delete(s.targets, t.key)
	}
	s.mu.Unlock()
	if last {
		t.transport.Close()
	}
}
