package connstate

import "time"

// Health has the results of the probes of a connection or of a target. Health is a value; copies
// are independent.
type Health struct {
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

// After returns the health after a probe that ended at now with err. A nil err is a success.
func (h Health) After(now time.Time, err error) Health {
	h.LastProbeTime, h.LastError = now, err
	if err != nil {
		h.ConsecutiveFailures++
		return h
	}
	h.LastProbeSuccessTime, h.ConsecutiveFailures = now, 0
	return h
}

// Inconclusive returns the health after a probe that ended at now with an answer that contains
// nothing about the identity.
func (h Health) Inconclusive(now time.Time, err error) Health {
	h.LastProbeTime, h.LastError = now, err
	return h
}

// Served returns the health of an identity whose own request was last served at the given time. A
// request that is newer than the last probe counts as a probe.
func (h Health) Served(at time.Time) Health {
	if at.After(h.LastProbeTime) {
		return h.After(at, nil)
	}
	if at.After(h.LastProbeSuccessTime) {
		h.LastProbeSuccessTime = at
	}
	return h
}

// WithTarget returns the health to report: while the target is silent, the connection counts as
// silent.
func (h Health) WithTarget(target Health) Health {
	if target.ConsecutiveFailures > h.ConsecutiveFailures && target.LastProbeTime.After(h.LastProbeSuccessTime) {
		h.ConsecutiveFailures = target.ConsecutiveFailures
		h.LastProbeTime = target.LastProbeTime
		h.LastError = target.LastError
	}
	return h
}

// ProbeOptions set how often to probe and after how many failures to disconnect.
type ProbeOptions struct {
	// Interval is how long a target may be silent before a probe checks whether the target is up.
	// Interval is also the time between probes while they fail. Defaults to 10 s.
	Interval time.Duration
	// IdentityInterval is how long an identity may go without a successful request, or under
	// impersonation without a probe, before a probe verifies the identity. Defaults to 60 s.
	IdentityInterval time.Duration
	// MaxIdentityProbesPerSecond is how many probes of identities one target receives on average, at
	// most. If there are so many identities that there would be more, IdentityInterval is longer.
	// Defaults to 50.
	MaxIdentityProbesPerSecond int
	// Timeout bounds one probe. Defaults to 5 s.
	Timeout time.Duration
	// FailureThreshold is how many probes in a row must fail to disconnect. Defaults to 5. A probe
	// that is answered 401 disconnects at once.
	FailureThreshold int
	// ThrottleTimeout is how long a connection goes on while probes are answered with nothing but
	// "not now" (429, or 503 with Retry-After). Defaults to 5 min.
	ThrottleTimeout time.Duration
}

// WithDefaults returns a copy in which every zero field has its default.
func (o ProbeOptions) WithDefaults() ProbeOptions {
	if o.Interval == 0 {
		o.Interval = 10 * time.Second
	}
	if o.IdentityInterval == 0 {
		o.IdentityInterval = 60 * time.Second
	}
	if o.MaxIdentityProbesPerSecond == 0 {
		o.MaxIdentityProbesPerSecond = 50
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.FailureThreshold == 0 {
		o.FailureThreshold = 5
	}
	if o.ThrottleTimeout == 0 {
		o.ThrottleTimeout = 5 * time.Minute
	}
	return o
}

// Due returns when the identity with this health is to be probed next: IdentityInterval after its
// last success, or Interval after a probe that failed or was inconclusive. jitter in [0,1) makes a
// probe earlier by up to a tenth, so that identities that connected together drift apart.
//
// members is the number of identities at the target. If there would be more probes than
// MaxIdentityProbesPerSecond, the interval is longer, and jitter makes a probe earlier by up to
// half, so that identities that connected together are not probed together.
func (o ProbeOptions) Due(h Health, members int, jitter float64) time.Time {
	if h.ConsecutiveFailures > 0 || (h.LastError != nil && h.LastProbeTime.After(h.LastProbeSuccessTime)) {
		return h.LastProbeTime.Add(o.Interval)
	}
	interval := o.IdentityInterval - time.Duration(jitter*float64(o.IdentityInterval)/10)
	if shortest := o.Spread(members); shortest > o.IdentityInterval*9/10 {
		interval = 2*shortest - time.Duration(jitter*float64(shortest))
	}
	return h.LastProbeSuccessTime.Add(interval)
}

// Spread returns the shortest time in which each of the members may be probed once.
func (o ProbeOptions) Spread(members int) time.Duration {
	if o.MaxIdentityProbesPerSecond <= 0 {
		return 0
	}
	return time.Second * time.Duration(members) / time.Duration(o.MaxIdentityProbesPerSecond)
}

// Failed reports whether enough probes failed to end the connection.
func (o ProbeOptions) Failed(h Health) bool { return h.ConsecutiveFailures >= o.FailureThreshold }
