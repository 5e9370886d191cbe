package clustercache

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// references records which extensions name which ServiceAccount. The zero value is empty. The type
// replaces a field index of the cache, which would have to be added before the manager starts. A
// manager cannot be stopped while its cache lacks the permission to list an indexed kind. A
// reference is set before the ServiceAccount is read from the cache, and looked up after the cache
// changed. No change is therefore missed in between.
type references struct {
	mu          sync.Mutex
	byExtension map[client.ObjectKey]types.NamespacedName              // guarded by mu
	extensions  map[types.NamespacedName]map[client.ObjectKey]struct{} // guarded by mu; the reverse of byExtension
}

// set records which ServiceAccount the extension names; the zero value means none.
func (r *references) set(extension client.ObjectKey, serviceAccount types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	previous, known := r.byExtension[extension]
	if known && previous == serviceAccount {
		return
	}
	if known {
		delete(r.byExtension, extension)
		delete(r.extensions[previous], extension)
		if len(r.extensions[previous]) == 0 {
			delete(r.extensions, previous)
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

// extensionsOf returns the extensions that name the ServiceAccount.
func (r *references) extensionsOf(serviceAccount types.NamespacedName) []client.ObjectKey {
	r.mu.Lock()
	defer r.mu.Unlock()
	extensions := make([]client.ObjectKey, 0, len(r.extensions[serviceAccount]))
	for extension := range r.extensions[serviceAccount] {
		extensions = append(extensions, extension)
	}
	return extensions
}
