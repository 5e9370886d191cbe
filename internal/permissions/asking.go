package permissions

import "time"

// Asking decides when to ask again whether what was refused is granted by now. The zero value has
// nothing to ask. It reads no clock, and one goroutine at a time uses it.
type Asking struct {
	due    time.Time // zero while there is nothing to ask
	asking bool
	again  bool      // something was refused while asking
	soon   int       // how many more times it is asked soon
	asked  time.Time // last
}

// pauses are those after a change of RBAC: the API server's authorizer may learn of it later.
var pauses = []time.Duration{time.Second, 3 * time.Second}

// minPause is the least time between two questions, however often RBAC changes.
const minPause = time.Second

// Refused notes that something was refused.
func (a *Asking) Refused(now time.Time, interval time.Duration) {
	switch {
	case a.asking:
		a.again = true
	case a.due.IsZero(): // it may have been granted a moment ago
		a.soon = len(pauses) - 1
		a.due = now.Add(min(interval, pauses[0]))
	}
}

// Changed notes that permissions may have changed.
func (a *Asking) Changed(now time.Time) {
	if a.due.IsZero() && !a.asking {
		return
	}
	a.soon = len(pauses)
	if next := maxTime(now, a.asked.Add(minPause)); !a.asking && next.Before(a.due) {
		a.due = next
	}
}

// Begin reports whether it is time to ask. Then the caller does, and calls End.
func (a *Asking) Begin(now time.Time) bool {
	if a.asking || a.due.IsZero() || now.Before(a.due) {
		return false
	}
	a.asking, a.again, a.asked, a.due = true, false, now, time.Time{}
	return true
}

// Asked is what is known after a question.
type Asked struct {
	Refused bool // something that can be asked is still refused
	Others  bool // and something that no review can tell
	Cleared bool // a refusal does not count any more: it was granted, as this or another request found
}

// End notes that the answers have come. It returns whether to try again what was refused: because
// something is granted, or may be, or because no question follows any more.
func (a *Asking) End(now time.Time, interval time.Duration, result Asked) (tryAgain bool) {
	a.asking = false
	switch {
	case !result.Refused && !result.Others && !a.again:
		a.soon = 0
		return true
	case a.soon > 0:
		a.due = now.Add(min(interval, pauses[len(pauses)-a.soon]))
		a.soon--
	default:
		a.due = now.Add(interval)
	}
	return result.Cleared || result.Others
}

// Idle reports whether there is nothing to ask.
func (a *Asking) Idle() bool { return a.due.IsZero() && !a.asking }

// Due returns when to call Begin, false if not before another call.
func (a *Asking) Due() (time.Time, bool) { return a.due, !a.due.IsZero() }
