package accessor

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// giveUpConcurrency is how many extensions are given up at the same time.
const giveUpConcurrency = 32

// answerTimeout is how long requests under way may take until they have their answers, when an
// extension is given up.
const answerTimeout = 2 * time.Second

// unregister makes an extension unknown, if a is still its accessor. Until a is done, a is among
// draining.
// One that exists, and is not this replica's any more, is noted before. The caller holds a's mu.
func (s *Set) unregister(a *identityAccessor, notOwned bool) {
	s.draining.Store(a, struct{}{}) // before it is unknown, so that GiveUp sees it here or there
	if current, _ := s.byKey.Load(a.key); current == a && notOwned {
		s.noteNotOwned(a.key, notOwnedOf(a.object))
	}
	s.byKey.Compute(a.key, func(current *identityAccessor, _ bool) (*identityAccessor, xsync.ComputeOp) {
		if current == a {
			return nil, xsync.DeleteOp
		}
		return current, xsync.CancelOp
	})
}

// awaitAnswers reports to the machine when the requests under way have their answers, or at that
// time.
func (a *identityAccessor) awaitAnswers(answered <-chan struct{}, until time.Time) {
	select {
	case <-answered:
		a.step(lifecycle.RequestsAnswered{}, eventPayload{})
		return
	default:
	}
	a.set.spawn(func() {
		timeout := time.NewTimer(time.Until(until))
		defer timeout.Stop()
		select {
		case <-answered:
			a.step(lifecycle.RequestsAnswered{}, eventPayload{})
		case <-timeout.C:
			a.step(lifecycle.NoMoreTime{}, eventPayload{})
		}
	})
}

// awaitTasks reports to the machine when the goroutines of the connections have ended, or after
// timeout.
func (a *identityAccessor) awaitTasks(timeout time.Duration) {
	a.set.spawn(func() {
		a.step(lifecycle.TasksEnded{Clean: a.tasks.Wait(timeout)}, eventPayload{})
	})
}

// endTermLocked ends the requests that still need the accessor's term. Unless replicas share, the
// term is that of the lease, and ends with it.
func (a *identityAccessor) endTermLocked() {
	a.termEnded = true
	if a.unfollow != nil {
		a.unfollow()
	}
	if a.endTerm != nil {
		a.endTerm("this replica does not act for the extension any more")
	}
}

// reportDone answers the callers that wait until nothing of the extension runs any more.
func (a *identityAccessor) reportDone(clean bool) {
	if !clean && a.set.life.Err() == nil { // a set that has ended says so once
		a.set.options.Logger.Info("Event handlers of other controllers are still running for an extension that has ended",
			"extension", connstate.KeyString(a.key), "waited", handlerTimeout)
	}
	a.set.draining.Delete(a)
	close(a.done)
}

// spawn runs f in a goroutine that the set waits for, or here if the set has waited already.
func (s *Set) spawn(f func()) {
	if !s.tasks.Start(f) {
		f()
	}
}

// GiveUp ends the connections of the extensions that share selects, and returns when nothing of
// them runs any more, or is given no more time. The caller has seen to it that no Reconcile of them
// begins or goes on. GiveUp may be called from any goroutine.
func (s *Set) GiveUp(ctx context.Context, share func(client.Object) bool) error {
	var ending errgroup.Group
	ending.SetLimit(giveUpConcurrency)
	s.each(func(a *identityAccessor) {
		if share(a.lastObject()) {
			ending.Go(func() error {
				a.leave(lifecycle.GiveUp{Cause: errGivenUp})
				return nil
			})
		}
	})
	_ = ending.Wait()
	var err error
	s.draining.Range(func(key, _ any) bool {
		a := key.(*identityAccessor)
		if !share(a.lastObject()) {
			return true
		}
		select {
		case <-a.done:
		case <-ctx.Done(): // requests under way have no more time either
			a.step(lifecycle.NoMoreTime{}, eventPayload{})
			err = cmp.Or(err, errors.Wrapf(context.Cause(ctx), "giving up %s", connstate.KeyString(a.key)))
		}
		return true
	})
	return err
}
