package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// withVerbs returns a storage that has exactly the verbs of the store. The library finds the verbs
// of a storage by asserting interfaces, so each combination is a type of its own.
func withVerbs[T, TList runtime.Object](s *storage[T, TList]) rest.Storage {
	const (
		get = 1 << iota
		watch
		create
		update
		remove
	)
	verbs := 0
	for verb, present := range map[int]bool{
		get:    s.getter != nil,
		watch:  s.watcher != nil,
		create: s.creater != nil,
		update: s.updater != nil,
		remove: s.deleter != nil,
	} {
		if present {
			verbs |= verb
		}
	}
	switch verbs {
	case get:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
		}{s, getVerb[T, TList]{s}}
	case watch:
		return struct {
			*storage[T, TList]
			watchVerb[T, TList]
		}{s, watchVerb[T, TList]{s}}
	case get | watch:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}}
	case create:
		return struct {
			*storage[T, TList]
			createVerb[T, TList]
		}{s, createVerb[T, TList]{s}}
	case get | create:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			createVerb[T, TList]
		}{s, getVerb[T, TList]{s}, createVerb[T, TList]{s}}
	case watch | create:
		return struct {
			*storage[T, TList]
			watchVerb[T, TList]
			createVerb[T, TList]
		}{s, watchVerb[T, TList]{s}, createVerb[T, TList]{s}}
	case get | watch | create:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
			createVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}, createVerb[T, TList]{s}}
	case get | update:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			updateVerb[T, TList]
		}{s, getVerb[T, TList]{s}, updateVerb[T, TList]{s}}
	case get | watch | update:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
			updateVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}, updateVerb[T, TList]{s}}
	case get | create | update:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			createVerb[T, TList]
			updateVerb[T, TList]
		}{s, getVerb[T, TList]{s}, createVerb[T, TList]{s}, updateVerb[T, TList]{s}}
	case get | watch | create | update:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
			createVerb[T, TList]
			updateVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}, createVerb[T, TList]{s}, updateVerb[T, TList]{s}}
	case get | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, deleteVerb[T, TList]{s}}
	case get | watch | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}, deleteVerb[T, TList]{s}}
	case get | create | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			createVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, createVerb[T, TList]{s}, deleteVerb[T, TList]{s}}
	case get | watch | create | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
			createVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}, createVerb[T, TList]{s}, deleteVerb[T, TList]{s}}
	case get | update | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			updateVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, updateVerb[T, TList]{s}, deleteVerb[T, TList]{s}}
	case get | watch | update | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
			updateVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}, updateVerb[T, TList]{s}, deleteVerb[T, TList]{s}}
	case get | create | update | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			createVerb[T, TList]
			updateVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, createVerb[T, TList]{s}, updateVerb[T, TList]{s}, deleteVerb[T, TList]{s}}
	case get | watch | create | update | remove:
		return struct {
			*storage[T, TList]
			getVerb[T, TList]
			watchVerb[T, TList]
			createVerb[T, TList]
			updateVerb[T, TList]
			deleteVerb[T, TList]
		}{s, getVerb[T, TList]{s}, watchVerb[T, TList]{s}, createVerb[T, TList]{s}, updateVerb[T, TList]{s},
			deleteVerb[T, TList]{s}}
	}
	return s // only list
}
