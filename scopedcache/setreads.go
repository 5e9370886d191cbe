package scopedcache

import (
	"context"
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
	summary := s.summary((*entry).snapshot)
	summary.Dependents = []string{h.options.holder()}
	return summary
}

func (s *namespaceSet) members(of func(*entry) ScopeState) []ScopeState {
	entries := s.membersNow()
	states := make([]ScopeState, len(entries))
	for i, e := range entries {
		states[i] = of(e)
	}
	return states
}

// membersNow returns the scopes whose objects are those of the set, sorted.
func (s *namespaceSet) membersNow() (entries []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.machine.Members(s.informersLocked()) {
		entries = append(entries, s.held[name])
	}
	return entries
}

// released returns the error of what is tried after the release.
func (s *namespaceSet) released(trying string) error {
	return errors.Wrapf(ErrReleased, "%s of %s", trying, s.kind.gvk)
}

// awaitDecided waits until it is known which namespaces are in the set, or that this cannot be
// known now.
func (s *namespaceSet) awaitDecided(ctx context.Context) error {
	if err := s.user.check(); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		ended, decided, changed := s.ended, s.decidedLocked(), s.changed
		s.mu.Unlock()
		if ended {
			return s.released("reading")
		}
		if decided {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			now := s.state(s.holder)
			return &NotSyncedError{
				GVK:   now.GVK,
				Scope: now.Scope,
				State: now.State,
				Since: now.Since,
				Last:  now.LastError,
				Cause: context.Cause(ctx),
			}
		case <-s.user.stopped():
			return s.user.stopError()
		}
	}
}

// reader implements held. A namespace that is not in the set has no objects there, unless the
// definition says so.
func (s *namespaceSet) reader(ctx context.Context, namespace string) (client.Reader, error) {
	if err := s.user.check(); err != nil {
		return nil, err
	}
	ctx, cancel := s.user.withReadTimeout(ctx)
	defer cancel()
	if err := s.awaitDecided(ctx); err != nil {
		return nil, err
	}
	for _, e := range s.membersNow() {
		if own := e.selection.scope.Namespace; own != members.All && own != namespace {
			continue
		}
		running, err := e.await(ctx, s.user)
		if err != nil {
			return nil, err
		}
		return running, nil
	}
	now := s.summary((*entry).snapshotOfState)
	switch {
	case s.scope.Namespaces.kind == members.Listed:
		return nil, errors.Errorf("the handle is of %s in %s, and not in %q", s.kind.gvk, s.scope.place(), namespace)
	case s.scope.Namespaces.kind == members.Allowed:
		return nil, s.notAllowed(now, namespace)
	case now.State != StateSynced && isAboutNames(now.LastError):
		return nil, now.LastError
	}
	return nothing{s.kind}, nil
}

// readers implements held.
func (s *namespaceSet) readers(ctx context.Context) (readers []client.Reader, err error) {
	if err := s.user.check(); err != nil {
		return nil, err
	}
	ctx, cancel := s.user.withReadTimeout(ctx) // for all together
	defer cancel()
	if err := s.awaitDecided(ctx); err != nil {
		return nil, err
	}
	entries := s.membersNow()
	problem := &PartialError{Of: len(entries)}
	for _, e := range entries {
		running, err := e.await(ctx, s.user)
		if err != nil && !isUnreadable(err) {
			return nil, err
		}
		if err != nil {
			member := e.snapshotOfState()
			member.LastError = err
			problem.Members = append(problem.Members, member)
			continue
		}
		readers = append(readers, running)
	}
	now := s.summary((*entry).snapshotOfState)
	if len(entries) == 0 && now.State != StateSynced {
		return nil, now.LastError
	}
	if known := (*PartialError)(nil); errors.As(now.LastError, &known) {
		problem.Unknown, problem.Beyond = known.Unknown, known.Beyond
	}
	if len(problem.Members) > 0 || problem.Unknown != nil || problem.Beyond > 0 {
		return nil, problem
	}
	return readers, nil
}

// isAboutNames reports whether an error says why the namespaces of a set are not known.
func isAboutNames(err error) bool {
	partial := (*PartialError)(nil)
	return errors.As(err, &partial) && partial.Unknown != nil
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
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.held {
		if err := e.addIndexers(indexers); err != nil {
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
// watch.
func (s *namespaceSet) notAllowed(now ScopeState, namespace string) error {
	s.mu.Lock()
	e := s.held[namespace]
	if e == nil {
		e = s.held[members.All]
	}
	s.mu.Unlock()
	if e != nil {
		if tried := e.snapshotOfState(); tried.LastError != nil {
			return tried.LastError
		}
	}
	if now.LastError != nil {
		return now.LastError
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
