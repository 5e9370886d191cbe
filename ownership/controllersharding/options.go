package controllersharding

import (
	"os"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/holding"
)

// The labels of the protocol.
const (
	// RingLabel is on the Lease of a shard. Its value is the name of the ControllerRing.
	RingLabel = "alpha.sharding.timebertt.dev/controllerring"
	// ShardLabelPrefix and the name of the ring are the label whose value is the shard that has an
	// object.
	ShardLabelPrefix = "shard.alpha.sharding.timebertt.dev/"
	// DrainLabelPrefix and the name of the ring are the label by which the sharder asks the shard to
	// give an object up.
	DrainLabelPrefix = "drain.alpha.sharding.timebertt.dev/"
)

// Options configure New. Ring and Namespace are required.
type Options struct {
	// Ring is the name of the ControllerRing, which must list the kind of the extensions.
	Ring string
	// Shard is the name of this replica, and of its Lease, unique in the ring, in all namespaces.
	// Defaults to the host's name, which is that of the Pod, but not with hostNetwork. Of two
	// processes with one name, one waits.
	Shard string
	// Namespace of the shard's Lease.
	Namespace string
	// LeaseDuration, RenewDeadline and RetryPeriod are those of the shard's Lease. They default to 15
	// s, two thirds of that, and a seventh of it, a second at least. The sharder moves the extensions
	// of a shard that ended without releasing its Lease after twice the LeaseDuration.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

func (o *Options) times() holding.Times {
	return holding.Times{LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod}
}

func (o *Options) shardLabel() string { return ShardLabelPrefix + o.Ring }
func (o *Options) drainLabel() string { return DrainLabelPrefix + o.Ring }

// withDefaults returns the options with defaults, or an error that names the field that is wrong.
func (o Options) withDefaults() (Options, error) {
	times := o.times().WithDefaults()
	if o.RetryPeriod == 0 {
		times.RetryPeriod = max(times.RetryPeriod, time.Second)
	}
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = times.LeaseDuration, times.RenewDeadline, times.RetryPeriod
	if o.Shard == "" {
		host, err := os.Hostname()
		if err != nil {
			return o, errors.Wrap(err, "Options.Shard is not set, and the host has no name")
		}
		o.Shard = host
	}
	switch {
	case o.Ring == "" || len(validation.IsQualifiedName(o.shardLabel())) > 0:
		return o, errors.Errorf("Options.Ring %q must be the name of a ControllerRing", o.Ring)
	case len(validation.IsDNS1123Subdomain(o.Shard)) > 0 || len(validation.IsValidLabelValue(o.Shard)) > 0:
		return o, errors.Errorf("Options.Shard %q must be a name of Kubernetes objects of at most 63 characters, because "+
			"the sharder makes it the value of a label", o.Shard)
	case o.Namespace == "":
		return o, errors.New("Options.Namespace must be set: the namespace of the shard's Lease")
	}
	if o.RetryPeriod < time.Second {
		// The fence gives each renewal another second, and the sharder goes by that time.
		return o, errors.Errorf("Options.RetryPeriod must be a second at least, not %s", o.RetryPeriod)
	}
	return o, times.Validate()
}

// New returns an Engine for one ClusterCache. config is the host operator's for the cluster that
// holds the extensions. It needs get, create and update on leases in Options.Namespace, list and
// patch on the extensions, whose labels it removes when they were given up. New sends no request.
func New(config *rest.Config, options Options) (*Engine, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	writing := rest.CopyConfig(config)
	config = rest.CopyConfig(config)
	config.Timeout = options.RenewDeadline / 2 // a request that hangs leaves time for another one
	leases, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for Leases")
	}
	api, err := client.New(writing, client.Options{})
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for extensions")
	}
	return &Engine{
		options:  options,
		leases:   leases,
		api:      api,
		process:  string(uuid.NewUUID()),
		draining: map[types.UID]drain{},
		drains: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, 30*time.Second)),
	}, nil
}

// Selector selects the extensions of this shard, those to give up included. Use it in
// cache.Options.ByObject of the manager, so that each replica watches its share only. An extension
// that moves then looks like one that was deleted.
func (e *Engine) Selector() labels.Selector {
	return labels.SelectorFromSet(labels.Set{e.options.shardLabel(): e.options.Shard})
}
