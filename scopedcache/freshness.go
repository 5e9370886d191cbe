package scopedcache

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/internal/versions"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/lightinformer"
)

// Reads of a user that acts in a term have all that was written before the term began, by the
// replica that acted before. An informer that is there for others may not have that yet. A list of
// metadata is sent after the term began, and the user waits until the informer's watch has reached
// that list. It is the same list for all whose terms began before it was sent. An informer whose
// own first list was sent after that needs none.

const (
	longestLookForList = time.Second // the longest pause between two looks at whether it is reached
	listPage           = 500         // objects
)

// afterFailedList are the pauses after lists that fail.
var afterFailedList = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: 30 * time.Second}

// errNotReached is why a scope that is Synced does not serve a user yet.
var errNotReached = errors.New("the informer may not have all that the replica before this one wrote: it has not " +
	"reached the state that the API server lists now")

// errNotListed is why a scope that is Synced does not serve a user yet, before it is known what the
// API server has.
var errNotListed = errors.New("the informer may not have all that the replica before this one wrote: the API server " +
	"has not answered the list that tells what it has now")

// isFresh reports whether an informer has all that was written before the user's term began, or
// will have it when it has synced.
func (u *use) isFresh(running *informer) bool {
	return u.user.since == 0 || running != nil && running.asOf.Load() >= u.user.since
}

// isFreshLocked is isFresh for the running informer. The caller holds entry.mu.
func (u *use) isFreshLocked() bool { return u.isFresh(u.entry.running) }

// notServed returns the error for a wait of the user that ended.
func (u *use) notServed(cause error) error {
	err := u.entry.notSynced(cause)
	u.entry.mu.Lock()
	defer u.entry.mu.Unlock()
	if err.State == StateSynced && err.Last == nil {
		err.Last = errNotReached
		if running := u.entry.running; running != nil && running.notListed != nil {
			err.Last = running.notListed
		}
	}
	return err
}

// makeFresh makes the informer fresh for all users that are there now, unless that is under way.
func (r *run) makeFresh() {
	i := r.informer
	if i == nil || i.catchesUp.Load() {
		return // the next informer begins with a list, and who waits asks again
	}
	if !slices.ContainsFunc(r.entry.usesNow(), func(of *use) bool { return !of.isFresh(i) }) {
		return // it was made fresh after that was wanted
	}
	i.catchesUp.Store(true)
	r.entry.listedNow(i, errNotListed)
	r.entry.entries.running.Go(func() { // this goroutine is counted in running
		asOf := term.Latest()
		if !i.catchUp(i.life) {
			asOf = 0
		}
		r.entry.caughtUp(i, asOf)
	})
}

// caughtUp records that an informer has all that was written before so many terms had begun, and
// gives it to those who wait for that.
func (s *entry) caughtUp(i *informer, asOf uint64) {
	defer s.entries.pokeSets(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	i.catchesUp.Store(false)
	i.asOf.Store(max(asOf, i.asOf.Load()))
	for _, r := range s.registrations {
		switch {
		case s.running != i || r.inner != nil || r.use.user.hasEnded():
		case r.use.isFreshLocked():
			_ = r.attachLocked(i) // fails only when the informer stops
		default:
			s.mail.wantFresh()
		}
	}
	s.changedLocked()
}

// catchUp waits until the informer has all that the API server has now. It returns false if the
// informer ends, or if a list failed so that another one should be tried.
func (i *informer) catchUp(ctx context.Context) bool {
	var now versions.Snapshot
	err := i.listVersions(ctx, &now)
	for errors.Is(err, term.ErrHandedOver) && ctx.Err() == nil {
		err = i.listVersions(ctx, &now) // the next sender answers
	}
	if i.entry.listedNow(i, err); err != nil {
		sleep(ctx, i.failedLists.Step())
		return false
	}
	i.failedLists = afterFailedList
	for pause := firstLook; ctx.Err() == nil; pause = min(pause*3/2, longestLookForList) {
		if i.reaches(&now) {
			return true
		}
		sleep(ctx, pause)
	}
	return false
}

// reaches reports whether the informer has all that a list has. An informer of
// cache.Options.NewInformer, which no ClusterCache has, may have a later version than its store.
func (i *informer) reaches(list *versions.Snapshot) bool {
	if light, ok := i.shared.(*lightinformer.Informer); ok {
		return light.Reaches(list)
	}
	return i.shared.HasSynced() && list.ReachedBy(i.shared.LastSyncResourceVersion(), i.objects())
}

// sleep waits so long, or until ctx ends.
func sleep(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}

// listedNow records why the latest list of what the API server has now failed; nil if it did not.
func (s *entry) listedNow(i *informer, err error) {
	if apierrors.IsForbidden(err) {
		s.mail.accessMayHaveChanged()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.notListed = displayError(err, s.env.options.HideServerMessages)
}

// listVersions lists the versions of the objects that the informer selects.
func (i *informer) listVersions(ctx context.Context, into *versions.Snapshot) error {
	resource := i.resource
	resource.Observer, resource.Example = nil, &metav1.PartialObjectMetadata{}
	lister, err := i.entry.env.clients.For(resource)
	if err != nil {
		return err
	}
	release, err := i.entry.env.lists.acquire(ctx, i.mapping.Resource)
	if err != nil {
		return err
	}
	defer release()
	options := metav1.ListOptions{Limit: listPage}
	for {
		bounded, cancel := context.WithTimeout(ctx, i.entry.env.options.ReadTimeout)
		page, err := lister.ListWithContext(bounded, options)
		cancel()
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			options = metav1.ListOptions{} // all at once
			continue
		}
		if err != nil {
			return err
		}
		versioned, err := meta.ListAccessor(page)
		if err != nil {
			return errors.WithStack(err)
		}
		if options.Continue == "" {
			*into = versions.Snapshot{Version: versioned.GetResourceVersion()}
		}
		if err := meta.EachListItem(page, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				into.Add(object.GetResourceVersion())
			}
			return errors.WithStack(err)
		}); err != nil {
			return errors.WithStack(err)
		}
		if options.Continue = versioned.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
