package holding

import (
	"bytes"
	"context"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Together wraps a lock that replicas hold together, all with one identity: each renewal of one
// makes the version that the others know an old one. Use it with KeepAlways. It logs why the Lease
// cannot be read or written, which a LeaderElector does at a verbosity only.
func Together(lock resourcelock.Interface, logger logr.Logger) resourcelock.Interface {
	return &together{Interface: lock, logger: logger}
}

type together struct {
	resourcelock.Interface
	logger logr.Logger
	unread bool // Create has found a Lease that was not read since; a LeaderElector calls from one goroutine
	number int  // the highest number of a term that was read or written
}

// errUnread makes a LeaderElector read the Lease.
var errUnread = errors.New("the Lease exists, and was not read since it was gone")

// conflictTries is how often an update of a Lease that is still held by all is tried.
const conflictTries = 10

// Get implements resourcelock.Interface.
func (l *together) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.unread = l.unread && err != nil
	if err == nil {
		l.number = max(l.number, record.LeaderTransitions)
	}
	return record, raw, l.report(err)
}

// Create implements resourcelock.Interface.
func (l *together) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, l.numbered(record))
	l.unread = apierrors.IsAlreadyExists(err)
	return l.report(err)
}

// numbered returns the record with a number that is not less than that of any term which was read
// or written: the terms of others count.
func (l *together) numbered(record resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	l.number = max(l.number, record.LeaderTransitions)
	record.LeaderTransitions = l.number
	return record
}

// Update implements resourcelock.Interface. A LeaderElector that holds a Lease by what it remembers
// updates it without a look; a Lease that was gone may be another's. If another replica renews it
// after this call has begun, that is as good: those who wait for the Lease see it renewed. Where
// the API server is slow and replicas are many, one of them would else not be the first in time.
func (l *together) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.unread {
		return errUnread
	}
	begun := time.Now().Truncate(time.Second) // as those who wait compare it
	var first []byte                          // what was read first since this call has begun
	for try := 1; ; try++ {
		if now := metav1.Now(); record.RenewTime.Before(&now) { // an old record may be one that was seen before
			record.RenewTime = now
		}
		record = l.numbered(record)
		err := l.Interface.Update(ctx, record)
		if !apierrors.IsConflict(err) || try == conflictTries {
			return l.report(err)
		}
		held, raw, failed := l.Get(ctx)
		if failed != nil || held.HolderIdentity != l.Identity() {
			return err
		}
		if first != nil && !bytes.Equal(raw, first) && !held.RenewTime.Time.Before(begun) &&
			held.LeaderTransitions >= record.LeaderTransitions && held.LeaseDurationSeconds >= record.LeaseDurationSeconds {
			return nil
		}
		if first == nil {
			first = raw
		}
	}
}

// report logs an error, except those that are a part of the protocol: another replica was faster.
func (l *together) report(err error) error {
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err),
		errors.Is(err, context.Canceled):
	case apierrors.IsForbidden(err):
		l.logger.Info("Cannot hold a Lease that replicas hold together; this program needs get, create and update on it",
			"lease", l.Describe(), "error", err.Error())
	default:
		l.logger.Info("Cannot hold a Lease that replicas hold together", "lease", l.Describe(), "error", err.Error())
	}
	return err
}
