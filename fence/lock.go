package fence

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/latchkey-dev/latchkey/internal/term"
)

// ForLeaderElection wraps the lock of a leader election, and returns a fence that is open while
// this replica holds the lock. Any client-go resource lock works. Its Identity must be unique to
// this process.
//
// leaseDuration is the LeaseDuration of the leader election, in whole seconds: a Lease has no
// fractions of seconds, and with less than one the fence never opens. If a record has a shorter
// duration, the shorter one counts.
//
// Give the returned lock, and no other, to one LeaderElector or manager. The lock is not safe for
// concurrent use.
//
// The number of transitions in the record grows with each term of the fence, and so also when this
// replica takes again a lease that it had lost, and that no other replica took meanwhile.
func ForLeaderElection(lock resourcelock.Interface, leaseDuration time.Duration) (resourcelock.Interface, *Fence) {
	f := newFence()
	return &fencedLock{Interface: lock, fence: f, duration: leaseDuration, count: -1}, f
}

// fencedLock reports to its fence what becomes of the lock. A LeaderElector calls the methods from
// one goroutine.
type fencedLock struct {
	resourcelock.Interface
	fence    *Fence
	duration time.Duration
	holder   string // of the version of the lease that the next write replaces
	count    int64  // the highest number of a term that was read or written; -1 for none
	sent     sentTimes
}

// numbered returns the record with the number of the fence's term, or that of the next one if the
// fence is closed: a number that no term had. client-go counts changes of the holder, so a replica
// that took its own lease again would have two terms of one number.
func (l *fencedLock) numbered(record resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	count := l.count + 1
	if current := l.fence.Term(); current.Err() == nil {
		count = term.Count(current)
	}
	l.count = max(l.count, count, int64(record.LeaderTransitions))
	record.LeaderTransitions = int(l.count)
	return record
}

// distinct returns the record with a time of renewal that no earlier record had, to the second.
// Other replicas compare the contents of a lease, and count from when they first saw them. But a
// LeaderElector that got no answer sends the same record again, and after a clock is set back a
// record can equal an earlier one. Other replicas would see no change, and count from the earlier
// one.
//
// A time that was not sent before does not change. So after a clock was wrong for a moment, one
// record has a time far ahead, and not all records that follow.
func (l *fencedLock) distinct(record resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	asked := record.RenewTime.Unix()
	if second := l.sent.add(asked); second != asked {
		record.RenewTime = metav1.NewTime(time.Unix(second, 0))
	}
	return record
}

// rememberedTimes is how many records a fencedLock remembers: more than two hours of renewals. An
// observer could take two records for the same only if it saw none of so many records, and a clock
// is set back to the very second of an earlier one.
const rememberedTimes = 4096

// sentTimes are the times of renewal in the last records that were sent, in seconds.
type sentTimes struct {
	seconds map[int64]struct{}
	order   []int64 // the same, the oldest first
}

// add returns the first second from the given one on that is not among the times, and adds it.
func (s *sentTimes) add(second int64) int64 {
	for s.has(second) {
		second++
	}
	if s.seconds == nil {
		s.seconds = map[int64]struct{}{}
	}
	if len(s.order) == rememberedTimes {
		delete(s.seconds, s.order[0])
		s.order = append(s.order[:0], s.order[1:]...)
	}
	s.seconds[second] = struct{}{}
	s.order = append(s.order, second)
	return second
}

func (s *sentTimes) has(second int64) bool {
	_, ok := s.seconds[second]
	return ok
}

// Get implements resourcelock.Interface. If the lock is gone, or another replica holds it, the
// fence closes.
func (l *fencedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		l.fence.close("the lease does not exist")
	case err != nil:
	default:
		l.holder, l.count = record.HolderIdentity, max(l.count, int64(record.LeaderTransitions))
		if l.holder != l.Identity() {
			l.fence.close("another replica holds the lease, or none")
		}
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *fencedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func(r resourcelock.LeaderElectionRecord) error { return l.Interface.Create(ctx, r) })
}

// Update implements resourcelock.Interface.
func (l *fencedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func(r resourcelock.LeaderElectionRecord) error { return l.Interface.Update(ctx, r) })
}

// write opens the fence after a write that makes this replica the holder. If the write gives the
// lock up, the fence closes before it: another replica may lead before the answer is here.
//
// write does not give up the lock of another replica. A LeaderElector whose deadline for renewals
// is over reads the lock, and then gives it up as if it were still the holder. That would take the
// lock from the replica that leads meanwhile, and its fence would stay open beside that of the next
// leader.
func (l *fencedLock) write(record resourcelock.LeaderElectionRecord,
	send func(resourcelock.LeaderElectionRecord) error) error {
	if record.HolderIdentity != l.Identity() {
		l.fence.close("this replica gives up the lease")
		if l.holder != l.Identity() {
			return fmt.Errorf("the lease of %q is not given up: %w", l.holder, ErrClosed)
		}
		return send(record)
	}
	record = l.numbered(l.distinct(record))
	sent := l.fence.now()
	err := send(record)
	switch {
	case err == nil:
		l.holder = l.Identity()
		l.fence.renewed(sent, min(l.duration, time.Duration(record.LeaseDurationSeconds)*time.Second),
			int64(record.LeaderTransitions))
	case apierrors.IsNotFound(err):
		l.fence.close("the lease does not exist")
	}
	return err
}
