package scopedcache

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// kindKey identifies a kind in a representation.
type kindKey struct {
	gvk            schema.GroupVersionKind
	representation Representation
}

// kind is what all scopes of a kind have in common. A kind stays after its scopes have ended.
type kind struct {
	kindKey
	config  kindConfig
	example client.Object // has the type, and apiVersion and kind unless it is typed; must not change

	mapping atomic.Pointer[meta.RESTMapping] // the last known; only for whether the kind is namespaced
	// entries has the *entry of each namespace, without those with selectors of their own. Written
	// under entries.mu.
	entries sync.Map
	count   int // of entries; guarded by entries.mu
	// selected has the scopes with selectors of their own that may answer reads, in the order of
	// their beginning, by the name that they require. Guarded by entries.mu.
	selected map[string][]*entry
	// only is the entry of all namespaces if that is the only entry, so that reads find it in one
	// step. Written under entries.mu.
	only atomic.Pointer[entry]
}

// countLocked counts a new scope, or one that has ended. The caller holds entries.mu.
func (k *kind) countLocked(change int) {
	var only *entry
	everywhere, ok := k.entries.Load(metav1.NamespaceAll)
	if k.count += change; ok && k.count == 1 && len(k.config.namespaces) == 0 {
		only = everywhere.(*entry)
	}
	k.only.Store(only)
}

// selectLocked makes reads consider a scope with selectors of its own. With options for namespaces
// these have selectors, too: then the scope must be in a namespace that has options. The caller
// holds entries.mu.
func (k *kind) selectLocked(e *entry) {
	_, configured := k.config.namespaces[e.requires.namespace]
	everywhere := e.selection.scope.Namespace == metav1.NamespaceAll
	if len(k.config.namespaces) > 0 && (everywhere || !configured) {
		return
	}
	if k.selected == nil {
		k.selected = map[string][]*entry{}
	}
	k.selected[e.requires.name] = append(k.selected[e.requires.name], e)
}

// deselectLocked undoes selectLocked. The caller holds entries.mu.
func (k *kind) deselectLocked(e *entry) {
	name := e.requires.name
	if k.selected[name] == nil {
		return // selectLocked left it out
	}
	k.selected[name] = slices.DeleteFunc(k.selected[name], func(other *entry) bool { return other == e })
	if len(k.selected[name]) == 0 {
		delete(k.selected, name)
	}
}

// answeringLocked returns the scopes with selectors of a user that have the answer to a read. The
// caller holds entries.mu.
func (k *kind) answeringLocked(u *user, read *requirements) (answering []*use) {
	for _, name := range slices.Compact([]string{read.name, ""}) {
		for _, e := range k.selected[name] {
			if of := u.use(e); of != nil && e.requires.answer(read) {
				answering = append(answering, of)
			}
		}
	}
	return answering
}

// entry returns the scope of a namespace, without selectors, nil if there is none.
func (k *kind) entry(namespace string) *entry {
	if existing, ok := k.entries.Load(namespace); ok {
		return existing.(*entry)
	}
	return nil
}

// examples has the examples of typed objects, by their type. All caches share them, because some
// types have more than a kilobyte.
var examples sync.Map

// exampleOf returns an object of a kind, which must not change. goType is that of typed objects.
func exampleOf(key kindKey, goType reflect.Type) client.Object {
	switch key.representation {
	case RepresentationUnstructured:
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(key.gvk)
		return object
	case RepresentationMetadata:
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(key.gvk)
		return object
	}
	example, known := examples.Load(goType)
	if !known {
		example, _ = examples.LoadOrStore(goType, reflect.New(goType).Interface())
	}
	return example.(client.Object)
}

// kinds are the kinds that a cache has used. A kind is never removed.
type kinds struct {
	scheme  *runtime.Scheme
	configs configs
	byKey   sync.Map // from kindKey to *kind
	// types has the kinds of typed objects and lists, without types that have several kinds. Each
	// write replaces a copy, because every read looks here first.
	types atomic.Pointer[map[reflect.Type]*kind]
}

// kindOf returns the kind of an object or list.
func (s *kinds) kindOf(object runtime.Object) (*kind, error) {
	goType := reflect.TypeOf(object)
	types := s.types.Load()
	if known, ok := (*types)[goType]; ok {
		return known, nil
	}
	if representation := representationOf(object); representation != RepresentationTyped {
		return s.kind(kindKey{
			gvk:            itemKind(object, object.GetObjectKind().GroupVersionKind()),
			representation: representation,
		}, nil)
	}
	gvk, err := apiutil.GVKForObject(object, s.scheme)
	if err != nil {
		return nil, err // as it is: runtime.IsNotRegisteredError does not unwrap
	}
	gvk = itemKind(object, gvk)
	example, err := s.scheme.New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if _, ok := example.(client.Object); !ok {
		return nil, errors.Errorf("%T is no client.Object", example)
	}
	k, err := s.kind(kindKey{gvk: gvk, representation: RepresentationTyped}, reflect.TypeOf(example).Elem())
	if err != nil {
		return nil, err
	}
	if all, _, err := s.scheme.ObjectKinds(object); err != nil || len(all) > 1 { // the object says which kind it is
		return k, errors.WithStack(err)
	}
	more := maps.Clone(*types)
	more[goType] = k
	s.types.CompareAndSwap(types, &more) // if another write came first, the next read tries again
	return k, nil
}

func (s *kinds) kind(key kindKey, goType reflect.Type) (*kind, error) {
	if key.gvk.Kind == "" || key.gvk.Version == "" {
		return nil,
			errors.Errorf("apiVersion and kind are not set: an object that is %s needs them",
				strings.ToLower(string(key.representation)))
	}
	if known, ok := s.byKey.Load(key); ok {
		return known.(*kind), nil
	}
	result, _ := s.byKey.LoadOrStore(key, &kind{
		kindKey: key,
		config:  s.configs.forKind(key.gvk),
		example: exampleOf(key, goType),
	})
	return result.(*kind), nil
}

// itemKind returns the kind of an object, or of a list's items.
func itemKind(object runtime.Object, gvk schema.GroupVersionKind) schema.GroupVersionKind {
	if _, isList := object.(client.ObjectList); isList {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	return gvk
}
