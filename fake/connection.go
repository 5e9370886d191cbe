package fake

import (
	"context"
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/objectlist"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/internal/watches"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// connection is what Connect makes.
type connection struct {
	of         client.Client // the test's
	generation int64
	identity   clustercache.Identity
	life       context.Context
	end        context.CancelCauseFunc

	mu      sync.Mutex     // held while life ends, or running grows
	running sync.WaitGroup // grows only while life has not ended
}

var _ watches.Connection = (*connection)(nil)

func newConnection(c client.Client, generation int64, identity clustercache.Identity) *connection {
	conn := &connection{of: c, generation: generation, identity: identity}
	conn.life, conn.end = context.WithCancelCause(context.Background())
	return conn
}

func (c *connection) Life() context.Context           { return c.life }
func (c *connection) Generation() int64               { return c.generation }
func (c *connection) Identity() clustercache.Identity { return c.identity }

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

// close ends the connection. Nothing of it begins any more.
func (c *connection) close(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(reason)
}

// config reaches nobody: whoever tries is told so.
func (c *connection) config() *rest.Config {
	return &rest.Config{Host: Target, WrapTransport: func(http.RoundTripper) http.RoundTripper { return nobody{c} }}
}

// nobody is a RoundTripper to no server.
type nobody struct{ conn *connection }

func (n nobody) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	if err := n.conn.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("this is the fake: there is no API server behind it; use GetClient")
}

// Hold returns an informer over the client of the test. As with the real one, errors of the client
// are told to observe.
func (c *connection) Hold(_ context.Context, object client.Object, scope scopedcache.Scope, _ string,
	observe func(scopedcache.ScopeState)) (watches.Informer, error) {
	made, err := c.newInformer(object, scope, observe)
	if meta.IsNoMatchError(err) {
		if observe != nil {
			observe(scopedcache.ScopeState{State: scopedcache.NotServed, LastError: err})
		}
		return notServed{}, nil
	}
	return made, err
}

// notServed is the informer of a kind that is not served, and never will be: the client of a test
// does not change its mind.
type notServed struct{}

func (notServed) Feed(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Feeding, error) {
	return fedNothing{options.Known}, nil
}
func (notServed) Release() {}

type fedNothing struct{ known replay.Known }

func (f fedNothing) Known() replay.Known { return f.known }
func (fedNothing) Remove()               {}

// informer is an informer that runs until Release, or its connection's end.
type informer struct {
	toolscache.SharedIndexInformer
	conn     *connection
	example  client.Object
	stop     context.CancelFunc
	released <-chan struct{} // closed when it is stopped
}

func (i *informer) Release() { i.stop() }

// Feed implements watches.Informer.
func (i *informer) Feed(handler toolscache.ResourceEventHandler, options replay.Options) (watches.Feeding, error) {
	fed := replay.New(handler, i.example, options)
	source := fed.Begin()
	handle, err := i.AddEventHandler(source)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	i.conn.Go(func() {
		select {
		case <-handle.HasSyncedChecker().Done():
			source.EmitMissingDeletes(func(key string) bool {
				_, found, err := i.GetStore().GetByKey(key)
				return found && err == nil
			})
		case <-i.conn.life.Done():
		case <-i.released:
		}
	})
	return feeding{Feed: fed, informer: i, handle: handle}, nil
}

// feeding is a handler that an informer feeds.
type feeding struct {
	*replay.Feed
	informer *informer
	handle   toolscache.ResourceEventHandlerRegistration
}

// Remove implements watches.Feeding.
func (f feeding) Remove() {
	f.Pause()
	_ = f.informer.RemoveEventHandler(f.handle) // it fails only if the informer does not know it
}

func (c *connection) newInformer(object client.Object, scope scopedcache.Scope,
	observe func(scopedcache.ScopeState)) (*informer, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	list, err := objectlist.New(object, c.of.Scheme())
	if err != nil {
		return nil, err
	}
	if scope.Namespace, err = c.served(object, scope.Namespace); err != nil {
		return nil, err
	}
	if observe == nil {
		observe = func(scopedcache.ScopeState) {}
	}
	lw := &listerWatcher{client: c.of, list: list, scope: scope, listed: func() {
		observe(scopedcache.ScopeState{State: scopedcache.Synced})
	}}
	shared := toolscache.NewSharedIndexInformer(lw, object, 0, toolscache.Indexers{})
	// These fail only on informers that run.
	_ = shared.SetTransform(func(object any) (any, error) { return convert(object, list, c.of.Scheme()) })
	_ = shared.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *toolscache.Reflector, err error) {
		state := scopedcache.ScopeState{State: scopedcache.Failing, LastError: err}
		if apierrors.IsForbidden(err) {
			state.State = scopedcache.Forbidden
		}
		observe(state)
	})
	life, stop := context.WithCancel(c.life)
	c.Go(func() { shared.RunWithContext(life) })
	return &informer{SharedIndexInformer: shared, conn: c, example: object, stop: stop, released: life.Done()}, nil
}

// served returns the namespace to look into, empty for cluster-scoped kinds as far as the client's
// mapper knows them. What neither mapper nor scheme knows is not served.
func (c *connection) served(object client.Object, namespace string) (string, error) {
	gvk, err := apiutil.GVKForObject(object, c.of.Scheme())
	if err != nil {
		return "", errors.WithStack(err)
	}
	mapping, err := c.of.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	switch {
	case err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot:
		return "", nil
	case err == nil, c.of.Scheme().Recognizes(gvk):
		return namespace, nil
	default:
		return "", err
	}
}

// listerWatcher lists and watches through a client. It begins to watch before it lists, so that
// nothing falls between: what it sees twice is an update.
type listerWatcher struct {
	client client.Client
	list   client.ObjectList
	scope  scopedcache.Scope
	listed func() // told of every list that succeeded

	mu    sync.Mutex
	begun watch.Interface // guarded by mu; by the last List, not taken yet
}

// IsWatchListSemanticsUnSupported tells client-go to list.
func (*listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func (l *listerWatcher) List(metav1.ListOptions) (runtime.Object, error) {
	stream, err := l.watch()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	if l.begun != nil {
		l.begun.Stop()
	}
	l.begun = stream
	l.mu.Unlock()
	list := l.list.DeepCopyObject().(client.ObjectList)
	if err := l.client.List(context.Background(), list, client.InNamespace(l.scope.Namespace)); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.begun == stream { // nobody will take it
			l.begun = nil
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
	l.listed()
	return list, nil
}

func (l *listerWatcher) Watch(metav1.ListOptions) (watch.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream := l.begun; stream != nil {
		l.begun = nil
		return stream, nil
	}
	return l.watch()
}

func (l *listerWatcher) watch() (watch.Interface, error) {
	watching, ok := l.client.(client.WithWatch)
	if !ok {
		return watch.NewFake(), nil // it never says anything
	}
	stream, err := watching.Watch(context.Background(), l.list.DeepCopyObject().(client.ObjectList),
		client.InNamespace(l.scope.Namespace))
	if err != nil || !l.selective() {
		return stream, err
	}
	return drained{watch.Filter(stream, func(event watch.Event) (watch.Event, bool) {
		if event.Type != watch.Error && !l.selects(event.Object) {
			event.Type = watch.Deleted // as an API server tells of what is not selected any more; informers know what was
		}
		return event, true
	})}, nil
}

// drained leaves nothing behind when it is stopped: what watch.Filter still has to say would block
// it for ever.
type drained struct{ watch.Interface }

func (d drained) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
		}
	}()
}

func (l *listerWatcher) selective() bool {
	return l.scope.LabelSelector != nil || l.scope.FieldSelector != nil
}

// selects reports whether the selectors of the scope match. Of fields it knows name and namespace.
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

// convert gives an object the representation of a list's objects: the fake client watches typed
// ones, whatever it is asked for.
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
