package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

// Effect is something that the driver is to do, in the order in which Step returns effects.
type Effect interface{ isEffect() }

// Questions. The driver asks beside its own goroutine, and always answers, with the same ID.
type (
	// AskMapping says to find the kind's resource. Distrust says that what is known of it may be
	// wrong.
	AskMapping struct {
		Question QuestionID
		Distrust bool
	}
	// AskReview says to ask whether the identity has access with all Verbs. OrListOnly: if not, ask
	// whether it may list.
	AskReview struct {
		Question   QuestionID
		Mapping    *meta.RESTMapping
		Verbs      []string
		OrListOnly bool
	}
	// AskReadiness says to ask whether the API server is ready.
	AskReadiness struct{ Question QuestionID }
)

// What to do with the informer.
type (
	// StartInformer says to make an informer and run it. If that fails, pass InformerStartFailed.
	// Poll is how far apart its lists are, if it may not watch; else zero.
	StartInformer struct {
		Life    LifeID
		Mapping *meta.RESTMapping
		Poll    time.Duration
	}
	// Serve says to serve reads from the informer.
	Serve struct{ Life LifeID }
	// RestartWatch says to begin the informer's watch anew, where it was, so that the API server
	// authorizes it again.
	RestartWatch struct{ Life LifeID }
	// StopInformer says to stop the informer, and serve nothing from it any more.
	StopInformer struct{ Life LifeID }
)

// SetState says that the scope is in this state now. Err is why it is Forbidden, NotServed or
// Failing.
type SetState struct {
	State State
	Err   error
	Since time.Time
	// Before is what readers got when that was last known: Synced, Forbidden or NotServed; Syncing
	// if it never was.
	Before State
}

func (AskMapping) isEffect()    {}
func (AskReview) isEffect()     {}
func (AskReadiness) isEffect()  {}
func (StartInformer) isEffect() {}
func (Serve) isEffect()         {}
func (RestartWatch) isEffect()  {}
func (StopInformer) isEffect()  {}
func (SetState) isEffect()      {}

// State is the state of a scope.
type State string

const (
	// Syncing: not known yet, or the informer lists.
	Syncing State = "Syncing"
	// Synced: reads are served.
	Synced State = "Synced"
	// Forbidden: the identity may not list or watch.
	Forbidden State = "Forbidden"
	// NotServed: there is no such kind.
	NotServed State = "NotServed"
	// Failing: the API server does not answer, or with errors.
	Failing State = "Failing"
)

// IsSettled reports whether it is known what a read gets.
func (s State) IsSettled() bool { return s == Synced || s == Forbidden || s == NotServed }
