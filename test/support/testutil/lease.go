package testutil

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/latchkey-dev/latchkey/fence"
)

// Lease is a lock of a leader election that is renewed and given up when a test says so. One
// goroutine uses it.
type Lease struct {
	resourcelock.Interface
	fenced   resourcelock.Interface
	renewals int64
}

// NewLease returns a lease without a holder, and the lease's fence, which is closed.
func NewLease() (*Lease, *fence.Fence) {
	l := &Lease{}
	var f *fence.Fence
	l.fenced, f = fence.ForLeaderElection(l, time.Hour)
	return l, f
}

// Identity implements resourcelock.Interface.
func (l *Lease) Identity() string { return "me" }

// Update implements resourcelock.Interface.
func (l *Lease) Update(context.Context, resourcelock.LeaderElectionRecord) error { return nil }

// Renew makes the lease last for so many seconds from now on.
func (l *Lease) Renew(seconds int) {
	l.renewals++ // each renewal is another second, so that it counts
	_ = l.fenced.Update(context.Background(), resourcelock.LeaderElectionRecord{
		HolderIdentity:       l.Identity(),
		LeaseDurationSeconds: seconds,
		RenewTime:            metav1.Unix(l.renewals, 0),
	})
}

// Release gives the lease up.
func (l *Lease) Release() {
	_ = l.fenced.Update(context.Background(), resourcelock.LeaderElectionRecord{})
}
