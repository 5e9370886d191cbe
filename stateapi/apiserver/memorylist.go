package apiserver

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// position is a continue token: where the next page begins, and the version of the first page. The
// later pages have the objects as of that version, so a list in pages is one list: a watch from its
// version tells what has changed since, once.
type position struct {
	After   string `json:"after"`
	Version int64  `json:"version"`
}

func (p position) token() string {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // a string and a number
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func parsePosition(token string) (p position, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil || p.Version <= 0 || p.After == "" {
		return p, apierrors.NewBadRequest("the continue token is invalid")
	}
	return p, nil
}

// List implements Lister.
func (m *MemoryStore[T, TList]) List(ctx Context, options *metav1.ListOptions) (list TList, err error) {
	selection, err := m.newSelection(ctx.Namespace, options)
	if err != nil {
		return list, err
	}
	var from position
	if options.Continue != "" {
		if from, err = parsePosition(options.Continue); err != nil {
			return list, err
		}
	}
	items, next, remaining, err := m.page(selection, &from, options)
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
	metadata := any(list).(metav1.ListInterface)
	metadata.SetResourceVersion(strconv.FormatInt(from.Version, 10))
	if next != "" {
		metadata.SetContinue(position{After: next, Version: from.Version}.token())
		if selection.isAll() {
			metadata.SetRemainingItemCount(&remaining)
		}
	}
	return list, nil
}

// page returns the objects of a page, and sets the version of the first page.
func (m *MemoryStore[T, TList]) page(s selection[T], from *position, options *metav1.ListOptions) (items []T,
	next string, remaining int64, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock() // also if a function of Fields panics
	switch {
	case options.Continue == "":
		from.Version = m.version
		err = m.checkListVersionLocked(options)
	case from.Version > m.version:
		err = apierrors.NewBadRequest("the continue token is invalid")
	case from.Version < m.oldest:
		err = apierrors.NewResourceExpired("the continue token is too old: list from the beginning")
	}
	if err != nil {
		return nil, "", 0, err
	}
	items, next, remaining = m.asOfLocked(from.Version).page(s, from.After, options.Limit)
	return items, next, remaining, err
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

// contents is what a store has at one version.
type contents[T runtime.Object] struct {
	keys    []string // sorted
	objects map[string]T
}

// asOfLocked returns what the store had at a version that the history reaches back to. The caller
// only reads the result, under the lock.
func (m *MemoryStore[T, TList]) asOfLocked(version int64) contents[T] {
	if version == m.version {
		return contents[T]{m.keys, m.objects}
	}
	var none T
	objects := maps.Clone(m.objects)
	for _, change := range slices.Backward(m.history) {
		if change.version <= version {
			break
		}
		if key := keyOfObject(change.object); any(change.previous) == any(none) {
			delete(objects, key)
		} else {
			objects[key] = change.previous
		}
	}
	return contents[T]{slices.Sorted(maps.Keys(objects)), objects}
}

// page returns at most limit selected objects after a key. next is the last key of the page if
// there are more.
func (c contents[T]) page(s selection[T], after string, limit int64) (page []T, next string, remaining int64) {
	start, found := slices.BinarySearch(c.keys, after)
	if found {
		start++
	}
	last := ""
	for _, key := range c.keys[start:] {
		object := c.objects[key]
		if !s.hasKey(key) || !s.matches(object) {
			continue
		}
		if limit > 0 && int64(len(page)) >= limit {
			next = last
			remaining++
			if !s.isAll() { // the rest is not counted
				break
			}
			continue
		}
		page, last = append(page, object), key
	}
	return page, next, remaining
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
