package stateapi

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// askAgain is the pause before a question that was not answered is asked again.
	askAgain = 200 * time.Millisecond
	// silenceInterval is how often those that are waited for are looked at: one may be silent.
	silenceInterval = 200 * time.Millisecond
)

// hearOut waits until what was heard of all replicas includes what they had when it was called. It
// returns an error if that is not known of one, and is shown of that one: what it has is Unknown,
// until it is heard out. One that is silent is not waited for. What this replica has said itself is
// shown by then: update does both while it holds mu.
func (m *merged) hearOut(ctx context.Context) error {
	begun := time.Now()
	unknown := m.awaitMembers(ctx)
	m.meets(begun, unknown == nil)
	m.mu.Lock()
	all := append(m.view.Replicas(), m.members...)
	m.mu.Unlock()
	slices.Sort(all)
	var hearing errgroup.Group
	for _, replica := range slices.Compact(all) {
		if replica != m.self {
			hearing.Go(func() error { return m.hearOutFrom(ctx, begun, replica) })
		}
	}
	return cmp.Or(hearing.Wait(), unknown)
}

// hearOutFrom is hearOut for one replica, which is in doubt if it fails.
func (m *merged) hearOutFrom(ctx context.Context, begun time.Time, replica string) error {
	err := m.hearOutOne(ctx, replica)
	m.mu.Lock()
	changed := m.view.HeardOut(replica, begun, err == nil)
	m.noticeLocked(time.Now())
	m.mu.Unlock()
	m.showAll(changed, false)
	return err
}

// meets takes over whether all members are known that there were at begun.
func (m *merged) meets(begun time.Time, all bool) {
	m.mu.Lock()
	changed := m.view.Met(begun, all)
	m.mu.Unlock()
	m.showAll(changed, false)
}

// hearOutLater hears out what is in doubt, until ctx is done.
func (m *merged) hearOutLater(ctx context.Context) {
	var mu sync.Mutex
	asked := sets.New[string]() // guarded by mu; the empty string stands for who is a member
	var asking sync.WaitGroup
	ask := func(about string, question func(begun time.Time)) {
		mu.Lock()
		defer mu.Unlock()
		if asked.Has(about) {
			return
		}
		asked.Insert(about)
		asking.Go(func() {
			question(time.Now())
			mu.Lock()
			defer mu.Unlock()
			asked.Delete(about)
		})
	}
	tick := time.NewTicker(askAgain)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			replicas, members := m.doubts()
			for _, replica := range replicas {
				ask(replica, func(begun time.Time) { _ = m.hearOutFrom(ctx, begun, replica) })
			}
			if members {
				ask("", func(begun time.Time) { m.meets(begun, m.awaitMembers(ctx) == nil) })
			}
		}
	}
	asking.Wait()
}

// settle ends all doubt: no client reads any more what this replica shows.
func (m *merged) settle() {
	m.mu.Lock()
	changed := m.view.Settle()
	m.noticeLocked(time.Now())
	m.mu.Unlock()
	m.showAll(changed, false)
}

// doubts returns those that are in doubt, but not silent, and whether the members are.
func (m *merged) doubts() (replicas []string, members bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	replicas, members = m.view.Doubts()
	now := time.Now()
	return slices.DeleteFunc(replicas, func(replica string) bool { return m.isSilentLocked(replica, now) }), members
}

// awaitMembers waits until all members are known that there were when it was called, for half of
// the time in which all are heard out.
func (m *merged) awaitMembers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout/2)
	defer cancel()
	for {
		err := m.checkMembers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgain):
		}
	}
}

// hearOutOne is hearOut for one replica. A member is asked until it answers or is silent: a
// connection may be a new one.
func (m *merged) hearOutOne(ctx context.Context, replica string) error {
	if m.isSilent(replica) {
		return errSilentReplica(replica)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	looked := make(chan struct{})
	defer func() { <-looked }()
	defer cancel(nil)
	go func() {
		defer close(looked)
		tick := time.NewTicker(silenceInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if m.isSilent(replica) {
					cancel(errSilentReplica(replica))
					return
				}
			}
		}
	}()
	for {
		err := m.catchUp(ctx, replica)
		if err == nil || !m.isAwaited(replica) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Wrapf(context.Cause(ctx), "%v", err)
		case <-time.After(askAgain):
		}
	}
}

func errSilentReplica(replica string) error { return errors.Errorf("replica %s is silent", replica) }

func (m *merged) isSilent(replica string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isSilentLocked(replica, time.Now())
}

// isSilentLocked reports whether a replica was heard, and is not any more, or was not heard since
// it is known. One that has just come is connected first.
func (m *merged) isSilentLocked(replica string, now time.Time) bool {
	at, heard := m.view.HeardAt(replica)
	return replica != m.self && !heard && (!at.IsZero() || now.Sub(m.metAt[replica]) > silence)
}

// isAwaited reports whether a replica is a member, and not silent.
func (m *merged) isAwaited(replica string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.members, replica) && !m.isSilentLocked(replica, time.Now())
}
