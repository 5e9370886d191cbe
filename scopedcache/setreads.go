package scopedcache

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/members"
)

var _ held = (*namespaceSet)(nil)

func (s *namespaceSet) observe(*Handle) {} // begin has

func (s *namespaceSet) state(h *Handle) ScopeState {
	if s.IsStopped() && s.user.hasEnded() {
		return endedState(s.kind, s.scope, s.user.stopError())
	}
	summary := s.summary((*use).snapshot)
	summary.Dependents = []string{h.options.holder()}
	return summary
}

func (s *namespaceSet) members(of func(*use) ScopeState) []ScopeState {
	uses := s.membersNow()
	states := make([]ScopeState, len(uses))
	for i, member := range uses {
		states[i] = of(member)
	}
	return states
}

// membersNow returns the scopes whose objects are those of the set, sorted.
func (s *namespaceSet) membersNow() (uses []*use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.machine.Members(s.informersLocked()) {
		uses = append(uses, s.held[name])
	}
	return uses
}

// released returns the error of what is tried after the release.
func (s *namespaceSet) released(trying string) error {
	if s.user.hasEnded() {
		return s.user.stopError()
	}
	return errors.Wrapf(ErrReleased, "%s of %s", trying, s.kind.gvk)
}

// awaitDecided waits until it is known which namespaces are in the set, or that this cannot be
// known now, and returns the informers whose objects are those of the set. It returns none without
// an error if there are none.
func (s *namespaceSet) awaitDecided(ctx context.Context) ([]*use, error) {
	for {
		s.mu.Lock()
		ended, decided, changed := s.ended, s.machine.Outcome().Decided, s.changed
		s.mu.Unlock()
		if ended {
			return nil, s.released("reading")
		}
		now, uses := s.summary((*use).snapshotOfState), s.membersNow()
		if decided && (len(uses) > 0 || now.State == StateSynced && !s.isAllowed()) {
			return uses, nil
		}
		if decided && now.LastError != nil && now.State != StateFailing {
			return nil, now.LastError
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &NotSyncedError{
				GVK:   now.GVK,
				Scope: now.Scope,
				State: now.State,
				Since: now.Since,
				Last:  now.LastError,
				Cause: context.Cause(ctx),
			}
		case <-s.user.stopped():
			return nil, s.user.stopError()
		}
	}
}

// hasLeft reports whether a read ended because its informer did, and the set did not.
func (s *namespaceSet) hasLeft(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(err, ErrReleased) && !s.ended
}

// reader implements held. A namespace that is not in the set has no objects there, unless the
// definition says so.
func (s *namespaceSet) reader(ctx context.Context, namespace string) (client.Reader, error) {
	if err := s.user.check(); err != nil {
		return nil, err
	}
	ctx, cancel := s.user.withReadTimeout(ctx)
	defer cancel()
	for {
		uses, err := s.awaitDecided(ctx)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(uses, func(of *use) bool {
			own := of.entry.selection.scope.Namespace
			return own == members.All || own == namespace
		})
		if at < 0 {
			return s.outside(namespace)
		}
		reader, err := uses[at].reader(ctx)
		if s.hasLeft(err) {
			continue
		}
		return reader, err
	}
}

// outside returns the reader of a namespace that is not in the set.
func (s *namespaceSet) outside(namespace string) (client.Reader, error) {
	now := s.summary((*use).snapshotOfState)
	switch s.scope.Namespaces.kind {
	case members.Listed:
		return nil, errors.Errorf("the handle is of %s in %s, and not in %q", s.kind.gvk, s.scope.place(), namespace)
	case members.Allowed:
		return nil, s.notAllowed(now, namespace)
	}
	if lacks := (*PartialError)(nil); errors.As(now.LastError, &lacks) && lacks.NamespacesErr != nil {
		return nil, now.LastError
	}
	return nothing{s.kind}, nil
}

// readers implements held.
func (s *namespaceSet) readers(ctx context.Context) ([]client.Reader, error) {
	if err := s.user.check(); err != nil {
		return nil, err
	}
	ctx, cancel := s.user.withReadTimeout(ctx) // for all together
	defer cancel()
	for {
		uses, err := s.awaitDecided(ctx)
		if err != nil {
			return nil, err
		}
		readers, err := s.readersOf(ctx, uses)
		switch {
		case s.hasLeft(err):
		case err == nil && len(readers) == 0 && len(uses) > 0: // all were only tried
		default:
			return readers, err
		}
	}
}

// readersOf returns the readers of all informers, or a PartialError.
func (s *namespaceSet) readersOf(ctx context.Context, uses []*use) (readers []client.Reader, err error) {
	problem := &PartialError{Of: len(uses)}
	for _, of := range uses {
		reader, err := of.reader(ctx)
		switch {
		case err == nil:
			readers = append(readers, reader)
		case s.isAllowed() && of.entry.isDenied():
			problem.Of-- // it was only tried
		case isUnreadable(err):
			member := of.snapshotOfState()
			member.LastError = err
			problem.Members = append(problem.Members, member)
		default:
			return nil, err
		}
	}
	now := s.summary((*use).snapshotOfState)
	if lacks := (*PartialError)(nil); errors.As(now.LastError, &lacks) {
		problem.NamespacesErr, problem.LeftOut = lacks.NamespacesErr, lacks.LeftOut
	}
	if len(problem.Members) > 0 || problem.NamespacesErr != nil || problem.LeftOut > 0 {
		return nil, problem
	}
	return readers, nil
}

// isDenied reports whether there never was permission.
func (s *entry) isDenied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == StateForbidden && !s.served
}

// isUnreadable reports whether an error is about the scope, and not about the read.
func isUnreadable(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsTimeout(err) || meta.IsNoMatchError(err)
}

// AddEventHandler implements cache.Informer, as durableInformer does.
func (s *namespaceSet) AddEventHandler(handler toolscache.ResourceEventHandler) (
	toolscache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements cache.Informer, as durableInformer does.
func (s *namespaceSet) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler,
	resync time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{ResyncPeriod: &resync})
}

// AddEventHandlerWithOptions implements cache.Informer, as durableInformer does.
func (s *namespaceSet) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	if isConsistencyHandler(handler) {
		return nil, errConsistencyHandler
	}
	h, err := s.addHandler(handler, options)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// RemoveEventHandler implements cache.Informer. A call of the handler that is in progress
// continues; no other call begins.
func (s *namespaceSet) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	h, ok := handle.(*setHandler)
	if !ok || h.set != s {
		return errors.Errorf("%T is not from AddEventHandler of this informer", handle)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.removeLocked()
	return nil
}

// AddIndexers implements cache.Informer. Each namespace has the indexers, and each later one.
func (s *namespaceSet) AddIndexers(indexers toolscache.Indexers) error {
	if s.user.shares {
		return sharedIndexers(indexers)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.held {
		if err := of.addIndexers(indexers); err != nil {
			return err
		}
	}
	s.indexers = append(s.indexers, indexers)
	return nil
}

// HasSynced implements cache.Informer: it is known which namespaces there are, and the result of
// reading each.
func (s *namespaceSet) HasSynced() bool { return s.settled.IsOpen() }

// HasSyncedChecker implements cache.Informer.
func (s *namespaceSet) HasSyncedChecker() toolscache.DoneChecker {
	return settledChecker{name: s.name(), done: &s.settled}
}

func (s *namespaceSet) name() string { return s.kind.gvk.String() + " " + s.scope.String() }

// IsStopped implements cache.Informer.
func (s *namespaceSet) IsStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.user.hasEnded()
}

// Readable implements Informer.
func (s *namespaceSet) Readable(ctx context.Context) error {
	_, err := s.readers(ctx)
	return err
}

// Get implements Informer.
func (s *namespaceSet) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	reader, err := s.reader(ctx, key.Namespace)
	if err != nil {
		return err
	}
	return reader.Get(ctx, key, object, opts...)
}

// notAllowed returns the error of a read in a namespace in which the identity may not list and
// watch, or that is left out.
func (s *namespaceSet) notAllowed(now ScopeState, namespace string) error {
	s.mu.Lock()
	tried, all, leftOut := s.held[namespace], s.held[members.All], s.machine.Outcome().LeftOut
	s.mu.Unlock()
	switch {
	case tried != nil && tried.snapshotOfState().LastError != nil:
		return tried.snapshotOfState().LastError
	case now.LastError != nil && leftOut > 0:
		return now.LastError
	case all != nil && all.snapshotOfState().LastError != nil:
		return all.snapshotOfState().LastError
	}
	return errors.Errorf("the handle is of %s in %s, and not in %q now", s.kind.gvk, s.scope.place(), namespace)
}

// nothing reads from a namespace that is not in a set.
type nothing struct{ kind *kind }

func (n nothing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return n.kind.notFound(key)
}

func (nothing) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return errors.WithStack(meta.SetList(list, nil))
}
