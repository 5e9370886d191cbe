package fence

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ForLeaderElection wraps the lock of a leader election, and returns a fence that is open while
// this replica holds the lock. leaseDuration is the LeaseDuration of the leader election, whole
// seconds: a Lease has no fractions of seconds, and the fence never opens with less than one. If a
// record has a shorter duration, the shorter one counts. Give the returned lock, and no other, to
// one LeaderElector or manager; the lock is not safe for concurrent use. The lock's Identity must
// be unique to this process.
func ForLeaderElection(lock resourcelock.Interface, leaseDuration time.Duration) (resourcelock.Interface, *Fence) {
	f := newFence()
	return &fencedLock{Interface: lock, fence: f, duration: leaseDuration}, f
}

// fencedLock tells its fence what becomes of the lock. A LeaderElector calls it from one goroutine.
type fencedLock struct {
	resourcelock.Interface
	fence    *Fence
	duration time.Duration
	holder   string // of the version of the lease that the next write replaces
	sent     sentTimes
}

// distinct returns the record with a time of renewal that no record before had, to the second.
// Other replicas compare what is in a lease, and count from when they first saw it. But a
// LeaderElector that got no answer sends the same record again, and a clock that is set back makes
// a record the same as an earlier one: others would see no change, and count from the first.
//
// A time that was not sent before stays as it is. So one record with a time far ahead, from a clock
// that was wrong for a moment, does not move the times of the records after it.
func (l *fencedLock) distinct(record resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	asked := record.RenewTime.Unix()
	if second := l.sent.add(asked); second != asked {
		record.RenewTime = metav1.NewTime(time.Unix(second, 0))
	}
	return record
}

// rememberedTimes is how many records a fencedLock remembers: more than two hours of renewals. Only
// an observer that saw none of so many records, and a clock that is set back to the very second of
// an earlier one, could take two records for the same.
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

// Get implements resourcelock.Interface. A lock that is gone, or that another replica holds, closes
// the fence.
func (l *fencedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		l.fence.close("the lease does not exist")
	case err != nil:
	default:
		l.holder = record.HolderIdentity
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

// write opens the fence after a write that makes this replica the holder. Before a write that gives
// the lock up, write closes the fence: another replica may lead before the answer is here.
//
// The lock of another replica is not given up. A LeaderElector whose deadline for renewals is over
// gets the lock, and then gives it up by what it remembers, not by what it got: that would take the
// lock from the replica that leads meanwhile, whose fence would stay open beside that of the next
// one.
func (l *fencedLock) write(record resourcelock.LeaderElectionRecord,
	send func(resourcelock.LeaderElectionRecord) error) error {
	if record.HolderIdentity != l.Identity() {
		l.fence.close("this replica gives up the lease")
		if l.holder != l.Identity() {
			return fmt.Errorf("the lease of %q is not given up: %w", l.holder, ErrClosed)
		}
		return send(record)
	}
	record = l.distinct(record)
	sent := l.fence.now()
	err := send(record)
	switch {
	case err == nil:
		l.holder = l.Identity()
		l.fence.renewed(sent, min(l.duration, time.Duration(record.LeaseDurationSeconds)*time.Second))
	case apierrors.IsNotFound(err):
		l.fence.close("the lease does not exist")
	}
	return err
}
