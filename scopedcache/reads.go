package scopedcache

import (
	"context"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Get reads an object from the informer of its namespace, or of all namespaces.
func (s *scopedCache) Get(ctx context.Context, name client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	kind, err := s.kindOf(object)
	if err != nil {
		return err
	}
	if running := kind.ready(name.Namespace); running != nil && s.runs() {
		return running.cache.Get(ctx, name, object, opts...)
	}
	return s.getWaiting(ctx, kind, name, object, opts...)
}

// getWaiting is Get if there is no informer yet that could be read.
func (s *scopedCache) getWaiting(ctx context.Context, kind *kind, name client.ObjectKey, object client.Object,
	opts ...client.GetOption) error {
	if err := s.check(); err != nil {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if len(kind.config.namespaces) > 0 {
		where, err := s.configuredNamespace(ctx, kind, name.Namespace)
		if err != nil {
			return err
		}
		return s.getFrom(ctx, kind, where, name, object, opts...)
	}
	return s.getFrom(ctx, kind, name.Namespace, name, object, opts...)
}

func (s *scopedCache) getFrom(ctx context.Context, kind *kind, namespace string, name client.ObjectKey,
	object client.Object, opts ...client.GetOption) error {
	running, err := s.reading(ctx, kind, namespace)
	if err != nil {
		return err
	}
	return running.cache.Get(ctx, name, object, opts...)
}

// List reads from the informer of the namespace that opts name, or of all.
func (s *scopedCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	kind, err := s.kindOf(list)
	if err != nil {
		return err
	}
	var options client.ListOptions
	options.ApplyOptions(opts)
	if running := kind.ready(options.Namespace); running != nil && len(kind.config.namespaces) == 0 && s.runs() {
		return running.cache.List(ctx, list, opts...)
	}
	if err := s.check(); err != nil {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	namespace := options.Namespace
	if len(kind.config.namespaces) > 0 {
		namespaced, err := s.namespaced(ctx, kind)
		if err != nil {
			return err
		}
		if namespaced && namespace == metav1.NamespaceAll {
			return s.listConfigured(ctx, kind, list, options)
		}
		if namespace, err = s.configuredNamespace(ctx, kind, namespace); err != nil {
			return err
		}
	}
	running, err := s.reading(ctx, kind, namespace)
	if err != nil {
		return err
	}
	return running.cache.List(ctx, list, opts...)
}

// runs tells whether the cache has not stopped since it was started, as it was if there is an
// informer.
func (s *scopedCache) runs() bool { return s.life.Err() == nil }

// ready returns the informer that serves a namespace if reads can be served from it at once: that
// of the namespace, or, if there is no such scope, that of all.
func (k *kind) ready(namespace string) *informer {
	if of := k.only.Load(); of != nil {
		of.isRead()
		return of.current.Load()
	}
	existing, ok := k.scopes.Load(namespace)
	if !ok && len(k.config.namespaces) == 0 {
		existing, ok = k.scopes.Load(metav1.NamespaceAll)
	}
	if !ok {
		return nil
	}
	of := existing.(*scope)
	of.isRead()
	return of.current.Load()
}

// isRead notes that somebody reads the scope.
func (s *scope) isRead() {
	if !s.recent.Load() { // most often it is noted already, and then nothing is written
		s.recent.Store(true)
	}
}

// reading waits for the informer that serves a namespace, and makes its scope if need be: that of
// the exact namespace if it is there, else that of all namespaces, unless it is not wanted or may
// not be had.
func (s *scopedCache) reading(ctx context.Context, k *kind, namespace string) (*informer, error) {
	if namespace != metav1.NamespaceAll && len(k.config.namespaces) == 0 {
		if _, exact := k.scopes.Load(namespace); !exact {
			running, err := s.everywhere(ctx, k)
			if running != nil || err != nil {
				return running, err
			}
		}
	}
	return s.awaitScope(ctx, k, namespace)
}

// everywhere waits for the informer of all namespaces, and returns nothing if there is none or it
// may not be had.
func (s *scopedCache) everywhere(ctx context.Context, k *kind) (*informer, error) {
	if _, exists := k.scopes.Load(metav1.NamespaceAll); !exists && s.own.PerNamespace {
		return nil, nil
	}
	running, err := s.awaitScope(ctx, k, metav1.NamespaceAll)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return running, err
}

// awaitScope waits for the informer of a scope that the cache API reads, made if need be.
func (s *scopedCache) awaitScope(ctx context.Context, k *kind, namespace string) (*informer, error) {
	for {
		s.mu.Lock()
		if s.ended {
			s.mu.Unlock()
			return nil, s.stopError()
		}
		if _, exists := k.scopes.Load(namespace); !exists && s.options.ReaderFailOnMissingInformer {
			s.mu.Unlock()
			return nil, &cache.ErrResourceNotCached{GVK: k.gvk}
		}
		of := s.scopeLocked(k, Scope{Namespace: namespace})
		of.isRead()
		of.waiting++
		s.mu.Unlock()
		running, err := of.await(ctx)
		s.mu.Lock()
		of.waiting--
		s.mu.Unlock()
		if errors.Is(err, ErrReleased) && of.idle {
			continue // it went just before it was read
		}
		return running, err
	}
}

// awaitReading waits for the informer of a scope that is read through a handle.
func (s *scopedCache) awaitReading(ctx context.Context, of *scope) (*informer, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if running := of.current.Load(); running != nil {
		return running, nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return of.await(ctx)
}

// bounded returns a context that ends with the caller's, after ReadTimeout, or when the cache has
// stopped.
func (s *scopedCache) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelTimeout := context.WithTimeoutCause(ctx, s.own.ReadTimeout,
		errors.WithMessagef(context.DeadlineExceeded, "a cached read waits for %s at most", s.own.ReadTimeout))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(s.stopError()) })
	return ctx, func() {
		stop()
		cancel(nil)
		cancelTimeout()
	}
}

// namespaced tells whether a kind has namespaces.
func (s *scopedCache) namespaced(ctx context.Context, k *kind) (bool, error) {
	mapping := k.mapping.Load()
	if mapping == nil {
		var err error
		if mapping, err = s.mapping(ctx, k.gvk); err != nil && s.check() != nil {
			return false, s.check()
		} else if err != nil && ctx.Err() != nil {
			return false, &NotSyncedError{GVK: k.gvk, State: Syncing, Since: time.Now(), Last: err, Cause: context.Cause(ctx)}
		}
		if err != nil {
			return false, err
		}
		k.mapping.Store(mapping)
	}
	return mapping.Scope.Name() == meta.RESTScopeNameNamespace, nil
}

// configuredNamespace is which of the namespaces that the cache's options name serves a namespace:
// "" for all others. It is an error if none does.
func (s *scopedCache) configuredNamespace(ctx context.Context, k *kind, namespace string) (string, error) {
	if _, ok := k.config.namespaces[namespace]; ok && namespace != metav1.NamespaceAll {
		return namespace, nil
	}
	if _, ok := k.config.namespaces[metav1.NamespaceAll]; ok {
		return metav1.NamespaceAll, nil
	}
	namespaced, err := s.namespaced(ctx, k)
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

// listConfigured lists from all namespaces that the cache's options name, one after the other,
// until the limit is reached.
func (s *scopedCache) listConfigured(ctx context.Context, k *kind, list client.ObjectList,
	options client.ListOptions) error {
	if options.Continue != "" {
		return errors.New("continue list option is not supported by the cache")
	}
	limit := options.Limit
	var all []runtime.Object
	for namespace := range k.config.namespaces {
		running, err := s.reading(ctx, k, namespace)
		if err != nil {
			return err
		}
		part := list.DeepCopyObject().(client.ObjectList)
		if err := running.cache.List(ctx, part, &options); err != nil {
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
	list.SetContinue("continue-not-supported") // as controller-runtime's cache says
	return nil
}

// GetInformer returns an informer that outlives the informers behind it: handlers stay when a right
// or the kind is lost, and are fed again when it is back. Unless told otherwise it waits until it
// is known what a read gets, once the cache runs.
func (s *scopedCache) GetInformer(ctx context.Context, object client.Object,
	opts ...cache.InformerGetOption) (cache.Informer, error) {
	kind, err := s.kindOf(object)
	if err != nil {
		return nil, err
	}
	return s.informer(ctx, kind, opts...)
}

// GetInformerForKind is GetInformer for typed objects. The scheme must know the kind.
func (s *scopedCache) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind,
	opts ...cache.InformerGetOption) (cache.Informer, error) {
	object, err := s.options.Scheme.New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	typed, ok := object.(client.Object)
	if !ok {
		return nil, errors.Errorf("%T is no client.Object", object)
	}
	if representationOf(typed) != Typed {
		typed.GetObjectKind().SetGroupVersionKind(gvk)
	}
	return s.GetInformer(ctx, typed, opts...)
}

func (s *scopedCache) informer(ctx context.Context, k *kind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	var options cache.InformerGetOptions
	for _, opt := range opts {
		opt(&options)
	}
	namespaces := []string{metav1.NamespaceAll}
	if len(k.config.namespaces) > 0 {
		namespaced, err := s.namespaced(ctx, k)
		unserved := meta.IsNoMatchError(err) // for now, and then it has namespaces, or why would there be options for some?
		if err != nil && !unserved {
			return nil, err
		}
		if namespaced || unserved {
			namespaces = namespaces[:0]
			for namespace := range k.config.namespaces {
				namespaces = append(namespaces, namespace)
			}
		}
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, s.stopError()
	}
	var made durableInformer
	for _, namespace := range namespaces {
		of := s.scopeLocked(k, Scope{Namespace: namespace})
		of.pinned = true
		made.scopes = append(made.scopes, of)
	}
	s.mu.Unlock()
	if options.BlockUntilSynced == nil || *options.BlockUntilSynced {
		select {
		case <-s.started:
		default:
			return made, nil // like controller-runtime: before Start there is nothing to wait for
		}
		for _, of := range made.scopes {
			if err := of.awaitSettled(ctx); err != nil {
				return nil, err
			}
		}
	}
	return made, nil
}

// RemoveInformer stops the informers of the object's kind and representation that are read or were
// got, in whatever namespace. Those that somebody holds go on until they are released. Whoever
// waits for one gets ErrReleased.
func (s *scopedCache) RemoveInformer(_ context.Context, object client.Object) error {
	k, err := s.kindOf(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for of := range s.scopes {
		if of.kind == k {
			of.pinned = false
			of.recent.Store(false)
			if len(of.handles) == 0 {
				s.dropLocked(of) // whoever waits for it
			}
		}
	}
	return nil
}

// WaitForCacheSync waits until the cache runs and it is known of every scope what a read gets: the
// objects, Forbidden, or that there is no such kind. So an operator starts, and stays up, without
// rights on some of its kinds.
func (s *scopedCache) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-s.started:
	case <-ctx.Done():
		return false
	}
	s.mu.Lock()
	scopes := make([]*scope, 0, len(s.scopes))
	for of := range s.scopes {
		scopes = append(scopes, of)
	}
	s.mu.Unlock()
	for _, of := range scopes {
		if err := of.awaitSettled(ctx); err != nil && !errors.Is(err, ErrReleased) {
			return false
		}
	}
	return true
}

// rightsMayHaveChanged has scopes ask again: those of a namespace, or all if it is empty.
func (s *scopedCache) rightsMayHaveChanged(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of := range s.scopes {
		if namespace == "" || of.concerns() == namespace {
			of.mail.accessMayHaveChanged()
		}
	}
}

// concerns is the namespace whose rights the scope needs if the kind has namespaces, empty for all.
func (s *scope) concerns() string {
	config := s.kind.config.everywhere
	config.FieldSelector = andFields(config.FieldSelector, s.where.FieldSelector)
	return s.namespace(config)
}
