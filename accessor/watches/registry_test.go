package watches

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

type (
	watcherOptions = WatcherOptions[client.Object, reconcile.Request]
	contentOptions = ContentWatchOptions[reconcile.Request]
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errEnded = errors.New("not connected")

// connection is a Connection whose informers the test controls.
type connection struct {
	life    context.Context
	end     context.CancelFunc
	epoch   int64
	running sync.WaitGroup
	hold    func(kind string) error // if not nil, Hold calls it first

	mu        sync.Mutex
	informers map[string]*informer // guarded by mu; held informers by kind and namespace
}

func connect(r *Registry, epoch int64) *connection {
	c := &connection{epoch: epoch, informers: map[string]*informer{}}
	c.life, c.end = context.WithCancel(context.Background())
	r.Connected(c)
	return c
}

// disconnect ends the connection and waits for its goroutines.
func (c *connection) disconnect(r *Registry) {
	c.end()
	r.Disconnected(c)
	c.running.Wait()
}

func (c *connection) Hold(_ context.Context, object client.Object, scope scopedcache.Scope, _ string,
	observe func(scopedcache.ScopeState)) (Informer, error) {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		gvks, _, _ := scheme.Scheme.ObjectKinds(object)
		kind = gvks[0].Kind
	}
	if c.hold != nil {
		if err := c.hold(kind); err != nil {
			return nil, err
		}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := &informer{observe: observe, released: func() {}, synced: make(chan struct{}), life: c.life.Done()}
	name := kind + "/" + scope.Namespace
	if c.informers[name] != nil {
		name += "'"
	}
	i.released = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.informers, name)
	}
	c.informers[name] = i
	return i, nil
}

func (c *connection) Life() context.Context { return c.life }
func (c *connection) Err() error {
	if c.life.Err() != nil {
		return errEnded
	}
	return nil
}
func (c *connection) Go(f func()) {
	if c.life.Err() == nil {
		c.running.Go(f)
	}
}
func (c *connection) Epoch() int64 { return c.epoch }
func (c *connection) IsClusterScoped(_ context.Context, kind schema.GroupVersionKind) bool {
	return kind.Kind == "Namespace"
}
func (c *connection) Identity() connstate.Identity { return connstate.Identity{Username: "red"} }

// heldInformers returns the names of the held informers.
func (c *connection) heldInformers() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.informers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *connection) informer(name string) *informer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.informers[name]
}

// informer calls its handlers when the test calls add.
type informer struct {
	observe  func(scopedcache.ScopeState)
	released func()
	stopping chan struct{} // if not nil, Remove waits until it is closed
	has      map[string]bool
	synced   chan struct{} // closed when handlers have received all objects
	life     <-chan struct{}

	mu       sync.Mutex
	handlers []toolscache.ResourceEventHandler // guarded by mu
}

func (i *informer) Subscribe(h toolscache.ResourceEventHandler, options replay.Options) (Subscription, error) {
	fed := replay.New(h, &corev1.ConfigMap{}, options)
	source := fed.Begin()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, source)
	ended := make(chan struct{})
	go func() {
		select {
		case <-i.synced:
			source.EmitMissingDeletes(func(key string) bool { return i.has[key] })
		case <-ended:
		case <-i.life:
		}
	}()
	return &subscription{Feed: fed, informer: i, end: sync.OnceFunc(func() { close(ended) })}, nil
}

// feeding is the result of informer.Feed.
type subscription struct {
	*replay.Feed
	informer *informer
	end      func()
}

func (f *subscription) Seen() replay.Seen {
	f.end()
	return f.Feed.Seen()
}

func (f *subscription) Remove() {
	f.end()
	if f.informer.stopping != nil {
		<-f.informer.stopping
	}
}

func (i *informer) Release() { i.released() }

// add delivers a creation to every handler, including removed ones: client-go may still call a
// removed handler.
func (i *informer) add(name string) {
	i.mu.Lock()
	handlers := slices.Clone(i.handlers)
	i.mu.Unlock()
	for _, h := range handlers {
		h.OnAdd(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
	}
}

// ctl is a controller that has started, or that starts later.
type ctl struct {
	mu      sync.Mutex
	waiting []source.Source // guarded by mu; nil once started
	sources int             // guarded by mu
	late    bool            // guarded by mu; sources start in run
}

func (c *ctl) Watch(src source.Source) error {
	c.mu.Lock()
	c.sources++
	if c.late {
		c.waiting = append(c.waiting, src)
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	return src.Start(context.Background(), nil)
}

func (c *ctl) run(g *WithT) {
	for _, src := range c.waiting {
		g.Expect(src.Start(context.Background(), nil)).To(Succeed())
	}
}

// onAdd returns a handler of creations.
func onAdd(f func(ctx context.Context, name string)) handler.TypedEventHandler[client.Object, reconcile.Request] {
	return handler.Funcs{CreateFunc: func(ctx context.Context, e event.CreateEvent,
		_ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
		f(ctx, e.Object.GetName())
	}}
}

func newRegistry() *Registry {
	return &Registry{Extension: client.ObjectKey{Name: "red"}, Scheme: scheme.Scheme, Logger: logr.Discard()}
}

func nothing(context.Context, string) {}

func configMaps(c *ctl, f func(context.Context, string), dependent types.UID) Watcher {
	return NewWatcher(watcherOptions{
		Name:         "w",
		Watcher:      c,
		Kind:         &corev1.ConfigMap{},
		EventHandler: onAdd(f),
		Dependent:    dependent,
	})
}

func names(states []WatchState) (names []string) {
	for _, s := range states {
		name := s.Name + " " + s.Kind.Kind + "/" + s.Scope.Namespace
		for _, d := range s.Dependents {
			name += " " + string(d)
		}
		names = append(names, name)
	}
	return names
}

// After Unwatch no handler call starts: Unwatch waits for the running call.
func TestUnwatchWaitsForTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		var called []string
		release := make(chan struct{})
		g.Expect(r.Watch(t.Context(), conn, configMaps(&ctl{}, func(_ context.Context, name string) {
			<-release
			called = append(called, name)
		}, ""))).To(Succeed())
		i := conn.informer("ConfigMap/")
		go i.add("first")
		synctest.Wait()
		returned := false
		go func() { r.Unwatch(t.Context(), "w"); returned = true }()
		synctest.Wait()
		g.Expect(returned).To(BeFalse(), "the handler is still running")
		g.Expect(r.Len()).To(BeZero(), "the watch is already removed")
		close(release)
		synctest.Wait()
		g.Expect(returned).To(BeTrue())
		i.add("late")
		g.Expect(called).To(Equal([]string{"first"}))
		g.Expect(conn.heldInformers()).To(BeEmpty(), "the informer was released")
		conn.disconnect(r)
	})
}

// With a handler that hangs, Unwatch takes a second, or less if its context ends before.
func TestUnwatchOfAHandlerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		release := make(chan struct{})
		for _, patience := range []time.Duration{time.Hour, 100 * time.Millisecond} {
			g.Expect(r.Watch(t.Context(), conn, configMaps(&ctl{}, func(context.Context, string) { <-release }, ""))).
				To(Succeed())
			go conn.informer("ConfigMap/").add("x")
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			start := time.Now()
			r.Unwatch(ctx, "w")
			g.Expect(time.Since(start)).To(Equal(min(patience, unwatchTimeout)))
			cancel()
		}
		close(release)
		conn.disconnect(r)
	})
}

// Inside of a handler, Unwatch does not wait, neither for this watch nor for another.
func TestUnwatchInsideAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		var took []time.Duration
		var called []string
		g.Expect(r.Watch(t.Context(), conn, configMaps(&ctl{}, func(ctx context.Context, name string) {
			called = append(called, name)
			start := time.Now()
			r.Unwatch(ctx, "w")
			took = append(took, time.Since(start))
		}, ""))).To(Succeed())
		i := conn.informer("ConfigMap/")
		i.add("first")
		i.add("late")
		g.Expect(called).To(Equal([]string{"first"}))
		g.Expect(took).To(Equal([]time.Duration{0}))
		conn.disconnect(r)
	})
}

// While an informer stops, client-go blocks the removal of a handler until all handlers have
// returned. Unwatch does not block: inside of such a handler, which would wait for itself, Unwatch
// does not wait. Outside, Unwatch waits for at most a second.
func TestUnwatchWhileTheInformerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		stopping := make(chan struct{})
		g.Expect(r.Watch(t.Context(), conn,
			configMaps(&ctl{}, func(ctx context.Context, _ string) { r.Unwatch(ctx, "w") }, ""))).To(Succeed())
		i := conn.informer("ConfigMap/")
		i.stopping = stopping
		start := time.Now()
		i.add("inside")
		g.Expect(time.Since(start)).To(BeZero())
		g.Expect(r.Len()).To(BeZero())

		g.Expect(r.Watch(t.Context(), conn, configMaps(&ctl{}, nothing, ""))).To(Succeed())
		other := conn.informer("ConfigMap/'")
		other.stopping = stopping
		start = time.Now()
		r.Unwatch(t.Context(), "w")
		g.Expect(time.Since(start)).To(Equal(unwatchTimeout))
		close(stopping)
		synctest.Wait()
		g.Expect(conn.heldInformers()).To(BeEmpty())
		conn.disconnect(r)
	})
}

// A handler that panics loses only its event, and the panic is logged.
func TestHandlerPanics(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	var logged []string
	r.Logger = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	conn := connect(r, 1)
	var called []string
	g.Expect(r.Watch(t.Context(), conn, configMaps(&ctl{}, func(_ context.Context, name string) {
		if name == "bad" {
			panic("bad object")
		}
		called = append(called, name)
	}, ""))).To(Succeed())
	i := conn.informer("ConfigMap/")
	i.add("bad")
	i.add("good")
	g.Expect(called).To(Equal([]string{"good"}))
	g.Expect(logged).
		To(
			HaveExactElements(And(ContainSubstring("A function of the host operator panicked"), ContainSubstring("bad object"),
				ContainSubstring(`"watch"="w"`))))
	r.Unwatch(t.Context(), "w") // does not wait, because the call that panicked has ended
	conn.disconnect(r)
}

func TestConflict(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	c := &ctl{}
	ctx := t.Context()
	g.Expect(r.Watch(ctx, conn, configMaps(c, nothing, ""))).To(Succeed())
	g.Expect(r.Watch(ctx, conn, configMaps(c, nothing, ""))).To(Succeed())
	g.Expect(r.Watch(ctx, conn, configMaps(&ctl{}, nothing, "b"))).To(Succeed(), "the controller does not matter")
	g.Expect(c.sources).To(Equal(1), "a controller gets one source per name")
	for what, other := range map[string]watcherOptions{
		"kind":  {Kind: &corev1.Secret{}},
		"scope": {Kind: &corev1.ConfigMap{}, Scope: scopedcache.Scope{Namespace: "n"}},
		"representation": {Kind: &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		}},
	} {
		other.Name, other.Watcher, other.EventHandler = "w", c, onAdd(nothing)
		err := r.Watch(ctx, conn, NewWatcher(other))
		g.Expect(err).To(MatchError(ErrConflict), what)
		g.Expect(err).
			To(
				MatchError(And(ContainSubstring("the registered watch is ConfigMap (*v1.ConfigMap) everywhere, "),
					ContainSubstring("call Unwatch first, use another name, or use WatchContent"))), what)
		if what == "scope" {
			g.Expect(err).To(MatchError(ContainSubstring("the requested watch is ConfigMap (*v1.ConfigMap) in namespace n")))
		}
	}
	content := NewContentWatch(contentOptions{
		Name:         "w",
		Watcher:      c,
		EventHandler: onAdd(nothing),
		Objects:      []client.Object{&corev1.ConfigMap{}},
	})
	err := r.WatchContent(ctx, conn, content)
	g.Expect(err).To(MatchError(ErrConflict), "WatchContent conflicts with Watch")
	g.Expect(err).
		To(
			MatchError(
				ContainSubstring("Watch registered the name, not WatchContent; call Unwatch first, or use another name")))
	g.Expect(names(r.States())).To(Equal([]string{"w ConfigMap/  b"}), "conflicts change nothing")
	r.End()
	conn.disconnect(r)
}

func TestWatchIsChecked(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	good := watcherOptions{Name: "w", Watcher: &ctl{}, Kind: &corev1.ConfigMap{}, EventHandler: onAdd(nothing)}
	for problem, spoil := range map[string]func(*watcherOptions){
		"a watch needs a Name":            func(o *watcherOptions) { o.Name = "" },
		`watch "w" needs a Watcher`:       func(o *watcherOptions) { o.Watcher = nil },
		`watch "w" needs a Kind`:          func(o *watcherOptions) { o.Kind = nil },
		`watch "w" needs an EventHandler`: func(o *watcherOptions) { o.EventHandler = nil },
		`watch "w": `:                     func(o *watcherOptions) { o.Kind = &metav1.PartialObjectMetadata{} },
	} {
		options := good
		spoil(&options)
		g.Expect(r.Watch(t.Context(), conn, NewWatcher(options))).To(MatchError(ContainSubstring(problem)))
	}
	good.Kind = (*corev1.ConfigMap)(nil)
	g.Expect(r.Watch(t.Context(), conn, NewWatcher(good))).To(MatchError(ContainSubstring("needs a Kind")))
	g.Expect(r.names).To(BeEmpty())
	conn.disconnect(r)
}

// object returns an object of a kind in a namespace.
func object(kind, namespace string) client.Object {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "some"}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind})
	return o
}

// WatchContent watches exactly the kinds of the content, in the namespaces of the content.
func TestWatchContent(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	c := &ctl{}
	var received []string
	watch := func(dependent types.UID, objects ...client.Object) error {
		return r.WatchContent(t.Context(), conn,
			NewContentWatch(contentOptions{
				Name:         "c",
				Watcher:      c,
				Dependent:    dependent,
				Objects:      objects,
				EventHandler: onAdd(func(_ context.Context, name string) { received = append(received, name) }),
			}))
	}
	g.Expect(watch("a", object("ConfigMap", "n"), object("ConfigMap", "n"), object("Secret", "n"))).To(Succeed())
	g.Expect(conn.heldInformers()).To(Equal([]string{"ConfigMap/n", "Secret/n"}))
	secrets := conn.informer("Secret/n")
	conn.informer("ConfigMap/n").add("one")
	secrets.add("two")

	g.Expect(watch("a", object("ConfigMap", "n"), object("Namespace", ""))).To(Succeed())
	g.Expect(conn.heldInformers()).To(Equal([]string{"ConfigMap/n", "Namespace/"}))
	secrets.add("not delivered")
	conn.informer("Namespace/").add("three")
	g.Expect(received).To(Equal([]string{"one", "two", "three"}))
	g.Expect(c.sources).To(Equal(1), "one source serves kinds that are added and removed")

	// Contents of two dependents under one name are watched together.
	g.Expect(watch("b", object("ConfigMap", "m"), object("ConfigMap", "n"))).To(Succeed())
	g.Expect(names(r.States())).To(Equal([]string{"c ConfigMap/m b", "c ConfigMap/n a b", "c Namespace/ a"}))
	g.Expect(watch("a")).To(Succeed())
	g.Expect(names(r.States())).To(Equal([]string{"c ConfigMap/m b", "c ConfigMap/n b"}))
	r.Unwatch(t.Context(), "c", "b")
	g.Expect(conn.heldInformers()).To(BeEmpty())
	g.Expect(r.names).To(BeEmpty())
	g.Expect(watch("a")).To(Succeed(), "an empty content is not an error")
	g.Expect(r.names).To(BeEmpty())
	conn.disconnect(r)
}

// A content that the end of its connection interrupts leaves nothing behind, not even the dependent
// in watches that others registered. Each change of what States returns is reported.
func TestWatchContentIsInterrupted(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	changes := 0
	r.Changed = func() { changes++ }
	conn := connect(r, 1)
	c := &ctl{}
	watch := func(dependent types.UID, objects ...client.Object) error {
		return r.WatchContent(t.Context(), conn, NewContentWatch(contentOptions{
			Name:         "c",
			Watcher:      c,
			Dependent:    dependent,
			Objects:      objects,
			EventHandler: onAdd(nothing),
		}))
	}
	g.Expect(watch("a", object("ConfigMap", "n"))).To(Succeed())
	g.Expect(changes).To(Equal(1))
	g.Expect(watch("b", object("ConfigMap", "n"))).To(Succeed())
	g.Expect(changes).To(Equal(2), "one more dependent")
	g.Expect(watch("b", object("ConfigMap", "n"))).To(Succeed())
	g.Expect(changes).To(Equal(2), "nothing has changed")

	conn.hold = func(string) error { conn.end(); return nil }
	g.Expect(watch("c", object("ConfigMap", "n"), object("Secret", "n"))).To(MatchError(errEnded))
	g.Expect(names(r.States())).To(Equal([]string{"c ConfigMap/n a b"}))
	g.Expect(changes).To(Equal(4), "the dependent joined, and left again")
	r.End()
	conn.disconnect(r)
}

// If one kind cannot be watched, the other kinds are still watched, and watches of removed kinds
// still end.
func TestWatchContentInPart(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	noMatch := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "Gadget"}}
	conn.hold = func(kind string) error {
		if kind == "Gadget" {
			return noMatch
		}
		return nil
	}
	c := &ctl{}
	watch := func(objects ...client.Object) error {
		return r.WatchContent(t.Context(), conn,
			NewContentWatch(contentOptions{Name: "c", Watcher: c, Objects: objects, EventHandler: onAdd(nothing)}))
	}
	err := watch(object("Gadget", "n"))
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
	g.Expect(r.names).To(BeEmpty())
	g.Expect(c.sources).To(BeZero())
	g.Expect(watch(object("Secret", "n"))).To(Succeed())
	err = watch(object("Gadget", "n"), object("ConfigMap", "n"))
	var typed *meta.NoKindMatchError
	g.Expect(errors.As(err, &typed)).To(BeTrue(), "%v", err)
	g.Expect(conn.heldInformers()).To(Equal([]string{"ConfigMap/n"}))
	conn.hold = nil
	g.Expect(watch(object("Gadget", "n"), object("ConfigMap", "n"))).To(Succeed())
	g.Expect(conn.heldInformers()).To(Equal([]string{"ConfigMap/n", "Gadget/n"}))
	r.End()
	g.Eventually(conn.heldInformers).Should(BeEmpty())
	conn.disconnect(r)
}

// If the connection ends during WatchContent, no new watch is registered, and no earlier watch is
// lost.
func TestWatchContentWhileTheConnectionEnds(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	first := connect(r, 1)
	c := &ctl{}
	watch := func(conn *connection, objects ...client.Object) error {
		return r.WatchContent(t.Context(), conn,
			NewContentWatch(contentOptions{Name: "c", Watcher: c, Objects: objects, EventHandler: onAdd(nothing)}))
	}
	endsAt := func(conn *connection, last string) {
		conn.hold = func(kind string) error {
			if kind == last {
				conn.end()
			}
			return nil
		}
	}
	endsAt(first, "Secret")
	g.Expect(watch(first, object("ConfigMap", "n"), object("Secret", "n"))).To(MatchError(errEnded))
	g.Expect(r.names).To(BeEmpty())
	g.Expect(c.sources).To(BeZero())
	first.disconnect(r)

	second := connect(r, 2)
	g.Expect(watch(second, object("ConfigMap", "n"))).To(Succeed())
	endsAt(second, "Secret")
	g.Expect(watch(second, object("ConfigMap", "n"), object("Service", "n"), object("Secret", "n"))).
		To(MatchError(errEnded))
	g.Expect(names(r.States())).To(Equal([]string{"c ConfigMap/n "}))
	second.disconnect(r)
	r.End()
}

// Watches continue across connections, in every state of the registration and the controller.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var received []string
		started, late := &ctl{}, &ctl{late: true}
		onEvent := func(_ context.Context, name string) { received = append(received, name) }
		g.Expect(r.Watch(t.Context(), first, configMaps(started, onEvent, ""))).To(Succeed())
		g.Expect(r.Watch(t.Context(), first,
			NewWatcher(watcherOptions{Name: "late", Watcher: late, Kind: &corev1.Secret{}, EventHandler: onAdd(onEvent)}))).
			To(Succeed())
		old := first.informer("ConfigMap/")
		first.disconnect(r)
		old.add("of the old connection")
		g.Expect(r.Watch(t.Context(), first, configMaps(started, onEvent, ""))).To(MatchError(errEnded))

		second := connect(r, 2)
		synctest.Wait()
		second.informer("ConfigMap/").add("of the new one")
		late.run(g) // the controller starts only now
		second.informer("Secret/").add("a secret")
		g.Expect(received).To(Equal([]string{"of the new one", "a secret"}))
		g.Expect(started.sources).To(Equal(1))

		// The watch of a kind that is not served for a while resumes when the kind is served.
		second.disconnect(r)
		var served atomic.Bool
		third := &connection{
			epoch:     3,
			informers: map[string]*informer{},
			hold: func(string) error {
				if !served.Load() {
					return errors.New("not served")
				}
				return nil
			},
		}
		third.life, third.end = context.WithCancel(context.Background())
		r.Connected(third)
		<-time.After(time.Minute)
		served.Store(true)
		<-time.After(time.Minute)
		g.Expect(third.heldInformers()).To(Equal([]string{"ConfigMap/", "Secret/"}))
		r.End()
		synctest.Wait()
		g.Expect(third.heldInformers()).To(BeEmpty())
		g.Expect(r.Watch(t.Context(), third, configMaps(started, onEvent, ""))).
			NotTo(Succeed(), "the registry has ended permanently")
		third.disconnect(r)
	})
}

// Other calls while a registration waits for the API server leave no watch behind.
func TestWhileRegistering(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(r *Registry, conn *connection)
		fails     bool
		held      int
	}{
		"nothing": {func(*Registry, *connection) {}, false, 1},
		// a Watch that is still in progress registers the watch again
		"unwatch":    {func(r *Registry, _ *connection) { r.Unwatch(context.Background(), "w") }, false, 1},
		"end":        {func(r *Registry, _ *connection) { r.End() }, true, 0},
		"disconnect": {func(r *Registry, conn *connection) { conn.end(); r.Disconnected(conn) }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				r := newRegistry()
				conn := connect(r, 1)
				release := make(chan struct{})
				conn.hold = func(string) error { <-release; return nil }
				var first, second error
				var running sync.WaitGroup
				running.Go(func() { first = r.Watch(t.Context(), conn, configMaps(&ctl{}, nothing, "a")) })
				synctest.Wait()
				running.Go(func() { second = r.Watch(t.Context(), conn, configMaps(&ctl{}, nothing, "b")) })
				impatient, cancel := context.WithCancel(t.Context())
				var third error
				running.Go(func() { third = r.Watch(impatient, conn, configMaps(&ctl{}, nothing, "c")) })
				synctest.Wait()
				cancel()
				synctest.Wait()
				g.Expect(third).To(MatchError(context.Canceled), "the wait for a turn ends with the caller's context")
				tc.meanwhile(r, conn)
				close(release)
				running.Wait()
				if tc.fails {
					g.Expect(first).To(HaveOccurred())
					g.Expect(second).To(HaveOccurred())
					g.Expect(r.names).To(BeEmpty())
				} else {
					g.Expect(first).NotTo(HaveOccurred())
					g.Expect(second).NotTo(HaveOccurred())
					g.Expect(names(r.States())).To(Equal([]string{"w ConfigMap/ a b"}))
				}
				g.Expect(conn.heldInformers()).To(HaveLen(tc.held))
				conn.disconnect(r)
			})
		})
	}
}

// If the controller refuses the source, or panics, nothing stays registered.
func TestControllerThatRefuses(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	var seen []int // the number of watches at each change
	r.Changed = func() {
		for _, reg := range r.names {
			seen = append(seen, len(reg.parts))
		}
	}
	conn := connect(r, 1)
	refusing := NewWatcher(watcherOptions{
		Name:         "w",
		Watcher:      refuses{},
		Kind:         &corev1.ConfigMap{},
		EventHandler: onAdd(nothing),
	})
	g.Expect(r.Watch(t.Context(), conn, refusing)).To(MatchError(ContainSubstring("adding a source to the controller")))
	g.Expect(seen).To(Equal([]int{1, 0}), "both changes are reported")
	panicking := NewWatcher(watcherOptions{
		Name:         "w",
		Watcher:      refuses{panics: true},
		Kind:         &corev1.ConfigMap{},
		EventHandler: onAdd(nothing),
	})
	g.Expect(func() { _ = r.Watch(t.Context(), conn, panicking) }).To(Panic())
	g.Expect(r.names).To(BeEmpty())
	g.Expect(conn.heldInformers()).To(BeEmpty())
	g.Expect(r.Watch(t.Context(), conn, configMaps(&ctl{}, nothing, ""))).To(Succeed())
	r.End()
	conn.disconnect(r)
}

type refuses struct{ panics bool }

func (r refuses) Watch(source.Source) error {
	if r.panics {
		panic("no")
	}
	return errors.New("no")
}

// OnError receives only changes, only the latest state, and one at a time. OnError delays no other
// caller.
func TestOnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		var received []WatchError
		release := make(chan struct{})
		g.Expect(r.Watch(t.Context(), conn, NewWatcher(watcherOptions{
			Name:         "w",
			Watcher:      &ctl{},
			Kind:         &corev1.ConfigMap{},
			EventHandler: onAdd(nothing),
			Scope: scopedcache.Scope{
				Namespace: "n",
			},
			OnError: func(ctx context.Context, err WatchError) {
				<-release
				received = append(received, err)
				if err.State == scopedcache.StateNotServed {
					r.Unwatch(ctx, "w")
				}
			},
		}))).To(Succeed())
		denied, failing := errors.New("denied"), errors.New("failing")
		informer := conn.informer("ConfigMap/n")
		observe := func(state scopedcache.ScopeState) {
			state.Scope = scopedcache.Scope{Namespace: "n"}
			informer.observe(state)
		}
		observe(scopedcache.ScopeState{State: scopedcache.StateSynced}) // a first state without an error is not reported
		observe(scopedcache.ScopeState{State: scopedcache.StateForbidden, LastError: denied})
		synctest.Wait()
		// observe does not wait for OnError
		observe(scopedcache.ScopeState{State: scopedcache.StateFailing, LastError: failing})
		observe(scopedcache.ScopeState{State: scopedcache.StateSynced})
		release <- struct{}{}
		release <- struct{}{}
		synctest.Wait()
		expected := WatchError{
			Extension: r.Extension,
			Name:      "w",
			Kind:      corev1.SchemeGroupVersion.WithKind("ConfigMap"),
			Scope: scopedcache.Scope{
				Namespace: "n",
			},
			Identity: conn.Identity(),
			State:    scopedcache.StateForbidden,
			Err:      denied,
		}
		recovered := expected
		recovered.State, recovered.Err = scopedcache.StateSynced, nil
		g.Expect(received).To(Equal([]WatchError{expected, recovered}))

		close(release)
		observe(scopedcache.ScopeState{State: scopedcache.StateNotServed, LastError: denied})
		observe(scopedcache.ScopeState{State: scopedcache.StateSynced})
		synctest.Wait()
		g.Expect(received).To(HaveLen(2), "only the latest state is reported, and Synced is not a change")
		observe(scopedcache.ScopeState{State: scopedcache.StateNotServed, LastError: denied})
		synctest.Wait()
		g.Expect(received).To(HaveLen(3))
		g.Expect(r.Len()).To(BeZero(), "OnError has called Unwatch")
		observe(scopedcache.ScopeState{State: scopedcache.StateFailing, LastError: failing})
		synctest.Wait()
		g.Expect(received).To(HaveLen(3), "nothing is reported after Unwatch")
		conn.disconnect(r)
	})
}

// Each member of a set of namespaces has its own states for OnError, and the set has one. A
// cluster-scoped kind has no set.
func TestOnErrorOfASet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		var received []string
		hold := make(chan struct{}, 10)
		options := watcherOptions{
			Name:         "w",
			Watcher:      &ctl{},
			Kind:         &corev1.ConfigMap{},
			EventHandler: onAdd(nothing),
			Scope:        scopedcache.Scope{Namespaces: scopedcache.InNamespaces("a", "b")},
			OnError: func(_ context.Context, err WatchError) {
				<-hold
				received = append(received, fmt.Sprintf("%s: %s", err.Scope, err.State))
			},
		}
		g.Expect(r.Watch(t.Context(), conn, NewWatcher(options))).To(Succeed())
		observe, denied := conn.informer("ConfigMap/").observe, errors.New("denied")
		a, b := scopedcache.Scope{Namespace: "a"}, scopedcache.Scope{Namespace: "b"}
		observe(scopedcache.ScopeState{Scope: a, State: scopedcache.StateSynced})
		observe(scopedcache.ScopeState{Scope: b, State: scopedcache.StateForbidden, LastError: denied})
		observe(scopedcache.ScopeState{Scope: options.Scope, State: scopedcache.StatePartial, LastError: denied})
		hold <- struct{}{}
		hold <- struct{}{}
		synctest.Wait()
		g.Expect(received).To(Equal([]string{"namespace b: Forbidden", "namespaces a, b: Partial"}))
		observe(scopedcache.ScopeState{Scope: options.Scope, State: scopedcache.StateFailing, LastError: denied})
		synctest.Wait() // this call waits while the next states come
		observe(scopedcache.ScopeState{Scope: b, State: scopedcache.StateForbidden, LastError: denied})
		observe(scopedcache.ScopeState{Scope: a, State: scopedcache.StateFailing, LastError: denied})
		observe(scopedcache.ScopeState{Scope: a, State: scopedcache.StateSynced})
		observe(scopedcache.ScopeState{Scope: b, State: scopedcache.StateSynced})
		close(hold)
		synctest.Wait()
		g.Expect(received[2:]).To(Equal([]string{"namespaces a, b: Failing", "namespace b: Synced"}),
			"only the latest states, and only changes")

		// What an earlier connection did not report is not reported as the next one's.
		hold = make(chan struct{}, 10)
		observe(scopedcache.ScopeState{Scope: a, State: scopedcache.StateForbidden, LastError: denied})
		synctest.Wait()
		observe(scopedcache.ScopeState{Scope: b, State: scopedcache.StateForbidden, LastError: denied})
		next := connect(r, 2)
		synctest.Wait()
		next.informer("ConfigMap/").observe(scopedcache.ScopeState{Scope: a, State: scopedcache.StateSynced})
		synctest.Wait()
		hold <- struct{}{} // for the call that was first
		synctest.Wait()
		close(hold)
		synctest.Wait()
		g.Expect(received[4:]).To(Equal([]string{"namespace a: Forbidden", "namespace a: Synced"}))

		options.Kind = &corev1.Namespace{}
		g.Expect(r.Watch(t.Context(), next, NewWatcher(options))).To(MatchError(ContainSubstring("has no namespaces")))
		conn.disconnect(r)
		next.disconnect(r)
	})
}

// The options of a connection's cache may name namespaces for a watch of all. OnError then hears of
// the watch as it was requested, and of each namespace until another connection has others.
func TestOnErrorOfConfiguredNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		var received []string
		g.Expect(r.Watch(t.Context(), conn, NewWatcher(watcherOptions{
			Name:         "w",
			Watcher:      &ctl{},
			Kind:         &corev1.ConfigMap{},
			EventHandler: onAdd(nothing),
			OnError: func(_ context.Context, err WatchError) {
				received = append(received, fmt.Sprintf("%q %s", err.Scope.Namespace, err.State))
				g.Expect(err.Scope.Namespaces).To(BeNil())
			},
		}))).To(Succeed())
		denied := errors.New("denied")
		report := func(conn *connection, scope scopedcache.Scope, state scopedcache.State, err error) {
			conn.informer("ConfigMap/").observe(scopedcache.ScopeState{Scope: scope, State: state, LastError: err})
			synctest.Wait()
		}
		b := scopedcache.Scope{Namespace: "b"}
		report(conn, scopedcache.Scope{}, scopedcache.StateForbidden, denied)

		named := connect(r, 2)
		synctest.Wait()
		set := scopedcache.Scope{Namespaces: scopedcache.InNamespaces("a", "b")}
		report(named, b, scopedcache.StateForbidden, denied)
		report(named, set, scopedcache.StatePartial, denied)

		others := connect(r, 3)
		synctest.Wait()
		report(others, scopedcache.Scope{Namespaces: scopedcache.InNamespaces("a", "c")}, scopedcache.StateSynced, nil)
		g.Expect(received).To(ConsistOf(`"" Forbidden`, `"b" Forbidden`, `"" Partial`, `"b" Left`, `"" Synced`))
		for _, c := range []*connection{conn, named, others} {
			c.disconnect(r)
		}
	})
}

// Of a set that changes, OnError hears that a namespace has left if it knows of an error there.
func TestOnErrorOfASetThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		defer conn.disconnect(r)
		var received []string
		g.Expect(r.Watch(t.Context(), conn, NewWatcher(watcherOptions{
			Name:         "w",
			Watcher:      &ctl{},
			Kind:         &corev1.ConfigMap{},
			EventHandler: onAdd(nothing),
			Scope:        scopedcache.Scope{Namespaces: scopedcache.NamespacesWithLabels(labels.Everything())},
			OnError: func(_ context.Context, err WatchError) {
				received = append(received, fmt.Sprintf("%s: %s %v", err.Scope, err.State, err.Err))
			},
		}))).To(Succeed())
		observe, denied := conn.informer("ConfigMap/").observe, errors.New("denied")
		a, b := scopedcache.Scope{Namespace: "a"}, scopedcache.Scope{Namespace: "b"}
		for _, state := range []scopedcache.ScopeState{
			{Scope: a, State: scopedcache.StateSynced},
			{Scope: b, State: scopedcache.StateForbidden, LastError: denied},
			{Scope: a, State: scopedcache.StateLeft},
			{Scope: b, State: scopedcache.StateLeft},
			{Scope: a, State: scopedcache.StateSynced},
			{Scope: a, State: scopedcache.StateForbidden, LastError: denied},
			{Scope: b, State: scopedcache.StateForbidden, LastError: denied},
		} {
			observe(state)
			synctest.Wait()
		}
		g.Expect(received).To(Equal([]string{"namespace b: Forbidden denied", "namespace b: Left <nil>",
			"namespace a: Forbidden denied", "namespace b: Forbidden denied"}))
		last := connect(r, 2)
		defer last.disconnect(r)
		synctest.Wait()
		last.informer("ConfigMap/").observe(scopedcache.ScopeState{
			Scope:     b,
			State:     scopedcache.StateForbidden,
			LastError: denied,
		})
		synctest.Wait()
		g.Expect(received[4:]).To(Equal([]string{"namespace a: Left <nil>"}), "b is as it was")
	})
}

// A state that OnError did not receive before the connection ended does not block the states of the
// next connection.
func TestOnErrorAfterReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var received []scopedcache.State
		g.Expect(r.Watch(t.Context(), first, NewWatcher(watcherOptions{
			Name:         "w",
			Watcher:      &ctl{},
			Kind:         &corev1.ConfigMap{},
			EventHandler: onAdd(nothing),
			OnError:      func(_ context.Context, err WatchError) { received = append(received, err.State) },
		}))).To(Succeed())
		observe := first.informer("ConfigMap/").observe
		first.end()
		// the goroutine for OnError never runs
		observe(scopedcache.ScopeState{State: scopedcache.StateFailing, LastError: errEnded})
		first.disconnect(r)
		second := connect(r, 2)
		synctest.Wait()
		second.informer("ConfigMap/").
			observe(scopedcache.ScopeState{State: scopedcache.StateForbidden, LastError: errEnded})
		synctest.Wait()
		g.Expect(received).To(Equal([]scopedcache.State{scopedcache.StateForbidden}))
		r.End()
		second.disconnect(r)
	})
}

func TestDependents(t *testing.T) {
	g := NewWithT(t)
	before := []types.UID{"a", "c"}
	g.Expect(addDependent(before, "b")).To(Equal([]types.UID{"a", "b", "c"}))
	g.Expect(addDependent(before, "a")).To(Equal(before))
	g.Expect(removeDependents(before, []types.UID{"a", "x"})).To(Equal([]types.UID{"c"}))
	g.Expect(removeDependents(before, nil)).To(BeEmpty(), "an empty list means all")
	g.Expect(before).To(Equal([]types.UID{"a", "c"}), "published slices do not change")
}

// Handlers receive copies, so a handler that changes an object affects no other handler.
func TestHandlersGetCopies(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	rename := func(objects ...client.Object) {
		for _, object := range objects {
			object.SetName("renamed")
		}
	}
	g.Expect(r.Watch(t.Context(), conn,
		NewWatcher(watcherOptions{
			Name:    "w",
			Watcher: &ctl{},
			Kind:    &corev1.ConfigMap{},
			EventHandler: handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
					rename(e.Object)
				},
				UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
					rename(e.ObjectOld, e.ObjectNew)
				},
				DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
					rename(e.Object)
				},
			},
		}))).To(Succeed())
	kept := func() *corev1.ConfigMap { return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}} }
	objects := []*corev1.ConfigMap{kept(), kept(), kept(), kept(), kept()}
	h := conn.informer("ConfigMap/").handlers[0]
	h.OnAdd(objects[0], true)
	h.OnUpdate(objects[1], objects[2])
	h.OnDelete(objects[3])
	h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "kept", Obj: objects[4]})
	g.Expect(objects).To(HaveEach(HaveField("Name", "kept")))
	r.End()
	conn.disconnect(r)
}

// For any order of connections, the latest one feeds the watch, and no informer stays held.
func TestLateConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var received []string
		g.Expect(r.Watch(t.Context(), first,
			configMaps(&ctl{}, func(_ context.Context, name string) { received = append(received, name) }, ""))).To(Succeed())
		first.end() // Disconnected is not called yet
		second := connect(r, 2)
		synctest.Wait()
		r.Disconnected(first)
		g.Expect(r.Watch(t.Context(), second, configMaps(&ctl{}, nothing, "b"))).
			To(Succeed(), "the second is the current one")
		second.informer("ConfigMap/").add("one")
		w := r.watchesLocked()[0]
		late := &informer{released: func() { received = append(received, "released") }}
		g.Expect(w.attach(first, late)).To(Succeed())
		second.informer("ConfigMap/").add("two")
		g.Expect(received).To(Equal([]string{"one", "released", "two"}))

		// An informer that is attached after the end of the watch is released too.
		r.Unwatch(t.Context(), "w")
		g.Expect(w.attach(second, late)).To(Succeed())
		g.Expect(received).To(Equal([]string{"one", "released", "two", "released"}))
		g.Expect(second.heldInformers()).To(BeEmpty())
		first.disconnect(r)
		second.disconnect(r)
	})
}

// refusing is an informer that accepts no handler.
type refusing struct{ Informer }

func (refusing) Subscribe(toolscache.ResourceEventHandler, replay.Options) (Subscription, error) {
	return nil, errors.New("no handler accepted")
}

func TestInformerThatRefuses(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	w := newWatch(newRegistration(r, Spec{name: "w"}), partObject{object: &corev1.ConfigMap{}}, "")
	var h toolscache.ResourceEventHandler = toolscache.ResourceEventHandlerFuncs{}
	w.reg.handler.Store(&h)
	released := false
	g.Expect(w.attach(conn, refusing{&informer{released: func() { released = true }}})).
		To(MatchError(ContainSubstring("no handler accepted")))
	g.Expect(released).To(BeTrue())
	conn.disconnect(r)
}

// Unwatch ends a watch that waits until its kind is served again.
func TestUnwatchWhileResuming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		g.Expect(r.Watch(t.Context(), first, configMaps(&ctl{}, nothing, ""))).To(Succeed())
		first.disconnect(r)
		second := &connection{
			epoch:     2,
			informers: map[string]*informer{},
			hold: func(string) error {
				return errors.New("not served")
			},
		}
		second.life, second.end = context.WithCancel(context.Background())
		r.Connected(second)
		<-time.After(time.Minute)
		r.Unwatch(t.Context(), "w")
		start := time.Now()
		second.running.Wait()
		g.Expect(time.Since(start)).To(BeZero())
		second.disconnect(r)
	})
}

// OnError receives another error of the same state. OnError does not receive a late state of an
// earlier connection.
func TestOnErrorReceivesErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var received []string
		release := make(chan struct{})
		g.Expect(r.Watch(t.Context(), first, NewWatcher(watcherOptions{
			Name:         "w",
			Watcher:      &ctl{},
			Kind:         &corev1.ConfigMap{},
			EventHandler: onAdd(nothing),
			OnError:      func(_ context.Context, err WatchError) { <-release; received = append(received, err.Err.Error()) },
		}))).To(Succeed())
		report := func(observe func(scopedcache.ScopeState), what string) {
			observe(scopedcache.ScopeState{State: scopedcache.StateFailing, LastError: errors.New(what)})
			synctest.Wait()
		}
		old := first.informer("ConfigMap/").observe
		close(release)
		report(old, "one")
		report(old, "two")
		report(old, "two")
		g.Expect(received).To(Equal([]string{"one", "two"}))
		release = make(chan struct{})
		first.end()
		r.Disconnected(first)
		second := connect(r, 2)
		synctest.Wait()
		report(second.informer("ConfigMap/").observe, "three") // OnError hangs with it
		report(second.informer("ConfigMap/").observe, "four")
		report(old, "late")
		close(release)
		synctest.Wait()
		g.Expect(received).To(Equal([]string{"one", "two", "three", "four"}))
		r.End()
		first.disconnect(r)
		second.disconnect(r)
	})
}

// A deletion during a disconnect is delivered after the next informer has listed all objects. The
// deleted object has the fields by which handlers find its owner, and no content. This holds for
// any number of reconnects.
func TestMissedDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var mu sync.Mutex
		var received []string
		var last client.Object
		note := func(what string, object client.Object) {
			mu.Lock()
			defer mu.Unlock()
			received = append(received, what+" "+object.GetName())
			last = object
		}
		seen := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			seen := received
			received = nil
			return seen
		}
		type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
		c := &ctl{}
		g.Expect(r.Watch(t.Context(), first,
			NewWatcher(watcherOptions{
				Name:    "w",
				Kind:    &corev1.ConfigMap{},
				Watcher: c,
				EventHandler: handler.Funcs{
					CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { note("create", e.Object) },
					DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { note("delete", e.Object) },
				},
			}))).To(Succeed())
		labels := map[string]string{"l": "v"}
		object := func(name, uid string) *corev1.ConfigMap {
			return &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Namespace:       "ns",
					Name:            name,
					UID:             types.UID(uid),
					Labels:          labels,
					Annotations:     map[string]string{"a": "v"},
					OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
				},
				Data: map[string]string{"content": "secret"},
			}
		}
		began := first.informer("ConfigMap/").handlers[0]
		for _, name := range []string{"stays", "goes", "goes too", "is another", "comes back", "was deleted"} {
			began.OnAdd(object(name, "1"), true)
		}
		began.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: object("was deleted", "1")})
		seen()
		first.disconnect(r)
		// An event of an informer that has ended is not delivered, so its object does not count as
		// known.
		began.OnAdd(object("goes", "1"), false)

		// The second connection ends in the middle of its first list.
		second := connect(r, 2)
		synctest.Wait()
		second.informer("ConfigMap/").handlers[0].OnAdd(object("goes too", "1"), true)
		second.disconnect(r)
		g.Expect(seen()).To(Equal([]string{"create goes too"}))

		third := connect(r, 3)
		synctest.Wait()
		informer := third.informer("ConfigMap/")
		informer.handlers[0].OnAdd(object("stays", "1"), true)
		informer.handlers[0].OnAdd(object("is another", "2"), true)
		g.Expect(seen()).To(Equal([]string{"create stays", "delete is another", "create is another"}), "the old one first")
		informer.has = map[string]bool{"ns/comes back": true} // its creation is not delivered yet
		close(informer.synced)
		g.Expect(seen()).To(ConsistOf("delete goes", "delete goes too"))
		g.Expect(last).
			To(Equal(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace:       "ns",
				Name:            last.GetName(),
				UID:             "1",
				Labels:          map[string]string{"l": "v"},
				OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
			}}))
		last.GetLabels()["l"] = "changed"
		g.Expect(labels).To(HaveKeyWithValue("l", "v"), "handlers get copies")
		informer.handlers[0].OnDelete(object("stays", "1"))
		seen()
		third.disconnect(r)

		// After Unwatch nothing is delivered.
		fourth := connect(r, 4)
		synctest.Wait()
		informer = fourth.informer("ConfigMap/")
		r.Unwatch(t.Context(), "w")
		close(informer.synced)
		g.Expect(seen()).To(BeEmpty())
		fourth.disconnect(r)
	})
}

// A Go type that is registered for two kinds is held as the kind that the caller named.
func TestTypeOfTwoKinds(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	group := schema.GroupVersion{Group: "example.com", Version: "v1"}
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ConfigMap{})
	scheme.AddKnownTypes(group, &corev1.ConfigMap{})
	named := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: group.String(), Kind: "ConfigMap"},
		Data:     map[string]string{"content": "x"},
	}
	p, err := partOf(named, scopedcache.Scope{}, scheme)
	g.Expect(err).NotTo(HaveOccurred())
	held := newWatch(newRegistration(newRegistry(), Spec{name: "w"}), p, "").example()
	kind, err := apiutil.GVKForObject(held, scheme)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kind).To(Equal(group.WithKind("ConfigMap")))
	g.Expect(held).To(Equal(&corev1.ConfigMap{TypeMeta: named.TypeMeta}), "without content")
}
