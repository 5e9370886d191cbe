package scopedcache

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// UnstreamedKinds remembers the kinds whose streamed lists an API server does not finish, in
// Options.UnstreamedKinds. Informers list and then watch these kinds. The zero value knows of none.
//
// An informer begins with a streamed list (sendInitialEvents), as client-go's do. Some aggregated
// API servers do not mark its end, and some proxies drop the bookmark that does. After ten seconds,
// or when three such watches have ended too soon, the scope is Failing, and the informer lists
// instead.
type UnstreamedKinds struct{ kinds sync.Map } // of schema.GroupVersionResource

func (u *UnstreamedKinds) add(kind schema.GroupVersionResource) { u.kinds.Store(kind, nil) }

func (u *UnstreamedKinds) has(kind schema.GroupVersionResource) bool {
	_, found := u.kinds.Load(kind)
	return found
}
