package peers

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// forgetAfter is after how many of its durations a Lease that has expired is deleted.
const forgetAfter = 10

// observed has the Leases of the fleet, each with the time at which this version of it was first
// seen: the times in it are other replicas'.
type observed struct {
	longest time.Duration // of a lease; what is in one may be anything
	leases  map[string]observation
}

// maxObserved is how many Leases are known at a time.
const maxObserved = 10 * maxMembers

type observation struct {
	lease *coordinationv1.Lease
	at    time.Time // with a monotonic reading
}

func (o *observed) see(lease *coordinationv1.Lease, now time.Time) {
	if last, ok := o.leases[lease.Name]; ok && last.lease.ResourceVersion == lease.ResourceVersion {
		return
	}
	if _, known := o.leases[lease.Name]; known || len(o.leases) < maxObserved {
		o.leases[lease.Name] = observation{lease, now}
	}
}

func (o *observed) gone(name string) { delete(o.leases, name) }

func (o *observed) duration(lease *coordinationv1.Lease) time.Duration {
	if lease.Spec.LeaseDurationSeconds == nil {
		return o.longest
	}
	return min(o.longest, time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second)
}

func (o *observed) isCurrent(seen observation, now time.Time) bool {
	return now.Sub(seen.at) < o.duration(seen.lease)
}

// current returns the Leases that have not expired, and those that did long ago.
func (o *observed) current(now time.Time) (current, old []*coordinationv1.Lease) {
	for _, seen := range o.leases {
		switch {
		case o.isCurrent(seen, now):
			current = append(current, seen.lease)
		case now.Sub(seen.at) > forgetAfter*o.longest:
			old = append(old, seen.lease)
		}
	}
	return current, old
}
