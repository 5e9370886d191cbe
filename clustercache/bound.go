package clustercache

import (
	"context"
	"reflect"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/accessor"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/permissioncheck"
)

// Bound has the calls of ClusterCache for one extension, bound to the object as the caller read it;
// see ClusterCache.For. Its methods may be called from any goroutine.
type Bound interface {
	// GetClient is GetClient of ClusterCache.
	GetClient(ctx context.Context) (client.Client, error)
	// GetReader is GetReader of ClusterCache.
	GetReader(ctx context.Context) (client.Reader, error)
	// GetUncachedClient is GetUncachedClient of ClusterCache.
	GetUncachedClient(ctx context.Context) (client.Client, error)
	// GetRESTConfig is GetRESTConfig of ClusterCache.
	GetRESTConfig(ctx context.Context) (*rest.Config, error)
	// GetCluster is GetCluster of ClusterCache.
	GetCluster(ctx context.Context) (cluster.Cluster, error)
	// CheckPermissions asks the API server, as the identity, which permissions it lacks for a
	// content: before the first write, so that nothing is half applied. See PermissionCheck. The
	// error is that of GetClient, of an object that cannot be applied, or of a review without an
	// answer. What is missing is on record, with Options.Permissions.Record.
	CheckPermissions(ctx context.Context, check PermissionCheck) (*PermissionReport, error)
	// Watch is Watch of ClusterCache. The registration belongs to the extension, not to this view:
	// after a change of the reference it watches as the new identity.
	Watch(ctx context.Context, watcher Watcher) error
	// WatchContent is WatchContent of ClusterCache.
	WatchContent(ctx context.Context, content ContentWatch) error
	// Unwatch is Unwatch of ClusterCache. Registrations of another object of the same name stay.
	Unwatch(ctx context.Context, name string, dependents ...types.UID)
	// GetConnectionState returns false for another object. While connected, it also returns false
	// for another reference. While disconnected, the state may be about an earlier reference:
	// compare ObservedGeneration.
	GetConnectionState(ctx context.Context) (ConnectionState, bool)
}

// For implements ClusterCache.
func (c *clusterCache) For(ctx context.Context, extension client.Object) Bound {
	b := &bound{}
	b.binding, b.binding.Err = c.bindingOf(ctx, extension)
	if errors.Is(b.binding.Err, connstate.ErrMistake) {
		b.binding.Mistake = b.binding.Err
	}
	var key client.ObjectKey
	if extension != nil {
		key = client.ObjectKeyFromObject(extension)
	}
	b.View = c.set.For(key, &b.binding)
	return b
}

// bindingOf returns what the object says about its connection. An error means that no connection
// can be for the object.
func (c *clusterCache) bindingOf(ctx context.Context, object client.Object) (binding accessor.Binding, err error) {
	if object == nil {
		return binding, connstate.Mistake("the object is nil")
	}
	gvk, err := apiutil.GVKForObject(object, c.scheme)
	switch {
	case err != nil:
		return binding, connstate.Mistake("the kind of the object: %v", err)
	case gvk != c.gvk || reflect.TypeOf(object) != c.goType:
		return binding, connstate.Mistake("the object is a %T (%s), and Options.Object a %s (%s)", object, gvk, c.goType,
			c.gvk)
	case object.GetUID() == "":
		return binding, connstate.Mistake("the object has no UID: read it from the API server or a cache first")
	}
	binding.UID = object.GetUID()
	err = call(ctx, c.metrics, inReference, object, func() (err error) {
		binding.Reference, err = c.referenceOf(object)
		return err
	})
	if err != nil {
		return binding, errors.WithMessage(err, "the object's reference")
	}
	if binding.Reference.WholeObject {
		binding.Version = accessor.ObjectVersion(object)
	}
	return binding, nil
}

// bound is the Bound of clusterCache.
type bound struct {
	accessor.View
	binding accessor.Binding // that of the view; here, so that For allocates once
}

var _ Bound = (*bound)(nil)

// CheckPermissions implements Bound.
func (b *bound) CheckPermissions(ctx context.Context, check PermissionCheck) (*PermissionReport, error) {
	if err := check.complete(); err != nil {
		return nil, err
	}
	answer, source, err := b.View.CheckPermissions(ctx, permissioncheck.Check(check))
	if err != nil {
		return nil, err
	}
	return permissionReportOf(answer, b.View.Key(), source), nil
}

// Watch implements Bound.
func (b *bound) Watch(ctx context.Context, watcher Watcher) error { return b.View.Watch(ctx, watcher) }

// WatchContent implements Bound.
func (b *bound) WatchContent(ctx context.Context, content ContentWatch) error {
	return b.View.WatchContent(ctx, content)
}

// GetConnectionState implements Bound.
func (b *bound) GetConnectionState(context.Context) (ConnectionState, bool) {
	state, known := b.State()
	return connectionStateOf(state), known
}
