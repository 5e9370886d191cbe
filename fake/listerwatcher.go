package fake

import (
	"context"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// listerWatcher lists and watches through a client. List starts the watch before the list, so that
// no change is lost in between. An object that appears in both becomes an update.
type listerWatcher struct {
	client client.Client
	list   client.ObjectList
	scope  scopedcache.Scope
	onList func() // called after every successful list

	mu        sync.Mutex
	nextWatch watch.Interface // guarded by mu; started by the last List, nil once Watch has returned it
}

// IsWatchListSemanticsUnSupported makes client-go use List.
func (*listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func (l *listerWatcher) List(metav1.ListOptions) (runtime.Object, error) {
	stream, err := l.watch()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	if l.nextWatch != nil {
		l.nextWatch.Stop()
	}
	l.nextWatch = stream
	l.mu.Unlock()
	list := l.list.DeepCopyObject().(client.ObjectList)
	if err := l.client.List(context.Background(), list, client.InNamespace(l.scope.Namespace)); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.nextWatch == stream { // no Watch follows a failed List
			l.nextWatch = nil
			stream.Stop()
		}
		return nil, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	items = slices.DeleteFunc(items, func(item runtime.Object) bool { return !l.selects(item) })
	if err := meta.SetList(list, items); err != nil {
		return nil, errors.WithStack(err)
	}
	l.onList()
	return list, nil
}

func (l *listerWatcher) Watch(metav1.ListOptions) (watch.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream := l.nextWatch; stream != nil {
		l.nextWatch = nil
		return stream, nil
	}
	return l.watch()
}

func (l *listerWatcher) watch() (watch.Interface, error) {
	watching, ok := l.client.(client.WithWatch)
	if !ok {
		return watch.NewFake(), nil // a watch without events
	}
	stream, err := watching.Watch(context.Background(), l.list.DeepCopyObject().(client.ObjectList),
		client.InNamespace(l.scope.Namespace))
	if err != nil || !l.selective() {
		return stream, err
	}
	return drainedWatch{watch.Filter(stream, func(event watch.Event) (watch.Event, bool) {
		if event.Type != watch.Error && !l.selects(event.Object) {
			event.Type = watch.Deleted // as an API server does for deselected objects; informers ignore unknown ones
		}
		return event, true
	})}, nil
}

// drainedWatch is a watch whose Stop receives the remaining events. The goroutine of watch.Filter
// would otherwise block for ever on an event that no one receives.
type drainedWatch struct{ watch.Interface }

// Stop stops the watch. Its channel is closed when the remaining events have been received.
func (d drainedWatch) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
		}
	}()
}

func (l *listerWatcher) selective() bool {
	return l.scope.LabelSelector != nil || l.scope.FieldSelector != nil
}

// selects reports whether the selectors of the scope match. The only supported fields are name and
// namespace.
func (l *listerWatcher) selects(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return true
	}
	return (l.scope.LabelSelector == nil || l.scope.LabelSelector.Matches(labels.Set(accessor.GetLabels()))) &&
		(l.scope.FieldSelector == nil ||
			l.scope.FieldSelector.Matches(fields.Set{"metadata.name": accessor.GetName(),
				"metadata.namespace": accessor.GetNamespace()}))
}

// convert returns an object in the representation of the list's objects. A conversion is necessary
// because the fake client's watch delivers typed objects for every representation.
func convert(object any, list client.ObjectList, scheme *runtime.Scheme) (any, error) {
	typed, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	gvk, err := apiutil.GVKForObject(typed, scheme)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	switch list.(type) {
	case *unstructured.UnstructuredList:
		if _, ok := object.(*unstructured.Unstructured); ok {
			return object, nil
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, errors.WithStack(err)
		}
		converted := &unstructured.Unstructured{Object: content}
		converted.SetGroupVersionKind(gvk)
		return converted, nil
	case *metav1.PartialObjectMetadataList:
		if _, ok := object.(*metav1.PartialObjectMetadata); ok {
			return object, nil
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, errors.WithStack(err)
		}
		converted := &metav1.PartialObjectMetadata{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, converted); err != nil {
			return nil, errors.WithStack(err)
		}
		converted.SetGroupVersionKind(gvk)
		return converted, nil
	}
	return object, nil
}
