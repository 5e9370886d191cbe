package stateapi

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// askAgain is the pause before a question that was not answered is asked again.
	askAgain = 200 * time.Millisecond
	// askLater is that pause if no read waits.
	askLater = time.Second
	// silenceInterval is how often those that are waited for are looked at: one may be silent.
	silenceInterval = 200 * time.Millisecond
)

// hearOut waits until what was heard of all replicas includes what they had when it was called. It
// returns an error if that is not known of one, and is shown of that one: what it has is Unknown,
// until it is heard out. One that is silent is not waited for. What this replica has said itself is
// shown by then: update does both while it holds mu. Nothing is shown by then of a term of this
// replica's that was over.
func (m *merged) hearOut(ctx context.Context) error {
	begun := time.Now()
	unknown := m.awaitMembers(ctx)
	m.mu.Lock()
	all := append(m.view.Replicas(), m.members...)
	m.mu.Unlock()
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(replica string) bool { return replica == m.self })
	failed := make([]error, len(all))
	var hearing sync.WaitGroup
	for n, replica := range all {
		hearing.Go(func() { failed[n] = m.hearOutOne(ctx, replica) })
	}
	hearing.Wait()
	if errors.Is(ctx.Err(), context.Canceled) { // no read is answered
		return ctx.Err()
	}
	m.dropEnded()
	m.heardOut(begun, all, failed, unknown)
	return cmp.Or(cmp.Or(failed...), unknown)
}

// heardOut shows what follows from whether replicas were heard out that were asked at begun, and
// the members were known.
func (m *merged) heardOut(begun time.Time, replicas []string, failed []error, unknown error) {
	m.mu.Lock()
	changed := sets.New(m.view.Met(begun, unknown == nil)...)
	for n, replica := range replicas {
		changed.Insert(m.view.HeardOut(replica, begun, failed[n] == nil)...)
	}
	m.noticeLocked(time.Now())
	m.mu.Unlock()
	m.showAll(changed.UnsortedList(), false)
}

// hearOutLater hears out what is in doubt, until ctx is done. What fails is asked again: no read
// waits for it, so it raises no doubt.
func (m *merged) hearOutLater(ctx context.Context) {
	var mu sync.Mutex
	asked := sets.New[string]() // guarded by mu; the empty string stands for who is a member
	var asking sync.WaitGroup
	ask := func(about string, question func() error, answered func(begun time.Time) []client.ObjectKey) {
		mu.Lock()
		defer mu.Unlock()
		if asked.Has(about) {
			return
		}
		asked.Insert(about)
		asking.Go(func() {
			begun := time.Now()
			if question() == nil {
				m.mu.Lock()
				changed := answered(begun)
				m.noticeLocked(time.Now())
				m.mu.Unlock()
				m.showAll(changed, false)
			} else {
				select {
				case <-ctx.Done():
				case <-time.After(askLater):
				}
			}
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
				ask(replica, func() error { return m.hearOutOne(ctx, replica) },
					func(begun time.Time) []client.ObjectKey { return m.view.HeardOut(replica, begun, true) })
			}
			if members {
				ask("", func() error { return m.awaitMembers(ctx) },
					func(begun time.Time) []client.ObjectKey { return m.view.Met(begun, true) })
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
