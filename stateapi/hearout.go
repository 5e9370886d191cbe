package stateapi

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
)

const (
	// askAgain is how soon is asked again what could not be answered.
	askAgain = 200 * time.Millisecond
	// silenceInterval is how often those that are waited for are looked at: one may be silent.
	silenceInterval = 200 * time.Millisecond
)

// hearOut waits until what was heard of all replicas includes what they had when it was called. It
// returns an error if that is not known of one. One that is silent is not waited for: it is shown
// as that. What this replica has itself is shown while mu is held, and so was before.
func (m *merged) hearOut(ctx context.Context) error {
	for {
		err := m.checkMembers(ctx)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgain):
		}
	}
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
	return hearing.Wait()
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
