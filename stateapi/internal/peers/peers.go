package peers

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/stateapi/internal/trust"
)

// Options configure Peers.
type Options struct {
	// Name of the fleet, and Namespace of its Leases.
	Name, Namespace string
	// Identity of this replica, unique to the process.
	Identity string
	// Address at which this replica serves its states to the others.
	Address netip.AddrPort
	// Group is the group and version of the API that the replicas serve.
	Group schema.GroupVersion
	// Resources are those that are followed, with their types.
	Resources map[string]runtime.Object
	// Scheme has the types of Resources.
	Scheme *runtime.Scheme
	// Authority that the replicas share.
	Authority *trust.Authority
	// Silence is how long a peer may say nothing before it is connected anew.
	Silence time.Duration
	// MaxReceived is how much memory may be taken by what is received from a peer over one connection.
	// Defaults to 1 GiB.
	MaxReceived int64
	// RenewalSpread is in how much time a replica connects to its peers anew after its certificate was
	// renewed. Defaults to five minutes.
	RenewalSpread time.Duration
	holding.Times
}

// Listener hears what the peers have. Its methods are called from several goroutines, for one peer
// and resource one at a time, and must not wait.
type Listener interface {
	// Members are the replicas whose Leases have not expired, but this one.
	Members(identities []string)
	// Gone: a peer is not followed any more. If it is again, that begins with Replaced.
	Gone(identity string)
	// Replaced: a peer has these objects of a resource, and no others.
	Replaced(identity, resource string, objects []runtime.Object)
	// Changed: a peer has this object.
	Changed(identity, resource string, object runtime.Object)
	// Removed: a peer does not have this object any more.
	Removed(identity, resource string, object runtime.Object)
	// Heard: a peer has said something, which may be that nothing has changed.
	Heard(identity string)
}

// Peers are the other replicas of a fleet.
type Peers struct {
	options  Options
	listener Listener
	leases   coordinationclient.LeasesGetter
	watching coordinationclient.LeasesGetter // without a timeout
	checking coordinationclient.LeasesGetter // with a limit of its own
	leaf     *trust.Leaf
	events   chan func(now time.Time) // what follow does next
	observed observed                 // used by follow only, and by what it does
	met      bool                     // the Leases were listed; as observed
	running  sync.WaitGroup           // has what Run has started

	mu    sync.Mutex
	known map[string]*peer // guarded by mu; by identity
	left  int              // guarded by mu; how many members were too many
}

// New returns the peers of a replica. New sends no request.
func New(config *rest.Config, options Options, listener Listener) (*Peers, error) {
	options.Times, options.MaxReceived = options.WithDefaults(), cmp.Or(options.MaxReceived, maxReceived)
	options.RenewalSpread = cmp.Or(options.RenewalSpread, renewalSpread)
	if err := options.Validate(); err != nil {
		return nil, err
	}
	watching, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	bounded := rest.CopyConfig(config)
	bounded.Timeout = options.RenewDeadline
	leases, err := coordinationclient.NewForConfig(bounded)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	limited := rest.CopyConfig(bounded)
	limited.RateLimiter, limited.QPS, limited.Burst = nil, checksPerSecond, checksPerSecond
	checking, err := coordinationclient.NewForConfig(limited)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	return &Peers{
		options:  options,
		listener: listener,
		leases:   leases,
		watching: watching,
		checking: checking,
		leaf:     options.Authority.NewLeaf("peer", true, options.ServerName(options.Identity)),
		events:   make(chan func(time.Time)),
		observed: observed{longest: options.LeaseDuration, leases: map[string]observation{}},
		known:    map[string]*peer{},
	}, nil
}

// Leaf returns the certificate of this replica.
func (p *Peers) Leaf() *trust.Leaf { return p.leaf }

// Run keeps this replica's Lease, and follows its peers, until ctx is done. in is called with the
// term in which this replica is a member, whenever one begins.
func (p *Peers) Run(ctx context.Context, in func(term *fence.Term)) {
	defer p.running.Wait()
	p.running.Go(func() { p.announce(ctx, in) })
	p.follow(ctx)
}

// follow watches the Leases until ctx is done.
func (p *Peers) follow(ctx context.Context) {
	send := func(f func(now time.Time)) { _ = p.do(ctx, f) }
	leases := p.watching.Leases(p.options.Namespace)
	see := func(object any) {
		if lease, ok := object.(*coordinationv1.Lease); ok {
			send(func(now time.Time) {
				if _, is := p.options.memberOf(lease); is {
					p.observed.see(lease, now)
				} else {
					p.observed.gone(lease.Name)
				}
			})
		}
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.LabelSelector = p.selector()
				return leases.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.LabelSelector = p.selector()
				return leases.Watch(ctx, options)
			},
		}, p.watching),
		ObjectType: &coordinationv1.Lease{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    see,
			UpdateFunc: func(_, object any) { see(object) },
			DeleteFunc: func(object any) {
				if name, err := toolscache.DeletionHandlingObjectToName(object); err == nil {
					send(func(time.Time) { p.observed.gone(name.Name) })
				}
			},
		},
	})
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { informer.RunWithContext(ctx) })
	tick := time.NewTicker(p.options.RetryPeriod)
	defer tick.Stop()
	removing := semaphore.NewWeighted(1)
	listed := informer.HasSyncedChecker().Done() // HasSynced could wait for the handler, which waits for this loop
	for {
		var old []*coordinationv1.Lease
		if p.met {
			old = p.meet(ctx, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-listed:
			p.met, listed = true, nil
		case event := <-p.events:
			event(time.Now())
		case <-tick.C:
			if len(old) > 0 && removing.TryAcquire(1) { // which may take as long as the API server is away
				p.running.Go(func() {
					defer removing.Release(1)
					p.removeAll(ctx, old)
				})
			}
		}
	}
}

// do lets follow do something between two of its meetings.
func (p *Peers) do(ctx context.Context, f func(now time.Time)) error {
	select {
	case p.events <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// selector selects the Leases of the fleet's members.
func (p *Peers) selector() string { return FleetLabel + "=" + p.options.Name }

// checksPerSecond is how often CheckMembers may ask the API server.
const checksPerSecond = 20

// CheckMembers returns an error unless the Listener knows all members that had a Lease when it was
// called: what is watched may come late. It asks the API server.
func (p *Peers) CheckMembers(ctx context.Context) error {
	list, err := p.checking.Leases(p.options.Namespace).List(ctx, metav1.ListOptions{LabelSelector: p.selector()})
	if err != nil {
		return errors.Wrap(err, "listing the Leases of the replicas")
	}
	result := make(chan error, 1)
	if err := p.do(ctx, func(now time.Time) { result <- p.missing(list.Items, now) }); err != nil {
		return errors.Wrap(err, "waiting for the Leases that are watched")
	}
	return <-result
}

// missing returns an error if one of the Leases is that of a member, and was not seen, or was taken
// for one that has expired. It is called by follow, which meets the members after each that it
// sees.
func (p *Peers) missing(leases []coordinationv1.Lease, now time.Time) error {
	if !p.met {
		return errors.New("the replicas are not known yet")
	}
	for i := range leases {
		m, is := p.options.memberOf(&leases[i])
		if !is || m.identity == p.options.Identity {
			continue
		}
		if last, seen := p.observed.leases[m.lease]; seen {
			known, _ := p.options.memberOf(last.lease)
			renewed := last.lease.ResourceVersion != leases[i].ResourceVersion
			if known == m && (!renewed || p.observed.isCurrent(last, now)) {
				continue
			}
		}
		if len(p.observed.leases) < maxObserved {
			return errors.Errorf("replica %s is not known yet", m.identity)
		}
	}
	return nil
}

// removeAll deletes Leases that are still as they were seen.
func (p *Peers) removeAll(ctx context.Context, leases []*coordinationv1.Lease) {
	for _, lease := range leases {
		p.remove(ctx, lease.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}})
	}
}

// meet connects the members, and forgets others.
func (p *Peers) meet(ctx context.Context, now time.Time) (old []*coordinationv1.Lease) {
	current, old := p.observed.current(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	members, left := p.options.membersOf(current, func(identity string) bool {
		known := p.known[identity]
		return known != nil && known.isHeard(now)
	})
	if left > 0 && p.left == 0 {
		ctrl.LoggerFrom(ctx).Info("There are more Leases of replicas than a fleet has, and some are not followed. "+
			"Look at who may write Leases in the namespace", "namespace", p.options.Namespace, "selector",
			FleetLabel+"="+p.options.Name, "followed", maxMembers, "others", left)
	}
	p.left = left
	identities := make([]string, 0, len(members))
	for identity, m := range members {
		identities = append(identities, identity)
		switch known := p.known[identity]; {
		case known == nil:
			p.known[identity] = p.startPeer(ctx, m)
		case known.member != m:
			known.end() // it is started again when it has ended
		}
	}
	p.listener.Members(identities)
	for identity, known := range p.known {
		// One whose Lease has expired may still be heard: the API server is away.
		if _, is := members[identity]; !is && !known.isHeard(now) {
			known.end()
		}
		if known.hasEnded() {
			delete(p.known, identity)
		}
	}
	return old
}
