package accessor

import (
	"time"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// action is what a reconcile starts.
type action int

const (
	nothing action = iota
	connect
	probe
	verify // whose a newer credential is
)

// view is what decide looks at.
type view struct {
	now         time.Time
	phase       Phase
	busy        bool // a connect or probe is under way; its end wakes the reconciler
	nextConnect time.Time
	health      healthprobe.State
	target      healthprobe.State
	wanted      bool      // somebody asked for a probe
	verify      time.Time // when to ask whose a newer credential is, zero if there is none
	spread      float64
}

// decide says what to start now, and else after what time to look again; 0 means when something happens.
func decide(v view, options healthprobe.Options) (action, time.Duration) {
	switch {
	case v.busy:
		return nothing, 0
	case v.phase != Connected:
		if v.now.Before(v.nextConnect) {
			return nothing, v.nextConnect.Sub(v.now)
		}
		return connect, 0
	case v.wanted:
		return probe, 0
	case !v.verify.IsZero() && !v.now.Before(v.verify) && v.target.ConsecutiveFailures == 0:
		return verify, 0
	}
	// While the server is silent it is asked on behalf of all, so that a server that is down meets one probe
	// per Interval and not one per identity.
	wait := options.Interval
	if v.target.ConsecutiveFailures == 0 {
		wait = options.Due(v.health, v.spread).Sub(v.now)
	}
	if wait <= 0 {
		return probe, 0
	}
	if v.verify.After(v.now) {
		wait = min(wait, v.verify.Sub(v.now))
	}
	return nothing, wait
}

// canGoOnUnread reports whether a connection may be kept while the reference behind it cannot be read. Without the right to
// watch ServiceAccounts the deletion of an impersonated one would go unnoticed; a token ends with its ServiceAccount.
func canGoOnUnread(reason Reason, made credential.Resolved) bool {
	return reason == Unreachable || reason == OperatorForbidden && !made.Impersonated
}

// wakeWindow is over what time waiters are spread. A single one need not wait.
func wakeWindow(waiters int) time.Duration {
	return min(time.Duration(max(waiters-1, 0))*50*time.Millisecond, 10*time.Second)
}

// scoutInterval is how often one of so many who wait for a silent target tries it for all: the more they are, the more
// often, from the first backoff down to interval. One alone has its own backoff only.
func scoutInterval(waiters int, interval, firstBackoff time.Duration) time.Duration {
	return max(interval, firstBackoff/time.Duration(max(waiters-1, 1)))
}
