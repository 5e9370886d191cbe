package scopedcache

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readsEveryConfigured reports whether a List is one of all namespaces in the cache's options.
func (r *reader) readsEveryConfigured(ctx context.Context, k *kind, namespace string) (bool, error) {
	if len(k.config.namespaces) == 0 || namespace != metav1.NamespaceAll {
		return false, nil
	}
	return r.namespaced(ctx, k)
}

// excludes reports whether the cache's options name namespaces for the kind, and not this one. A
// watch may be there all the same.
func (k *kind) excludes(namespace string) bool {
	if len(k.config.namespaces) == 0 || namespace == metav1.NamespaceAll {
		return false
	}
	_, named := k.config.namespaces[namespace]
	_, others := k.config.namespaces[metav1.NamespaceAll]
	return !named && !others
}

// checkNamespace returns an error if the user may not read any more, or if the cache's options
// exclude the namespace.
func (r *reader) checkNamespace(ctx context.Context, k *kind, namespace string) error {
	if err := r.user.check(); err != nil || !k.excludes(namespace) {
		return err
	}
	ctx, cancel := r.user.withReadTimeout(ctx)
	defer cancel()
	_, err := r.configuredNamespace(ctx, k, namespace)
	return err
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
				"ByObject.Namespaces or DefaultNamespaces", namespace, k.gvk)
}

// listConfigured lists all namespaces in the cache's options, one after the other, until the limit
// is reached.
func (r *reader) listConfigured(ctx context.Context, k *kind, list client.ObjectList,
	options client.ListOptions, own bool) error {
	if options.Continue != "" {
		return errors.New("continue list option is not supported by the cache")
	}
	namespaces := slices.Sorted(maps.Keys(k.config.namespaces))
	if err := r.awaitAll(ctx, k, namespaces); err != nil {
		return err
	}
	var parts []listPart
	for _, namespace := range namespaces {
		choose := func(ctx context.Context) (*informer, error) { return r.awaitUnselected(ctx, k, namespace) }
		parts = append(parts, func(list client.ObjectList, options *client.ListOptions) error {
			return r.listFrom(ctx, k, choose, list, options, own)
		})
	}
	return listAll(parts, list, options)
}

// awaitAll waits for the informers of namespaces, none of which waits for another.
func (r *reader) awaitAll(ctx context.Context, k *kind, namespaces []string) error {
	errs := make([]error, len(namespaces))
	var waits sync.WaitGroup
	for i, namespace := range namespaces {
		if r.ready(k, namespace) == nil {
			waits.Go(func() { _, errs[i] = r.awaitUnselected(ctx, k, namespace) })
		}
	}
	waits.Wait()
	for _, err := range errs { // not errors.Join: a caller asks whether the first is Forbidden
		if err != nil {
			return err
		}
	}
	return nil
}

// listPart lists a part of the objects.
type listPart func(client.ObjectList, *client.ListOptions) error

// listAll lists one part after the other, until the limit is reached.
func listAll(parts []listPart, list client.ObjectList, options client.ListOptions) error {
	limit := options.Limit
	var all []runtime.Object
	for _, listPart := range parts {
		part := list.DeepCopyObject().(client.ObjectList)
		if err := listPart(part, &options); err != nil {
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
