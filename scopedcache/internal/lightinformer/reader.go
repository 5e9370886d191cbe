package lightinformer

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reader reads the store of an informer, as the readers of controller-runtime's cache do.
type Reader struct {
	Indexer    toolscache.Indexer
	GVK        schema.GroupVersionKind
	Namespaced bool
	// Namespace is the only one whose objects are in the store; empty if there is no such restriction.
	// Such a store needs no index of namespaces.
	Namespace string
	// DisableDeepCopy makes reads return the objects of the store instead of copies.
	DisableDeepCopy bool
	// AlwaysCopy makes reads return copies, even if their options ask for the objects of the store.
	AlwaysCopy bool

	fieldIndexers atomic.Pointer[toolscache.Indexers] // by AddIndexers; what it points to does not change
}

// AddIndexers adds indexers to the informer whose store is read. Calls must come one at a time.
//
// The reader has a list of them, because GetIndexers of client-go's stores returns the map that
// AddIndexers writes to.
func (r *Reader) AddIndexers(informer toolscache.SharedIndexInformer, indexers toolscache.Indexers) error {
	if err := informer.AddIndexers(indexers); err != nil {
		return errors.WithStack(err)
	}
	all := toolscache.Indexers{}
	maps.Copy(all, r.indexers())
	maps.Copy(all, indexers)
	r.fieldIndexers.Store(&all)
	return nil
}

// indexers returns what AddIndexers has added.
func (r *Reader) indexers() toolscache.Indexers {
	if all := r.fieldIndexers.Load(); all != nil {
		return *all
	}
	return nil
}

// Over returns a reader of other objects that reads them as r would. It keeps them.
func (r *Reader) Over(objects []any) (*Reader, error) {
	indexers := toolscache.Indexers{}
	maps.Copy(indexers, r.indexers())
	if r.Namespace == "" {
		indexers[toolscache.NamespaceIndex] = toolscache.MetaNamespaceIndexFunc
	}
	other := &Reader{
		Indexer:    toolscache.NewIndexer(toolscache.DeletionHandlingMetaNamespaceKeyFunc, indexers),
		GVK:        r.GVK,
		Namespaced: r.Namespaced,
		Namespace:  r.Namespace,
	}
	other.fieldIndexers.Store(r.fieldIndexers.Load())
	for _, object := range objects {
		if err := other.Indexer.Add(object); err != nil {
			return nil, errors.WithStack(err)
		}
	}
	return other, nil
}

// Get copies an object into out.
func (r *Reader) Get(_ context.Context, name client.ObjectKey, out client.Object, opts ...client.GetOption) error {
	var options client.GetOptions
	if len(opts) > 0 {
		options.ApplyOptions(opts)
	}
	if !r.Namespaced {
		name.Namespace = ""
	}
	found, exists, err := r.Indexer.GetByKey(toolscache.ObjectName(name).String())
	if err != nil {
		return errors.WithStack(err)
	}
	if !exists {
		// Like controller-runtime's cache, this names the kind and not the resource.
		return apierrors.NewNotFound(schema.GroupResource{Group: r.GVK.Group, Resource: r.GVK.Kind}, name.Name)
	}
	object, ok := found.(runtime.Object)
	if !ok {
		return errors.Errorf("the transform of %s returned a %T, which is no object", r.GVK, found)
	}
	share := r.shares(options.UnsafeDisableDeepCopy)
	if !share {
		object = object.DeepCopyObject()
	}
	target, source := reflect.ValueOf(out), reflect.ValueOf(object)
	if !source.Type().AssignableTo(target.Type()) {
		return errors.Errorf("the cache has %s as %s, not as %s", r.GVK, source.Type(), target.Type())
	}
	target.Elem().Set(source.Elem())
	if !share {
		out.GetObjectKind().SetGroupVersionKind(r.GVK)
	}
	return nil
}

// shares reports whether a read returns the objects of the store.
func (r *Reader) shares(option *bool) bool {
	return !r.AlwaysCopy && (r.DisableDeepCopy || option != nil && *option)
}

// List copies objects into out.
func (r *Reader) List(_ context.Context, out client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	if options.Continue != "" {
		return errors.New("continue list option is not supported by the cache")
	}
	found, err := r.find(&options)
	if err != nil {
		return err
	}
	share := r.shares(options.UnsafeDisableDeepCopy)
	objects := make([]runtime.Object, 0, len(found))
	for _, item := range found {
		if options.Limit > 0 && int64(len(objects)) >= options.Limit {
			break
		}
		object, ok := item.(runtime.Object)
		if !ok {
			return errors.Errorf("the transform of %s returned a %T, which is no object", r.GVK, item)
		}
		if options.LabelSelector != nil {
			accessor, err := meta.Accessor(object)
			if err != nil {
				return errors.WithStack(err)
			}
			if !options.LabelSelector.Matches(labels.Set(accessor.GetLabels())) {
				continue
			}
		}
		if !share {
			object = object.DeepCopyObject()
			object.GetObjectKind().SetGroupVersionKind(r.GVK)
		}
		objects = append(objects, object)
	}
	if err := meta.SetList(out, objects); err != nil {
		return errors.WithStack(err)
	}
	out.SetContinue("continue-not-supported") // as controller-runtime's cache does
	return nil
}

// find returns the objects in a namespace, with a name, or with indexed fields. The fields of name
// and namespace need no index.
func (r *Reader) find(options *client.ListOptions) ([]any, error) {
	namespace := options.Namespace
	if options.FieldSelector == nil || options.FieldSelector.Empty() {
		return r.inNamespace(namespace)
	}
	var indexed, named fields.Requirements
	for _, requirement := range options.FieldSelector.Requirements() {
		if requirement.Operator != selection.Equals && requirement.Operator != selection.DoubleEquals {
			return nil, errors.New("non-exact field matches are not supported by the cache")
		}
		_, hasIndex := r.indexers()[FieldIndexName(requirement.Field)]
		if isKeyField(requirement.Field) && !hasIndex {
			named = append(named, requirement)
		} else {
			indexed = append(indexed, requirement)
		}
	}
	var found []any
	var err error
	if len(indexed) > 0 || len(named) == 0 {
		found, err = r.findByFields(indexed, namespace)
	} else {
		found, err = r.inNamespace(namespace)
	}
	if err != nil || len(named) == 0 {
		return found, err
	}
	return slices.DeleteFunc(found, func(object any) bool { return !hasKey(object, named) }), nil
}

// isKeyField reports whether a field is one of the two that make an object's key.
func isKeyField(field string) bool {
	return field == metav1.ObjectNameField || field == "metadata.namespace"
}

// hasKey reports whether an object's name and namespace are as required.
func hasKey(object any, required fields.Requirements) bool {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return false
	}
	for _, requirement := range required {
		value := accessor.GetName()
		if requirement.Field != metav1.ObjectNameField {
			value = accessor.GetNamespace()
		}
		if value != requirement.Value {
			return false
		}
	}
	return true
}

// inNamespace returns the objects in a namespace, empty for all.
func (r *Reader) inNamespace(namespace string) ([]any, error) {
	switch {
	case r.Namespace != "" && namespace != "" && namespace != r.Namespace:
		return nil, nil
	case r.Namespace == "" && namespace != "":
		found, err := r.Indexer.ByIndex(toolscache.NamespaceIndex, namespace)
		return found, errors.WithStack(err)
	default:
		return r.Indexer.List(), nil
	}
}

// findByFields returns the objects that have all of these values in their indexed fields.
func (r *Reader) findByFields(requirements fields.Requirements, namespace string) (found []any, err error) {
	for n, requirement := range requirements {
		name, value := FieldIndexName(requirement.Field), indexValue(namespace, requirement.Value)
		if n == 0 {
			if found, err = r.Indexer.ByIndex(name, value); err != nil {
				return nil, errors.WithStack(err)
			}
			continue
		}
		index, ok := r.indexers()[name]
		if !ok {
			return nil, errors.Errorf("Index with name %s does not exist", name)
		}
		found = slices.DeleteFunc(found, func(object any) bool {
			values, e := index(object)
			if e != nil {
				err = e
			}
			return !slices.Contains(values, value)
		})
		if err != nil {
			return nil, errors.WithStack(err)
		}
	}
	return found, nil
}

// FieldIndexName returns the name of the indexer for a field.
func FieldIndexName(field string) string { return "field:" + field }

// indexValue returns what an indexer of a field returns for a value, in a namespace or, if
// namespace is empty, anywhere.
func indexValue(namespace, value string) string {
	if namespace == "" {
		namespace = "__all_namespaces" // no name of a namespace
	}
	return namespace + "/" + value
}

// FieldIndexer returns an indexer that finds objects by the values that extract returns. With
// copies, extract receives copies: some methods that look like reads change an object, such as
// resource.Quantity.String, and other informers may have the same object.
func FieldIndexer(field string, copies bool, extract client.IndexerFunc) toolscache.Indexers {
	return toolscache.Indexers{FieldIndexName(field): func(item any) ([]string, error) {
		object, ok := item.(client.Object)
		if !ok {
			return nil, fmt.Errorf("index %q: a %T is no object", field, item)
		}
		if copies {
			object = object.DeepCopyObject().(client.Object)
		}
		var values []string
		for _, value := range extract(object) {
			values = append(values, indexValue("", value))
			if namespace := object.GetNamespace(); namespace != "" {
				values = append(values, indexValue(namespace, value))
			}
		}
		return values, nil
	}}
}
