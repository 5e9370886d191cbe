package scopedcache

import (
	"context"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

const (
	// firstDenial is how long the first denial is remembered: an API server that starts denies what
	// it should not.
	firstDenial = 2 * time.Second
	// maxNames is how many answers are remembered.
	maxNames = 1000
	// namesPerSecond and namesBurst bound how often a user of a cache asks for names.
	namesPerSecond, namesBurst = 10, 100
	// maxNamedScopes is how many scopes of single names a user's reads have.
	maxNamedScopes = 100
	// namedIdleTimeout is the IdleTimeout of these scopes if Options have none.
	namedIdleTimeout = 10 * time.Minute
)

// nameReviews remembers what the identity may do with objects of a name, so that repeated reads of
// a name ask the API server once. Its methods may be called from any goroutine.
type nameReviews struct {
	interval time.Duration             // how long an answer is remembered
	answers  *utilcache.LRUExpireCache // from nameQuestion to nameAnswer
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

// forget forgets the answers about a namespace, all if it is empty: permissions may have changed.
func (n *nameReviews) forget(namespace string) {
	n.answers.RemoveAll(func(key any) bool { return namespace == "" || key.(nameQuestion).namespace == namespace })
}

// awaitNamed waits for the informer of one object, for the case that no scope that is there may be
// read: a Role may allow single names. awaitNamed returns forbidden, the error of the wider scope,
// if the identity may not list and watch that name, or if no more names may be asked for now.
func (r *reader) awaitNamed(ctx context.Context, k *kind, read *requirements, namespace string,
	forbidden error) (*informer, error) {
	if read.name == "" || r.env.informers.ReaderFailOnMissingInformer {
		return nil, forbidden
	}
	scope := Scope{Namespace: namespace, FieldSelector: fields.OneTermEqualSelector(nameField, read.name)}
	if allowed, err := r.mayWatchName(ctx, k, scope, read); err != nil {
		return nil, err
	} else if !allowed || !r.entries.hasRoomForName(r.user, k, scope) {
		return nil, forbidden
	}
	for {
		of, running, err := r.awaitOnce(ctx, k, scope, true)
		if apierrors.IsForbidden(err) {
			return nil, forbidden
		}
		if !endedJustBefore(of, err) {
			return running, err
		}
	}
}

// mayWatchName reports whether the identity may list and watch the objects of a scope, which
// selects one name. The API server is asked at most so often: see nameReviews. If the identity may
// not create reviews, the answers to the informer's requests count.
func (r *reader) mayWatchName(ctx context.Context, k *kind, scope Scope, read *requirements) (bool, error) {
	mapping, names := k.mapping.Load(), r.entries.names
	q := nameQuestion{kind: k.kindKey, namespace: scope.Namespace, name: read.name}
	if allowed, known := names.answer(q); known || mapping == nil {
		return allowed, nil
	}
	if allGets, _ := names.answer(nameQuestion{kind: q.kind, namespace: q.namespace, get: true}); allGets && read.get {
		return false, nil // the Get goes to the API server
	}
	if !r.user.asked.Allow() {
		return false, nil
	}
	question := (&selection{kind: k, scope: scope}).question(mapping)
	verdict, err := r.env.reviewer.Review(ctx, question, "list", "watch")
	if verdict != monitor.Allowed && verdict != monitor.Unaskable && !verdict.IsDenial() {
		return false, errors.WithMessagef(err, "asking whether %s %q may be listed and watched", k.gvk.Kind, read.name)
	}
	allowed := !verdict.IsDenial()
	names.remember(q, allowed)
	return allowed, nil
}
