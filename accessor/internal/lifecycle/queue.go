package lifecycle

// Queue keeps the after effects of one connection in order, one at a time. The goroutine that finds
// the queue idle drains it; the others only append. The zero value is empty and ready. Queue is not
// safe for concurrent use: the driver's lock guards each call, and the driver runs what Next
// returns without that lock.
//
//	lock; Step; commit effects; queue.Append(after effects...); drain := queue.Take(); unlock
//	if drain { for { lock; f, ok := queue.Next(); unlock; if !ok { break }; f() } }
type Queue[T any] struct {
	waiting []T
	taken   bool
}

// Append adds what is to be run, in order.
func (q *Queue[T]) Append(next ...T) { q.waiting = append(q.waiting, next...) }

// Take reports whether the caller is to drain the queue: call Next until it returns false.
func (q *Queue[T]) Take() bool {
	if q.taken || len(q.waiting) == 0 {
		return false
	}
	q.taken = true
	return true
}

// Next returns what to run next. If it returns false, the queue is empty and the caller has given
// it back.
func (q *Queue[T]) Next() (next T, ok bool) {
	if len(q.waiting) == 0 {
		q.waiting, q.taken = nil, false
		return next, false
	}
	next = q.waiting[0]
	var none T
	q.waiting[0] = none // so that it can be collected
	q.waiting = q.waiting[1:]
	return next, true
}

// GiveBack ends the caller's turn early, because what it ran panicked. What waits is for the next
// one to take.
func (q *Queue[T]) GiveBack() { q.taken = false }

// Idle reports whether nothing waits and nothing runs.
func (q *Queue[T]) Idle() bool { return !q.taken && len(q.waiting) == 0 }
