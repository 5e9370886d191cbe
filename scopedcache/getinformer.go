package scopedcache

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GetInformer returns an informer that outlives the informers behind it. Event handlers stay when
// access is revoked or the kind is removed, and receive events again when it is back. If the cache
// runs, GetInformer waits until the result of a read is known, unless BlockUntilSynced is false.
func (s *scopedCache) GetInformer(ctx context.Context, object client.Object,
	opts ...cache.InformerGetOption) (cache.Informer, error) {
	kind, err := s.env.kinds.kindOf(object)
	if err != nil {
		return nil, err
	}
	return s.informer(ctx, kind, opts...)
}

// GetInformerForKind is GetInformer for typed objects. The scheme must know the kind.
func (s *scopedCache) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind,
	opts ...cache.InformerGetOption) (cache.Informer, error) {
	object, err := s.env.kinds.scheme.New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	typed, ok := object.(client.Object)
	if !ok {
		return nil, errors.Errorf("%T is no client.Object", object)
	}
	if representationOf(typed) != RepresentationTyped {
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
		namespaced, err := s.reader.namespaced(ctx, k)
		// Options for namespaces mean that the kind is namespaced, even if it is not served yet.
		unserved := meta.IsNoMatchError(err)
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
	s.entries.mu.Lock()
	if s.entries.ended || s.user.hasEnded() {
		s.entries.mu.Unlock()
		return nil, s.user.stopError()
	}
	result := durableInformer{}
	for _, namespace := range namespaces {
		of := s.entries.useLocked(s.user, k, Scope{Namespace: namespace}, false)
		of.pinned = true
		s.entries.holdersChangedLocked(of)
		result.uses = append(result.uses, of)
	}
	s.entries.mu.Unlock()
	if options.BlockUntilSynced == nil || *options.BlockUntilSynced {
		if !s.user.hasBegun() {
			return result, nil // as in controller-runtime, there is nothing to wait for before Start
		}
		for _, of := range result.uses {
			if err := of.awaitSettled(ctx); err != nil {
				return nil, err
			}
		}
	}
	return result, nil
}

// RemoveInformer stops the informers of the object's kind and representation that reads or
// GetInformer started, in all namespaces. Informers with a Handle continue until the handle is
// released. Callers that wait for a stopped informer receive ErrReleased.
func (s *scopedCache) RemoveInformer(_ context.Context, object client.Object) error {
	k, err := s.env.kinds.kindOf(object)
	if err != nil {
		return err
	}
	var ended []*use
	s.entries.mu.Lock()
	for _, of := range s.user.allUses() {
		if of.entry.selection.kind == k {
			of.pinned = false
			s.entries.holdersChangedLocked(of)
			of.recent.Store(false)
			if of.holds == 0 {
				ended = append(ended, s.entries.endUseLocked(of)) // even if readers wait for it
			}
		}
	}
	s.entries.mu.Unlock()
	for _, of := range ended {
		of.finish()
	}
	return nil
}

// WaitForCacheSync waits until the cache runs and, for every scope, the result of a read is known:
// the objects, Forbidden, or not served. So an operator without access to some of its kinds starts
// and stays up. WaitForCacheSync returns false if ctx is done or the cache stops first.
func (s *scopedCache) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-s.user.started.Done():
	case <-ctx.Done():
		return false
	}
	for _, of := range s.user.allUses() {
		if err := of.awaitSettled(ctx); err != nil && !errors.Is(err, ErrReleased) {
			return false
		}
	}
	return true
}
