package fake

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/drainedwatch"
	"github.com/latchkey-dev/latchkey/internal/objectlist"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/internal/watches"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// connection is the connection that Connect creates.
type connection struct {
	testClient client.Client // the client of the test
	epoch      int64
	identity   clustercache.Identity
	access     *access
	life       context.Context
	end        context.CancelCauseFunc

	mu        sync.Mutex         // locked to end life, and to add to running
	running   sync.WaitGroup     // Add is called only before life ends
	informers map[*informer]bool // guarded by mu; not released yet
}

var _ watches.Connection = (*connection)(nil)

func newConnection(c client.Client, epoch int64, identity clustercache.Identity, access *access) *connection {
	conn := &connection{testClient: c, epoch: epoch, identity: identity, access: access,
		informers: map[*informer]bool{}}
	conn.life, conn.end = context.WithCancelCause(context.Background())
	return conn
}

func (c *connection) Life() context.Context        { return c.life }
func (c *connection) Epoch() int64                 { return c.epoch }
func (c *connection) Identity() connstate.Identity { return connstate.Identity(c.identity) }

func (c *connection) Err() error {
	if c.life.Err() == nil {
		return nil
	}
	return context.Cause(c.life)
}

func (c *connection) Go(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() == nil {
		c.running.Go(f)
	}
}

// close ends the connection. After that, Go starts no goroutine.
func (c *connection) close(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(reason)
}

// config returns a config without an API server. Every request with the config fails.
func (c *connection) config() *rest.Config {
	return &rest.Config{Host: Target, WrapTransport: func(http.RoundTripper) http.RoundTripper { return noServer{c} }}
}

// noServer is a RoundTripper that fails every request, because there is no API server.
type noServer struct{ conn *connection }

func (n noServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	if err := n.conn.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("the fake has no API server; use GetClient")
}

// Hold returns an informer that uses the client of the test. As in the real ClusterCache, observe
// receives errors of the client.
func (c *connection) Hold(_ context.Context, object client.Object, scope scopedcache.Scope, _ string,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	created, err := c.newInformer(object, scope, observe)
	if meta.IsNoMatchError(err) {
		if observe != nil {
			observe(scopedcache.ScopeState{State: scopedcache.StateNotServed, LastError: err})
		}
		return notServed{}, nil
	}
	return created, err
}

// notServed is the informer of a kind that is not served. The kind stays not served, because the
// client of a test does not change its kinds.
type notServed struct{}

func (notServed) Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Subscription,
	error) {
	return emptySubscription{options.Seen}, nil
}
func (notServed) Release() {}

type emptySubscription struct{ known replay.Seen }

func (f emptySubscription) Seen() replay.Seen { return f.known }
func (emptySubscription) Remove()             {}

// applyAccess starts and stops informers after a change of what Forbid took.
func (c *connection) applyAccess() {
	c.mu.Lock()
	informers := slices.Collect(maps.Keys(c.informers))
	c.mu.Unlock()
	for _, i := range informers {
		i.applyAccess()
	}
}

// informer feeds its subscriptions from one informer of client-go after another: while Forbid
// forbids the kind, there is none. The informer ends with Release, or with its connection.
type informer struct {
	conn      *connection
	example   client.Object
	gvk       schema.GroupVersionKind
	namespace string
	observe   func(scopedcache.ScopeState)
	create    func() toolscache.SharedIndexInformer

	mu            sync.Mutex
	released      bool                           // guarded by mu
	running       toolscache.SharedIndexInformer // guarded by mu; nil while forbidden
	stop          context.CancelFunc             // guarded by mu; with running
	life          context.Context                // guarded by mu; with running
	subscriptions []*subscription                // guarded by mu
}

// applyAccess starts the informer, or stops it if Forbid forbids its scope.
func (i *informer) applyAccess() {
	i.mu.Lock()
	err := i.conn.checkAccess(i.gvk, i.namespace, "", "list")
	switch {
	case i.released || i.conn.Err() != nil:
		err = nil
	case err != nil && i.running != nil:
		i.stop()
		i.running = nil
		for _, s := range i.subscriptions {
			s.Pause()
		}
	case err == nil && i.running == nil:
		i.running = i.create()
		i.life, i.stop = context.WithCancel(i.conn.life)
		for _, s := range i.subscriptions {
			_ = s.attachLocked() // fails only for an informer that has stopped
		}
		running, life := i.running, i.life
		i.conn.Go(func() { running.RunWithContext(life) })
	}
	i.mu.Unlock()
	if err != nil {
		i.observe(scopedcache.ScopeState{State: scopedcache.StateForbidden, LastError: err})
	}
}

// current returns the running informer, nil while Forbid forbids the scope.
func (i *informer) current() toolscache.SharedIndexInformer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.running
}

func (i *informer) Release() {
	i.conn.mu.Lock()
	delete(i.conn.informers, i)
	i.conn.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.released = true
	if i.running != nil {
		i.stop()
	}
}

// Subscribe implements watches.Informer.
func (i *informer) Subscribe(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Subscription,
	error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := &subscription{Feed: replay.New(handler, i.example, options), informer: i}
	i.subscriptions = append(i.subscriptions, s)
	if i.running == nil {
		return s, nil
	}
	return s, s.attachLocked()
}

// subscription is a handler that receives events from an informer.
type subscription struct {
	*replay.Feed
	informer *informer
	handle   toolscache.ResourceEventHandlerRegistration // guarded by informer.mu; at the running informer
}

// attachLocked feeds the subscription from the running informer.
func (s *subscription) attachLocked() error {
	running, life := s.informer.running, s.informer.life
	source := s.Begin()
	handle, err := running.AddEventHandler(source)
	if err != nil {
		return errors.WithStack(err)
	}
	s.handle = handle
	s.informer.conn.Go(func() {
		select {
		case <-handle.HasSyncedChecker().Done():
			source.EmitMissingDeletes(func(key string) bool {
				_, found, err := running.GetStore().GetByKey(key)
				return found && err == nil
			})
		case <-life.Done():
		}
	})
	return nil
}

// Remove implements watches.Subscription.
func (s *subscription) Remove() {
	s.Pause()
	i := s.informer
	i.mu.Lock()
	i.subscriptions = slices.DeleteFunc(i.subscriptions, func(other *subscription) bool { return other == s })
	running, handle := i.running, s.handle
	i.mu.Unlock()
	if running != nil && handle != nil {
		_ = running.RemoveEventHandler(handle) // fails only for a handle of another informer
	}
}

func (c *connection) newInformer(object client.Object, scope scopedcache.Scope,
	observe func(scopedcache.ScopeState)) (*informer, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	list, err := objectlist.New(object, c.testClient.Scheme())
	if err != nil {
		return nil, err
	}
	if scope.Namespace, err = c.served(object, scope.Namespace); err != nil {
		return nil, err
	}
	gvk, err := apiutil.GVKForObject(object, c.testClient.Scheme())
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if observe == nil {
		observe = func(scopedcache.ScopeState) {}
	}
	i := &informer{conn: c, example: object, gvk: gvk, namespace: scope.Namespace, observe: observe}
	i.create = func() toolscache.SharedIndexInformer {
		lw := &listerWatcher{client: c.testClient, list: list, scope: scope, onList: func() {
			observe(scopedcache.ScopeState{State: scopedcache.StateSynced})
		}}
		shared := toolscache.NewSharedIndexInformer(lw, object, 0, toolscache.Indexers{})
		// These calls fail only if the informer is running.
		_ = shared.SetTransform(func(object any) (any, error) { return convert(object, list, c.testClient.Scheme()) })
		_ = shared.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *toolscache.Reflector, err error) {
			state := scopedcache.ScopeState{State: scopedcache.StateFailing, LastError: err}
			if apierrors.IsForbidden(err) {
				state.State = scopedcache.StateForbidden
			}
			observe(state)
		})
		return shared
	}
	c.mu.Lock()
	c.informers[i] = true
	c.mu.Unlock()
	i.applyAccess()
	return i, nil
}

// served returns the namespace to list, empty if the client's mapper reports the kind as
// cluster-scoped. A kind that neither mapper nor scheme knows is not served: the error is that of
// the mapper.
func (c *connection) served(object client.Object, namespace string) (string, error) {
	gvk, err := apiutil.GVKForObject(object, c.testClient.Scheme())
	if err != nil {
		return "", errors.WithStack(err)
	}
	mapping, err := c.testClient.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	switch {
	case err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot:
		return "", nil
	case err == nil, c.testClient.Scheme().Recognizes(gvk):
		return namespace, nil
	default:
		return "", err
	}
}

// listerWatcher lists and watches through a client. List starts the watch before the list, so that
// no change is lost in between. An object that appears in both becomes an update.
type listerWatcher struct {
	client client.Client
	list   client.ObjectList
	scope  scopedcache.Scope
	onList func() // called after every successful list

	mu        sync.Mutex
	nextWatch watch.Interface // guarded by mu; started by the last List, nil once Watch has returned it
}

// IsWatchListSemanticsUnSupported makes client-go use List.
func (*listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func (l *listerWatcher) List(metav1.ListOptions) (runtime.Object, error) {
	stream, err := l.watch()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	if l.nextWatch != nil {
		l.nextWatch.Stop()
	}
	l.nextWatch = stream
	l.mu.Unlock()
	list := l.list.DeepCopyObject().(client.ObjectList)
	if err := l.client.List(context.Background(), list, client.InNamespace(l.scope.Namespace)); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.nextWatch == stream { // no Watch follows a failed List
			l.nextWatch = nil
			stream.Stop()
		}
		return nil, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	items = slices.DeleteFunc(items, func(item runtime.Object) bool { return !l.selects(item) })
	if err := meta.SetList(list, items); err != nil {
		return nil, errors.WithStack(err)
	}
	l.onList()
	return list, nil
}

func (l *listerWatcher) Watch(metav1.ListOptions) (watch.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream := l.nextWatch; stream != nil {
		l.nextWatch = nil
		return stream, nil
	}
	return l.watch()
}

func (l *listerWatcher) watch() (watch.Interface, error) {
	watching, ok := l.client.(client.WithWatch)
	if !ok {
		return watch.NewFake(), nil // a watch without events
	}
	stream, err := watching.Watch(context.Background(), l.list.DeepCopyObject().(client.ObjectList),
		client.InNamespace(l.scope.Namespace))
	if err != nil || !l.selective() {
		return stream, err
	}
	return drainedwatch.New(watch.Filter(stream, func(event watch.Event) (watch.Event, bool) {
		if event.Type != watch.Error && !l.selects(event.Object) {
			event.Type = watch.Deleted // as an API server does for deselected objects; informers ignore unknown ones
		}
		return event, true
	})), nil
}

func (l *listerWatcher) selective() bool {
	return l.scope.LabelSelector != nil || l.scope.FieldSelector != nil
}

// selects reports whether the selectors of the scope match. The only supported fields are name and
// namespace.
func (l *listerWatcher) selects(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return true
	}
	return (l.scope.LabelSelector == nil || l.scope.LabelSelector.Matches(labels.Set(accessor.GetLabels()))) &&
		(l.scope.FieldSelector == nil ||
			l.scope.FieldSelector.Matches(fields.Set{"metadata.name": accessor.GetName(),
				"metadata.namespace": accessor.GetNamespace()}))
}

// convert returns an object in the representation of the list's objects. A conversion is necessary
// because the fake client's watch delivers typed objects for every representation.
func convert(object any, list client.ObjectList, scheme *runtime.Scheme) (any, error) {
	typed, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	gvk, err := apiutil.GVKForObject(typed, scheme)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	switch list.(type) {
	case *unstructured.UnstructuredList:
		if _, ok := object.(*unstructured.Unstructured); ok {
			return object, nil
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, errors.WithStack(err)
		}
		converted := &unstructured.Unstructured{Object: content}
		converted.SetGroupVersionKind(gvk)
		return converted, nil
	case *metav1.PartialObjectMetadataList:
		if _, ok := object.(*metav1.PartialObjectMetadata); ok {
			return object, nil
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, errors.WithStack(err)
		}
		converted := &metav1.PartialObjectMetadata{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, converted); err != nil {
			return nil, errors.WithStack(err)
		}
		converted.SetGroupVersionKind(gvk)
		return converted, nil
	}
	return object, nil
}
