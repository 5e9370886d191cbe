package apiserver

import (
	"reflect"
	"strconv"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// List implements Lister. It answers with the whole list whatever the limit, as the API allows:
// pages of a store that changes would either differ in what they are of, or become too old.
func (m *MemoryStore[T, TList]) List(ctx Context, options *metav1.ListOptions) (list TList, err error) {
	selection, err := m.newSelection(ctx.Namespace, options)
	if err != nil {
		return list, err
	}
	if options.Continue != "" {
		return list, apierrors.NewResourceExpired("this server gives no continue tokens: list from the beginning")
	}
	items, version, err := m.selected(selection, options)
	if err != nil {
		return list, err
	}
	list = newObject[TList]()
	if err := meta.SetList(list, m.forList(list, items)); err != nil {
		return list, errors.Wrap(err, "filling the list")
	}
	if m.options.OnRead != nil {
		_ = meta.EachListItem(list, func(item runtime.Object) error { // fails only if the function does
			m.options.OnRead(item.(T))
			return nil
		})
	}
	any(list).(metav1.ListInterface).SetResourceVersion(strconv.FormatInt(version, 10))
	return list, nil
}

// selected returns the selected objects in order, and their version.
func (m *MemoryStore[T, TList]) selected(s selection[T], options *metav1.ListOptions) (items []T, version int64,
	err error) {
	m.mu.RLock()
	defer m.mu.RUnlock() // also if a function of Fields panics
	if err := m.checkListVersionLocked(options); err != nil {
		return nil, 0, err
	}
	for _, key := range m.keys {
		if object := m.objects[key]; s.hasKey(key) && s.matches(object) {
			items = append(items, object)
		}
	}
	return items, m.version, nil
}

// forList returns the objects for SetList, which copies structs. A list of pointers gets copies.
func (*MemoryStore[T, TList]) forList(list TList, objects []T) []runtime.Object {
	pointers := false
	if items, err := meta.GetItemsPtr(list); err == nil {
		pointers = reflect.TypeOf(items).Elem().Elem().Kind() == reflect.Pointer
	}
	result := make([]runtime.Object, len(objects))
	for i, object := range objects {
		if result[i] = object; pointers {
			result[i] = object.DeepCopyObject()
		}
	}
	return result
}

// checkListVersionLocked checks the version that a list asks for.
func (m *MemoryStore[T, TList]) checkListVersionLocked(options *metav1.ListOptions) error {
	wanted, err := parseVersion(options.ResourceVersion)
	switch {
	case err != nil:
		return err
	case wanted > m.version:
		return apistorage.NewTooLargeResourceVersionError(uint64(wanted), uint64(m.version), 1)
	case options.ResourceVersionMatch == metav1.ResourceVersionMatchExact && wanted != m.version:
		return apierrors.NewResourceExpired("only the newest resourceVersion can be listed, which is " +
			strconv.FormatInt(m.version, 10))
	}
	return nil
}
