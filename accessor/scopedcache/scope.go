package scopedcache

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// representation is how an informer keeps objects.
type representation int

const (
	asTyped representation = iota
	asUnstructured
	asMetadata
)

func (r representation) String() string {
	return [...]string{"typed", "unstructured", "metadata"}[r]
}

func representationOf(object runtime.Object) representation {
	switch object.(type) {
	case runtime.Unstructured:
		return asUnstructured
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return asMetadata
	default:
		return asTyped
	}
}

// scope is one informer in a controller-runtime cache of its own.
type scope struct {
	key      key
	cache    cache.Cache
	informer cache.Informer
	stop     context.CancelFunc // set under scoped.mu when it is started

	mu      sync.Mutex
	denied  error         // guarded by mu: the last Forbidden since the informer last worked
	settled chan struct{} // guarded by mu: closed and replaced when denied changes
}

func (s *scoped) newScope(k key, example client.Object) (*scope, error) {
	made := &scope{key: k, settled: make(chan struct{})}
	options := s.options
	options.ByObject = nil
	if own, ok := s.byObject[k.gvk]; ok {
		if k.namespace != "" {
			own.settings.Field = inNamespace(k.namespace, own.settings.Field)
		}
		options.ByObject = map[client.Object]cache.ByObject{own.object: own.settings}
	} else if k.namespace != "" {
		// controller-runtime turns this selector into the path of the namespace, so a Role suffices.
		options.DefaultFieldSelector = inNamespace(k.namespace, options.DefaultFieldSelector)
	}
	options.NewInformer = func(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := toolscache.NewSharedIndexInformer(drained(lw), object, resync, indexers)
		// It fails only on an informer that runs already.
		_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
			made.watchFailed(err)
			if apierrors.IsForbidden(err) {
				// Readers are told, and an identity without a right is nothing unusual: no error in the host's log.
				klog.FromContext(ctx).V(1).Info("The identity may not list or watch", "kind", k.gvk, "namespace", k.namespace, "error", err.Error())
				return
			}
			if handler := s.options.DefaultWatchErrorHandler; handler != nil {
				handler(ctx, r, err)
				return
			}
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
		})
		return informer
	}
	options.DefaultWatchErrorHandler = nil // ours calls it

	var err error
	if made.cache, err = cache.New(s.config, options); err != nil {
		return nil, errors.Wrapf(err, "cache of %s", k.gvk)
	}
	// This does not block: the mapping was just looked up and the cache does not run.
	if made.informer, err = made.cache.GetInformer(context.Background(), example, cache.BlockUntilSynced(false)); err != nil {
		return nil, errors.Wrapf(err, "informer of %s", k.gvk)
	}
	return made, nil
}

// addIndexes adds those that are of the scope's representation.
func (s *scope) addIndexes(indexes []index) error {
	for _, index := range indexes {
		if representationOf(index.object) != s.key.representation {
			continue
		}
		if err := s.cache.IndexField(context.Background(), index.object, index.field, index.extract); err != nil {
			return errors.Wrapf(err, "index %q of %s", index.field, s.key.gvk)
		}
	}
	return nil
}

func inNamespace(namespace string, selector fields.Selector) fields.Selector {
	restricted := fields.OneTermEqualSelector("metadata.namespace", namespace)
	if selector == nil || selector.Empty() {
		return restricted
	}
	return fields.AndSelectors(restricted, selector)
}

// watchFailed notes why the informer does not work. Errors that pass by themselves are left to the informer.
func (s *scope) watchFailed(err error) {
	if !apierrors.IsForbidden(err) {
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = err
	close(s.settled)
	s.settled = make(chan struct{})
}

func (s *scope) synced() bool { return s.informer.HasSynced() }

// wait returns nil once the informer has synced, and the reason as soon as it is known that it may not.
func (s *scope) wait(ctx context.Context) error {
	synced := s.informer.HasSyncedChecker().Done()
	for {
		select {
		case <-synced:
			return nil
		default:
		}
		s.mu.Lock()
		denied, settled := s.denied, s.settled
		s.mu.Unlock()
		if denied != nil {
			return denied
		}
		select {
		case <-synced:
			return nil
		case <-settled:
		case <-ctx.Done():
			return errors.Wrapf(context.Cause(ctx), "waiting for the informer of %s", s.key.gvk)
		}
	}
}
