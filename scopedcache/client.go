package scopedcache

import (
	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/ownwrites"
)

// NewClient creates a client whose reads from a cache of this package include what the client
// itself wrote. NewClient is a client.NewClientFunc, for managers and clusters:
//
//	ctrl.NewManager(config, ctrl.Options{NewCache: scopedcache.New, NewClient: scopedcache.NewClient})
//
// After a write that succeeded, a Get of the object, and a List that would contain it, wait until
// the informer that answers has what the write did, or what happened to the object later. The wait
// ends with the context or after ReadTimeout of [Options], with a [BehindError], or with the cache,
// with [ErrStopped]. Nothing waits for a write of an object that the informer does not select. The
// option client.DisableReadYourWritesConsistency of a read makes that read wait for nothing, and
// the option of a write makes no read wait for that write.
//
// If only the API server knows what a write did, reads of that object, or of the kind in that
// namespace, are lists with the selectors of the informer: after DeleteAllOf, after an eviction,
// after a write whose outcome is unknown, for example because of a timeout, and after a deletion if
// the informer has a label or field selector. They are lists until the informer is known to have
// what the write did. Without other changes that takes up to a minute or, with EnableWatchBookmarks
// false, until the next change. With PollWithoutWatch, reads after a write are lists until the next
// poll.
//
// All clients that NewClient has created for one cache have what any of them wrote. Other clients
// of the cache, and reads of the cache itself or of a [Handle], wait for nothing. NewClient needs
// options.Cache.Reader to be a [Cache], and does without controller-runtime's
// EnableReadYourWritesConsistency, which waits for the informer of all namespaces. A cache with
// NewInformer is an error.
//
// From then on, informers of the cache begin with a list of the latest version instead of one from
// the API server's memory. API servers before Kubernetes 1.31 take that from etcd.
func NewClient(config *rest.Config, options client.Options) (client.Client, error) {
	if options.Cache == nil || options.Cache.Reader == nil {
		return nil, errors.New("options.Cache.Reader is not set: NewClient needs the cache that the client reads from")
	}
	source, ok := options.Cache.Reader.(interface{ OwnWrites() *ownwrites.Writes })
	if !ok {
		return nil,
			errors.Errorf("options.Cache.Reader is a %T, and not a cache of package scopedcache: set NewCache to "+
				"scopedcache.New", options.Cache.Reader)
	}
	if scoped, ok := source.(*scopedCache); ok && scoped.env.informers.NewInformer != nil {
		return nil, errors.New("the cache has a NewInformer, of which it is not known what it has")
	}
	source.OwnWrites().Enable()
	if options.HTTPClient == nil {
		var err error
		if options.HTTPClient, err = rest.HTTPClientFor(config); err != nil {
			return nil, errors.Wrap(err, "creating an HTTP client")
		}
	}
	options.HTTPClient = ownwrites.HTTPClient(options.HTTPClient)
	cached := *options.Cache
	cached.EnableReadYourWritesConsistency = nil
	options.Cache = &cached
	dryRun := ptr.Deref(options.DryRun, false)
	options.DryRun = nil
	created, err := client.New(config, options)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	own := ownwrites.NewClient(created, source.OwnWrites)
	if dryRun { // around the client that records, so that it knows
		return client.NewDryRunClient(own), nil
	}
	return own, nil
}

var _ client.NewClientFunc = NewClient
