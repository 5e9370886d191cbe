package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Timing has the delays of the machine, and how many answers it needs before it trusts them.
type Timing struct {
	// ConfirmAfter is how long an API server that reports that it is ready must deny access before
	// access counts as revoked. The same holds for a kind that counts as removed. The reason: an
	// API server that has just started answers 403 to legitimate requests for some moments. A scope
	// that is denied for the first time since it last synced is reviewed again after ConfirmAfter
	// (untilReview). ConfirmAfter is also the shortest delay of the second review after an RBAC
	// event.
	ConfirmAfter time.Duration
	// ConfirmReadinessUnknown is the same for an API server that does not report whether it is
	// ready. How long the first moments of an API server last depends on its work.
	ConfirmReadinessUnknown time.Duration
	// ConfirmUnready is the same for an API server that reports that it is not ready. Its denials
	// can still be correct, because readiness requires more than knowledge about access.
	ConfirmUnready time.Duration
	// ConfirmEvery is the interval of reviews during that time. If the API server fails in between,
	// earlier denials do not count.
	ConfirmEvery time.Duration
	// Confirmations is the number of denials that are necessary, without an error or another answer
	// in between.
	Confirmations int
	// AfterEvent is the delay of a review after an RBAC event. In that time the API server's own
	// informers receive the event. The reviews of many scopes are spread over EventSpread, or less
	// if Config.Interval is shorter. A second review follows after ConfirmAfter, in case the first
	// one was too early.
	AfterEvent, EventSpread time.Duration
	// FirstGap and MaxGap are the first and the longest interval of reviews while events continue.
	// None is longer than Config.Interval.
	FirstGap, MaxGap time.Duration
	// RarerWatched is how many times as long as Config.Interval the time between two reviews is while
	// changes of RBAC are reported. These reviews find only changes that no RBAC object shows, such as
	// those of a webhook that authorizes.
	RarerWatched int
	// AtOnce is how long a watch must last that the API server ends without an error. client-go
	// resumes a longer one without a delay. Lasts is the same for a watch that ends with an error,
	// after which client-go waits and lists. Confirmations shorter ones within ConfirmAfter or more
	// are a failure.
	AtOnce, Lasts time.Duration
	// StreamedList is how long a watch may list before the informer lists instead.
	StreamedList time.Duration
	// Follow is how long after the API server has ended a watch early the kind is looked up again,
	// and up to twice as long, so that the scopes of one server do not ask at once. An API server
	// ends the watches of a kind that is removed. If the kind is soon back, with another resource
	// or scope, no request need fail: those for all namespaces have the same path. The kind of an
	// informer without a watch is looked up about as often as access is reviewed.
	Follow time.Duration
	// ExpediteAfter is the minimum duration of a wait that a reader can shorten.
	ExpediteAfter time.Duration
	// Failing is the backoff after errors, and Pending while the kind is not served. Their Jitter
	// applies to the delays.
	Failing, Pending wait.Backoff
}

// DefaultTiming is the timing that caches use.
var DefaultTiming = Timing{
	ConfirmAfter:            2 * time.Second,
	ConfirmReadinessUnknown: 10 * time.Second,
	ConfirmUnready:          time.Minute,
	ConfirmEvery:            time.Second,
	Confirmations:           3,
	AfterEvent:              250 * time.Millisecond,
	EventSpread:             time.Second,
	FirstGap:                time.Second,
	MaxGap:                  30 * time.Second,
	RarerWatched:            10,
	ExpediteAfter:           time.Second,
	AtOnce:                  time.Second,
	Lasts:                   5 * time.Second,
	StreamedList:            10 * time.Second,
	Follow:                  5 * time.Second,
	Failing:                 wait.Backoff{Duration: time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: 30 * time.Second},
	Pending: wait.Backoff{
		Duration: 2 * time.Second,
		Factor:   2,
		Jitter:   .1,
		Steps:    10,
		Cap:      10 * time.Second,
	},
}
