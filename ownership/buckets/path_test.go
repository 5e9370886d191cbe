package buckets

import (
	"context"
	"sync/atomic"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// leasesOverPath fails reads and writes while the path is cut. A watch goes on without events'
// being lost.
type leasesOverPath struct {
	coordinationclient.LeaseInterface
	cut *atomic.Bool
}

func (l leasesOverPath) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if l.cut.Load() {
		return nil, errCut
	}
	return l.LeaseInterface.Get(ctx, name, o)
}

func (l leasesOverPath) Create(ctx context.Context, lease *coordinationv1.Lease,
	o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	if l.cut.Load() {
		return nil, errCut
	}
	return l.LeaseInterface.Create(ctx, lease, o)
}

func (l leasesOverPath) Update(ctx context.Context, lease *coordinationv1.Lease,
	o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if l.cut.Load() {
		return nil, errCut
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}
