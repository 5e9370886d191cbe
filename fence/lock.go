package fence

import (
	"context"
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ForLeaderElection wraps the lock of a leader election, and returns a fence that is open while this
// replica holds the lock. leaseDuration is the LeaseDuration of the leader election; a lease that says
// less about itself counts for less. Give the returned lock, and no other, to one LeaderElector or
// manager.
func ForLeaderElection(lock resourcelock.Interface, leaseDuration time.Duration) (resourcelock.Interface, *Fence) {
	f := newFence()
	return &fencedLock{Interface: lock, fence: f, duration: leaseDuration}, f
}

// fencedLock tells its fence what becomes of the lock. A LeaderElector calls it from one goroutine.
type fencedLock struct {
	resourcelock.Interface
	fence    *Fence
	duration time.Duration
	writes   []write // the newest ones, oldest first
}

// write is a record, as other replicas compare it, and when it was first sent.
type write struct {
	record string
	sent   time.Time
}

// maxWrites is how many writes a lock remembers: those of more than a minute.
const maxWrites = 64

// firstSent returns when the record was first sent, which may be now. A LeaderElector that got no answer
// sends the same record again, and a clock that is set back makes a record the same as an earlier one.
// Other replicas then see no change, and so count from the first time.
func (l *fencedLock) firstSent(record resourcelock.LeaderElectionRecord) time.Time {
	now := l.fence.now()
	content, err := json.Marshal(record)
	if err != nil {
		return now // LeaderElectors compare the same encoding, so they cannot see such a record either
	}
	for _, earlier := range l.writes {
		if earlier.record == string(content) {
			return earlier.sent
		}
	}
	if len(l.writes) == maxWrites {
		l.writes = append(l.writes[:0], l.writes[1:]...)
	}
	l.writes = append(l.writes, write{string(content), now})
	return now
}

// Get implements resourcelock.Interface. A lock that is gone, or that another replica holds, closes the
// fence.
func (l *fencedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		l.fence.close("the lease does not exist")
	case err == nil && record.HolderIdentity != l.Identity():
		l.fence.close("another replica holds the lease, or none")
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *fencedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (l *fencedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

// write opens the fence after a write that makes this replica the holder. Before a write that gives the
// lock up, write closes the fence: another replica may lead before the answer is here.
func (l *fencedLock) write(record resourcelock.LeaderElectionRecord, send func() error) error {
	if record.HolderIdentity != l.Identity() {
		l.fence.close("this replica gives up the lease")
		return send()
	}
	sent := l.firstSent(record)
	err := send()
	switch {
	case err == nil:
		l.fence.renewed(sent, min(l.duration, time.Duration(record.LeaseDurationSeconds)*time.Second))
	case apierrors.IsNotFound(err):
		l.fence.close("the lease does not exist")
	}
	return err
}
