package merge

import "time"

// Reads decides which reads of a replica that serves must wait until it has heard what all others
// had when the read came: another one may serve, too, or has just done so, and may have shown what
// this one has not heard yet. What is not heard in time is shown as such: see Doubt.
type Reads struct {
	overlap time.Duration
	wait    bool
	alone   time.Time // from then on no other replica serves
}

// NewReads returns Reads that wait for nothing until Shared is called. The overlap is for how long
// after a replica has begun to serve another one may do so, too.
func NewReads(overlap time.Duration) Reads { return Reads{overlap: overlap} }

// Shared says that from now on another replica may serve, too, for the time of the overlap.
func (r *Reads) Shared(now time.Time) { r.wait, r.alone = true, now.Add(r.overlap) }

// MustWait reports whether a read that comes now must wait.
func (r *Reads) MustWait() bool { return r.wait }

// CaughtUp says that of each of the others all that it had at begun was heard, or that there is a
// Doubt about it. If that is after the overlap, reads need not wait any more.
func (r *Reads) CaughtUp(begun time.Time) {
	if begun.After(r.alone) {
		r.wait = false
	}
}

// Doubt is whether another replica may have shown more of something than was heard of it. The zero
// Doubt says that none has.
type Doubt struct{ since time.Time }

// Raise says that what was asked at begun was not answered in time, and reads do not wait for it.
func (d *Doubt) Raise(begun time.Time) {
	if begun.After(d.since) {
		d.since = begun
	}
}

// Settle says that all was heard that there was at begun. What was asked before the reads came that
// did not wait does not count.
func (d *Doubt) Settle(begun time.Time) {
	if begun.After(d.since) {
		d.since = time.Time{}
	}
}

// Raised returns since when there is doubt, and whether there is.
func (d Doubt) Raised() (since time.Time, is bool) { return d.since, !d.since.IsZero() }
