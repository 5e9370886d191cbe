package monitor

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

// Effect is an action for the driver. The driver executes effects in the order in which Step
// returns them.
type Effect interface{ isEffect() }

// Questions to the API server. The driver asks in another goroutine, and always passes an answer
// with the same ID.
type (
	// AskMapping asks for the kind's resource. Distrust means that the known resource may be wrong.
	AskMapping struct {
		Question QuestionID
		Distrust bool
		// Sure means that an error is a better answer than what was known before.
		Sure bool
	}
	// AskReview asks whether the identity has access with all Verbs. With OrListOnly, if it does
	// not, the driver asks whether the identity may list.
	AskReview struct {
		Question   QuestionID
		Mapping    *meta.RESTMapping
		Verbs      []string
		OrListOnly bool
	}
	// AskReadiness asks whether the API server is ready.
	AskReadiness struct{ Question QuestionID }
)

// Actions on the informer.
type (
	// StartInformer creates an informer and runs it. If that fails, the driver passes
	// InformerStartFailed. Poll is the interval of its lists if the identity may not watch, else
	// zero.
	StartInformer struct {
		Life    LifeID
		Mapping *meta.RESTMapping
		Poll    time.Duration
	}
	// Serve makes reads use the informer.
	Serve struct{ Life LifeID }
	// RestartWatch restarts the informer's watch at the same resourceVersion, so that the API
	// server authorizes it again.
	RestartWatch struct{ Life LifeID }
	// ListInstead makes the informer, and later ones of the kind, list and then watch. Its watch,
	// whose list has no end, stops.
	ListInstead struct{ Life LifeID }
	// StopInformer stops the informer. Reads do not use it any more.
	StopInformer struct{ Life LifeID }
)

// SetState sets the state of the scope. Err is why the state is Forbidden, NotServed or Failing.
type SetState struct {
	State State
	Err   error
	Since time.Time
	// Before is the last state in which the result of a read was known: Synced, Forbidden or
	// NotServed. Before is Syncing if there was none.
	Before State
}

func (AskMapping) isEffect()    {}
func (AskReview) isEffect()     {}
func (AskReadiness) isEffect()  {}
func (StartInformer) isEffect() {}
func (Serve) isEffect()         {}
func (RestartWatch) isEffect()  {}
func (ListInstead) isEffect()   {}
func (StopInformer) isEffect()  {}
func (SetState) isEffect()      {}

// State is the state of a scope.
type State string

const (
	// Syncing means that nothing is known yet, or the informer lists.
	Syncing State = "Syncing"
	// Synced means that reads are served.
	Synced State = "Synced"
	// Forbidden means that the identity may not list or watch.
	Forbidden State = "Forbidden"
	// NotServed means that the API server does not serve the kind.
	NotServed State = "NotServed"
	// Failing means that the API server does not answer, or answers with errors.
	Failing State = "Failing"
)

// IsSettled reports whether the result of a read is known.
func (s State) IsSettled() bool { return s == Synced || s == Forbidden || s == NotServed }
