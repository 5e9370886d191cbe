package scopedcache

import (
	"context"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/ownwrites"
)

// reader serves reads from the informers of scopes.
type reader struct {
	env     *environment
	entries *entrySet
	user    *user // who reads
}

// Get reads an object from an informer that has it if it exists: see the package documentation.
func (r *reader) Get(ctx context.Context, name client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	kind, err := r.env.kinds.kindOf(object)
	if err != nil {
		return err
	}
	if err = r.get(ctx, kind, name, object, opts); err != nil {
		r.noteMissed(ctx, kind, name.Namespace, err)
	}
	return err
}

func (r *reader) get(ctx context.Context, kind *kind, name client.ObjectKey, object client.Object,
	opts []client.GetOption) (err error) {
	own := ownwrites.WantedByGet(opts) && r.env.writes.Concern(kind.gvk.GroupKind(), name)
	if running := r.ready(kind, name.Namespace); running != nil && !own && r.user.runs() {
		r.note(ctx, running)
		return running.Get(ctx, name, object, opts...)
	}
	if err := r.checkNamespace(ctx, kind, name.Namespace); err != nil {
		return err
	}
	if own {
		return r.getOwn(ctx, kind, name, object, opts)
	}
	read := ofObject(name)
	running := r.readySelected(kind, &read)
	if running == nil {
		bounded, cancel := r.user.withReadTimeout(ctx)
		defer cancel()
		running, err = r.await(bounded, kind, &read, name.Namespace)
		if r.env.options.LiveGet && apierrors.IsForbidden(err) {
			return r.getLive(bounded, kind, name, object, err)
		}
		if err != nil {
			return err
		}
	}
	r.note(ctx, running)
	return running.Get(ctx, name, object, opts...)
}

// List reads from an informer that has what opts ask for: see the package documentation.
func (r *reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	kind, err := r.env.kinds.kindOf(list)
	if err != nil {
		return err
	}
	var options client.ListOptions
	options.ApplyOptions(opts)
	if err = r.list(ctx, kind, list, options, opts); err != nil {
		r.noteMissed(ctx, kind, options.Namespace, err)
	}
	return err
}

func (r *reader) list(ctx context.Context, kind *kind, list client.ObjectList, options client.ListOptions,
	opts []client.ListOption) (err error) {
	configured := len(kind.config.namespaces) > 0
	own := ownwrites.WantedByList(opts) && r.env.writes.Concern(kind.gvk.GroupKind(), types.NamespacedName{})
	if running := r.ready(kind, options.Namespace); running != nil && !configured && !own && r.user.runs() {
		r.note(ctx, running)
		return running.List(ctx, list, opts...)
	}
	if err := r.checkNamespace(ctx, kind, options.Namespace); err != nil {
		return err
	}
	if own {
		return r.listOwn(ctx, kind, list, &options)
	}
	read := ofList(&options)
	running := r.readySelected(kind, &read)
	if running == nil {
		bounded, cancel := r.user.withReadTimeout(ctx)
		defer cancel()
		every, err := r.readsEveryConfigured(bounded, kind, options.Namespace)
		if err != nil {
			return err
		}
		if every {
			return r.listConfigured(bounded, kind, list, options, false)
		}
		if running, err = r.await(bounded, kind, &read, options.Namespace); err != nil {
			return err
		}
	}
	r.note(ctx, running)
	return running.List(ctx, list, running.entry.requires.without(options))
}

// note records in the caller's span which scope answers a read.
func (r *reader) note(ctx context.Context, from *informer) {
	if r.env.tracer != nil {
		from.note(ctx)
	}
}

// ready returns the informer that serves a namespace if it can serve reads at once, else nil. The
// informer is that of the namespace or, if the user has no such scope, of all namespaces. What
// other users have makes no difference: the informer that feeds a user's handlers stays the one
// that reads use.
func (r *reader) ready(k *kind, namespace string) *informer {
	if k.excludes(namespace) {
		return nil
	}
	var of *use
	if e := k.only.Load(); e != nil {
		of = r.user.use(e)
	}
	if of == nil || of.onlyTried() {
		of = r.unselected(k, namespace)
	}
	if of == nil {
		return nil
	}
	of.markRead()
	return of.serving()
}

// unselected returns the scope without selectors that serves a namespace, nil if the user has none.
func (r *reader) unselected(k *kind, namespace string) *use {
	if exact := r.exact(k, namespace); exact != nil {
		return exact
	}
	if everywhere := r.everywhere(k); everywhere != nil && len(k.config.namespaces) == 0 {
		return everywhere
	}
	return nil
}

// exact returns the user's scope of a namespace, without selectors, nil if there is none.
func (r *reader) exact(k *kind, namespace string) *use {
	if e := k.entry(namespace); e != nil {
		return r.user.use(e)
	}
	return nil
}

// everywhere returns the user's scope of all namespaces, nil if there is none, or only sets try it.
func (r *reader) everywhere(k *kind) *use {
	of := r.exact(k, metav1.NamespaceAll)
	if of == nil || of.onlyTried() {
		return nil
	}
	return of
}

// await waits for an informer that answers a read. namespace is the one in the read's options.
func (r *reader) await(ctx context.Context, k *kind, read *requirements, namespace string) (*informer, error) {
	if len(k.config.namespaces) > 0 {
		var err error
		if namespace, err = r.configuredNamespace(ctx, k, namespace); err != nil {
			return nil, err
		}
	}
	return r.awaitInformer(ctx, k, read, namespace)
}

// awaitInformer waits for an informer that answers a read, and creates a scope if none does. A
// scope without selectors has precedence, because it moves no reads from one informer to another.
func (r *reader) awaitInformer(ctx context.Context, k *kind, read *requirements, namespace string) (*informer, error) {
	var forbidden error
	if r.unselected(k, namespace) == nil {
		var running *informer
		var err error
		if running, forbidden, err = r.awaitSelected(ctx, k, read, namespace); running != nil || err != nil {
			return running, err
		}
	}
	// Where a part is Forbidden, the whole is. A scope of the whole would be Synced later, beside that
	// of the part: a reconciler would hear of a change from one, and not find it in the other yet.
	if forbidden == nil {
		running, err := r.awaitUnselected(ctx, k, namespace)
		if !apierrors.IsForbidden(err) {
			return running, err
		}
		forbidden = err
		if running, _, err := r.awaitSelected(ctx, k, read, namespace); running != nil || err != nil {
			return running, err
		}
	}
	return r.awaitNamed(ctx, k, read, namespace, forbidden)
}

// readySelected returns the informer of a scope with selectors that answers a read at once, else
// nil.
func (r *reader) readySelected(k *kind, read *requirements) *informer {
	r.entries.mu.Lock()
	defer r.entries.mu.Unlock()
	for _, of := range k.answeringLocked(r.user, read) {
		if running := of.serving(); running != nil {
			r.markSelectedReadLocked(of)
			return running
		}
	}
	return nil
}

// markSelectedReadLocked records that a read uses a scope with selectors. If the cache's scopes do
// not end when idle, the scope of a watch ends with its holders: reads alone would keep it for
// ever.
func (r *reader) markSelectedReadLocked(of *use) {
	if of.holds == 0 || r.env.options.IdleTimeout > 0 {
		of.markRead()
	}
}

// awaitSelected waits for the informer of a scope with selectors that answers a read. awaitSelected
// returns no informer and no error if there is no such scope, or if none of them may be read, or
// works. forbidden is why, if one may not be read that is a part of the namespace: one of all
// namespaces is not.
func (r *reader) awaitSelected(ctx context.Context, k *kind, read *requirements, namespace string) (running *informer,
	forbidden, err error) {
	if running := r.readySelected(k, read); running != nil {
		return running, nil, nil
	}
	r.entries.mu.Lock()
	answering := k.answeringLocked(r.user, read)
	for _, of := range answering {
		r.markSelectedReadLocked(of)
	}
	r.entries.mu.Unlock()
	for _, of := range answering {
		e := of.entry
		if e.fails() {
			continue
		}
		switch running, err := of.await(ctx); {
		case apierrors.IsForbidden(err) && (namespace == metav1.NamespaceAll || e.requires.namespace == namespace):
			forbidden = err
		case apierrors.IsForbidden(err):
		case !errors.Is(err, ErrReleased):
			return running, nil, err
		}
	}
	return nil, forbidden, nil
}

// awaitUnselected waits for the informer without selectors that serves a namespace, and creates its
// scope if necessary. The informer is that of the namespace if its scope exists, else that of all
// namespaces. With PerNamespace, or if the latter is Forbidden, awaitUnselected creates the scope
// of the namespace.
func (r *reader) awaitUnselected(ctx context.Context, k *kind, namespace string) (*informer, error) {
	if namespace != metav1.NamespaceAll && len(k.config.namespaces) == 0 {
		if r.exact(k, namespace) == nil {
			running, err := r.awaitAllNamespaces(ctx, k)
			if running != nil || err != nil {
				return running, err
			}
		}
	}
	return r.awaitEntry(ctx, k, Scope{Namespace: namespace})
}

// awaitAllNamespaces waits for the informer of all namespaces. awaitAllNamespaces returns nil
// without an error if that informer is Forbidden, or if PerNamespace is set and there is none.
func (r *reader) awaitAllNamespaces(ctx context.Context, k *kind) (*informer, error) {
	if r.everywhere(k) == nil && r.env.options.PerNamespace {
		return nil, nil
	}
	running, err := r.awaitEntry(ctx, k, Scope{})
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return running, err
}

// awaitEntry waits for the informer of a scope that a read of the cache uses, and creates the scope
// if necessary.
func (r *reader) awaitEntry(ctx context.Context, k *kind, scope Scope) (*informer, error) {
	for {
		of, running, err := r.awaitOnce(ctx, k, scope, false)
		if !endedJustBefore(of, err) {
			return running, err
		}
	}
}

// endedJustBefore reports whether a scope ended, because no read used it, just before a read did.
func endedJustBefore(of *use, err error) bool {
	return errors.Is(err, ErrReleased) && of != nil && of.endedIdle
}

// awaitOnce is awaitEntry for a scope that does not end in between. named says whether the scope
// would be created for one name.
func (r *reader) awaitOnce(ctx context.Context, k *kind, scope Scope, named bool) (*use, *informer, error) {
	r.entries.mu.Lock()
	if r.entries.ended || r.user.hasEnded() {
		r.entries.mu.Unlock()
		return nil, nil, r.user.stopError()
	}
	if r.env.informers.ReaderFailOnMissingInformer {
		if e := r.entries.findLocked(k, scope.key()); e == nil || r.user.use(e) == nil {
			r.entries.mu.Unlock()
			return nil, nil, &cache.ErrResourceNotCached{GVK: k.gvk}
		}
	}
	of := r.entries.useLocked(r.user, k, scope, named)
	if !named || of.entry.named { // a read alone does not keep a scope with selectors that others began
		of.markRead()
	}
	of.waiting++
	r.entries.mu.Unlock()
	running, err := of.await(ctx)
	r.entries.mu.Lock()
	var ended *use
	if of.waiting--; of.entry.idleTimeout() == 0 {
		ended = r.entries.endUnusedLocked(of) // its holder may have released it meanwhile
	}
	r.entries.mu.Unlock()
	ended.finish()
	return of, running, err
}

// namespaced reports whether a kind is namespaced.
func (r *reader) namespaced(ctx context.Context, k *kind) (bool, error) {
	mapping := k.mapping.Load()
	if mapping == nil {
		var err error
		if mapping, err = r.env.discovery.mapping(ctx, k.gvk); err != nil && r.user.check() != nil {
			return false, r.user.check()
		} else if err != nil && ctx.Err() != nil {
			return false,
				&NotSyncedError{GVK: k.gvk, State: StateSyncing, Since: time.Now(), Last: err, Cause: context.Cause(ctx)}
		}
		if err != nil {
			return false, err
		}
		k.mapping.Store(mapping)
	}
	return mapping.Scope.Name() == meta.RESTScopeNameNamespace, nil
}
