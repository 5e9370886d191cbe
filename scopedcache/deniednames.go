package scopedcache

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
)

const (
	// firstDenial is how long the first denial of a name is remembered: an API server that starts
	// denies what it should not.
	firstDenial = 2 * time.Second
	// maxDeniedNames is how many names are remembered.
	maxDeniedNames = 1000
	// namesPerSecond and namesBurst bound how often a cache asks for names.
	namesPerSecond, namesBurst = 10, 100
)

// deniedNames remembers the names of objects that the identity may not list and watch, so that
// repeated reads of a name ask the API server once. Its methods may be called from any goroutine.
type deniedNames struct {
	interval time.Duration             // how long a denial that was repeated is remembered
	names    *utilcache.LRUExpireCache // from deniedName to the time until which it counts
	asked    *rate.Limiter
}

type deniedName struct {
	kind            kindKey
	namespace, name string
}

func newDeniedNames(interval time.Duration) *deniedNames {
	return &deniedNames{
		interval: interval,
		names:    utilcache.NewLRUExpireCache(maxDeniedNames),
		asked:    rate.NewLimiter(namesPerSecond, namesBurst),
	}
}

// has reports whether a name was denied lately.
func (d *deniedNames) has(name deniedName) bool {
	until, ok := d.names.Get(name)
	return ok && time.Now().Before(until.(time.Time))
}

// add records a denial.
func (d *deniedNames) add(name deniedName) {
	remembered := firstDenial
	if _, again := d.names.Get(name); again {
		remembered = d.interval
	}
	d.names.Add(name, time.Now().Add(remembered), remembered+d.interval)
}

// mayAsk waits until another name may be asked for. mayAsk returns false if ctx would end before.
func (d *deniedNames) mayAsk(ctx context.Context) bool { return d.asked.Wait(ctx) == nil }

// forget forgets the denials in a namespace, all if it is empty: permissions may have changed.
func (d *deniedNames) forget(namespace string) {
	d.names.RemoveAll(func(key any) bool { return namespace == "" || key.(deniedName).namespace == namespace })
}
