package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/ownership/buckets"
	"github.com/latchkey-dev/latchkey/ownership/controllersharding"
)

// handOverTimeout is how long a manager that ends hands its buckets over: with shutdownTimeout
// less than the terminationGracePeriodSeconds of the chart.
const handOverTimeout = 18 * time.Second

// sharingFlags say how replicas share the extensions.
type sharingFlags struct {
	buckets int
	ring    string
	shard   string
	name    string // see identity
	engine  ownership.Engine
}

// identity returns the name of this replica, unique to the process: in the Leases of buckets, and
// in the view of all replicas.
func (s *sharingFlags) identity() string {
	if s.name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "replica"
		}
		s.name = host + "_" + string(uuid.NewUUID())
	}
	return s.name
}

func (s *sharingFlags) bind(flags *flag.FlagSet) {
	flags.IntVar(&s.buckets, "buckets", 0, "share the extensions with other replicas: their UIDs are divided into this "+
		"many buckets, each of which has a lease in --leader-election-namespace; the same for all replicas. "+
		"0 means not to share; 64 suits most fleets")
	flags.StringVar(&s.ring, "ring", "", "share the extensions with other replicas as kubernetes-controller-sharding "+
		"labels them: name of the ControllerRing, of which this replica is a shard. The kind must be namespaced")
	flags.StringVar(&s.shard, "shard", "", "with --ring: name of this replica, unique in the ring; empty means the "+
		"host's name, which is that of the Pod")
}

// shutdownTimeout returns how long the whole shutdown may take.
func (m *managerFlags) shutdownTimeout() time.Duration {
	timeout := shutdownTimeout - gracefulShutdown + m.gracefulShutdown()
	if m.sharing.buckets != 0 {
		timeout += handOverTimeout
	}
	return timeout
}

// gracefulShutdown returns how long the manager waits until its controllers return, and the state
// API until another replica serves.
func (m *managerFlags) gracefulShutdown() time.Duration {
	if m.state.enabled && m.sharing.shares() {
		return gracefulShutdown + stateHandOver
	}
	return gracefulShutdown
}

func (s *sharingFlags) shares() bool { return s.buckets != 0 || s.ring != "" }

// validateSharing returns an error that names the flags that do not go together.
func (m *managerFlags) validateSharing() error {
	switch {
	case m.leaderElect && m.sharing.shares():
		return errors.New("--leader-elect lets one replica serve all extensions, --buckets and --ring let all serve a " +
			"share: use one of them")
	case m.sharing.buckets != 0 && m.sharing.ring != "":
		return errors.New("--buckets and --ring exclude each other")
	case (m.leaderElect || m.sharing.shares()) && m.leaderElectionNamespace == "" && !inCluster():
		return errors.New("--leader-elect, --buckets and --ring outside of a cluster need --leader-election-namespace for " +
			"their leases")
	}
	return nil
}

// share sets up how replicas share the extensions, and returns the context for the manager's Start.
func (m *managerFlags) share(ctx context.Context, restConfig *rest.Config, managerOptions *manager.Options,
	options *clustercache.Options) (context.Context, error) {
	if !m.sharing.shares() {
		return ctx, nil
	}
	namespace, err := m.leaseNamespace()
	if err != nil {
		return nil, err
	}
	if m.sharing.ring == "" {
		engine, err := buckets.New(restConfig, buckets.Options{
			Name:            m.leaderElectionID,
			Namespace:       namespace,
			Buckets:         m.sharing.buckets,
			Identity:        m.sharing.identity(),
			HandOverTimeout: handOverTimeout,
		})
		if err != nil {
			return nil, errors.WithMessage(err, "--buckets")
		}
		m.sharing.engine, err = m.withLeaderLease(engine, restConfig, namespace,
			fmt.Sprintf("replicas that share by %d buckets", m.sharing.buckets))
		options.Ownership = m.sharing.engine
		return engine.HandOver(ctx), err
	}
	engine, err := controllersharding.New(restConfig, controllersharding.Options{
		Ring:      m.sharing.ring,
		Shard:     m.sharing.shard,
		Namespace: namespace,
	})
	if err != nil {
		return nil, errors.WithMessage(err, "--ring")
	}
	if m.sharing.engine, err = m.withLeaderLease(engine, restConfig, namespace,
		"shards of ring "+m.sharing.ring); err != nil {
		return nil, err
	}
	options.Ownership = m.sharing.engine
	if managerOptions.Cache.ByObject == nil {
		managerOptions.Cache.ByObject = map[client.Object]cache.ByObject{}
	}
	managerOptions.Cache.ByObject[options.Object] = cache.ByObject{Label: engine.Selector()}
	return ctx, nil
}

// withLeaderLease lets the engine run when no manager with --leader-elect leads, and keeps those
// from leading: a rolling update from one to the other has both for a time.
func (m *managerFlags) withLeaderLease(engine ownership.Engine, restConfig *rest.Config,
	namespace, holder string) (ownership.Engine, error) {
	return ownership.WithLeaderLease(engine, restConfig, ownership.LeaderOptions{
		Lease:  types.NamespacedName{Namespace: namespace, Name: m.leaderElectionID},
		Holder: holder,
	})
}

// leaseNamespace returns the namespace of the leases: the flag's, or that of the Pod.
func (m *managerFlags) leaseNamespace() (string, error) {
	if m.leaderElectionNamespace != "" {
		return m.leaderElectionNamespace, nil
	}
	text, err := os.ReadFile(namespaceFile)
	return string(text), errors.Wrap(err, "finding the namespace of the leases")
}
