package merge

import "time"

// ReadTimes are the times of Reads.
type ReadTimes struct {
	// Overlap is for how long after a replica has begun to serve another one may do so, too.
	Overlap time.Duration
	// Patience is for how long after the overlap reads still wait if some replica was not heard out.
	// After that they are answered with what there is.
	Patience time.Duration
}

// Reads decides which reads of a replica that serves must wait until it has heard what all others
// had when the read came: another one may serve, too, or has just done so, and may have shown what
// this one has not heard yet.
type Reads struct {
	times ReadTimes
	wait  bool
	alone time.Time // from then on no other replica serves
}

// NewReads returns Reads that wait for nothing until Shared is called.
func NewReads(times ReadTimes) Reads { return Reads{times: times} }

// Shared says that from now on another replica may serve, too, for the time of Overlap.
func (r *Reads) Shared(now time.Time) { r.wait, r.alone = true, now.Add(r.times.Overlap) }

// MustWait reports whether a read that arrived then must wait.
func (r *Reads) MustWait(arrived time.Time) bool {
	return r.wait && !arrived.After(r.alone.Add(r.times.Patience))
}

// CaughtUp says that all that the others had at begun was heard. If that is after the overlap,
// reads need not wait any more.
func (r *Reads) CaughtUp(begun time.Time) {
	if begun.After(r.alone) {
		r.wait = false
	}
}
