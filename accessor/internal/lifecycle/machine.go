package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// Config is the configuration that all machines of a driver share. Config must not change.
type Config struct {
	Probe   connstate.ProbeOptions
	Backoff wait.Backoff // between connects
	// DenialRetry is the backoff between the reviews of a connect that are denied (403). They are
	// repeated for Probe.Timeout, because an API server that has just started denies permitted
	// requests.
	DenialRetry wait.Backoff
	// AnswerTimeout is how long requests under way may take until they have their answers, when an
	// extension is given up.
	AnswerTimeout time.Duration
	// TaskTimeout is how long event handlers may take to return, when a connection has ended for good.
	TaskTimeout time.Duration
	// Shared is set if replicas share the extensions: what one loses, another one may have.
	Shared bool
}

// Machine is one connection's lifecycle. Create a Machine with [New]. Machine is not safe for
// concurrent use: the driver's lock guards it.
type Machine struct {
	config    *Config
	createdAt time.Time
	jitter    float64 // in [0,1): spreads the probes of identities that connected at the same time

	stage      stage
	generation int64  // of the extension, as last resolved
	source     string // source of the credential that the extension references, also if resolving failed

	reference string // what the extension names, as last resolved

	phase             connstate.Phase
	reason            connstate.Reason // why there is no connection, "" while connected
	cause             error            // with reason
	since             time.Time        // of phase
	disconnectedSince time.Time        // since when there is no connection, zero while connected
	announced         announcement     // the content of the last notification

	target        TargetID     // zero if there is no credential
	credential    CredentialID // in use, or to be used by a connect; zero if there is none
	usedSince     time.Time    // since when the connection uses credential; zero while not connected
	resolution    Resolution   // that the credential was opened for
	rotation      *rotation    // a newer credential that may replace it, nil if there is none
	rotationErr   error        // why the newest credential is not in use; only while connected
	rotationSince time.Time    // since when there is one
	renewedAt     time.Time    // when a newer credential was last tried at once
	attempt       attempt      // the attempt under way; zero if there is none
	connection    AttemptID    // the attempt that created the connection; zero while not connected
	stated        connstate.Identity
	epoch         int64 // number of connects so far
	backoff       wait.Backoff
	nextConnect   time.Time    // the next connect does not begin before this time
	deniedUntil   time.Time    // until when a connect that was denied is repeated; zero if none was
	denials       wait.Backoff // while deniedUntil is set
	health        connstate.Health
	healthy       bool      // as last noticed
	healthSince   time.Time // of healthy
	probeReason   probeReason
	throttled     throttled
	lastID        uint64 // the last ID of a credential or attempt
}

// announcement is the last notification of the extension sources about an extension that is not
// connected. announcement is zero while the extension is connected.
type announcement struct {
	reason connstate.Reason
	// so that the sources are also notified after an edit that leaves the reason unchanged
	generation int64
	reference  string
}

// rotation is a newer credential for the same connection. The newer credential replaces the one in
// use once the API server states the same identity for it. Until then, the only request with the
// newer credential is that review.
type rotation struct {
	credential CredentialID
	resolution Resolution
	next       time.Time // when to verify
	backoff    wait.Backoff
}

// attempt is a connect, probe or verify under way.
type attempt struct {
	id          AttemptID
	kind        AttemptKind
	credential  CredentialID // the credential of the attempt's request
	probeReason probeReason
}

// throttled is a series of probes that the server answers with nothing but "not now". throttled is
// zero if the last probe was answered otherwise.
type throttled struct {
	since    time.Time // of the first such answer
	until    time.Time // the server wants no other probe before
	evidence time.Time // Observed.latest at the last such answer; if it is another one now, the series is over
}

// probeReason is the reason why a probe is due: by default, the clock.
type probeReason int

const (
	byClock      probeReason = iota
	unauthorized             // a request got a 401; the probe is due Interval after the last one
	forAll                   // the target is silent, and this connection probes on behalf of all
)

// Observed holds the values that the driver reads under its lock for each step. An event per served
// request would require the lock for every request.
type Observed struct {
	// Served is when the API server last served a request of the connection or of a sibling; zero if
	// never. Siblings are connections that are certainly of the same user.
	Served time.Time
	// Verified is when the API server last stated the identity in answer to a review of the
	// connection or of a sibling, as they reported it; zero if never.
	Verified time.Time
	// Target is the health of the target; zero while there is no target.
	Target connstate.Health
	// Members is how many connections use the target.
	Members int
	// Jitter in [0,1) is random. Backoffs use it.
	Jitter float64
	// LeaseEnded is set if the term in which this replica may act for the extension has ended. The
	// event may come later than another one.
	LeaseEnded *LeaseEnded
}

// latest returns the time of the last evidence for the identity, zero if there is none.
func (o *Observed) latest() time.Time { return later(o.Served, o.Verified) }

// health returns the health of a connection whose own probes had these results. A success of a
// sibling counts, a failure does not.
func (o *Observed) health(own connstate.Health) connstate.Health { return own.Served(o.latest()) }

// New returns the machine of an extension that is not connected. jitter in [0,1) makes its probes
// earlier by up to a tenth.
func New(config *Config, now time.Time, jitter float64) Machine {
	return Machine{
		config:            config,
		createdAt:         now,
		jitter:            jitter,
		phase:             connstate.PhaseDisconnected,
		reason:            connstate.ReasonNotStarted,
		since:             now,
		disconnectedSince: now,
		healthSince:       now,
		backoff:           config.Backoff,
	}
}

// CredentialKey returns the Resolution.Key of the credential in use, "" if there is none. For
// another key, the driver acquires the target before it calls Step.
func (m *Machine) CredentialKey() string { return m.resolution.Key }

// ObjectVersion returns the Resolution.ObjectVersion that the credential in use is for.
func (m *Machine) ObjectVersion() string { return m.resolution.ObjectVersion }

// Step handles an event at now, and returns the effects that the driver must carry out, in order.
func (m *Machine) Step(now time.Time, seen Observed, event Event) []Effect {
	s := step{Machine: m, now: now, seen: seen}
	if m.stage < ending && seen.LeaseEnded != nil {
		s.leaseEnded(*seen.LeaseEnded, event)
	}
	if m.stage != serving {
		s.leave(event)
		s.noteHealth()
		sortEffects(s.effects)
		return s.effects
	}
	before := m.Deadline(now, seen)
	switch e := event.(type) {
	case Resolved:
		s.resolved(e)
		before = time.Time{} // the driver reads the new deadline
	case AttemptFinished:
		s.finished(e)
	case RequestUnauthorized:
		s.requestUnauthorized(e)
	case ProbeRequested:
		s.probeRequested(e)
	case TargetDown:
		s.targetDown(e)
	case RetryAt:
		s.retryAt(e)
	case AccessChanged:
		s.notify()
	case Looked:
	case Removed:
		s.end(e.Why.reason(), e.Cause)
	case LeaseEnded:
		s.leaseEnded(e, e)
	case GiveUp:
		s.giveUp(e)
		s.emit(Wake{})
	}
	s.noteHealth()
	if _, resolved := event.(Resolved); !resolved && isForward(before, m.Deadline(now, seen)) {
		s.emit(Wake{})
	}
	sortEffects(s.effects)
	return s.effects
}

// isForward reports whether a deadline came forward.
func isForward(before, after time.Time) bool {
	return !after.IsZero() && (before.IsZero() || after.Before(before))
}

// Deadline returns when the extension is to be resolved again, zero if only when woken. While an
// attempt is under way, its end wakes.
func (m *Machine) Deadline(now time.Time, seen Observed) time.Time {
	_, at := m.due(now, seen)
	return at
}

// due returns the attempt to start now, or otherwise the time of the next check.
func (m *Machine) due(now time.Time, seen Observed) (AttemptKind, time.Time) {
	switch {
	case m.stage != serving || m.attempt.id != 0:
		return 0, time.Time{}
	case m.phase != connstate.PhaseConnected:
		if m.credential == 0 || now.Before(m.nextConnect) {
			return 0, m.nextConnect
		}
		return Connect, now
	case m.probeReason == forAll:
		return Probe, now
	}
	silent := seen.Target.ConsecutiveFailures > 0
	if m.rotation != nil && !silent && !now.Before(m.rotation.next) {
		return Verify, now
	}
	// While the target is silent, one member probes on behalf of all. A target that is down thus
	// receives one probe per Interval, not one per identity.
	at := now.Add(m.config.Probe.Interval)
	if !silent {
		health := m.health.Served(seen.Verified)
		if !m.resolution.Impersonated { // an answer to a request that lost its impersonation is no success of the identity
			health = health.Served(seen.Served)
		}
		at = m.config.Probe.Due(health, seen.Members, m.jitter)
	}
	if m.probeReason == unauthorized {
		at = earlier(at, m.health.LastProbeTime.Add(m.config.Probe.Interval))
	}
	if m.probeReason != unauthorized && m.isThrottled(seen) { // else the server answers again
		at = later(at, m.throttled.until)
	}
	if !at.After(now) {
		return Probe, now
	}
	if m.rotation != nil && m.rotation.next.After(now) && m.rotation.next.Before(at) {
		at = m.rotation.next
	}
	return 0, at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// isThrottled reports whether the last evidence is that the server refuses requests for now.
func (m *Machine) isThrottled(seen Observed) bool {
	return !m.throttled.since.IsZero() && seen.latest().Equal(m.throttled.evidence)
}

// isHealthy reports whether the last probe succeeded. While the server refuses probes for now,
// which is no evidence, the age of the last success decides: as long as a server that fails would
// take.
func (m *Machine) isHealthy(now time.Time, seen Observed, health connstate.Health) bool {
	if !health.LastProbeTime.After(health.LastProbeSuccessTime) {
		return true
	}
	probe := m.config.Probe
	due := probe.Due(connstate.Health{LastProbeSuccessTime: health.LastProbeSuccessTime}, seen.Members, m.jitter)
	return m.isThrottled(seen) && now.Before(due.Add(time.Duration(probe.FailureThreshold)*probe.Interval))
}

// noteHealth notes since when the connection is healthy, or not.
func (s *step) noteHealth() {
	if s.HealthChanged(s.now, s.seen) {
		s.healthy, s.healthSince = !s.healthy, s.now
	}
}

// HealthChanged reports whether the connection is healthy now and was not when the machine noticed
// it last, or the other way around. The driver then calls Step with Looked.
func (m *Machine) HealthChanged(now time.Time, seen Observed) bool {
	connected := m.phase == connstate.PhaseConnected
	return m.healthy != (connected && m.isHealthy(now, seen, seen.health(m.health).WithTarget(seen.Target)))
}

// Snapshot is the machine's state, for status reports.
type Snapshot struct {
	Phase  connstate.Phase
	Reason connstate.Reason
	Since  time.Time
	// DisconnectedSince is since when there is no connection, zero while connected. A retry does not
	// change it.
	DisconnectedSince time.Time
	Epoch             int64
	Generation        int64  // of the extension
	Source            string // of the credential
	Health            connstate.Health
	// Err states why there is no connection or, while connected, why the newest credential is not
	// in use, which is so since ErrSince.
	Err      error
	ErrSince time.Time
	// Credential is the credential in use, zero if there is none. CredentialSince is since when the
	// connection uses it, zero while not connected.
	Credential      CredentialID
	CredentialSince time.Time
	// LastSuccess is when the API server last served the identity, or when the machine was created
	// if the API server never did. Proven reports whether there is a connection and its last probe
	// succeeded. Healthy is the same, but for a while after the last success also true if the server
	// refuses probes for now.
	LastSuccess     time.Time
	Proven, Healthy bool
	// HealthSince is since when Healthy is what it is.
	HealthSince time.Time
}

// Snapshot returns the state at now.
func (m *Machine) Snapshot(now time.Time, seen Observed) Snapshot {
	s := Snapshot{
		Phase:             m.phase,
		Reason:            m.reason,
		Since:             m.since,
		DisconnectedSince: m.disconnectedSince,
		Epoch:             m.epoch,
		Generation:        m.generation,
		Source:            m.source,
		Health:            m.health,
		Err:               m.cause,
		Credential:        m.credential,
		CredentialSince:   m.usedSince,
	}
	if m.credential != 0 {
		s.Source = m.resolution.Source
	}
	if m.phase == connstate.PhaseConnected {
		s.Health = seen.health(m.health).WithTarget(seen.Target)
		s.Err, s.ErrSince = m.rotationErr, m.rotationSince
		s.Proven = !s.Health.LastProbeTime.After(s.Health.LastProbeSuccessTime)
		s.Healthy = m.isHealthy(now, seen, s.Health)
	}
	if s.HealthSince = m.healthSince; s.Healthy != m.healthy { // the machine has not noticed yet
		s.HealthSince = now
	}
	if s.LastSuccess = s.Health.LastProbeSuccessTime; s.LastSuccess.IsZero() {
		s.LastSuccess = m.createdAt
	}
	return s
}

// Settled reports whether a first attempt has ended: the machine is connected, or has a reason.
func (m *Machine) Settled() bool { return !m.reason.Pending() }

// Standing returns the state that the target needs: whether there is a connection, when it last
// probed, and until when the machine waits because the target did not answer (zero if it does not
// wait).
func (m *Machine) Standing() (connected bool, lastProbe, waitsUntil time.Time) {
	if m.phase == connstate.PhaseDisconnected && m.reason == connstate.ReasonUnreachable && m.target != 0 {
		waitsUntil = m.nextConnect
	}
	return m.phase == connstate.PhaseConnected, m.health.LastProbeTime, waitsUntil
}

// AcceptsProbe reports whether the connection can probe on behalf of all members now.
func (m *Machine) AcceptsProbe(e ProbeRequested) bool {
	return m.phase == connstate.PhaseConnected && e.Target == m.target && !m.isBusy()
}

// isBusy reports whether an attempt is under way whose answer concerns the connection. The answer
// of a verify concerns another credential.
func (m *Machine) isBusy() bool { return m.attempt.id != 0 && m.attempt.kind != Verify }

// newID returns an ID that was never used.
func (m *Machine) newID() uint64 {
	m.lastID++
	return m.lastID
}
