package scopedcache

import (
	"context"
	"reflect"
	"strings"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/ownwrites"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
)

// OwnWrites returns what remembers the writes of the cache's clients.
func (s *scopedCache) OwnWrites() *ownwrites.Writes { return s.env.writes }

// errConsistencyHandler is returned to clients of controller-runtime that wait for their own writes
// with an event handler. When the identity loses access, or the cache stops, that handler receives
// nothing more, and each read of the kind would block until its context ends.
var errConsistencyHandler = errors.New("a client with EnableReadYourWritesConsistency of controller-runtime would " +
	"block while the identity may not watch all namespaces, and when the cache has stopped: set NewClient to " +
	"scopedcache.NewClient, or Client.Cache.ReadYourWrites of a ClusterCache")

// isConsistencyHandler reports whether a handler is the one of such a client.
func isConsistencyHandler(handler any) bool {
	t := reflect.TypeOf(handler)
	return t != nil && t.Kind() == reflect.Pointer &&
		t.Elem().PkgPath() == "sigs.k8s.io/controller-runtime/pkg/client/internal/consistencyhandler"
}

// The pauses between two looks at what an informer has. The first is about as long as an API server
// takes to send an event.
const (
	firstLook   = time.Millisecond
	longestLook = 25 * time.Millisecond
)

// chooseInformer returns the informer that answers a read. It may wait.
type chooseInformer func(context.Context) (*informer, error)

// chooser returns what chooses among the informers of a kind. namespace is the one in the read's
// options.
func (r *reader) chooser(k *kind, read *requirements, namespace string) chooseInformer {
	return func(ctx context.Context) (*informer, error) {
		if running := r.ready(k, namespace); running != nil {
			return running, nil
		}
		if running := r.readySelected(k, read); running != nil {
			return running, nil
		}
		return r.await(ctx, k, read, namespace)
	}
}

// getOwn is Get for a client whose writes the result has to include.
func (r *reader) getOwn(ctx context.Context, k *kind, key client.ObjectKey, object client.Object,
	opts []client.GetOption) error {
	bounded, cancel := r.user.withReadTimeout(ctx)
	defer cancel()
	read := ofObject(key)
	err := r.readOwn(bounded, ownRead{
		choose: r.chooser(k, &read, key.Namespace),
		before: func(i *informer) *ownwrites.Required {
			return r.env.writes.BeforeGet(k.gvk.GroupKind(), types.NamespacedName{
				Namespace: i.namespaceOf(key.Namespace),
				Name:      key.Name,
			})
		},
		requires: &read,
		read:     func(from client.Reader, _ *entry) error { return from.Get(ctx, key, object, opts...) },
	})
	if r.env.options.LiveGet && apierrors.IsForbidden(err) {
		return r.getLive(bounded, k, key, object, err)
	}
	return err
}

// listOwn is List for a client whose writes the result has to include.
func (r *reader) listOwn(ctx context.Context, k *kind, list client.ObjectList, options *client.ListOptions) error {
	bounded, cancel := r.user.withReadTimeout(ctx)
	defer cancel()
	every, err := r.readsEveryConfigured(bounded, k, options.Namespace)
	if err != nil {
		return err
	}
	if every {
		return r.listConfigured(bounded, k, list, *options, true)
	}
	read := ofList(options)
	return r.listFrom(bounded, k, r.chooser(k, &read, options.Namespace), list, options, true)
}

// listFrom lists from the informer that choose returns. own says whether the result has to include
// the writes of the client.
func (r *reader) listFrom(ctx context.Context, k *kind, choose chooseInformer, list client.ObjectList,
	options *client.ListOptions, own bool) error {
	if !own {
		running, err := choose(ctx)
		if err != nil {
			return err
		}
		return running.List(ctx, list, options)
	}
	read := ofList(options)
	return r.readOwn(ctx, ownRead{
		choose: choose,
		before: func(i *informer) *ownwrites.Required {
			return r.env.writes.BeforeList(k.gvk.GroupKind(), i.namespaceOf(read.namespace), read.name)
		},
		requires: &read,
		read: func(from client.Reader, of *entry) error {
			return from.List(ctx, list, of.requires.without(*options))
		},
	})
}

// ownRead is a read that has to include the client's own writes.
type ownRead struct {
	choose   chooseInformer
	before   func(*informer) *ownwrites.Required // the writes, for the informer that is chosen
	requires *requirements
	read     func(client.Reader, *entry) error // from an informer, or what stands for it; may be repeated
}

// readOwn waits until the informer that answers a read has the client's own writes. If only the API
// server can tell what they did, readOwn reads from there.
func (r *reader) readOwn(ctx context.Context, wanted ownRead) error {
	var required *ownwrites.Required
	for pause := firstLook; ; pause = min(pause*3/2, longestLook) {
		running, err := wanted.choose(ctx)
		if err != nil {
			return err
		}
		if required == nil {
			required = wanted.before(running)
			defer required.Done()
		}
		if running.life.Err() != nil {
			continue // it ended after it was chosen, and the writes that it lacks may be forgotten
		}
		judgement := required.Judge(seenBy{running})
		switch {
		case judgement.Ready:
			if err := wanted.read(running, running.entry); err != nil && !apierrors.IsNotFound(err) || required.Still() {
				r.note(ctx, running)
				return err
			}
			continue
		case judgement.Ask:
			now, err := r.readNow(ctx, running, required, wanted.requires)
			switch {
			case err != nil && r.user.check() != nil:
				return r.user.check()
			case err != nil && ctx.Err() != nil:
				return running.behind(judgement, context.Cause(ctx))
			case err != nil:
				return err
			}
			return wanted.read(now, running.entry)
		}
		select {
		case <-time.After(pause):
		case <-running.life.Done(): // there may be another one
		case <-r.user.stopped():
			return r.user.stopError()
		case <-ctx.Done():
			if err := r.user.check(); err != nil {
				return err
			}
			return running.behind(judgement, context.Cause(ctx))
		}
	}
}

// readNow reads from the API server what an informer would have.
func (r *reader) readNow(ctx context.Context, i *informer, required *ownwrites.Required,
	read *requirements) (client.Reader, error) {
	list, err := i.listNow(ctx, read)
	if err != nil {
		return nil, errors.WithMessagef(r.readError(err),
			"listing %s, because the cache may not have what this client wrote", i.GVK)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	versioned, err := meta.ListAccessor(list)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	byKey := make(map[types.NamespacedName]client.Object, len(items))
	for _, item := range items {
		if object, ok := item.(client.Object); ok {
			byKey[client.ObjectKeyFromObject(object)] = object
		}
	}
	required.Listed(versioned.GetResourceVersion(), func(key types.NamespacedName) (ownwrites.Object, map[string]string,
		bool) {
		object, found := byKey[key]
		if !found {
			return ownwrites.Object{}, nil, false
		}
		return ownwrites.Object{UID: object.GetUID(), Version: object.GetResourceVersion()}, object.GetLabels(), true
	})
	transform := transformOf(i.entry.selection.kind, i.config.Transform)
	stored := make([]any, 0, len(items))
	for _, item := range items {
		var object any = item
		if transform != nil {
			if object, err = transform(object); err != nil {
				return nil, errors.Wrapf(err, "the transform of %s", i.GVK)
			}
		}
		stored = append(stored, object)
	}
	return i.Over(stored)
}

// readError returns the error of a read from the API server in the form in which users see it.
func (r *reader) readError(err error) error {
	hide := r.env.options.HideServerMessages
	if _, isStatus := untrusted.StatusText(err); hide && !isStatus && access.FromServer(err) {
		return errUnreadable
	}
	return displayError(err, hide)
}

// listNow lists the objects that an informer would have of the namespace and name that are read. It
// leaves the labels of the read out, so that the list tells what the informer does not have.
func (i *informer) listNow(ctx context.Context, read *requirements) (client.ObjectList, error) {
	resource := i.resource
	resource.Observer = nil
	if i.Namespaced && resource.Namespace == metav1.NamespaceAll {
		resource.Namespace = read.namespace
	}
	if read.name != "" {
		resource.Fields = strings.TrimPrefix(resource.Fields+","+nameField+"="+fields.EscapeValue(read.name), ",")
	}
	lister, err := i.entry.env.clients.For(resource)
	if err != nil {
		return nil, err
	}
	release, err := i.entry.env.lists.acquire(ctx, i.mapping.Resource)
	if err != nil {
		return nil, err
	}
	defer release()
	list, err := lister.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.(client.ObjectList), nil
}

// namespaceOf returns the namespace of objects for which a read names one.
func (i *informer) namespaceOf(namespace string) string {
	if !i.Namespaced {
		return metav1.NamespaceAll
	}
	return namespace
}

// seenBy is what an informer has, for package ownwrites.
type seenBy struct{ *informer }

var _ ownwrites.Informer = seenBy{}

// ID implements ownwrites.Informer.
func (s seenBy) ID() uint64 { return s.id }

// Since implements ownwrites.Informer.
func (s seenBy) Since() uint64 { return s.since.Load() }

// Version implements ownwrites.Informer.
func (s seenBy) Version() string { return s.shared.LastSyncResourceVersion() }

// Stored implements ownwrites.Informer.
func (s seenBy) Stored(key types.NamespacedName) (ownwrites.Object, bool) {
	item, found, err := s.Indexer.GetByKey(strings.TrimPrefix(key.String(), "/"))
	if err != nil || !found {
		return ownwrites.Object{}, false
	}
	object, err := meta.Accessor(item)
	if err != nil { // a transform made it
		return ownwrites.Object{}, true
	}
	return ownwrites.Object{UID: object.GetUID(), Version: object.GetResourceVersion()}, true
}

// Covers implements ownwrites.Informer.
func (s seenBy) Covers(namespace, name string) bool {
	if s.resource.Namespace != "" && namespace != "" && namespace != s.resource.Namespace {
		return false
	}
	if s.config.FieldSelector == nil {
		return true
	}
	for _, requirement := range s.config.FieldSelector.Requirements() {
		value := map[string]string{nameField: name, namespaceField: namespace}[requirement.Field]
		if value != "" && isEqual(requirement.Operator) != (requirement.Value == value) {
			return false
		}
	}
	return true
}

// Selects implements ownwrites.Informer.
func (s seenBy) Selects(of map[string]string) ownwrites.Selection {
	switch {
	case s.config.LabelSelector != nil && !s.config.LabelSelector.Matches(labels.Set(of)):
		return ownwrites.NotSelected
	case !knowsFields(s.config.FieldSelector):
		return ownwrites.SelectionUnknown
	}
	return ownwrites.Selected
}

// Polls implements ownwrites.Informer.
func (s seenBy) Polls() bool { return s.polls }

// HasSelectors implements ownwrites.Informer.
func (s seenBy) HasSelectors() bool {
	return s.config.LabelSelector != nil && !s.config.LabelSelector.Empty() || !knowsFields(s.config.FieldSelector)
}

// informersOf returns the informers of a kind, in all versions and representations.
func (s *entrySet) informersOf(kind schema.GroupKind) []ownwrites.Informer {
	s.mu.Lock()
	var entries []*entry
	for e := range s.entries {
		if e.selection.kind.gvk.GroupKind() == kind {
			entries = append(entries, e)
		}
	}
	s.mu.Unlock()
	var running []ownwrites.Informer
	for _, e := range entries {
		e.mu.Lock()
		if e.running != nil {
			running = append(running, seenBy{e.running})
		}
		e.mu.Unlock()
	}
	return running
}

// behind returns the error for a wait that ended.
func (i *informer) behind(lacks ownwrites.Judgement, cause error) error {
	i.entry.mu.Lock()
	defer i.entry.mu.Unlock()
	return &BehindError{
		GVK:     i.GVK,
		Scope:   i.entry.selection.scope,
		Key:     lacks.Key,
		Version: lacks.Version,
		Has:     i.shared.LastSyncResourceVersion(),
		Last:    i.entry.lastError,
		Cause:   cause,
	}
}
