package buckets

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// Labels and annotations of the Leases.
const (
	// FleetLabel is on all Leases of a fleet. Its value is the name of the fleet.
	FleetLabel = "ownership.latchkey.dev/fleet"
	// roleLabel says what a Lease is: fleet, bucket, or member.
	roleLabel = "ownership.latchkey.dev/role"
	// servesAnnotation on a member's Lease lists the buckets whose extensions are connected.
	servesAnnotation = "ownership.latchkey.dev/serves"
	// bucketsAnnotation on the fleet's Lease is the number of buckets.
	bucketsAnnotation = "ownership.latchkey.dev/buckets"
	// kindAnnotation on the fleet's Lease is the kind of the extensions.
	kindAnnotation = "ownership.latchkey.dev/kind"
)

// Values of roleLabel.
const (
	roleFleet  = "fleet"
	roleBucket = "bucket"
	roleMember = "member"
)

// observed has the Leases of the fleet as they were last seen. A Lease that has not changed for its
// duration has expired, by the clock of this replica: the times in it are other replicas'.
type observed struct {
	now     func() time.Time
	longest time.Duration // of a lease; what is in a Lease may be anything

	mu     sync.Mutex
	leases map[string]observation // guarded by mu; by name
}

// observation is a version of a Lease.
type observation struct {
	lease    *coordinationv1.Lease
	at       time.Time     // when this version was first seen; with a monotonic reading
	duration time.Duration // until it expires
}

// expires returns when the lease expires unless it changes.
func (o observation) expires() time.Time { return o.at.Add(o.duration) }

// durationOf returns the duration of a Lease. That of a member is at most longest: a replica that
// says more would get buckets long after it has ended. That of a bucket is what its holder's fence
// relies on.
func (o *observed) durationOf(lease *coordinationv1.Lease) time.Duration {
	if lease.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	duration := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	if lease.Labels[roleLabel] == roleMember {
		duration = min(duration, o.longest)
	}
	return duration
}

// holder returns who holds the lease, "" if it is free.
func (o observation) holder(now time.Time) string {
	if o.lease == nil || o.lease.Spec.HolderIdentity == nil || !now.Before(o.expires()) {
		return ""
	}
	return *o.lease.Spec.HolderIdentity
}

// serves returns the buckets that a member serves.
func (o observation) serves() (buckets []int) {
	for text := range strings.SplitSeq(o.lease.Annotations[servesAnnotation], ",") {
		if bucket, err := strconv.Atoi(text); err == nil {
			buckets = append(buckets, bucket)
		}
	}
	return buckets
}

// see notes a version of a Lease, and reports whether more than the time of its renewal has
// changed.
func (o *observed) see(lease *coordinationv1.Lease) (news bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, known := o.leases[lease.Name]
	if known && last.lease.ResourceVersion == lease.ResourceVersion {
		return false // a list has it again
	}
	if o.leases == nil {
		o.leases = map[string]observation{}
	}
	now := o.now()
	next := observation{lease, now, o.durationOf(lease)}
	if renewed := lease.Spec.RenewTime; !known && lease.Labels[roleLabel] == roleMember && renewed != nil {
		// A member that ended before this replica began. A clock that is wrong does no harm: a member
		// that is alive renews its Lease soon, and only the Lease of a bucket lets a replica act.
		next.at = now.Add(min(0, renewed.Sub(now)))
	}
	o.leases[lease.Name] = next
	return !known || last.holder(now) != next.holder(now) ||
		last.lease.Annotations[servesAnnotation] != lease.Annotations[servesAnnotation]
}

// gone notes that a Lease was deleted. That of a bucket counts until it would have expired: its
// holder learns of the deletion with its next renewal.
func (o *observed) gone(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if seen, ok := o.leases[name]; ok && seen.lease.Labels[roleLabel] == roleBucket && seen.holder(o.now()) != "" {
		return
	}
	delete(o.leases, name)
}

// get returns the last version of a Lease, the zero value if there is none.
func (o *observed) get(name string) observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leases[name]
}

// members returns the identities of the replicas that are alive, sorted, and the buckets that each
// serves.
func (o *observed) members(now time.Time) (members []string, serving map[string][]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	serving = map[string][]int{}
	for _, seen := range o.leases {
		if holder := seen.holder(now); seen.lease.Labels[roleLabel] == roleMember && holder != "" {
			members = append(members, holder)
			serving[holder] = seen.serves()
		}
	}
	slices.Sort(members)
	return slices.Compact(members), serving
}

// nextExpiry returns how long it is until a lease expires, false if no lease can.
func (o *observed) nextExpiry(now time.Time) (next time.Duration, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, seen := range o.leases {
		if seen.holder(now) == "" {
			continue
		}
		if left := seen.expires().Sub(now); !ok || left < next {
			next, ok = left, true
		}
	}
	return next, ok
}

// expiredMembers returns the Leases of members that expired at least that long ago.
func (o *observed) expiredMembers(now time.Time, ago time.Duration) (leases []*coordinationv1.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, seen := range o.leases {
		if seen.lease.Labels[roleLabel] == roleMember && now.Sub(seen.expires()) >= ago {
			leases = append(leases, seen.lease)
		}
	}
	return leases
}

// see notes a version of a Lease, and has the plan made again if who holds what may have changed.
func (e *Engine) see(lease *coordinationv1.Lease) {
	if e.observed.see(lease) {
		e.signal()
	}
}

// signal has the plan made again.
func (e *Engine) signal() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// observe watches the Leases of the fleet until ctx is done. It closes synced after the first list.
func (e *Engine) observe(ctx context.Context, synced chan<- struct{}) {
	see := func(object any) {
		if lease, ok := object.(*coordinationv1.Lease); ok {
			e.see(lease)
		}
	}
	leases, selector := e.watching.Leases(e.options.Namespace), FleetLabel+"="+e.options.Name
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.LabelSelector = selector
				return leases.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.LabelSelector = selector
				return leases.Watch(ctx, options)
			},
		}, e.watching),
		ObjectType: &coordinationv1.Lease{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    see,
			UpdateFunc: func(_, object any) { see(object) },
			DeleteFunc: func(object any) {
				if name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
					_, name, _ = toolscache.SplitMetaNamespaceKey(name)
					e.observed.gone(name)
					e.signal()
				}
			},
		},
	})
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			close(synced)
		}
	}()
	informer.RunWithContext(ctx)
}
