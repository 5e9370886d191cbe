package accessor

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/accessor/watches"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/term"
)

// identityAccessor is one extension's connection. The lifecycle machine makes every decision. The
// accessor passes events to the machine and carries out its effects. Getters load published and
// nothing else.
//
// A step, its commit effects and the append of its after effects to the queue are one
// critical section. The after effects run without mu, in order. No goroutine holds mu across I/O, a
// channel send or a callback.
type identityAccessor struct {
	key       client.ObjectKey
	set       *Set
	lease     *fence.Term          // in which this replica may act for the extension; nil for any time
	term      *fence.Term          // that requests need: lease; where replicas share, one that endTerm can end earlier
	endTerm   func(cause string)   // nil unless replicas share
	requests  *connection.Requests // that can be refused when the extension is given up; nil if it never is
	published atomic.Pointer[snapshot]
	watches   watches.Registry   // has its own lock; may be used under mu, because it never calls the accessor
	effects   afterEffects       // has its own lock; effects are appended under mu and run without it
	tasks     workpool.TaskGroup // the goroutines of all connections
	done      chan struct{}      // closed when nothing of the accessor runs any more, or what hangs had its time

	mu          sync.Mutex // guards the fields below
	machine     lifecycle.Machine
	object      client.Object          // as last resolved; immutable
	conn        *connection.Connection // that has begun and not ended; nil for none
	answered    <-chan struct{}        // closed when no request is under way, after RefuseRequests
	termEnded   bool                   // EndTerm was carried out
	unfollow    func() bool            // ends what followLease began; nil before
	membership  *targets.Membership
	credentials openCredentials
	attempt     *attempt       // the one that was created last
	record      *recordOf      // of permissions; nil before the first connect, and if there is none
	compared    *comparedState // as last reported; nil before

	hadProblems  atomic.Bool // there were problems when it was asked last
	seenProblems string      // as problemsChanged saw them last
}

func newAccessor(set *Set, object client.Object, lease *fence.Term) *identityAccessor {
	now, key := time.Now(), client.ObjectKeyFromObject(object)
	a := &identityAccessor{
		key:     key,
		object:  object,
		set:     set,
		lease:   lease,
		term:    lease,
		tasks:   workpool.TaskGroup{Parent: &set.tasks},
		done:    make(chan struct{}),
		machine: lifecycle.New(&set.lifecycle, now, rand.Float64()),
		watches: watches.Registry{
			Extension: key,
			Scheme:    set.options.Scheme,
			Logger:    set.options.Logger,
			Metrics:   set.options.Metrics,
		},
	}
	if set.options.ReplicasShare {
		set.options.Metrics.Took()
		a.term, a.endTerm = term.Join(lease)
		a.requests = &connection.Requests{}
	}
	a.watches.Changed = a.reportChange
	a.effects.spawn = func(drain func()) {
		if !set.tasks.Start(drain) { // the set has ended, so no remaining effect takes long
			go drain()
		}
	}
	first := a.machine.Snapshot(now, lifecycle.Observed{})
	a.published.Store(&snapshot{
		phase:  first.Phase,
		reason: first.Reason,
		since:  first.Since,
		err:    &connstate.NotConnectedError{Extension: key, Reason: first.Reason, Since: first.DisconnectedSince},
	})
	return a
}

// eventPayload holds the values that come with an event and that the machine does not see.
type eventPayload struct {
	resolution identity.Resolution    // with Resolved
	membership *targets.Membership    // with Resolved: membership of the target that was joined for the event
	conn       *connection.Connection // with AttemptFinished: the connection that a connect created
}

// previousState is the state before a step.
type previousState struct {
	conn       *connection.Connection
	membership *targets.Membership
}

// step passes an event to the machine and carries out the resulting effects.
func (a *identityAccessor) step(event lifecycle.Event, payload eventPayload) {
	a.mu.Lock()
	drain := a.stepLocked(event, payload)
	a.mu.Unlock()
	if drain {
		a.effects.drain()
	}
}

// stepLocked returns whether the caller is to drain the effects, once it has unlocked mu.
func (a *identityAccessor) stepLocked(event lifecycle.Event, payload eventPayload) (drain bool) {
	previous := previousState{conn: a.conn, membership: a.membership}
	if finished, ok := event.(lifecycle.AttemptFinished); ok && a.attempt != nil &&
		a.attempt.Attempt == finished.Attempt {
		a.attempt = nil
	}
	var after []func()
	for _, effect := range a.machine.Step(time.Now(), a.observedLocked(), event) {
		if lifecycle.IsCommit(effect) {
			a.commitLocked(effect, payload, previous)
		} else {
			after = append(after, a.afterEffectLocked(effect, payload, previous))
		}
	}
	if payload.membership != nil && payload.membership != a.membership {
		after = append(after, payload.membership.Leave) // the machine did not adopt the target
	}
	if a.conn != nil {
		a.conn.SetObjectVersion(a.machine.ObjectVersion())
	}
	if a.membership != nil {
		a.membership.Update(a.machine.Standing()) // before a report to the target wakes those that wait
	}
	a.reportIfChangedLocked()
	return a.effects.append(after...)
}

// observedLocked returns what the machine reads in addition to the event.
func (a *identityAccessor) observedLocked() lifecycle.Observed {
	seen := lifecycle.Observed{Jitter: rand.Float64()}
	if a.conn != nil {
		evidence := a.conn.Evidence()
		seen.Served, seen.Verified = evidence.LastServed(), evidence.LastVerified()
		seen.Target, seen.Members = a.membership.Health(), a.membership.Members()
	}
	if a.lease.Err() != nil {
		seen.LeaseEnded = new(a.leaseEnded())
	}
	return seen
}

// stepAsync is step for callers that must not run the effects that others have queued. Such a
// caller is a request that got a 401, a scope that reports its state, or the end of a term.
func (a *identityAccessor) stepAsync(event lifecycle.Event) {
	a.mu.Lock()
	drain := a.stepLocked(event, eventPayload{})
	a.mu.Unlock()
	if drain {
		a.effects.spawn(a.effects.drain)
	}
}

// reconcile receives the identity that the extension connects as, and starts the attempt that is
// due. reconcile returns the delay after which the caller must call reconcile again. The delay is 0
// if the next call follows a wake only.
func (a *identityAccessor) reconcile(object client.Object, resolution identity.Resolution, err error) time.Duration {
	event := lifecycle.Resolved{
		Generation: object.GetGeneration(),
		Resolution: resolutionOf(object, resolution),
		Err:        err,
	}
	payload := eventPayload{resolution: resolution}
	a.mu.Lock()
	a.object = object
	if err == nil && resolution.Key != a.machine.CredentialKey() {
		// Join before the accessor leaves the old target. Otherwise the last member closes the TCP
		// connections and forgets discovery.
		if payload.membership, event.TargetErr = a.set.shared.targets.Join(resolution.Target, a,
			&a.set.policy); event.TargetErr == nil {
			event.Target = lifecycle.TargetID(payload.membership.ID())
		}
	}
	drain := a.stepLocked(event, payload)
	now := time.Now()
	deadline := a.machine.Deadline(now, a.observedLocked())
	a.mu.Unlock()
	if drain {
		a.effects.drain()
	}
	if deadline.IsZero() {
		return 0
	}
	return max(deadline.Sub(now), time.Nanosecond)
}

// ObjectVersion returns the version of an object, for credentials that depend on the whole object:
// metadata.generation, or the resourceVersion of kinds that have no generation.
func ObjectVersion(object client.Object) string {
	if generation := object.GetGeneration(); generation != 0 {
		return strconv.FormatInt(generation, 10)
	}
	return "resourceVersion " + object.GetResourceVersion()
}

func resolutionOf(object client.Object, r identity.Resolution) lifecycle.Resolution {
	resolution := lifecycle.Resolution{
		Key:            r.Key,
		Version:        r.Version,
		Source:         r.Source,
		ServiceAccount: r.ServiceAccount,
		KeepCurrent:    r.KeepCurrent,
		Impersonated:   r.Impersonated,
		Expected:       r.Expected,
		Reference:      r.Reference.Name,
	}
	if r.Reference.WholeObject {
		resolution.ObjectVersion = ObjectVersion(object)
	}
	return resolution
}

// leave passes an event that ends the accessor to the machine, and returns when all resulting
// effects have run. Requests and event handlers may still run.
func (a *identityAccessor) leave(event lifecycle.Event) {
	a.step(event, eventPayload{})
	a.effects.wait()
}

// followLease ends the accessor with its lease. The caller has made the accessor known before.
func (a *identityAccessor) followLease() {
	if a.lease == nil {
		return
	}
	stop := context.AfterFunc(a.lease.Context(), func() { a.stepAsync(a.leaseEnded()) })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.termEnded {
		stop()
	}
	a.unfollow = stop
}

// leaseEnded returns the event for the end of the lease.
func (a *identityAccessor) leaseEnded() lifecycle.LeaseEnded {
	return lifecycle.LeaseEnded{Cause: cmp.Or(a.lease.Err(), fence.ErrClosed)}
}

// belongsTo reports whether the accessor is that of the object under the lease, and not of an
// earlier object with the same name, or under an earlier lease.
func (a *identityAccessor) belongsTo(object client.Object, lease *fence.Term) bool {
	if a.lease != lease {
		return false
	}
	return a.uid() == object.GetUID()
}

// uid returns the UID of the extension.
func (a *identityAccessor) uid() types.UID { return a.lastObject().GetUID() }

func (a *identityAccessor) lastObject() client.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.object
}
