package monitor

import "time"

// denialCounter counts consecutive denials. Every other answer resets the counter.
type denialCounter struct {
	count      int
	first      time.Time // when the first of them came
	ready      int       // how many of them came from an API server that is ready
	firstReady time.Time // when the first of those came
}

// observe counts a verdict, and reports whether access is revoked. If it is not, soon is the time
// until the next review, or 0 for the usual interval.
func (d *denialCounter) observe(t *Timing, v Verdict, now time.Time) (lost bool, soon time.Duration) {
	if !v.IsDenial() {
		doubted := d.count > 0
		*d = denialCounter{}
		if v == Unanswered && doubted {
			return false, t.ConfirmEvery
		}
		return false, 0
	}
	if d.count++; d.count == 1 {
		d.first = now
	}
	if v == Denied {
		if d.ready++; d.ready == 1 {
			d.firstReady = now
		}
	}
	lasted := now.Sub(d.first)
	switch {
	case d.count < t.Confirmations:
		return false, t.ConfirmEvery
	case d.ready >= t.Confirmations && now.Sub(d.firstReady) >= t.ConfirmAfter,
		v != DeniedUnready && lasted >= t.ConfirmReadinessUnknown,
		lasted >= t.ConfirmUnready:
		return true, 0
	}
	return false, t.ConfirmEvery
}

// refusal is an answer to an informer that may mean that access is revoked, or the kind is removed.
type refusal struct {
	err   error
	since time.Time // when the first refusal came after the last served request
	sent  time.Time // when the refused request was sent
}

// refusalCounter counts refusals of an informer's requests that reviews or discovery contradict.
type refusalCounter struct {
	since             time.Time // when the refusals began
	firstContradicted time.Time
	count             int // requests that were sent after firstContradicted and refused
}

// confirmed counts a refusal that was contradicted, and reports whether the refusals are trusted
// nevertheless. Trust needs as many refusals, over as much time, as denials need for a revocation.
// Only requests that were sent after the first contradiction count, and none may be served in
// between. The time when a refused request was sent counts, not when the answer arrived: on a busy
// machine answers are delayed.
func (c *refusalCounter) confirmed(t *Timing, refused refusal, now time.Time) bool {
	if !c.since.Equal(refused.since) {
		*c = refusalCounter{since: refused.since}
	}
	if c.firstContradicted.IsZero() {
		c.firstContradicted = now
		return false
	}
	if refused.sent.After(c.firstContradicted) {
		c.count++
	}
	return c.count >= t.Confirmations && refused.sent.Sub(c.firstContradicted) >= t.ConfirmAfter
}

// reviewPacer computes when to review after an RBAC event: soon, but spread over some time for many
// scopes. While events continue, reviews come less and less often.
type reviewPacer struct {
	last time.Time // time of the latest review caused by an event, maybe in the future; zero for none
	gap  time.Duration
}

// next returns the delay until the review, and the delay until a second review. due is when a
// review comes in any case. jitter is in [0,1).
func (p *reviewPacer) next(t *Timing, now, due time.Time, jitter float64) (delay, again time.Duration) {
	if p.last.IsZero() || now.Sub(p.last) > 2*t.MaxGap {
		p.gap = 0
	}
	delay = t.AfterEvent + time.Duration(jitter*float64(t.EventSpread))
	if !p.last.IsZero() {
		delay = max(delay, p.last.Add(p.gap).Sub(now))
	}
	delay = min(delay, t.MaxGap)
	again = max(t.ConfirmAfter, p.gap)
	p.last = now.Add(min(delay, max(due.Sub(now), 0)))
	p.gap = min(max(2*p.gap, t.FirstGap), t.MaxGap)
	return delay, again
}
