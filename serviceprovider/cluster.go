package serviceprovider

import (
	"context"
	"fmt"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// Cluster is a cluster to which one API object has access: a view of a connection that latchkey
// keeps. Getting a Cluster sends no request. Use a Cluster only in the reconcile that got it. The
// methods may be called from any goroutine. After the connection ended, requests return a
// *clustercache.NotConnectedError.
type Cluster struct {
	options  ClusterOptions
	bound    clustercache.Bound
	client   client.Client
	uncached client.Client
	config   *rest.Config
	cluster  cluster.Cluster
}

// ClusterOptions configure NewCluster.
type ClusterOptions struct {
	// ID names the cluster for logs, such as "mcp".
	ID string
	// Extension is the object whose connection leads to the cluster: an AccessRequest, as read from
	// the API server.
	Extension client.Object
	// Request names the API object that Watch reconciles.
	Request reconcile.Request
	// Controller receives the requests of Watch, and ControllerName is part of the names of its
	// watches. Without a Controller, Watch returns an error.
	Controller     clustercache.SourceWatcher[ctrl.Request]
	ControllerName string
}

// NewCluster returns the Cluster of an extension's connection, or a
// *clustercache.NotConnectedError. NewCluster is for implementations of ClusterAccessProvider, and
// for unit tests of a Reconciler, with fake.NewFakeCache.
func NewCluster(ctx context.Context, connections clustercache.ClusterCache, options ClusterOptions) (*Cluster, error) {
	c := &Cluster{options: options, bound: connections.For(ctx, options.Extension)}
	var err error
	if c.client, err = c.bound.GetClient(ctx); err != nil {
		return nil, err
	}
	if c.uncached, err = c.bound.GetUncachedClient(ctx); err != nil {
		return nil, err
	}
	if c.config, err = c.bound.GetRESTConfig(ctx); err != nil {
		return nil, err
	}
	c.cluster, err = c.bound.GetCluster(ctx)
	return c, err
}

// ID returns ClusterOptions.ID. Those of the built-in provider are "mcp" and "workload".
func (c *Cluster) ID() string { return c.options.ID }

// Client returns a client that reads from a cache and writes to the API server. The first read of a
// kind starts an informer, which needs the permissions list and watch; without them the read is
// Forbidden.
func (c *Cluster) Client() client.Client { return c.client }

// UncachedClient returns a client that reads from the API server.
func (c *Cluster) UncachedClient() client.Client { return c.uncached }

// RESTConfig returns a config for other types of clients, as ClusterCache.GetRESTConfig does. Every
// call returns a copy.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Scheme returns the scheme of the clients.
func (c *Cluster) Scheme() *runtime.Scheme { return c.client.Scheme() }

// Cluster returns the connection in the form that multi-cluster code expects; see
// ClusterCache.GetCluster.
func (c *Cluster) Cluster() cluster.Cluster { return c.cluster }

// State returns a snapshot of the connection, zero if there is none any more.
func (c *Cluster) State(ctx context.Context) clustercache.ConnectionState {
	state, _ := c.bound.GetConnectionState(ctx)
	return state
}

// Watch reconciles API objects when objects of a kind change on the cluster. Call Watch in every
// CreateOrUpdate: to register the same again costs nothing. mapFunc returns the API objects for an
// object of the kind; nil means the API object of this Cluster, whatever changed. Without InScope
// the watch covers all namespaces, and needs list and watch there.
//
// Watch does not wait, and returns nil also if the identity may not list and watch the kind, or the
// server does not serve it: the log and State say so, and events follow once that changes.
//
// The first mapFunc and predicates of an API object, kind and scope stay as long as the access
// lasts: use names and keys in them, not objects of one reconcile. The watch ends with the
// AccessRequest.
func (c *Cluster) Watch(ctx context.Context, kind client.Object, mapFunc handler.MapFunc,
	opts ...WatchOption) error {
	if c.options.Controller == nil {
		return errors.New("the cluster has no controller: set ClusterOptions.Controller, or add the APIReconciler to a " +
			"manager")
	}
	gvk, err := apiutil.GVKForObject(kind, c.Scheme())
	if err != nil {
		return errors.Wrap(err, "the kind to watch")
	}
	logger := ctrl.LoggerFrom(ctx).WithValues("cluster", c.options.ID, "object", c.options.Request.String())
	options := clustercache.WatcherOptions{
		Kind:    kind,
		Watcher: c.options.Controller,
		OnError: func(_ context.Context, state clustercache.WatchError) {
			if state.Err != nil {
				logger.Error(state.Err, "A watch misses changes", "kind", state.Kind.String(), "scope", state.Scope.String(),
					"state", state.State)
			}
		},
	}
	for _, opt := range opts {
		opt(&options)
	}
	options.Name = fmt.Sprintf("%s/%s/%s/%s", c.options.ControllerName, gvk, representation(kind), options.Scope)
	options.EventHandler = clustercache.EnqueueFor(c.options.Request.NamespacedName)
	if mapFunc != nil {
		options.EventHandler = handler.EnqueueRequestsFromMapFunc(mapFunc)
	}
	return c.bound.Watch(ctx, clustercache.NewWatcher(options))
}

// WatchOption is an option of Cluster.Watch.
type WatchOption func(*clustercache.WatcherOptions)

// InScope restricts a watch to a namespace, or to labels or fields.
func InScope(scope clustercache.Scope) WatchOption {
	return func(o *clustercache.WatcherOptions) { o.Scope = scope }
}

// WithPredicates filters the events of a watch before mapFunc.
func WithPredicates(predicates ...predicate.Predicate) WatchOption {
	return func(o *clustercache.WatcherOptions) { o.Predicates = append(o.Predicates, predicates...) }
}

// representation returns how objects of the kind are represented, because a watch of each is
// another.
func representation(kind client.Object) string {
	switch kind.(type) {
	case *metav1.PartialObjectMetadata:
		return "metadata"
	case *unstructured.Unstructured:
		return "unstructured"
	default:
		return "typed"
	}
}
