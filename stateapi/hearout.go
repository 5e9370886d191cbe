package stateapi

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
)

const (
	// askAgain is how soon a replica is asked again that is heard, and could not be asked.
	askAgain = 200 * time.Millisecond
	// silenceInterval is how often those that are waited for are looked at: one may be silent.
	silenceInterval = 200 * time.Millisecond
)

// hearOut waits until what was heard of all replicas includes what they had when it was called. It
// returns an error if that is not known of one. One that is silent is not waited for: it is shown
// as that.
func (m *merged) hearOut(ctx context.Context) error {
	m.mu.Lock()
	met := m.met
	all := append(m.view.Replicas(), m.members...)
	m.mu.Unlock()
	if !met {
		return errors.New("the members are not known yet")
	}
	slices.Sort(all)
	var hearing errgroup.Group
	for _, replica := range slices.Compact(all) {
		if replica != m.self {
			hearing.Go(func() error { return m.hearOutOne(ctx, replica) })
		}
	}
	return hearing.Wait()
}

// hearOutOne is hearOut for one replica. A member that is heard is asked until it answers: a
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
		if err == nil || !m.isHeardMember(replica) {
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

// isSilent reports whether a replica was heard, and is not any more.
func (m *merged) isSilent(replica string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, heard := m.view.HeardAt(replica)
	return !heard && !at.IsZero()
}

// isHeardMember reports whether a replica is heard, and has not left.
func (m *merged) isHeardMember(replica string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, heard := m.view.HeardAt(replica)
	return heard && slices.Contains(m.members, replica)
}
