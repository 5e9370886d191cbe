package metrics

import (
	"hash/fnv"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

var (
	owned = gauge("latchkey_ownership_extensions",
		"Extensions by whether this replica serves them: true or false. Only where replicas share the extensions.", "owned")
	ownedBySlice = gauge("latchkey_ownership_slice_extensions",
		"The same, by slice: the first 6 bits of the FNV-1a hash (64 bits) of the UID. Where extensions have two replicas, "+
			"and as many others none, the sums of slices differ, though not that of all. Slices without an extension are "+
			"left out.", "slice", "owned")
)

// sliceBits is how many bits of a hash number a slice.
const sliceBits = 6

// Division counts the extensions that this replica serves, and those that it leaves to others, by
// slices of the hash of their UIDs: that of Kubernetes' sharded list and watch (KEP-5866), whose
// ranges buckets are. The sums over all replicas tell that each extension has one replica, where
// the sum over all extensions could have as many too few as too many.
type Division struct {
	owned, notOwned [1 << sliceBits]int
}

// Add counts an extension.
func (d *Division) Add(uid types.UID, owned bool) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(uid)) // never fails
	slice := hash.Sum64() >> (64 - sliceBits)
	if owned {
		d.owned[slice]++
	} else {
		d.notOwned[slice]++
	}
}

// add adds what another cache of the same name counts.
func (d *Division) add(other *Division) {
	for slice := range d.owned {
		d.owned[slice] += other.owned[slice]
		d.notOwned[slice] += other.notOwned[slice]
	}
}

// collect sends the counts, and their sums.
func (d *Division) collect(gauge func(*prometheus.Desc, float64, ...string)) {
	var sumOwned, sumNotOwned int
	for slice := range d.owned {
		has, hasNot := d.owned[slice], d.notOwned[slice]
		sumOwned, sumNotOwned = sumOwned+has, sumNotOwned+hasNot
		if has+hasNot > 0 {
			gauge(ownedBySlice, float64(has), strconv.Itoa(slice), "true")
			gauge(ownedBySlice, float64(hasNot), strconv.Itoa(slice), "false")
		}
	}
	gauge(owned, float64(sumOwned), "true")
	gauge(owned, float64(sumNotOwned), "false")
}
