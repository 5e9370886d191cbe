package apiserver

import (
	"reflect"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// storeOptions are the options of InstallStore.
type storeOptions struct {
	namespaced bool
	shortNames []string
	columns    any // []Column[T]
	fields     []string
}

// StoreOption is an option of InstallStore.
type StoreOption func(*storeOptions)

// Namespaced makes the resource namespaced. Resources are cluster-scoped otherwise.
func Namespaced() StoreOption { return func(o *storeOptions) { o.namespaced = true } }

// ShortNames are further names of the resource for kubectl.
func ShortNames(names ...string) StoreOption {
	return func(o *storeOptions) { o.shortNames = append(o.shortNames, names...) }
}

// Columns are the columns that kubectl shows between name and age. T is the type of the objects.
func Columns[T runtime.Object](columns ...Column[T]) StoreOption {
	return func(o *storeOptions) { o.columns = columns }
}

// FieldSelectors are the fields, beyond metadata.name and metadata.namespace, that clients may
// select by. The store does the selection. Other fields are refused with status 400.
func FieldSelectors(fields ...string) StoreOption {
	return func(o *storeOptions) { o.fields = append(o.fields, fields...) }
}

// InstallStore serves the objects of a store as a resource. t and tList are examples of the types
// of an object, a pointer to a struct with ObjectMeta, and of a list of these. gvk is the kind of
// an object. The store must be a Lister, and may implement the other interfaces of [Store]; the
// resource has exactly the verbs that the store has. A method with the name of a verb and another
// signature is an error.
//
// Call InstallStore before Run. The types are added to the server's scheme, which must be its own.
// A kind has one resource and one version: there is no conversion between versions.
func InstallStore[T, TList runtime.Object](server *ExtensionAPIServer, t T, tList TList, resourceName,
	singularName string, gvk schema.GroupVersionKind, store any, options ...StoreOption) error {
	if isNil(store) {
		return errors.Wrapf(ErrNilStore, "resource %q", resourceName)
	}
	s := &storage[T, TList]{gvk: gvk, resource: resourceName, singular: singularName}
	for _, option := range options {
		option(&s.options)
	}
	if err := s.check(t, tList); err != nil {
		return errors.WithMessagef(err, "resource %q", resourceName)
	}
	if err := s.use(store); err != nil {
		return errors.WithMessagef(err, "resource %q, store %T", resourceName, store)
	}
	columns, ok := s.options.columns.([]Column[T])
	if s.options.columns != nil && !ok {
		return errors.Errorf("resource %q: the columns are of %T, not of %T", resourceName, s.options.columns, columns)
	}
	for _, column := range columns {
		if column.Cell == nil || column.Name == "" {
			return errors.Errorf("resource %q: column %q needs a name and a function Cell", resourceName, column.Name)
		}
	}
	s.table = newTable(columns)
	return errors.WithMessagef(server.install(gvk, resourceName, func() {
		s.authorizer, s.watches = server.options.Authorizer, server.watches
		s.addTo(server.scheme, t, tList)
		server.resources[gvk.GroupVersion()][resourceName] = withVerbs(s)
	}), "resource %q", resourceName)
}

func isNil(value any) bool {
	if value == nil {
		return true
	}
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.Slice, reflect.Interface:
		return v.IsNil()
	}
	return false
}

// check checks names and types.
func (s *storage[T, TList]) check(t T, tList TList) error {
	switch {
	case s.resource == "" || s.singular == "" || s.gvk.Group == "" || s.gvk.Version == "" || s.gvk.Kind == "":
		return errors.New("the resource needs a plural and a singular name, and a kind with group and version")
	case isNil(t) || reflect.TypeFor[T]().Kind() != reflect.Pointer:
		return errors.Errorf("the example of an object, of type %T, must be a pointer that is not nil", t)
	case isNil(tList) || reflect.TypeFor[TList]().Kind() != reflect.Pointer:
		return errors.Wrapf(ErrNotAList, "the example of a list, of type %T, must be a pointer that is not nil", tList)
	}
	if _, err := meta.Accessor(t); err != nil {
		return errors.Wrapf(err, "an object of type %T", t)
	}
	if _, ok := any(tList).(metav1.ListInterface); !ok {
		return errors.Wrapf(ErrNotAList, "%T has no ListMeta", tList)
	}
	items, err := meta.GetItemsPtr(tList)
	if err != nil {
		return errors.Wrapf(ErrNotAList, "%T: %s", tList, err)
	}
	if item := reflect.TypeOf(items).Elem().Elem(); item != reflect.TypeFor[T]() && item != reflect.TypeFor[T]().Elem() {
		return errors.Wrapf(ErrNotAList, "%T has items of %s, not of %T", tList, item, t)
	}
	return nil
}

// use finds the interfaces that the store implements.
func (s *storage[T, TList]) use(store any) error {
	s.lister, _ = store.(Lister[TList])
	s.getter, _ = store.(Getter[T])
	s.watcher, _ = store.(Watcher[T])
	s.creater, _ = store.(Creater[T])
	s.updater, _ = store.(Updater[T])
	s.deleter, _ = store.(Deleter)
	s.starter, _ = store.(Starter)
	if s.lister == nil {
		return errors.Wrapf(ErrNoLister, "no List that returns %s", reflect.TypeFor[TList]())
	}
	for _, verb := range []struct {
		method, role string
		found        bool
	}{
		{"Get", "Getter", s.getter != nil}, {"Watch", "Watcher", s.watcher != nil},
		{"Create", "Creater", s.creater != nil}, {"Update", "Updater", s.updater != nil},
		{"Delete", "Deleter", s.deleter != nil},
	} {
		if method, ok := methodOf(store, verb.method); ok && !verb.found {
			return errors.Wrapf(ErrOtherSignature, "%s is a method of %s, not that of %s[%s]", verb.method, method, verb.role,
				reflect.TypeFor[T]())
		}
	}
	switch {
	case s.getter == nil && (s.updater != nil || s.deleter != nil):
		return errors.WithStack(ErrNoGetter)
	}
	return nil
}

// methodOf returns a type, of the store or of a pointer to it, that has a method of this name.
func methodOf(store any, name string) (reflect.Type, bool) {
	t := reflect.TypeOf(store)
	if _, ok := t.MethodByName(name); ok {
		return t, true
	}
	_, ok := reflect.PointerTo(t).MethodByName(name)
	return reflect.PointerTo(t), ok
}

// addTo adds the types to a scheme. The library decodes into the internal version of a group, which
// is the same type here.
func (s *storage[T, TList]) addTo(scheme *runtime.Scheme, t T, tList TList) {
	internal := schema.GroupVersion{Group: s.gvk.Group, Version: runtime.APIVersionInternal}
	for _, version := range []schema.GroupVersion{s.gvk.GroupVersion(), internal} {
		scheme.AddKnownTypeWithName(version.WithKind(s.gvk.Kind), t)
		scheme.AddKnownTypeWithName(version.WithKind(s.gvk.Kind+"List"), tList)
	}
	metav1.AddToGroupVersion(scheme, s.gvk.GroupVersion())
	selectable := map[string]bool{}
	for _, field := range s.options.fields {
		selectable[field] = true
	}
	_ = scheme.AddFieldLabelConversionFunc(s.gvk, func(label, value string) (string, string, error) { // never fails
		if selectable[label] {
			return label, value, nil
		}
		return runtime.DefaultMetaV1FieldSelectorConversion(label, value)
	})
}
