package serviceprovider

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// ServiceProviderConditionReady is the type of the condition that says whether the service is
// ready.
const ServiceProviderConditionReady = "Ready"

// Phases of an API object.
const (
	StatusPhaseReady       = "Ready"       // the service is as ordered
	StatusPhaseProgressing = "Progressing" // the service is being made or changed, or something prevents that
	StatusPhaseTerminating = "Terminating" // the service is being removed, or something prevents that
)

// Reasons that the runtime gives to the condition Ready. While a cluster is not connected, the
// reason is that of the connection, such as Unreachable: see clustercache.Reason. Authors may use
// other reasons. docs/serviceprovider.md says what to do for each.
const (
	// ReasonReady: the author's Reconciler called StatusReady.
	ReasonReady = "Ready"
	// ReasonReconciling: the author's last CreateOrUpdate reported nothing.
	ReasonReconciling = "Reconciling"
	// ReasonTerminating: the author's Delete has not ended.
	ReasonTerminating = "Terminating"
	// ReasonReconcileError: the author's Reconciler returned an error or panicked.
	ReasonReconcileError = "ReconcileError"
	// ReasonProviderConfigMissing: there is no config, or the provider has not read it yet.
	ReasonProviderConfigMissing = "ProviderConfigMissing"
	// ReasonProviderConfigDeleting: the config is being deleted.
	ReasonProviderConfigDeleting = "ProviderConfigDeleting"
	// ReasonAccessPending: the platform has not granted access yet.
	ReasonAccessPending = "AccessPending"
	// ReasonAccessDenied: the platform denied access.
	ReasonAccessDenied = "AccessDenied"
	// ReasonAccessConflict: a request of that name belongs to another controller.
	ReasonAccessConflict = "AccessConflict"
	// ReasonAccessError: the requests could not be read or written.
	ReasonAccessError = "AccessError"
	// ReasonAccessLost: access is gone although the service was not removed.
	ReasonAccessLost = "AccessLost"
	// ReasonAccessDeleting: the service is removed, and the requests are being deleted.
	ReasonAccessDeleting = "AccessDeleting"
)

// StatusProgressing reports that the service is not ready, and why. Reason is one word in
// CamelCase. The phase is StatusPhaseProgressing, or StatusPhaseTerminating for an object that is
// being deleted. StatusProgressing also sets the observed generation.
func StatusProgressing(obj API, reason, message string) {
	phase := StatusPhaseProgressing
	if !obj.GetDeletionTimestamp().IsZero() {
		phase = StatusPhaseTerminating
	}
	setStatus(obj, phase, metav1.ConditionFalse, reason, message)
}

// StatusReady reports that the service is as ordered. Only the author's Reconciler knows that; the
// runtime never calls StatusReady. StatusReady also sets the observed generation.
func StatusReady(obj API) {
	setStatus(obj, StatusPhaseReady, metav1.ConditionTrue, ReasonReady, "the service is ready")
}

// StatusTerminating reports that the service is being removed. StatusTerminating also sets the
// observed generation.
func StatusTerminating(obj API) {
	StatusTerminatingWithReason(obj, ReasonTerminating, "the service is being removed")
}

// StatusTerminatingWithReason is StatusTerminating with what the removal waits for. Reason is one
// word in CamelCase.
func StatusTerminatingWithReason(obj API, reason, message string) {
	setStatus(obj, StatusPhaseTerminating, metav1.ConditionFalse, reason, message)
}

func setStatus(obj API, phase string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(obj.GetConditions(), metav1.Condition{
		Type:               ServiceProviderConditionReady,
		Status:             status,
		ObservedGeneration: obj.GetGeneration(),
		Reason:             reason,
		Message:            untrusted.Shorten(message),
	})
	obj.SetObservedGeneration(obj.GetGeneration())
	obj.SetPhase(phase)
}

// ready returns a copy of the condition Ready, the zero value if there is none.
func ready(obj API) metav1.Condition {
	if found := meta.FindStatusCondition(*obj.GetConditions(), ServiceProviderConditionReady); found != nil {
		return *found
	}
	return metav1.Condition{}
}

// reportsCurrent reports whether the condition Ready is about the object's current generation and
// phase of life.
func reportsCurrent(obj API) bool {
	condition := ready(obj)
	return condition.Type != "" && condition.ObservedGeneration == obj.GetGeneration()
}

// isReady reports whether the condition Ready says so for this generation.
func isReady(obj API) bool {
	return ready(obj).Status == metav1.ConditionTrue && reportsCurrent(obj) && obj.GetDeletionTimestamp().IsZero()
}

// beginStatus prepares the status for a call of the author's Reconciler: what the runtime reported
// before is over. A condition that says Ready for this generation stays, so that a poll does not
// change it.
func beginStatus(obj API) {
	if isReady(obj) {
		return
	}
	if obj.GetDeletionTimestamp().IsZero() {
		StatusProgressing(obj, ReasonReconciling, "the service is being made")
	} else {
		StatusTerminating(obj)
	}
}

// failed reports the error of the author's Reconciler, unless the Reconciler itself reported
// something since before.
func failed(obj API, before metav1.Condition, message string) {
	if ready(obj) == before {
		StatusProgressing(obj, ReasonReconcileError, message)
	}
}
