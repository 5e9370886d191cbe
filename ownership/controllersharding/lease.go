package controllersharding

import (
	"context"

	"github.com/pkg/errors"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// processAnnotation is on the Lease of a shard, and says which process holds it. The protocol wants
// the name of the shard as the holder, so two processes of one name would both believe that they
// hold it.
const processAnnotation = "ownership.latchkey.dev/process"

// lock returns the lock of the shard. It keeps the label that the sharder sets on the Lease.
func (e *Engine) lock() resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.options.Namespace, Name: e.options.Shard},
		Client:     shardLeases{e.leases, e},
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.options.Shard},
		Labels:     map[string]string{RingLabel: e.options.Ring},
	}
}

// shardLeases marks the Lease of the shard with this process.
type shardLeases struct {
	coordinationclient.LeasesGetter
	engine *Engine
}

// Leases implements coordinationclient.LeasesGetter.
func (l shardLeases) Leases(namespace string) coordinationclient.LeaseInterface {
	return shardLease{l.LeasesGetter.Leases(namespace), l.engine}
}

type shardLease struct {
	coordinationclient.LeaseInterface
	engine *Engine
}

// Get implements coordinationclient.LeaseInterface. A Lease that another process of this name holds
// has another holder: it is taken when it has expired. One of another ring is an error.
func (l shardLease) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	if ring := lease.Labels[RingLabel]; ring != "" && ring != l.engine.options.Ring {
		return nil, errors.Errorf("Lease %s/%s is of ring %q, not %q: choose another Options.Shard", lease.Namespace, name,
			ring, l.engine.options.Ring)
	}
	holder, process := lease.Spec.HolderIdentity, lease.Annotations[processAnnotation]
	if holder != nil && *holder == l.engine.options.Shard && process != l.engine.process {
		lease.Spec.HolderIdentity = new(*holder + ", process " + process)
	}
	return lease, nil
}

// Create implements coordinationclient.LeaseInterface.
func (l shardLease) Create(ctx context.Context, lease *coordinationv1.Lease,
	options metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Create(ctx, l.marked(lease), options)
}

// Update implements coordinationclient.LeaseInterface.
func (l shardLease) Update(ctx context.Context, lease *coordinationv1.Lease,
	options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Update(ctx, l.marked(lease), options)
}

func (l shardLease) marked(lease *coordinationv1.Lease) *coordinationv1.Lease {
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[processAnnotation] = l.engine.process
	return lease
}
