package watches

import (
	"context"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/replay"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errEnded = errors.New("not connected")

// connection is a Connection whose informers do what the test says.
type connection struct {
	life       context.Context
	end        context.CancelFunc
	generation int64
	running    sync.WaitGroup
	hold       func(kind string) error // what Hold does first, nil for nothing

	mu        sync.Mutex
	informers map[string]*informer // guarded by mu; those held, by kind and namespace
}

func connect(r *Registry, generation int64) *connection {
	c := &connection{generation: generation, informers: map[string]*informer{}}
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
func (c *connection) Generation() int64              { return c.generation }
func (c *connection) Identity() healthprobe.Identity { return healthprobe.Identity{Username: "red"} }

// held are the names of the informers that are held.
func (c *connection) held() (names []string) {
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

// informer calls its handlers when the test says.
type informer struct {
	observe  func(scopedcache.ScopeState)
	released func()
	stopping chan struct{} // if not nil, Remove waits until it is closed
	has      map[string]bool
	synced   chan struct{} // closed when handlers were told of everything
	life     <-chan struct{}

	mu       sync.Mutex
	handlers []toolscache.ResourceEventHandler // guarded by mu
}

func (i *informer) Feed(h toolscache.ResourceEventHandler, options replay.Options) (Feeding, error) {
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
	return &feeding{Feed: fed, of: i, end: sync.OnceFunc(func() { close(ended) })}, nil
}

// feeding is what an informer answers with.
type feeding struct {
	*replay.Feed
	of  *informer
	end func()
}

func (f *feeding) Known() replay.Known {
	f.end()
	return f.Feed.Known()
}

func (f *feeding) Remove() {
	f.end()
	if f.of.stopping != nil {
		<-f.of.stopping
	}
}

func (i *informer) Release() { i.released() }

// add delivers a creation to every handler there ever was: a removed one may still be called by
// client-go.
func (i *informer) add(name string) {
	i.mu.Lock()
	handlers := slices.Clone(i.handlers)
	i.mu.Unlock()
	for _, h := range handlers {
		h.OnAdd(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
	}
}

// ctl is a controller that has been started, or that is started later.
type ctl struct {
	mu      sync.Mutex
	waiting []source.Source // guarded by mu; nil once started
	sources int             // guarded by mu
	late    bool            // guarded by mu; sources wait for run
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

// onAdd makes a handler of creations.
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
	return NewWatcher(WatcherOptions{Name: "w", Watcher: c, Kind: &corev1.ConfigMap{}, EventHandler: onAdd(f),
		Dependent: dependent})
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

// After Unwatch no handler begins: Unwatch waits for the one that is being called.
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
		g.Expect(returned).To(BeFalse(), "the handler is being called")
		g.Expect(r.Len()).To(BeZero(), "but the watch is gone")
		close(release)
		synctest.Wait()
		g.Expect(returned).To(BeTrue())
		i.add("late")
		g.Expect(called).To(Equal([]string{"first"}))
		g.Expect(conn.held()).To(BeEmpty(), "the informer was given back")
		conn.disconnect(r)
	})
}

// A handler that hangs costs whoever unwatches it a second, and less if their context ends before.
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
			g.Expect(time.Since(start)).To(Equal(min(patience, unwatchPatience)))
			cancel()
		}
		close(release)
		conn.disconnect(r)
	})
}

// Inside of a handler, Unwatch waits for nothing: neither for this watch nor for another.
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

// While an informer stops, client-go makes whoever removes a handler wait until all handlers have
// returned. Unwatch does not: neither inside of such a handler, which would wait for itself, nor
// outside for longer than its second.
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
		g.Expect(time.Since(start)).To(Equal(unwatchPatience))
		close(stopping)
		synctest.Wait()
		g.Expect(conn.held()).To(BeEmpty())
		conn.disconnect(r)
	})
}

// A handler that panics loses its event and nothing else; the log says so.
func TestHandlerPanics(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	var logged []string
	r.Logger = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	conn := connect(r, 1)
	var called []string
	g.Expect(r.Watch(t.Context(), conn, configMaps(&ctl{}, func(_ context.Context, name string) {
		if name == "bad" {
			panic("I do not like it")
		}
		called = append(called, name)
	}, ""))).To(Succeed())
	i := conn.informer("ConfigMap/")
	i.add("bad")
	i.add("good")
	g.Expect(called).To(Equal([]string{"good"}))
	g.Expect(logged).
		To(
			HaveExactElements(And(ContainSubstring("A handler panicked"), ContainSubstring("I do not like it"),
				ContainSubstring(`"watch"="w"`))))
	r.Unwatch(t.Context(), "w") // the panic was counted out
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
	g.Expect(r.Watch(ctx, conn, configMaps(&ctl{}, nothing, "b"))).To(Succeed(), "whoever the controller is")
	g.Expect(c.sources).To(Equal(1), "a controller gets one source per name")
	for what, other := range map[string]WatcherOptions{
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
				MatchError(And(ContainSubstring("it watches ConfigMap (*v1.ConfigMap) everywhere, and "),
					ContainSubstring("Unwatch it first, take another name, or use WatchContent"))), what)
		if what == "scope" {
			g.Expect(err).To(MatchError(ContainSubstring("ConfigMap (*v1.ConfigMap) in namespace n was asked for")))
		}
	}
	content := NewContentWatch(ContentWatchOptions{Name: "w", Watcher: c, EventHandler: onAdd(nothing),
		Objects: []client.Object{&corev1.ConfigMap{}}})
	err := r.WatchContent(ctx, conn, content)
	g.Expect(err).To(MatchError(ErrConflict), "a content is not a watch")
	g.Expect(err).
		To(
			MatchError(ContainSubstring("Watch has registered it, not WatchContent; Unwatch it first, or take another name")))
	g.Expect(names(r.States())).To(Equal([]string{"w ConfigMap/  b"}), "conflicts change nothing")
	r.End()
	conn.disconnect(r)
}

func TestWatchIsChecked(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	good := WatcherOptions{Name: "w", Watcher: &ctl{}, Kind: &corev1.ConfigMap{}, EventHandler: onAdd(nothing)}
	for problem, spoil := range map[string]func(*WatcherOptions){
		"a watch needs a Name":            func(o *WatcherOptions) { o.Name = "" },
		`watch "w" needs a Watcher`:       func(o *WatcherOptions) { o.Watcher = nil },
		`watch "w" needs a Kind`:          func(o *WatcherOptions) { o.Kind = nil },
		`watch "w" needs an EventHandler`: func(o *WatcherOptions) { o.EventHandler = nil },
		`watch "w": `:                     func(o *WatcherOptions) { o.Kind = &metav1.PartialObjectMetadata{} },
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

// object makes an object of a kind in a namespace.
func object(kind, namespace string) client.Object {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "some"}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind})
	return o
}

// WatchContent watches exactly the kinds of the content, where the content is.
func TestWatchContent(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	c := &ctl{}
	var heard []string
	watch := func(dependent types.UID, objects ...client.Object) error {
		return r.WatchContent(t.Context(), conn,
			NewContentWatch(ContentWatchOptions{Name: "c", Watcher: c, Dependent: dependent, Objects: objects,
				EventHandler: onAdd(func(_ context.Context, name string) { heard = append(heard, name) })}))
	}
	g.Expect(watch("a", object("ConfigMap", "n"), object("ConfigMap", "n"), object("Secret", "n"))).To(Succeed())
	g.Expect(conn.held()).To(Equal([]string{"ConfigMap/n", "Secret/n"}))
	secrets := conn.informer("Secret/n")
	conn.informer("ConfigMap/n").add("one")
	secrets.add("two")

	g.Expect(watch("a", object("ConfigMap", "n"), object("Namespace", ""))).To(Succeed())
	g.Expect(conn.held()).To(Equal([]string{"ConfigMap/n", "Namespace/"}))
	secrets.add("has left")
	conn.informer("Namespace/").add("three")
	g.Expect(heard).To(Equal([]string{"one", "two", "three"}))
	g.Expect(c.sources).To(Equal(1), "kinds come and go with one source")

	// Another dependent's content under the name is watched together with it.
	g.Expect(watch("b", object("ConfigMap", "m"), object("ConfigMap", "n"))).To(Succeed())
	g.Expect(names(r.States())).To(Equal([]string{"c ConfigMap/m b", "c ConfigMap/n a b", "c Namespace/ a"}))
	g.Expect(watch("a")).To(Succeed())
	g.Expect(names(r.States())).To(Equal([]string{"c ConfigMap/m b", "c ConfigMap/n b"}))
	r.Unwatch(t.Context(), "c", "b")
	g.Expect(conn.held()).To(BeEmpty())
	g.Expect(r.names).To(BeEmpty())
	g.Expect(watch("a")).To(Succeed(), "no content is no error")
	g.Expect(r.names).To(BeEmpty())
	conn.disconnect(r)
}

// What cannot be watched does not keep the rest from it, nor what is gone from ending.
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
			NewContentWatch(ContentWatchOptions{Name: "c", Watcher: c, Objects: objects, EventHandler: onAdd(nothing)}))
	}
	err := watch(object("Gadget", "n"))
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
	g.Expect(r.names).To(BeEmpty())
	g.Expect(c.sources).To(BeZero())
	g.Expect(watch(object("Secret", "n"))).To(Succeed())
	err = watch(object("Gadget", "n"), object("ConfigMap", "n"))
	var typed *meta.NoKindMatchError
	g.Expect(errors.As(err, &typed)).To(BeTrue(), "%v", err)
	g.Expect(conn.held()).To(Equal([]string{"ConfigMap/n"}))
	conn.hold = nil
	g.Expect(watch(object("Gadget", "n"), object("ConfigMap", "n"))).To(Succeed())
	g.Expect(conn.held()).To(Equal([]string{"ConfigMap/n", "Gadget/n"}))
	r.End()
	g.Eventually(conn.held).Should(BeEmpty())
	conn.disconnect(r)
}

// Whose connection ends in the middle of a content has registered nothing of it, and loses nothing
// that it had.
func TestWatchContentWhileTheConnectionEnds(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	first := connect(r, 1)
	c := &ctl{}
	watch := func(conn *connection, objects ...client.Object) error {
		return r.WatchContent(t.Context(), conn,
			NewContentWatch(ContentWatchOptions{Name: "c", Watcher: c, Objects: objects, EventHandler: onAdd(nothing)}))
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

// Watches outlive connections, whatever state the registration and the controller are in.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var heard []string
		started, late := &ctl{}, &ctl{late: true}
		hear := func(_ context.Context, name string) { heard = append(heard, name) }
		g.Expect(r.Watch(t.Context(), first, configMaps(started, hear, ""))).To(Succeed())
		g.Expect(r.Watch(t.Context(), first,
			NewWatcher(WatcherOptions{Name: "late", Watcher: late, Kind: &corev1.Secret{}, EventHandler: onAdd(hear)}))).
			To(Succeed())
		old := first.informer("ConfigMap/")
		first.disconnect(r)
		old.add("of the old connection")
		g.Expect(r.Watch(t.Context(), first, configMaps(started, hear, ""))).To(MatchError(errEnded))

		second := connect(r, 2)
		synctest.Wait()
		second.informer("ConfigMap/").add("of the new one")
		late.run(g) // only now does the controller start
		second.informer("Secret/").add("a secret")
		g.Expect(heard).To(Equal([]string{"of the new one", "a secret"}))
		g.Expect(started.sources).To(Equal(1))

		// A kind that is not served for a while is resumed when it is.
		second.disconnect(r)
		var served atomic.Bool
		third := &connection{generation: 3, informers: map[string]*informer{}, hold: func(string) error {
			if !served.Load() {
				return errors.New("not served")
			}
			return nil
		}}
		third.life, third.end = context.WithCancel(context.Background())
		r.Connected(third)
		<-time.After(time.Minute)
		served.Store(true)
		<-time.After(time.Minute)
		g.Expect(third.held()).To(Equal([]string{"ConfigMap/", "Secret/"}))
		r.End()
		synctest.Wait()
		g.Expect(third.held()).To(BeEmpty())
		g.Expect(r.Watch(t.Context(), third, configMaps(started, hear, ""))).NotTo(Succeed(), "it has ended for ever")
		third.disconnect(r)
	})
}

// Whatever happens while a registration waits for the API server, nothing is left behind.
func TestWhileRegistering(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(r *Registry, conn *connection)
		fails     bool
		held      int
	}{
		"nothing": {func(*Registry, *connection) {}, false, 1},
		// whoever watches now wants it
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
				g.Expect(third).To(MatchError(context.Canceled), "who waits for another's turn waits as long as its context")
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
				g.Expect(conn.held()).To(HaveLen(tc.held))
				conn.disconnect(r)
			})
		})
	}
}

// A controller that takes no source, or panics, leaves nothing registered.
func TestControllerThatRefuses(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	refusing := NewWatcher(WatcherOptions{Name: "w", Watcher: refuses{}, Kind: &corev1.ConfigMap{},
		EventHandler: onAdd(nothing)})
	g.Expect(r.Watch(t.Context(), conn, refusing)).To(MatchError(ContainSubstring("adding a source to the controller")))
	panicking := NewWatcher(WatcherOptions{Name: "w", Watcher: refuses{panics: true}, Kind: &corev1.ConfigMap{},
		EventHandler: onAdd(nothing)})
	g.Expect(func() { _ = r.Watch(t.Context(), conn, panicking) }).To(Panic())
	g.Expect(r.names).To(BeEmpty())
	g.Expect(conn.held()).To(BeEmpty())
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

// OnError is told the latest state, changes only, one at a time, and holds up nobody.
func TestOnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		conn := connect(r, 1)
		var told []WatchError
		release := make(chan struct{})
		g.Expect(r.Watch(t.Context(), conn, NewWatcher(WatcherOptions{
			Name: "w", Watcher: &ctl{}, Kind: &corev1.ConfigMap{}, EventHandler: onAdd(nothing), Scope: scopedcache.Scope{
				Namespace: "n",
			},
			OnError: func(ctx context.Context, err WatchError) {
				<-release
				told = append(told, err)
				if err.State == scopedcache.NotServed {
					r.Unwatch(ctx, "w")
				}
			},
		}))).To(Succeed())
		denied, failing := errors.New("denied"), errors.New("failing")
		observe := conn.informer("ConfigMap/n").observe
		observe(scopedcache.ScopeState{State: scopedcache.Synced}) // as it should
		observe(scopedcache.ScopeState{State: scopedcache.Forbidden, LastError: denied})
		synctest.Wait()
		observe(scopedcache.ScopeState{State: scopedcache.Failing, LastError: failing}) // nobody waits for OnError
		observe(scopedcache.ScopeState{State: scopedcache.Synced})
		release <- struct{}{}
		release <- struct{}{}
		synctest.Wait()
		expected := WatchError{Extension: r.Extension, Name: "w", Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
			Scope: scopedcache.Scope{Namespace: "n"}, Identity: conn.Identity(), State: scopedcache.Forbidden, Err: denied}
		recovered := expected
		recovered.State, recovered.Err = scopedcache.Synced, nil
		g.Expect(told).To(Equal([]WatchError{expected, recovered}))

		close(release)
		observe(scopedcache.ScopeState{State: scopedcache.NotServed, LastError: denied})
		observe(scopedcache.ScopeState{State: scopedcache.Synced})
		synctest.Wait()
		g.Expect(told).To(HaveLen(2), "only the latest state is told, and that it is Synced is no news")
		observe(scopedcache.ScopeState{State: scopedcache.NotServed, LastError: denied})
		synctest.Wait()
		g.Expect(told).To(HaveLen(3))
		g.Expect(r.Len()).To(BeZero(), "it unwatched itself")
		observe(scopedcache.ScopeState{State: scopedcache.Failing, LastError: failing})
		synctest.Wait()
		g.Expect(told).To(HaveLen(3), "nothing is told after Unwatch")
		conn.disconnect(r)
	})
}

// What OnError was not told before the connection ended does not keep the next one from telling.
func TestOnErrorAfterReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var told []scopedcache.State
		g.Expect(r.Watch(t.Context(), first, NewWatcher(WatcherOptions{
			Name: "w", Watcher: &ctl{}, Kind: &corev1.ConfigMap{}, EventHandler: onAdd(nothing),
			OnError: func(_ context.Context, err WatchError) { told = append(told, err.State) },
		}))).To(Succeed())
		observe := first.informer("ConfigMap/").observe
		first.end()
		observe(scopedcache.ScopeState{State: scopedcache.Failing, LastError: errEnded}) // its goroutine never runs
		first.disconnect(r)
		second := connect(r, 2)
		synctest.Wait()
		second.informer("ConfigMap/").observe(scopedcache.ScopeState{State: scopedcache.Forbidden, LastError: errEnded})
		synctest.Wait()
		g.Expect(told).To(Equal([]scopedcache.State{scopedcache.Forbidden}))
		r.End()
		second.disconnect(r)
	})
}

func TestDependents(t *testing.T) {
	g := NewWithT(t)
	before := []types.UID{"a", "c"}
	g.Expect(withDependent(before, "b")).To(Equal([]types.UID{"a", "b", "c"}))
	g.Expect(withDependent(before, "a")).To(Equal(before))
	g.Expect(withoutDependents(before, []types.UID{"a", "x"})).To(Equal([]types.UID{"c"}))
	g.Expect(withoutDependents(before, nil)).To(BeEmpty(), "none given means all")
	g.Expect(before).To(Equal([]types.UID{"a", "c"}), "published slices do not change")
}

// Handlers get copies of everything, so what they do to an object they do to nobody else's.
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
		NewWatcher(WatcherOptions{Name: "w", Watcher: &ctl{}, Kind: &corev1.ConfigMap{}, EventHandler: handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
				rename(e.Object)
			},
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
				rename(e.ObjectOld, e.ObjectNew)
			},
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[ctrl.Request]) {
				rename(e.Object)
			},
		}}))).To(Succeed())
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

// Whatever order connections come in, the latest feeds the watch, and nothing is left held.
func TestLateConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var heard []string
		g.Expect(r.Watch(t.Context(), first,
			configMaps(&ctl{}, func(_ context.Context, name string) { heard = append(heard, name) }, ""))).To(Succeed())
		first.end() // but nobody has said so yet
		second := connect(r, 2)
		synctest.Wait()
		r.Disconnected(first)
		g.Expect(r.Watch(t.Context(), second, configMaps(&ctl{}, nothing, "b"))).
			To(Succeed(), "the second is the current one")
		second.informer("ConfigMap/").add("one")
		w := r.watchesLocked()[0]
		late := &informer{released: func() { heard = append(heard, "released") }}
		g.Expect(w.attach(first, late)).To(Succeed())
		second.informer("ConfigMap/").add("two")
		g.Expect(heard).To(Equal([]string{"one", "released", "two"}))

		// An informer that comes when the watch has ended is given back too.
		r.Unwatch(t.Context(), "w")
		g.Expect(w.attach(second, late)).To(Succeed())
		g.Expect(heard).To(Equal([]string{"one", "released", "two", "released"}))
		g.Expect(second.held()).To(BeEmpty())
		first.disconnect(r)
		second.disconnect(r)
	})
}

// refusing is an informer that takes no handler.
type refusing struct{ Informer }

func (refusing) Feed(toolscache.ResourceEventHandler, replay.Options) (Feeding, error) {
	return nil, errors.New("no handler, please")
}

func TestInformerThatRefuses(t *testing.T) {
	g := NewWithT(t)
	r := newRegistry()
	conn := connect(r, 1)
	w := newWatch(newRegistration(r, spec{name: "w"}), partObject{object: &corev1.ConfigMap{}}, "")
	var h toolscache.ResourceEventHandler = toolscache.ResourceEventHandlerFuncs{}
	w.of.handler.Store(&h)
	released := false
	g.Expect(w.attach(conn, refusing{&informer{released: func() { released = true }}})).
		To(MatchError(ContainSubstring("no handler, please")))
	g.Expect(released).To(BeTrue())
	conn.disconnect(r)
}

// Unwatch ends a watch that waits for its kind to be served again.
func TestUnwatchWhileResuming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		g.Expect(r.Watch(t.Context(), first, configMaps(&ctl{}, nothing, ""))).To(Succeed())
		first.disconnect(r)
		second := &connection{generation: 2, informers: map[string]*informer{}, hold: func(string) error {
			return errors.New("not served")
		}}
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

// Another error of the same state is told; what an earlier connection says late is not.
func TestOnErrorTellsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var told []string
		release := make(chan struct{})
		g.Expect(r.Watch(t.Context(), first, NewWatcher(WatcherOptions{
			Name: "w", Watcher: &ctl{}, Kind: &corev1.ConfigMap{}, EventHandler: onAdd(nothing),
			OnError: func(_ context.Context, err WatchError) { <-release; told = append(told, err.Err.Error()) },
		}))).To(Succeed())
		tell := func(observe func(scopedcache.ScopeState), what string) {
			observe(scopedcache.ScopeState{State: scopedcache.Failing, LastError: errors.New(what)})
			synctest.Wait()
		}
		old := first.informer("ConfigMap/").observe
		close(release)
		tell(old, "one")
		tell(old, "two")
		tell(old, "two")
		g.Expect(told).To(Equal([]string{"one", "two"}))
		release = make(chan struct{})
		first.end()
		r.Disconnected(first)
		second := connect(r, 2)
		synctest.Wait()
		tell(second.informer("ConfigMap/").observe, "three") // OnError hangs with it
		tell(second.informer("ConfigMap/").observe, "four")
		tell(old, "late")
		close(release)
		synctest.Wait()
		g.Expect(told).To(Equal([]string{"one", "two", "three", "four"}))
		r.End()
		first.disconnect(r)
		second.disconnect(r)
	})
}

// What is deleted while nobody watches is told once the next informer has shown that it is not
// there: with what handlers find its owner by, and nothing of its content. It does not matter how
// often the connection changes meanwhile.
func TestMissedDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := newRegistry()
		first := connect(r, 1)
		var mu sync.Mutex
		var heard []string
		var last client.Object
		note := func(what string, object client.Object) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, what+" "+object.GetName())
			last = object
		}
		seen := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			seen := heard
			heard = nil
			return seen
		}
		type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
		c := &ctl{}
		g.Expect(r.Watch(t.Context(), first,
			NewWatcher(WatcherOptions{Name: "w", Kind: &corev1.ConfigMap{}, Watcher: c, EventHandler: handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { note("create", e.Object) },
				DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { note("delete", e.Object) },
			}}))).To(Succeed())
		labels := map[string]string{"l": "v"}
		object := func(name, uid string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid),
				Labels: labels, Annotations: map[string]string{"a": "v"},
				OwnerReferences: []metav1.OwnerReference{{Name: "owner"}}}, Data: map[string]string{"content": "secret"}}
		}
		began := first.informer("ConfigMap/").handlers[0]
		for _, name := range []string{"stays", "goes", "goes too", "is another", "comes back", "was deleted"} {
			began.OnAdd(object(name, "1"), true)
		}
		began.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: object("was deleted", "1")})
		seen()
		first.disconnect(r)
		// What an informer that has ended still delivers is not told, and so is not known to be
		// there.
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
		informer.has = map[string]bool{"ns/comes back": true} // its creation is on the way
		close(informer.synced)
		g.Expect(seen()).To(ConsistOf("delete goes", "delete goes too"))
		g.Expect(last).
			To(Equal(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: last.GetName(), UID: "1",
				Labels:          map[string]string{"l": "v"},
				OwnerReferences: []metav1.OwnerReference{{Name: "owner"}}}}))
		last.GetLabels()["l"] = "changed"
		g.Expect(labels).To(HaveKeyWithValue("l", "v"), "handlers get copies")
		informer.handlers[0].OnDelete(object("stays", "1"))
		seen()
		third.disconnect(r)

		// Nor is anything told after Unwatch.
		fourth := connect(r, 4)
		synctest.Wait()
		informer = fourth.informer("ConfigMap/")
		r.Unwatch(t.Context(), "w")
		close(informer.synced)
		g.Expect(seen()).To(BeEmpty())
		fourth.disconnect(r)
	})
}
