package monitor

import "time"

// denialCounter counts denials in a row, with nothing else in between.
type denialCounter struct {
	count      int
	first      time.Time // of them
	ready      int       // of them, by an API server that says that it is ready
	firstReady time.Time // of those
}

// observe takes a verdict. It reports whether access is lost, and else when to ask again: soon, or
// 0 if there is no hurry.
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

// refusal is an answer to an informer by which access, or the kind, may be gone.
type refusal struct {
	err   error
	since time.Time // when the first one came since something was served
	sent  time.Time // when the refused request was sent
}

// refusalCounter counts refusals of the informer that reviews or discovery contradict.
type refusalCounter struct {
	since             time.Time // when the refusals began
	firstContradicted time.Time
	count             int // of those that were sent after that
}

// confirmed takes a refusal that was contradicted, and reports whether it counts all the same: what
// the informer sent after the first contradiction was refused as often, and for as long, as it
// takes to lose access, and nothing was served in between. When a refusal was sent counts, and not
// when it arrived: on a busy machine answers lie around.
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

// reviewPacer says when to review after an RBAC event: soon, spread over some time for many scopes,
// but less and less often while events go on.
type reviewPacer struct {
	last time.Time // when a review was, or will be, due to an event; zero if there was none
	gap  time.Duration
}

// next returns after how long to review, and after how long once more. due is when a review comes
// in any case. jitter is in [0,1).
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
