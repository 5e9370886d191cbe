package clustercache

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// references knows which extensions name which ServiceAccount. The zero value is empty. It is no
// field index of the cache, for that would have to be added before the manager starts, and a
// manager whose cache may not list what it has an index of cannot be stopped. A reference is set
// before the ServiceAccount is read from the cache, and looked up after the cache has changed, so
// that no change falls between.
type references struct {
	mu          sync.Mutex
	byExtension map[client.ObjectKey]types.NamespacedName              // guarded by mu
	extensions  map[types.NamespacedName]map[client.ObjectKey]struct{} // guarded by mu; the same the other way around
}

// set notes which ServiceAccount the extension names; the zero value is none.
func (r *references) set(extension client.ObjectKey, serviceAccount types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.byExtension[extension]
	if known && before == serviceAccount {
		return
	}
	if known {
		delete(r.byExtension, extension)
		delete(r.extensions[before], extension)
		if len(r.extensions[before]) == 0 {
			delete(r.extensions, before)
		}
	}
	if serviceAccount == (types.NamespacedName{}) {
		return
	}
	if r.byExtension == nil {
		r.byExtension, r.extensions = map[client.ObjectKey]types.NamespacedName{},
			map[types.NamespacedName]map[client.ObjectKey]struct{}{}
	}
	r.byExtension[extension] = serviceAccount
	if r.extensions[serviceAccount] == nil {
		r.extensions[serviceAccount] = map[client.ObjectKey]struct{}{}
	}
	r.extensions[serviceAccount][extension] = struct{}{}
}

// of returns the extensions that name the ServiceAccount.
func (r *references) of(serviceAccount types.NamespacedName) []client.ObjectKey {
	r.mu.Lock()
	defer r.mu.Unlock()
	extensions := make([]client.ObjectKey, 0, len(r.extensions[serviceAccount]))
	for extension := range r.extensions[serviceAccount] {
		extensions = append(extensions, extension)
	}
	return extensions
}
