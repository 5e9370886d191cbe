package objectpool

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
)

// maxVariants bounds how many different objects of one UID and resourceVersion are kept. There is
// more than one where the transforms of informers differ, or where an API server shows different
// users different contents.
const maxVariants = 8

// Pool keeps equal objects once, for the informers of one API server. Objects are equal if their
// types, UIDs, resourceVersions and all of their contents are equal. So an informer never gets
// contents that its own watch did not deliver. Objects without UID or resourceVersion are not kept.
//
// Holders are counted, because a weak pointer needs a type that is known at compile time.
//
// Objects in the pool must not change. Methods may be called from any goroutine. The zero value is
// an empty pool.
type Pool struct {
	mu      sync.Mutex
	objects map[key][]held // guarded by mu
	size    int            // guarded by mu; the number of objects
}

// key is what the API server identifies the contents of an object by.
type key struct {
	goType  reflect.Type
	uid     types.UID
	version string
}

// held is an object and the number of its holders.
type held struct {
	object  any
	holders int
}

// keyOf returns the key of an object. ok is false if the object cannot be kept.
func keyOf(object any) (k key, ok bool) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return key{}, false
	}
	k = key{goType: reflect.TypeOf(object), uid: accessor.GetUID(), version: accessor.GetResourceVersion()}
	return k, k.goType.Kind() == reflect.Pointer && k.uid != "" && k.version != ""
}

// Hold returns the pool's object that is equal to object, which is object itself if there was none.
// The caller is a holder of it until it calls Release with the returned object, once.
func (p *Pool) Hold(object any) any {
	k, ok := keyOf(object)
	if !ok {
		return object
	}
	for {
		same, compared := p.find(k, object)
		if kept, done := p.hold(k, object, same, compared); done {
			return kept
		}
	}
}

// hold makes the caller a holder of same or, if same is nil, adds object. It does nothing if the
// pool has changed since find compared object.
func (p *Pool) hold(k key, object, same any, compared int) (kept any, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	variants := p.objects[k]
	for n := range variants {
		if same != nil && variants[n].object == same {
			variants[n].holders++
			return same, true
		}
	}
	switch {
	case same != nil, len(variants) != compared:
		return nil, false
	case compared == maxVariants:
		return object, true
	case p.objects == nil:
		p.objects = map[key][]held{}
	}
	p.objects[k] = append(variants, held{object: object, holders: 1})
	p.size++
	return object, true
}

// Find returns the pool's object that is equal to object, or else object. It makes the caller no
// holder.
func (p *Pool) Find(object any) any {
	if k, ok := keyOf(object); ok {
		if same, _ := p.find(k, object); same != nil {
			return same
		}
	}
	return object
}

// find returns the object that is equal to object, nil if there is none, and how many objects it
// was compared with. The comparison, which takes most of the time, is without the lock.
func (p *Pool) find(k key, object any) (same any, compared int) {
	var candidates [maxVariants]any
	p.mu.Lock()
	for n, variant := range p.objects[k] {
		candidates[n] = variant.object
		compared++
	}
	p.mu.Unlock()
	for _, candidate := range candidates[:compared] {
		if candidate == object || reflect.DeepEqual(candidate, object) {
			return candidate, compared
		}
	}
	return nil, compared
}

// Release ends a hold. Objects that are not in the pool are ignored.
func (p *Pool) Release(object any) {
	k, ok := keyOf(object)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	variants := p.objects[k]
	for n := range variants {
		if variants[n].object != object {
			continue
		}
		if variants[n].holders--; variants[n].holders > 0 {
			return
		}
		p.size--
		last := len(variants) - 1
		variants[n], variants[last] = variants[last], held{}
		if p.objects[k] = variants[:last]; last == 0 {
			delete(p.objects, k)
		}
		return
	}
}

// Len returns the number of objects in the pool.
func (p *Pool) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}
