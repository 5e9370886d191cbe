package buckets

import (
	"context"
	"hash/fnv"
	"os"
	"strconv"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/holding"
)

// maxBuckets is the largest number of buckets.
const maxBuckets = 1024

// Options configure New. Name and Namespace are required. Replicas that share a fleet have the same
// Name, Namespace, Buckets and LeaseDuration.
type Options struct {
	// Name of the fleet: of the host operator, and of the ClusterCache if it has several. The names of
	// its Leases begin with it. Two fleets of one name in a namespace would be one.
	Name string
	// Namespace of the Leases.
	Namespace string
	// Buckets is the number of buckets, and of Leases. It is the same for the whole life of a
	// fleet: the first replica records it, and one with another number ends with an error. Take a
	// number that is large beside that of the replicas: with 64, three replicas get 22, 22 and 20.
	// Defaults to 64.
	Buckets int
	// Identity of this replica, unique to the process. Defaults to the host's name and a random
	// suffix.
	Identity string
	// LeaseDuration is how long the buckets of a replica that ended without giving them up stay
	// without one. Whole seconds. Defaults to 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is how long a replica tries to renew a lease before it gives the bucket up.
	// Defaults to two thirds of LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the time between renewals: each bucket costs one write to the API server in that
	// time. Defaults to a seventh of LeaseDuration, about 2 s.
	RetryPeriod time.Duration
	// HandOverTimeout bounds HandOver. Defaults to 20 s. The terminationGracePeriodSeconds of the Pod
	// must be more than it and the manager's GracefulShutdownTimeout together. The defaults of those
	// are 30 s each, so set one of them.
	HandOverTimeout time.Duration
}

// withDefaults returns the options with defaults, or an error that names the field that is wrong.
func (o Options) withDefaults() (Options, error) {
	if o.Buckets == 0 {
		o.Buckets = 64
	}
	times := o.times().WithDefaults()
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = times.LeaseDuration, times.RenewDeadline, times.RetryPeriod
	if o.HandOverTimeout == 0 {
		o.HandOverTimeout = 20 * time.Second
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return o, errors.Wrap(err, "Options.Identity is not set, and the host has no name")
		}
		o.Identity = host + "_" + string(uuid.NewUUID())
	}
	switch messages := validation.IsDNS1123Subdomain(o.Name); {
	case o.Name == "":
		return o, errors.New("Options.Name must be set: a name that no other fleet in the namespace has")
	case len(messages) > 0 || len(o.Name) > 40:
		return o, errors.Errorf("Options.Name %q must be a name of Kubernetes objects of at most 40 characters", o.Name)
	case o.Namespace == "":
		return o, errors.New("Options.Namespace must be set: the namespace of the Leases")
	case o.Buckets < 1 || o.Buckets > maxBuckets:
		return o, errors.Errorf("Options.Buckets must be from 1 to %d, not %d", maxBuckets, o.Buckets)
	case o.HandOverTimeout < 0:
		return o, errors.New("Options.HandOverTimeout must not be negative")
	}
	return o, times.Validate()
}

func (o *Options) times() holding.Times {
	return holding.Times{LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod}
}

// New returns an Engine for one ClusterCache. config is that of the host operator, whose
// permissions the Leases need: get, list, watch, create, update and delete on leases in
// Options.Namespace. New sends no request.
func New(config *rest.Config, options Options) (*Engine, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS = nil, -1 // the number of buckets and RetryPeriod are the limit
	watching, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client to watch Leases")
	}
	config.Timeout = options.RenewDeadline / 2 // a request that hangs leaves time for another one
	writing, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for Leases")
	}
	ended, end := context.WithCancel(context.Background())
	e := &Engine{
		ended:    ended,
		end:      end,
		options:  options,
		leases:   writing,
		watching: watching,
		moving:   make(chan struct{}, movingAtOnce),
		buckets:  make([]bucket, options.Buckets),
		changed:  make(chan struct{}),
		refresh:  make(chan struct{}, 1),
		news:     make(chan struct{}, 1),
	}
	e.observed.now, e.observed.longest = time.Now, options.LeaseDuration
	e.plan.owners = make([]string, options.Buckets)
	e.plan.holders = make([]string, options.Buckets)
	return e, nil
}

// fleetLease returns the name of the fleet's Lease. A Lease of the name itself is often that of a
// leader election.
func (o *Options) fleetLease() string { return o.Name + "-fleet" }

// bucketLease returns the name of a bucket's Lease.
func (o *Options) bucketLease(bucket int) string { return o.Name + "-bucket-" + strconv.Itoa(bucket) }

// memberLease returns the name of this replica's Lease.
func (o *Options) memberLease() string {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(o.Identity)) // an identity may have characters that a name may not have
	return o.Name + "-member-" + strconv.FormatUint(hash.Sum64(), 36)
}
