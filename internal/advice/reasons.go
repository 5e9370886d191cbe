package advice

// reasons has what to do for each reason of a connection.
var reasons = map[string]string{
	"NotStarted": "Check the replica that leads. If the reason persists: does the extension exist, does it " +
		"match WatchFilterValue and Filter, does the manager's cache sync (its own RBAC)?",
	"InvalidReference":       "Correct the field that the message names.",
	"ServiceAccountNotFound": "Create it; the connection follows within a second.",
	"TokenRequestFailed": "Read the message. Forbidden: grant the host operator the rule that the message " +
		"names.",
	"InvalidCredential": "Correct the Secret or the mapper.",
	"NotAllowed":        "Nothing if this is intended; otherwise name another.",
	"OperatorForbidden": "Grant the rule that the message names. The grant is noticed within " +
		"AccessReviewInterval of the manager's cache, " +
		"or half a minute for Secrets; then all are connected within seconds.",
	"Unauthorized": "If the reason persists: do the API server's issuer and audiences fit " +
		"(ServiceAccountOptions.Audiences)? Do the clocks agree? A kubeconfig: did its token or " +
		"certificate expire? Impersonation: may the host operator impersonate that ServiceAccount" +
		" (config/rbac-examples)?",
	"Stale": "Nothing; it passes when the reconnect is done. If it persists, read the reason in the " +
		"state of the extension. If that is Connected, the controller passes a wrong object to " +
		"For: read the error.",
	"IdentityMismatch": "If the reason persists: another server answers in the API server's place, or an " +
		"authentication webhook renames users.",
	"NotLeading": "Nothing, if another replica leads: look there. If none does, read the replicas' logs, and look at " +
		"the Lease and at the API server.",
	"NotOwned": "Nothing, if another replica has it: look there. If none does, read the replicas' logs, and " +
		"look at the Leases, or at the labels of the extension.",
	"Unreachable": "Look at the API server and the network path to it. When it answers any request, all its " +
		"extensions are woken, spread over 10 s.",
	"ProbeFailed": "Look at the API server. 403: is system:basic-user still bound to system:authenticated? " +
		"404: is it older than Kubernetes 1.28, which has no SelfSubjectReview?",
	"Throttled": "Look at what overloads the API server, and at its priority levels and flow schemas.",
	"Filtered":  "Nothing, this is intended.",
	"Deleted":   "Nothing, this is intended.",
}

// For returns what to do about a reason, or "" for a reason that the page does not have.
func For(reason string) string { return reasons[reason] }
