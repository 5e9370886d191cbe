package scopedcache

import (
	"context"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reader serves reads from the informers of scopes.
type reader struct {
	env     *environment
	entries *entrySet
	user    *user // who reads
}

// Get reads an object from the informer of its namespace, or of all namespaces.
func (r *reader) Get(ctx context.Context, name client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	kind, err := r.env.kinds.kindOf(object)
	if err != nil {
		return err
	}
	if running := kind.ready(name.Namespace); running != nil && r.user.runs() {
		return running.Get(ctx, name, object, opts...)
	}
	return r.getWaiting(ctx, kind, name, object, opts...)
}

// getWaiting is Get for the case that no informer can serve the read yet.
func (r *reader) getWaiting(ctx context.Context, kind *kind, name client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	if err := r.user.check(); err != nil {
		return err
	}
	ctx, cancel := r.user.withReadTimeout(ctx)
	defer cancel()
	if len(kind.config.namespaces) > 0 {
		configured, err := r.configuredNamespace(ctx, kind, name.Namespace)
		if err != nil {
			return err
		}
		return r.getFrom(ctx, kind, configured, name, object, opts...)
	}
	return r.getFrom(ctx, kind, name.Namespace, name, object, opts...)
}

func (r *reader) getFrom(ctx context.Context, kind *kind, namespace string, name client.ObjectKey,
	object client.Object, opts ...client.GetOption) error {
	running, err := r.awaitInformer(ctx, kind, namespace)
	if err != nil {
		return err
	}
	return running.Get(ctx, name, object, opts...)
}

// List reads from the informer of the namespace in opts, or of all namespaces.
func (r *reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	kind, err := r.env.kinds.kindOf(list)
	if err != nil {
		return err
	}
	var options client.ListOptions
	options.ApplyOptions(opts)
	if running := kind.ready(options.Namespace); running != nil && len(kind.config.namespaces) == 0 && r.user.runs() {
		return running.List(ctx, list, opts...)
	}
	if err := r.user.check(); err != nil {
		return err
	}
	ctx, cancel := r.user.withReadTimeout(ctx)
	defer cancel()
	namespace := options.Namespace
	if len(kind.config.namespaces) > 0 {
		namespaced, err := r.namespaced(ctx, kind)
		if err != nil {
			return err
		}
		if namespaced && namespace == metav1.NamespaceAll {
			return r.listConfigured(ctx, kind, list, options)
		}
		if namespace, err = r.configuredNamespace(ctx, kind, namespace); err != nil {
			return err
		}
	}
	running, err := r.awaitInformer(ctx, kind, namespace)
	if err != nil {
		return err
	}
	return running.List(ctx, list, opts...)
}

// ready returns the informer that serves a namespace if it can serve reads at once, else nil. The
// informer is that of the namespace or, if there is no such scope, of all namespaces.
func (k *kind) ready(namespace string) *informer {
	if e := k.only.Load(); e != nil {
		e.markRead()
		return e.current.Load()
	}
	existing, ok := k.entries.Load(namespace)
	if !ok && len(k.config.namespaces) == 0 {
		existing, ok = k.entries.Load(metav1.NamespaceAll)
	}
	if !ok {
		return nil
	}
	e := existing.(*entry)
	e.markRead()
	return e.current.Load()
}

// markRead records that a read uses the scope.
func (s *entry) markRead() {
	if !s.recent.Load() { // usually set already; then avoid the write
		s.recent.Store(true)
	}
}

// awaitInformer waits for the informer that serves a namespace, and creates its scope if necessary.
// The informer is that of the namespace if its scope exists, else that of all namespaces.
// With PerNamespace, or if the latter is Forbidden, awaitInformer creates the scope of the
// namespace.
func (r *reader) awaitInformer(ctx context.Context, k *kind, namespace string) (*informer, error) {
	if namespace != metav1.NamespaceAll && len(k.config.namespaces) == 0 {
		if _, exact := k.entries.Load(namespace); !exact {
			running, err := r.awaitAllNamespaces(ctx, k)
			if running != nil || err != nil {
				return running, err
			}
		}
	}
	return r.awaitEntry(ctx, k, namespace)
}

// awaitAllNamespaces waits for the informer of all namespaces. awaitAllNamespaces returns nil
// without an error if that informer is Forbidden, or if PerNamespace is set and there is none.
func (r *reader) awaitAllNamespaces(ctx context.Context, k *kind) (*informer, error) {
	if _, exists := k.entries.Load(metav1.NamespaceAll); !exists && r.env.options.PerNamespace {
		return nil, nil
	}
	running, err := r.awaitEntry(ctx, k, metav1.NamespaceAll)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return running, err
}

// awaitEntry waits for the informer of a scope that a read of the cache uses, and creates the scope
// if necessary.
func (r *reader) awaitEntry(ctx context.Context, k *kind, namespace string) (*informer, error) {
	for {
		r.entries.mu.Lock()
		if r.entries.ended || r.user.hasEnded() {
			r.entries.mu.Unlock()
			return nil, r.user.stopError()
		}
		if _, exists := k.entries.Load(namespace); !exists && r.env.informers.ReaderFailOnMissingInformer {
			r.entries.mu.Unlock()
			return nil, &cache.ErrResourceNotCached{GVK: k.gvk}
		}
		e := r.entries.entryLocked(k, Scope{Namespace: namespace})
		e.markRead()
		e.waiting++
		r.entries.mu.Unlock()
		running, err := e.await(ctx, r.user)
		r.entries.mu.Lock()
		e.waiting--
		r.entries.mu.Unlock()
		if errors.Is(err, ErrReleased) && e.endedIdle {
			continue // the scope ended as idle just before this read
		}
		return running, err
	}
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

// configuredNamespace returns which of the namespaces in the cache's options serves a namespace. ""
// is the one of all namespaces. configuredNamespace returns an error if none serves it.
func (r *reader) configuredNamespace(ctx context.Context, k *kind, namespace string) (string, error) {
	if _, ok := k.config.namespaces[namespace]; ok && namespace != metav1.NamespaceAll {
		return namespace, nil
	}
	if _, ok := k.config.namespaces[metav1.NamespaceAll]; ok {
		return metav1.NamespaceAll, nil
	}
	namespaced, err := r.namespaced(ctx, k)
	if err != nil {
		return "", err
	}
	if !namespaced {
		return metav1.NamespaceAll, nil
	}
	return "",
		errors.Errorf(
			"the cache's options do not name the namespace %q for %s: unknown namespace for the cache; add it to "+
				"DefaultNamespaces or ByObject.Namespaces", namespace, k.gvk)
}

// listConfigured lists all namespaces in the cache's options, one after the other, until the limit
// is reached.
func (r *reader) listConfigured(ctx context.Context, k *kind, list client.ObjectList,
	options client.ListOptions) error {
	if options.Continue != "" {
		return errors.New("continue list option is not supported by the cache")
	}
	limit := options.Limit
	var all []runtime.Object
	for namespace := range k.config.namespaces {
		running, err := r.awaitInformer(ctx, k, namespace)
		if err != nil {
			return err
		}
		part := list.DeepCopyObject().(client.ObjectList)
		if err := running.List(ctx, part, &options); err != nil {
			return err
		}
		items, err := meta.ExtractList(part)
		if err != nil {
			return errors.WithStack(err)
		}
		all = append(all, items...)
		if limit > 0 {
			if options.Limit -= int64(len(items)); options.Limit <= 0 {
				break
			}
		}
	}
	if err := meta.SetList(list, all); err != nil {
		return errors.WithStack(err)
	}
	list.SetContinue("continue-not-supported") // as controller-runtime's cache does
	return nil
}
