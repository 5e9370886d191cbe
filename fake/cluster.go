package fake

import (
	"context"
	"net/http"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

// fakeCluster is a cluster.Cluster around the client of the test.
type fakeCluster struct{ conn *connection }

var _ cluster.Cluster = (*fakeCluster)(nil)

func (f *fakeCluster) GetHTTPClient() *http.Client {
	return &http.Client{Transport: noServer{f.conn}}
}
func (f *fakeCluster) GetConfig() *rest.Config { return f.conn.config() }
func (f *fakeCluster) GetCache() cache.Cache {
	return &fakeCache{Reader: f.GetClient(), conn: f.conn}
}
func (f *fakeCluster) GetScheme() *runtime.Scheme                     { return f.conn.testClient.Scheme() }
func (f *fakeCluster) GetClient() client.Client                       { return f.conn.client() }
func (f *fakeCluster) GetFieldIndexer() client.FieldIndexer           { return f.GetCache() }
func (f *fakeCluster) GetRESTMapper() meta.RESTMapper                 { return f.conn.testClient.RESTMapper() }
func (f *fakeCluster) GetAPIReader() client.Reader                    { return f.GetClient() }
func (f *fakeCluster) GetEventRecorder(string) recorder.EventRecorder { return noEvents{} }

func (f *fakeCluster) GetEventRecorderFor(string) record.EventRecorder { return &record.FakeRecorder{} }

// Start returns nil when ctx is done, or the reason when the connection ends.
func (f *fakeCluster) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-f.conn.life.Done():
		return f.conn.Err()
	}
}

// noEvents records nothing.
type noEvents struct{}

func (noEvents) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}
func (noEvents) AnnotatedEventf(_, _ runtime.Object, _ map[string]string, _, _, _, _ string, _ ...any) {
}

// fakeCache is a cache.Cache that reads through the client of the test.
type fakeCache struct {
	client.Reader
	conn *connection
}

func (f *fakeCache) GetInformer(ctx context.Context, object client.Object,
	_ ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := f.conn.newInformer(object, scopedcache.Scope{}, nil, nil)
	if err != nil {
		return nil, err
	}
	running := informer.current()
	if running == nil { // Forbid forbids the kind; its watches begin again, but this informer does not
		informer.Release()
		return nil, f.conn.checkAccess(informer.gvk, informer.namespace, informer.name, "list")
	}
	select {
	case <-running.HasSyncedChecker().Done():
		return running, nil
	case <-ctx.Done():
		informer.Release()
		return nil, errors.WithStack(context.Cause(ctx))
	case <-f.conn.life.Done():
		return nil, f.conn.Err()
	}
}

func (f *fakeCache) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind,
	opts ...cache.InformerGetOption) (cache.Informer, error) {
	object, err := f.conn.testClient.Scheme().New(gvk)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	typed, ok := object.(client.Object)
	if !ok {
		return nil, errors.Errorf("%T is no client.Object", object)
	}
	return f.GetInformer(ctx, typed, opts...)
}

// RemoveInformer does nothing: every GetInformer creates a separate informer, which ends with the
// connection.
func (f *fakeCache) RemoveInformer(context.Context, client.Object) error { return f.conn.Err() }

// IndexField does nothing: to list by fields, build the client of the test with an index.
func (f *fakeCache) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return f.conn.Err()
}

func (f *fakeCache) WaitForCacheSync(context.Context) bool { return f.conn.Err() == nil }

func (f *fakeCache) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-f.conn.life.Done():
	}
	return nil
}
