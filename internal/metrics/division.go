package metrics

import (
	"hash/fnv"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
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
