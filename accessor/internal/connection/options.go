package connection

import (
	"context"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/rooms"
	"github.com/latchkey-dev/latchkey/accessor/internal/workpool"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Options configure connections.
type Options struct {
	Scheme *runtime.Scheme
	Client ClientOptions
	Cache  CacheOptions
	Logger logr.Logger
	// RBACWatcher watches the cluster of the extensions; nil for none.
	RBACWatcher *scopedcache.RBACWatcher
	// Namespaces watches the namespaces of that cluster; nil for none.
	Namespaces *scopedcache.NamespaceWatcher
	// Rooms are where connections share what proves one identity; nil for nowhere.
	Rooms *rooms.Set
	// Tasks are the goroutines that are of no connection alone.
	Tasks *workpool.TaskGroup
	// TracerProvider receives the spans of informers; nil for none.
	TracerProvider trace.TracerProvider
	// Fenced is called for each request that did not start, or was cut, because a term had ended.
	// It must not block.
	Fenced func()
	// LiveGet is called for each cached Get that goes to the API server. It must not block.
	LiveGet func()

	servers serverClients
}

// ClientOptions configure clients.
type ClientOptions struct {
	rest.Config       // Timeout, QPS, Burst and UserAgent; the limits are per identity
	MaxDiscoveryBytes int64
	DisableFor        []client.Object // kinds that the client from GetClient reads from the API server
	ReadYourWrites    bool            // see clustercache.ClientCacheOptions
}

// CacheOptions configure caches. A connection adds what it knows itself.
type CacheOptions struct {
	Scopes    scopedcache.Options
	Informers cache.Options
	// AddIndexes adds the indexes to a cache that has not started; nil for none.
	AddIndexes             func(context.Context, client.FieldIndexer) error
	DisableObjectSharing   bool
	DisableIdentitySharing bool // see clustercache.CacheOptions
}

// SharesIdentities reports whether connections of one user may share what that user sees: never if
// what one of them reads is not a copy, so that a change of it is seen by others.
func (o *CacheOptions) SharesIdentities() bool {
	if o.DisableIdentitySharing || o.DisableObjectSharing || ptr.Deref(o.Informers.DefaultUnsafeDisableDeepCopy, false) {
		return false
	}
	for _, of := range o.Informers.ByObject {
		if ptr.Deref(of.UnsafeDisableDeepCopy, false) {
			return false
		}
		for _, config := range of.Namespaces {
			if ptr.Deref(config.UnsafeDisableDeepCopy, false) {
				return false
			}
		}
	}
	return true
}
