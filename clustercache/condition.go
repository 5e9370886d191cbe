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
// Pass only errors of calls for this extension: any other error yields True. Check whether the
// status is the caller's to write first:
//
//	if clustercache.ReportedElsewhere(err) {
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

// ReportedElsewhere reports whether a call failed with a reason that the caller must not report: it
// returns without writing the status of the extension, and without a requeue. After ReasonStale the
// next event usually leads to a Reconcile with a newer object; a ReasonStale that lasts is a
// mistake of the caller, whose text says which. With ReasonNotOwned the replica that has the
// extension, or will have it, writes the status. ReportedElsewhere returns false for nil and for
// any other error.
func ReportedElsewhere(err error) bool {
	var notConnected *NotConnectedError
	return errors.As(err, &notConnected) && notConnected.ReportedElsewhere()
}
