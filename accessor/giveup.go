package accessor

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// givenUpAtOnce is how many extensions are given up at the same time.
const givenUpAtOnce = 32

// answerPatience is how long requests under way may take until they have their answers, when an extension
// is given up.
const answerPatience = 2 * time.Second

// settleInterval is how often Settled looks.
const settleInterval = 20 * time.Millisecond

// remove ends an accessor, if it still is that of its extension.
func (s *Set) remove(a *identityAccessor, reason connstate.Reason) {
	removed := false
	s.byKey.Compute(a.key, func(current *identityAccessor, _ bool) (*identityAccessor, xsync.ComputeOp) {
		if removed = current == a; removed {
			if reason == connstate.ReasonNotOwned {
				s.leaving.Store(a, struct{}{}) // before it is gone, so that GiveUp sees it here or there
			}
			return nil, xsync.DeleteOp
		}
		return current, xsync.CancelOp
	})
	if !removed {
		return
	}
	if reason == connstate.ReasonNotOwned {
		s.giveUp(a)
		return
	}
	var cause error
	if reason == connstate.ReasonNotLeading {
		cause = cmp.Or(a.term.Err(), fence.ErrClosed)
	}
	a.remove(reason, cause)
	s.options.States.Changed(a.key)
	if s.options.Divided {
		a.term.End("this replica does not know the extension any more")
	}
}

// giveUp lets no request of an accessor start any more, and ends it when those under way have their answers,
// or after answerPatience. Requests that are cut may still arrive at the API server, after those of another
// replica. giveUp does not wait for that if there are any.
func (s *Set) giveUp(a *identityAccessor) {
	s.options.Metrics.GaveUp()
	answered := a.requests.Refuse(&connstate.NotConnectedError{Extension: a.key, Reason: connstate.ReasonNotOwned,
		Since: time.Now(), Err: errGivenUp})
	end := func() {
		a.endTerm()
		a.remove(connstate.ReasonNotOwned, a.term.Err())
		s.options.States.Changed(a.key)
	}
	waits := false
	select {
	case <-answered:
		end()
	default:
		waits = true
	}
	left := func() {
		if waits {
			select {
			case <-answered:
			case <-a.term.Context().Done():
			case <-time.After(answerPatience):
			}
			end()
		}
		if !a.tasks.Wait(handlerPatience) {
			s.options.Logger.Info("Gave up an extension while event handlers of other controllers are still running",
				"extension", connstate.KeyString(a.key), "waited", handlerPatience)
		}
		s.leaving.Delete(a)
		close(a.left)
	}
	if !s.tasks.Start(left) { // the set has ended, and has waited already
		left()
	}
}

// endTerm ends all requests of an accessor that is given up.
func (a *identityAccessor) endTerm() { a.term.End("this replica has given up the extension") }

// GiveUp ends the connections of the extensions that share selects, and returns when nothing of them runs
// any more, or is given no more time. The caller has seen to it that no Reconcile of them begins or goes
// on. GiveUp may be called from any goroutine.
func (s *Set) GiveUp(ctx context.Context, share func(client.Object) bool) error {
	var ending errgroup.Group
	ending.SetLimit(givenUpAtOnce)
	s.each(func(a *identityAccessor) {
		if object := a.lastObject(); object != nil && share(object) {
			ending.Go(func() error {
				s.remove(a, connstate.ReasonNotOwned)
				s.notOwned.Store(a.key, object.GetUID())
				return nil
			})
		}
	})
	_ = ending.Wait()
	var err error
	s.leaving.Range(func(key, _ any) bool {
		a := key.(*identityAccessor)
		if object := a.lastObject(); object == nil || !share(object) {
			return true
		}
		select {
		case <-a.left:
		case <-ctx.Done(): // requests under way have no more time either
			a.endTerm()
			err = cmp.Or(err, errors.Wrapf(context.Cause(ctx), "giving up %s", connstate.KeyString(a.key)))
		}
		return true
	})
	return err
}

// Settled returns when each of the extensions is connected, or has been tried once, or is not known any
// more. An extension that is not known yet counts as known if wanted reports true.
func (s *Set) Settled(ctx context.Context, extensions []client.ObjectKey, wanted func(client.ObjectKey) bool) error {
	tick := time.NewTicker(settleInterval)
	defer tick.Stop()
	for {
		for len(extensions) > 0 && s.settled(extensions[0], wanted) {
			extensions = extensions[1:]
		}
		if len(extensions) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (s *Set) settled(key client.ObjectKey, wanted func(client.ObjectKey) bool) bool {
	a, ok := s.byKey.Load(key)
	if !ok {
		return !wanted(key)
	}
	return a.published.Load().reason != connstate.ReasonNotStarted
}
