package scopedcache

import "time"

const (
	// confirmAfter is how long a right must have been denied until it is believed lost, or a kind to be gone. A freshly
	// started API server answers 403 to rightful requests for some milliseconds.
	confirmAfter = 2 * time.Second
	// confirmUnready is the same where the API server does not tell us whether it is ready. How long its first moments last
	// depends on what it has to do.
	confirmUnready = 10 * time.Second
	// confirmEvery is how often the API server is asked meanwhile: if it fails in between, a denial before that says nothing.
	confirmEvery = time.Second
	// confirmations is how often it must have said no, without having failed or said yes in between.
	confirmations = 3
)

// doubts count what speaks against a right that has worked.
type doubts struct {
	first   time.Time // of the denials
	denials int       // without anything else in between
}

// judge takes an answer, and says whether the right is gone, having been denied for as long as certain, and else when to ask
// again: soon, or 0 if there is no hurry.
func (d *doubts) judge(v verdict, now time.Time, certain time.Duration) (gone bool, soon time.Duration) {
	switch {
	case v == denied && d.denials == 0:
		d.first, d.denials = now, 1
	case v == denied:
		d.denials++
	case v != unanswered || d.first.IsZero():
		*d = doubts{}
		return false, 0
	default: // it is in doubt and there is no answer: what was said before that says nothing
		d.denials = 0
		return false, confirmEvery
	}
	if d.denials >= confirmations && now.Sub(d.first) >= certain {
		return true, 0
	}
	return false, confirmEvery
}

// contradictions are refusals of the informer that reviews and discovery do not bear out.
type contradictions struct {
	streak time.Time // when the refusals began
	since  time.Time // when they were first contradicted
	count  int       // of those that were sent after that
}

// certain notes that a refusal was contradicted, and reports whether it counts all the same: what the informer sent after
// the first time that others said otherwise was refused as often, and for as long, as it takes to lose a right, and nothing
// was served in between. When it was answered does not count: on a busy machine answers lie around.
func (c *contradictions) certain(refused refusal, now time.Time) bool {
	if !c.streak.Equal(refused.since) {
		*c = contradictions{streak: refused.since}
	}
	if c.since.IsZero() {
		c.since = now
		return false
	}
	if refused.sent.After(c.since) {
		c.count++
	}
	return c.count >= confirmations && refused.sent.Sub(c.since) >= confirmAfter
}
