package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Timing is how long things take, and how often they must be so to be believed.
type Timing struct {
	// ConfirmAfter is how long access must have been denied until it counts as lost, or a kind as
	// gone, by an API server that says that it is ready. A freshly started one answers 403 to
	// rightful requests for some moments.
	ConfirmAfter time.Duration
	// ConfirmReadinessUnknown is the same where the API server does not say whether it is ready.
	// How long its first moments last depends on what it has to do.
	ConfirmReadinessUnknown time.Duration
	// ConfirmUnready is the same where it says that it is not ready. It may serve all the same: to
	// be ready it needs more than it needs to know about access.
	ConfirmUnready time.Duration
	// ConfirmEvery is how often the API server is asked meanwhile. If it fails in between, a denial
	// before that says nothing.
	ConfirmEvery time.Duration
	// Confirmations is how often it must have said no, without having failed or said yes in
	// between.
	Confirmations int
	// AfterEvent is how long after an RBAC event the API server is asked: its own informers hear of
	// it in that time. Scopes are spread over EventSpread. They ask once more after ConfirmAfter,
	// in case it was too soon.
	AfterEvent, EventSpread time.Duration
	// FirstGap and MaxGap are how far apart reviews get while events go on.
	FirstGap, MaxGap time.Duration
	// ExpediteAfter is how long a wait lasts at least that a reader can shorten.
	ExpediteAfter time.Duration
	// Failing and Pending are the waits after errors, and while there is no such kind. Jitter of
	// them is theirs.
	Failing, Pending wait.Backoff
}

// DefaultTiming is what caches use.
var DefaultTiming = Timing{
	ConfirmAfter: 2 * time.Second, ConfirmReadinessUnknown: 10 * time.Second, ConfirmUnready: time.Minute,
	ConfirmEvery: time.Second, Confirmations: 3,
	AfterEvent: 250 * time.Millisecond, EventSpread: time.Second, FirstGap: time.Second, MaxGap: 30 * time.Second,
	ExpediteAfter: time.Second,
	Failing:       wait.Backoff{Duration: time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: 30 * time.Second},
	Pending:       wait.Backoff{Duration: 2 * time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: 10 * time.Second},
}

// delay takes the next delay of a backoff. jitter is in [0,1).
func delay(backoff *wait.Backoff, jitter float64) time.Duration {
	factor := backoff.Jitter
	backoff.Jitter = 0
	d := backoff.Step()
	backoff.Jitter = factor
	return d + time.Duration(jitter*factor*float64(d))
}
