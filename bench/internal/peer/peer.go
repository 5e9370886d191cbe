// Package peer has what the benchmarks compare: latchkey, Cluster API's clustercache, and one plain
// controller-runtime cache per identity.
package peer

import (
	"context"
	"fmt"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of the peers.
const (
	Latchkey   = "latchkey"
	ClusterAPI = "clusterapi"
	Plain      = "plain"
)

// Namespace has the ServiceAccounts of the tenants, their Cluster objects and their Secrets.
const Namespace = "bench"

// Fleet is a kind of tenants.
type Fleet struct {
	prefix   string
	accounts int // how many ServiceAccounts they have together; 0 if each has its own
}

// Fleets of tenants.
var (
	Alone    = Fleet{prefix: "tenant"}
	Siblings = Fleet{prefix: "user", accounts: 50}
	Watchers = Fleet{prefix: "watcher", accounts: 500}
)

// Name returns the name of a tenant: of its extension, Cluster and namespace.
func (f Fleet) Name(tenant int) string { return fmt.Sprintf("%s-%06d", f.prefix, tenant) }

// Account returns the ServiceAccount of a tenant, which has a namespace of that name.
func (f Fleet) Account(tenant int) string {
	if f.accounts == 0 {
		return Name(tenant)
	}
	return Name(tenant % f.accounts)
}

// Accounts returns how many ServiceAccounts so many tenants have.
func (f Fleet) Accounts(tenants int) int {
	if f.accounts == 0 {
		return tenants
	}
	return min(f.accounts, tenants)
}

// has reports whether an object is of one of the first n tenants.
func (f Fleet) has(name string, n int) bool { return name >= f.Name(0) && name < f.Name(n) }

// Name returns the name of a tenant that is Alone, and of its ServiceAccount.
func Name(tenant int) string { return Alone.Name(tenant) }

// ErrCannot is returned for what a peer has no call for.
var ErrCannot = errors.New("the peer has no call for this")

// Peer connects tenants, and acts as them.
type Peer interface {
	// Connect connects the tenants 0 to n-1, and returns when all are connected.
	Connect(ctx context.Context, n int) error
	// GetClient returns the tenant's client, which reads from its cache.
	GetClient(ctx context.Context, tenant int) (client.Client, error)
	// Cache returns the tenant's cache.
	Cache(ctx context.Context, tenant int) (cache.Cache, error)
	// Host returns the object that stands for a tenant at the host operator, without what the API
	// server sets.
	Host(tenant int) (client.Object, error)
}

// New returns a peer for a fleet. config is for the host operator's own identity.
func New(name string, config *rest.Config, fleet Fleet) (Peer, error) {
	switch name {
	case Latchkey:
		return &LatchkeyPeer{config: config, fleet: fleet}, nil
	case ClusterAPI:
		return &clusterAPIPeer{config: config, fleet: fleet}, nil
	case Plain:
		return &PlainPeer{config: config, fleet: fleet}, nil
	}
	return nil, errors.Errorf("no such peer: %q", name)
}

// NewScheme returns the scheme that all peers use, with the same types.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		return nil, errors.WithStack(err)
	}
	return s, errors.WithStack(v1beta2.AddToScheme(s))
}

// Register creates the object that stands for a tenant at the peer's host operator.
func Register(ctx context.Context, admin client.Client, p Peer, tenant int) error {
	host, err := p.Host(tenant)
	if err != nil {
		return err
	}
	if err := admin.Create(ctx, host); err != nil {
		return errors.Wrapf(err, "%T", host)
	}
	cluster, ok := host.(*v1beta2.Cluster)
	if !ok {
		return nil
	}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true) // else Cluster API does not connect
	return errors.WithStack(admin.Status().Update(ctx, cluster))
}
