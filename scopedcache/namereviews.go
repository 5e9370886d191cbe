package scopedcache

import (
	"context"
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

// isDenied reports whether a denial is remembered.
func (n *nameReviews) isDenied(q nameQuestion) bool {
	allowed, known := n.answer(q)
	return known && !allowed
}

// remember records an answer.
func (n *nameReviews) remember(q nameQuestion, allowed bool) {
	remembered := n.interval
	if earlier, again := n.answers.Get(q); !allowed && (!again || earlier.(nameAnswer).allowed) {
		remembered = firstDenial
	}
	n.answers.Add(q, nameAnswer{allowed, time.Now().Add(remembered)}, remembered+n.interval)
}

// mayAsk waits until another name may be asked for. mayAsk returns false if ctx would end before.
func (n *nameReviews) mayAsk(ctx context.Context) bool { return n.asked.Wait(ctx) == nil }

// mayAskNow is mayAsk without a wait.
func (n *nameReviews) mayAskNow() bool { return n.asked.Allow() }

// forget forgets the answers about a namespace, all if it is empty: permissions may have changed.
func (n *nameReviews) forget(namespace string) {
	n.answers.RemoveAll(func(key any) bool { return namespace == "" || key.(nameQuestion).namespace == namespace })
}
