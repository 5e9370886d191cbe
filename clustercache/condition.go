package clustercache

import (
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// ConditionConnected is the type of the conditions that Condition returns.
const ConditionConnected = "Connected"

// Condition returns the condition ConditionConnected for the result of a call of this package, or
// of a client that it returned:
//
//   - True for nil, and for errors that say nothing about the connection, such as Forbidden.
//   - False for a NotConnectedError, with its Reason and its text.
//   - False for a NoTokenError, with reason TokenRequestFailed and its text.
//
// Pass only errors of calls for this extension: any other error yields True. Check for ReasonStale
// and ReasonNotOwned first, and return without writing the status: after ReasonStale the next event
// usually leads to another result, and with ReasonNotOwned another replica writes the status:
//
//	var notConnected *clustercache.NotConnectedError
//	if errors.As(err, &notConnected) &&
//		(notConnected.Reason == clustercache.ReasonStale || notConnected.Reason == clustercache.ReasonNotOwned) {
//		return ctrl.Result{}, nil
//	}
//
// generation is the metadata.generation of the extension. LastTransitionTime is zero:
// meta.SetStatusCondition sets it.
func Condition(err error, generation int64) metav1.Condition {
	condition := metav1.Condition{Type: ConditionConnected, Status: metav1.ConditionFalse, ObservedGeneration: generation}
	var notConnected *NotConnectedError
	var noToken *NoTokenError
	switch {
	case errors.Is(err, connstate.ErrMistake):
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, "Mistake", err.Error()
	case errors.As(err, &notConnected):
		condition.Reason, condition.Message = string(notConnected.Reason), notConnected.Error()
	case errors.As(err, &noToken):
		condition.Reason, condition.Message = string(ReasonTokenRequestFailed), noToken.Error()
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, string(PhaseConnected)
	}
	return condition
}
