package healthprobe

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// State has the results of the probes of a connection. State is a value; copies are independent.
type State struct {
	// LastProbeTime is when the last probe ended. A connect counts as a probe, and so does a
	// successful request that the identity itself sent.
	LastProbeTime time.Time
	// LastProbeSuccessTime is when the server last served the identity: a probe, or a request that
	// the identity itself sent.
	LastProbeSuccessTime time.Time
	// ConsecutiveFailures counts the probes and connects that failed since the last success. While
	// connected, a review that is answered 403, 429, or 503 with Retry-After is neither a failure nor
	// a success: the answer sets LastProbeTime and LastError only. Under impersonation a 403 is a
	// failure.
	ConsecutiveFailures int
	// LastError is why the last probe was no success, nil after a success. LastError never contains
	// a secret.
	LastError error
}

// Options configure how often to probe and when to disconnect. The zero value of each field is its
// default.
type Options struct {
	// Interval is how long a target may be silent before a probe checks whether the target is up.
	// Interval is also the time between probes while they fail. Defaults to 10 s.
	Interval time.Duration
	// IdentityInterval is how long an identity may go without a successful request before a probe
	// verifies the identity. Under impersonation, a probe verifies the identity after each
	// IdentityInterval, whatever its requests. Defaults to 60 s.
	IdentityInterval time.Duration
	// MaxIdentityProbesPerSecond is how many probes of identities one API server receives, from all
	// ClusterCaches of a manager together: on average, and up to a fifth more in some seconds.
	// Probes after a failure are not counted. If IdentityInterval leads to more, it is longer for all
	// identities there: from 2,700 identities on with the defaults. 10,000 identities are probed after
	// 200 to 400 s without a successful request. So it takes longer to notice that an API server
	// rejects a credential that nothing else uses. In the cluster of the extensions, a watch notices
	// that a ServiceAccount was deleted; at the API servers of kubeconfigs nothing does until a
	// request is rejected. A rejected request (401) causes a probe, Interval after the last one at the
	// latest. Defaults to 50; a negative number means that IdentityInterval is never longer.
	MaxIdentityProbesPerSecond int
	// Timeout bounds one probe, or each of its two reviews if a kubeconfig impersonates. Defaults to
	// 5 s.
	Timeout time.Duration
	// FailureThreshold is how many probes in a row must fail to disconnect. Defaults to 5. A probe
	// that is answered 401 disconnects at once.
	FailureThreshold int
	// ThrottleTimeout is how long a connection goes on while the API server answers its probes with
	// nothing but "not now" (429, or 503 with Retry-After), and serves it nothing else. Such an answer
	// is no failure and no success. Probes then come when the server says, and Interval apart at
	// least. Defaults to 5 min.
	ThrottleTimeout time.Duration
}

// Identity is a user as the API server states it. The zero value means "not known".
type Identity struct {
	// Username is the full name, such as "system:serviceaccount:ns:name".
	Username string
	// UID is empty for users that have none, such as those of client certificates.
	UID types.UID
	// Groups are the groups of the user, in the API server's order.
	Groups []string
	// ImpersonatorUsername and ImpersonatorUID are the user of the kubeconfig that impersonates
	// Username (credential.KubeconfigOptions.Impersonate), as the API server states it. Otherwise
	// they are empty.
	ImpersonatorUsername string
	ImpersonatorUID      types.UID
}

// Verdict classifies the outcome of a probe, for the API server and for the identity.
type Verdict = connstate.Verdict

const (
	// Silent means that no answer arrived. Either the connection was refused, hung or broke, or the
	// target's certificate authorities do not verify the server's certificate.
	Silent = connstate.Silent
	// Valid means that the server stated the identity.
	Valid = connstate.Valid
	// Unauthorized means that the server does not accept the credential (401).
	Unauthorized = connstate.Unauthorized
	// Denied means that the server answers but denies the review (403). A 403 proves nothing about
	// the credential.
	Denied = connstate.Denied
	// Failing means that the server answers with an error of its own (5xx), or with an answer that no
	// API server sends.
	Failing = connstate.Failing
	// Throttled means that the server answers, and refuses requests for now: 429, or 503 with a
	// Retry-After in seconds. It is evidence neither for nor against the identity.
	Throttled = connstate.Throttled
)
