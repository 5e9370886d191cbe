package lifecycle

// Queue keeps the after effects of one connection in order, one at a time. A goroutine that finds
// the queue idle drains the queue. Other goroutines only append. The zero value is empty and ready
// to use. Queue is not safe for concurrent use: the driver's lock guards each call, and the driver
// runs what Next returns without that lock.
//
//	lock; Step; commit effects; queue.Append(after effects...); drain := queue.Take(); unlock
//	if drain { for { lock; f, ok := queue.Next(); unlock; if !ok { break }; f() } }
type Queue[T any] struct {
	waiting []T
	taken   bool
}

// Append adds after effects, in order.
func (q *Queue[T]) Append(next ...T) { q.waiting = append(q.waiting, next...) }

// Take reports whether the caller must drain the queue. To drain the queue, call Next until Next
// returns false.
func (q *Queue[T]) Take() bool {
	if q.taken || len(q.waiting) == 0 {
		return false
	}
	q.taken = true
	return true
}

// Next returns the effect to run next. If Next returns false, the queue is empty, and the caller no
// longer drains the queue.
func (q *Queue[T]) Next() (next T, ok bool) {
	if len(q.waiting) == 0 {
		q.waiting, q.taken = nil, false
		return next, false
	}
	next = q.waiting[0]
	var none T
	q.waiting[0] = none // so that the effect can be garbage collected
	q.waiting = q.waiting[1:]
	return next, true
}

// GiveBack ends the caller's turn early, because an effect panicked. The next caller of Take drains
// the rest.
func (q *Queue[T]) GiveBack() { q.taken = false }

// Idle reports whether no effect waits and no effect runs.
func (q *Queue[T]) Idle() bool { return !q.taken && len(q.waiting) == 0 }
