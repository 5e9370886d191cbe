package scopedcache

import "time"

const (
	// confirmAfter is how long a right must have been denied until it is believed lost, or a kind to be gone, by an API server
	// that says that it is ready. A freshly started one answers 403 to rightful requests for some moments.
	confirmAfter = 2 * time.Second
	// confirmUntold is the same where the API server does not tell whether it is ready. How long its first moments last
	// depends on what it has to do.
	confirmUntold = 10 * time.Second
	// confirmUnready is the same where it says that it is not ready. It may serve all the same: what it needs to be ready is
	// more than it needs to know of rights.
	confirmUnready = time.Minute
	// confirmEvery is how often the API server is asked meanwhile: if it fails in between, a denial before that says nothing.
	confirmEvery = time.Second
	// confirmations is how often it must have said no, without having failed or said yes in between.
	confirmations = 3
)

// doubts count what speaks against a right: denials in a row, with nothing else in between.
type doubts struct {
	denials int
	first   time.Time // of them
	told    int       // of them, by an API server that says that it is ready
	tells   time.Time // when the first of those came
}

// judge takes an answer, and says whether the right is gone, and else when to ask again: soon, or 0 if there is no hurry.
func (d *doubts) judge(v verdict, now time.Time) (gone bool, soon time.Duration) {
	if !v.isDenial() {
		doubted := d.denials > 0
		*d = doubts{}
		if v == unanswered && doubted {
			return false, confirmEvery
		}
		return false, 0
	}
	if d.denials++; d.denials == 1 {
		d.first = now
	}
	if v == denied {
		if d.told++; d.told == 1 {
			d.tells = now
		}
	}
	lasted := now.Sub(d.first)
	switch {
	case d.denials < confirmations:
		return false, confirmEvery
	case d.told >= confirmations && now.Sub(d.tells) >= confirmAfter,
		v != deniedUnready && lasted >= confirmUntold,
		lasted >= confirmUnready:
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
