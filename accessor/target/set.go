package target

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/client-go/rest"
)

// Key names a target: two configs with equal keys reach the same server and trust the same authorities.
type Key struct {
	Host, APIPath, ServerName, CA string
	Insecure                      bool
}

// KeyOf returns the key of the server that config reaches. CA is its bundle, so CAFile must have been loaded.
func KeyOf(config *rest.Config) Key {
	return Key{
		Host:       config.Host,
		APIPath:    config.APIPath,
		ServerName: config.ServerName,
		CA:         string(config.CAData),
		Insecure:   config.Insecure,
	}
}

// Set keeps the targets that are in use. The zero value is empty and ready. Its methods may be called from any goroutine.
type Set struct {
	mu      sync.Mutex
	targets map[Key]*Target // guarded by mu
}

// Acquire returns the target that config reaches and counts the caller as a member; Release ends that.
// It does no I/O.
func (s *Set) Acquire(config *rest.Config) (*Target, error) {
	key := KeyOf(config)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.targets[key]; ok {
		t.members++
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
	t.members--
	last := t.members == 0
	if last {
		delete(s.targets, t.key)
	}
	s.mu.Unlock()
	if last {
		t.line.Close()
	}
}
