package stateapi

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
)

const (
	// askAgain is the pause before a question that was not answered is asked again.
	askAgain = 200 * time.Millisecond
	// silenceInterval is how often those that are waited for are looked at: one may be silent.
	silenceInterval = 200 * time.Millisecond
)

// hearOut waits until what was heard of all replicas includes what they had when it was called. It
// returns an error if that is not known of one. One that is silent is not waited for: it is shown
// as that. What this replica has said itself is shown by then: update does both while it holds mu.
func (m *merged) hearOut(ctx context.Context) error {
	unknown := m.awaitMembers(ctx)
	m.mu.Lock()
	all := append(m.view.Replicas(), m.members...)
	m.mu.Unlock()
	slices.Sort(all)
	var hearing errgroup.Group
	for _, replica := range slices.Compact(all) {
		if replica != m.self {
			hearing.Go(func() error { return m.hearOutOne(ctx, replica) })
		}
	}
	return cmp.Or(hearing.Wait(), unknown)
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
