package clustercache

import (
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// generation is the metadata.generation of the extension. LastTransitionTime is zero:
// meta.SetStatusCondition sets it. Do not store the condition of an error with ReasonStale, which
// is about to pass.
func Condition(err error, generation int64) metav1.Condition {
	condition := metav1.Condition{Type: ConditionConnected, Status: metav1.ConditionFalse, ObservedGeneration: generation}
	var notConnected *NotConnectedError
	var noToken *NoTokenError
	switch {
	case errors.As(err, &notConnected):
		condition.Reason, condition.Message = string(notConnected.Reason), notConnected.Error()
	case errors.As(err, &noToken):
		condition.Reason, condition.Message = string(ReasonTokenRequestFailed), noToken.Error()
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, string(PhaseConnected)
	}
	return condition
}
