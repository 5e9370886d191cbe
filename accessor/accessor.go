package accessor

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/watches"
)

// identityAccessor is one extension's connection. The lifecycle machine decides everything; the
// accessor passes events to it and carries out its effects. Getters load published and nothing
// else.
//
// A step, its commit effects and the append of its after effects to the queue are one critical
// section. The after effects run without mu, in order. mu is never held across I/O, a channel send
// or a callback.
type identityAccessor struct {
	key       client.ObjectKey
	set       *Set
	published atomic.Pointer[snapshot]
	watches   watches.Registry // has a lock of its own; may be used under mu, and does not come back here
	after     afterEffects     // has a lock of its own; effects are appended under mu, and run without it

	mu          sync.Mutex // guards what follows
	machine     lifecycle.Machine
	object      client.Object // as last resolved; not changed
	membership  *targets.Membership
	credentials openCredentials
	attempt     *attempt // that was created last
}

func newAccessor(set *Set, key client.ObjectKey) *identityAccessor {
	now := time.Now()
	a := &identityAccessor{key: key, set: set, machine: lifecycle.New(&set.lifecycle, now, rand.Float64()),
		watches: watches.Registry{Extension: key, Scheme: set.options.Scheme, Logger: set.options.Logger}}
	a.after.aside = func(drain func()) {
		if !set.owned.Start(drain) { // the set has ended, and so nothing is left that could take long
			go drain()
		}
	}
	a.published.Store(&snapshot{phase: Disconnected, reason: NotStarted, since: now,
		err: &NotConnectedError{Extension: key, Reason: NotStarted, Since: now}})
	return a
}

// brought is what comes with an event, and what the machine does not see.
type brought struct {
	resolution credential.Resolution // with Resolved
	membership *targets.Membership   // with Resolved: of the target that was joined for it
	conn       *connection           // with AttemptFinished: what a connect made
}

// before is what there was before a step.
type before struct {
	conn       *connection
	membership *targets.Membership
}

// step passes an event to the machine and carries out what follows.
func (a *identityAccessor) step(event lifecycle.Event, with brought) {
	a.mu.Lock()
	a.stepLocked(event, with)
	a.mu.Unlock()
	a.after.run()
}

func (a *identityAccessor) stepLocked(event lifecycle.Event, with brought) {
	before := before{conn: a.published.Load().conn, membership: a.membership}
	if finished, ok := event.(lifecycle.AttemptFinished); ok && a.attempt != nil &&
		a.attempt.Attempt == finished.Attempt {
		a.attempt = nil
	}
	for _, effect := range a.machine.Step(time.Now(), a.observedLocked(), event) {
		if lifecycle.IsCommit(effect) {
			a.commitLocked(effect, with, before)
		} else {
			a.after.append(a.afterEffectLocked(effect, with, before))
		}
	}
	if with.membership != nil && with.membership != a.membership {
		a.after.append(with.membership.Leave) // the machine had no use for the target
	}
	if a.membership != nil {
		a.membership.Update(a.machine.Standing())
	}
}

// observedLocked is what the machine looks at beside the event.
func (a *identityAccessor) observedLocked() lifecycle.Observed {
	seen := lifecycle.Observed{Jitter: rand.Float64()}
	if conn := a.published.Load().conn; conn != nil {
		seen.Served = conn.lastServed()
		seen.Target = a.membership.Health()
	}
	return seen
}

// stepAside is step for callers that must not run what others have queued: a request that got a
// 401, or a scope that reports its state.
func (a *identityAccessor) stepAside(event lifecycle.Event) {
	a.mu.Lock()
	a.stepLocked(event, brought{})
	a.mu.Unlock()
	a.after.runAside()
}

// reconcile takes what the extension is to connect as, and starts what is due. It returns after
// what time to be called again, 0 if only when woken.
func (a *identityAccessor) reconcile(object client.Object, resolution credential.Resolution, err error) time.Duration {
	event := lifecycle.Resolved{Generation: object.GetGeneration(), Resolution: resolutionOf(resolution), Err: err}
	if err != nil {
		event.Reason = reasonOf(err)
	}
	with := brought{resolution: resolution}
	a.mu.Lock()
	a.object = object
	if err == nil && resolution.Key != a.machine.CredentialKey() {
		// Before the old target is left: else the last member closes its TCP connections and
		// forgets discovery.
		if with.membership, event.TargetErr = a.set.targets.Join(resolution.Target, a); event.TargetErr == nil {
			event.Target = lifecycle.TargetID(with.membership.ID())
		}
	}
	a.stepLocked(event, with)
	now := time.Now()
	deadline := a.machine.Deadline(now, a.observedLocked())
	a.mu.Unlock()
	a.after.run()
	if deadline.IsZero() {
		return 0
	}
	return max(deadline.Sub(now), time.Nanosecond)
}

func resolutionOf(r credential.Resolution) lifecycle.Resolution {
	return lifecycle.Resolution{Key: r.Key, Version: r.Version, Source: r.Source, ServiceAccount: r.ServiceAccount,
		KeepCurrent: r.KeepCurrent, Impersonated: r.Impersonated, Expected: r.Expected}
}

// remove ends the accessor for ever, and returns when all that follows from it is done.
func (a *identityAccessor) remove(reason Reason, cause error) {
	a.step(lifecycle.Removed{Reason: reason, Cause: cause}, brought{})
	a.after.wait()
}

// isOf reports whether the accessor is that of the object, and not of an earlier one of the same
// name.
func (a *identityAccessor) isOf(object client.Object) bool {
	last := a.lastObject()
	return last == nil || last.GetUID() == object.GetUID()
}

func (a *identityAccessor) lastObject() client.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.object
}
