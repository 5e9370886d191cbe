package scopedcache

import (
	"time"

	"golang.org/x/time/rate"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
)

const (
	// firstDenial is how long the first denial is remembered: an API server that starts denies what
	// it should not.
	firstDenial = 2 * time.Second
	// maxNames is how many answers are remembered.
	maxNames = 1000
	// namesPerSecond and namesBurst bound how often a cache asks for names.
	namesPerSecond, namesBurst = 10, 100
	// maxNamedScopes is how many scopes of single names reads begin.
	maxNamedScopes = 100
	// namedIdleTimeout is the IdleTimeout of these scopes if Options have none.
	namedIdleTimeout = 10 * time.Minute
)

// nameReviews remembers what the identity may do with objects of a name, so that repeated reads of
// a name ask the API server once. Its methods may be called from any goroutine.
type nameReviews struct {
	interval time.Duration             // how long an answer is remembered
	answers  *utilcache.LRUExpireCache // from nameQuestion to nameAnswer
	asked    *rate.Limiter
}

// nameQuestion is whether the identity may use an object.
type nameQuestion struct {
	kind            kindKey
	namespace, name string // an empty name means all objects
	get             bool   // else list and watch
}

type nameAnswer struct {
	allowed bool
	until   time.Time
}

func newNameReviews(interval time.Duration) *nameReviews {
	return &nameReviews{
		interval: interval,
		answers:  utilcache.NewLRUExpireCache(maxNames),
		asked:    rate.NewLimiter(namesPerSecond, namesBurst),
	}
}

// answer returns what is remembered.
func (n *nameReviews) answer(q nameQuestion) (allowed, known bool) {
	found, ok := n.answers.Get(q)
	if !ok || !time.Now().Before(found.(nameAnswer).until) {
		return false, false
	}
	return found.(nameAnswer).allowed, true
}

// remember records an answer. A denial counts for longer if there was one before, which has
// expired.
func (n *nameReviews) remember(q nameQuestion, allowed bool) {
	now, until := time.Now(), time.Now().Add(n.interval)
	if earlier, ok := n.answers.Get(q); !allowed && (!ok || earlier.(nameAnswer).allowed) {
		until = now.Add(firstDenial)
	} else if ok && !allowed && now.Before(earlier.(nameAnswer).until) {
		until = earlier.(nameAnswer).until // two asked at the same time
	}
	n.answers.Add(q, nameAnswer{allowed, until}, until.Sub(now)+n.interval)
}

// mayAsk reports whether another name may be asked for now.
func (n *nameReviews) mayAsk() bool { return n.asked.Allow() }

// forget forgets the answers about a namespace, all if it is empty: permissions may have changed.
func (n *nameReviews) forget(namespace string) {
	n.answers.RemoveAll(func(key any) bool { return namespace == "" || key.(nameQuestion).namespace == namespace })
}
