package holding

import (
	"context"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Together wraps a lock that replicas hold together, all with one identity: each renewal of one makes the
// version that the others know an old one. Use it with KeepAlways. It logs why the Lease cannot be read or
// written, which a LeaderElector does at a verbosity only.
func Together(lock resourcelock.Interface, logger logr.Logger) resourcelock.Interface {
	return together{lock, logger}
}

type together struct {
	resourcelock.Interface
	logger logr.Logger
}

// conflictTries is how often an update of a Lease that is still held by all is tried.
const conflictTries = 10

// Get implements resourcelock.Interface.
func (l together) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	return record, raw, l.report(err)
}

// Create implements resourcelock.Interface.
func (l together) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.report(l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l together) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	for try := 1; ; try++ {
		err := l.Interface.Update(ctx, record)
		if !apierrors.IsConflict(err) || try == conflictTries {
			return l.report(err)
		}
		if held, _, failed := l.Get(ctx); failed != nil || held.HolderIdentity != l.Identity() {
			return err
		}
	}
}

// report logs an error, except those that are a part of the protocol: another replica was faster.
func (l together) report(err error) error {
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) &&
		!errors.Is(err, context.Canceled) {
		l.logger.Info("Cannot hold a Lease that replicas hold together; this program needs get, create and update on it",
			"lease", l.Describe(), "error", err.Error())
	}
	return err
}
