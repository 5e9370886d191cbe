package healthprobe

import "time"

// State is the health of a connection, or of a target. It is a value; copies are independent.
type State struct {
	// LastProbeTime is when the last probe ended; a connect counts as one, and so does a successful request of the
	// identity's own.
	LastProbeTime time.Time
	// LastProbeSuccessTime is when the server last served the identity: by a probe, or by a request of its own.
	LastProbeSuccessTime time.Time
	// ConsecutiveFailures counts the probes and connects that failed since the last success. While connected, a review that is
	// answered 403 is neither a failure nor a success: it sets LastProbeTime and LastError only. Under impersonation it is a
	// failure.
	ConsecutiveFailures int
	// LastError is why the last probe was no success, nil after a success. It never holds a secret.
	LastError error
}

// After returns the state after a probe that ended at now with err, nil being success.
func (s State) After(now time.Time, err error) State {
	s.LastProbeTime, s.LastError = now, err
	if err != nil {
		s.ConsecutiveFailures++
		return s
	}
	s.LastProbeSuccessTime, s.ConsecutiveFailures = now, 0
	return s
}

// Options tell how often to ask and when to give up.
type Options struct {
	// Interval is how long a target may be silent before it is asked whether it is up, and the time between
	// probes while they fail. Defaults to 10 s.
	Interval time.Duration
	// IdentityInterval is how long an identity may go without a successful request before it is asked who it is.
	// Defaults to 60 s.
	IdentityInterval time.Duration
	// Timeout bounds one probe. Defaults to 5 s.
	Timeout time.Duration
	// FailureThreshold is how many probes in a row must fail to disconnect. Defaults to 5. A 401 needs one.
	FailureThreshold int
}

// WithDefaults returns a copy in which every zero field has its default.
func (o Options) WithDefaults() Options {
	if o.Interval == 0 {
		o.Interval = 10 * time.Second
	}
	if o.IdentityInterval == 0 {
		o.IdentityInterval = 60 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.FailureThreshold == 0 {
		o.FailureThreshold = 5
	}
	return o
}

// Due returns when the identity with this health wants its next probe: IdentityInterval after it was last seen
// valid, or Interval after a probe that failed or told nothing. spread in [0,1) makes identities that connected together drift
// apart: it brings a probe forward by up to a tenth.
func (o Options) Due(s State, spread float64) time.Time {
	if s.ConsecutiveFailures > 0 || (s.LastError != nil && s.LastProbeTime.After(s.LastProbeSuccessTime)) {
		return s.LastProbeTime.Add(o.Interval)
	}
	return s.LastProbeSuccessTime.Add(o.IdentityInterval - time.Duration(spread*float64(o.IdentityInterval)/10))
}

// Failed reports whether so many probes failed that the connection should be given up.
func (o Options) Failed(s State) bool { return s.ConsecutiveFailures >= o.FailureThreshold }
