package e2e

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var _ ownership.Engine = (*handEngine)(nil)

// handEngine is an engine that a test drives. Its extensions are this replica's from take until
// giveUp.
type handEngine struct {
	fence   *fence.Fence // may be nil
	running chan ownership.Replica

	mu    sync.Mutex
	owned map[string]bool         // guarded by mu; by name
	alone map[string]*fence.Fence // guarded by mu; of extensions with a lease of their own
	hold  chan struct{}           // guarded by mu; the next Owns announces itself on it, and waits for another receive
}

func newHandEngine(f *fence.Fence) *handEngine {
	return &handEngine{fence: f, running: make(chan ownership.Replica, 1), owned: map[string]bool{}}
}

func (*handEngine) Kind() ownership.Kind { return ownership.Shared }

func (*handEngine) Check(schema.GroupKind, bool) error { return nil }

func (e *handEngine) Owns(extension client.Object) (*fence.Term, bool) {
	e.mu.Lock()
	owned, hold, alone := e.owned[extension.GetName()], e.hold, e.alone[extension.GetName()]
	e.hold = nil
	e.mu.Unlock()
	if alone != nil {
		return alone.Term(), owned
	}
	if hold != nil {
		hold <- struct{}{}
		hold <- struct{}{}
	}
	return e.fence.Term(), owned
}

func (e *handEngine) Run(ctx context.Context, replica ownership.Replica) error {
	e.running <- replica
	<-ctx.Done()
	e.set("", false)
	return replica.GiveUp(context.WithoutCancel(ctx), func(client.Object) bool { return true })
}

// set makes the extension this replica's, or not; "" is all.
func (e *handEngine) set(name string, owned bool) ownership.Share {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name == "" {
		clear(e.owned)
	} else {
		e.owned[name] = owned
	}
	return func(extension client.Object) bool { return extension.GetName() == name }
}

// An extension that is not this replica's is not connected, and a replica that gives one up sends
// nothing more for it: what was under way has an unknown outcome, watches end, other extensions go
// on.
func TestOwnership(t *testing.T) {
	for _, fenced := range []string{"without a lease", "with a lease"} {
		t.Run(fenced, func(t *testing.T) {
			g := NewWithT(t)
			ns := namespace(t)
			tenant(t, ns, "shared")
			tenant(t, ns, "mine")
			h := newHeld(t)
			config, _ := h.operatorConfig(t)
			var engine *handEngine
			lease, f := testutil.NewLease()
			defer lease.Release()
			if engine = newHandEngine(nil); fenced == "with a lease" {
				engine.fence = f
				lease.Renew(3600)
			}
			o := newOperatorAt(t, config, clustercache.Options{
				Ownership:     engine,
				AllowIdentity: clustercache.GuardedByAdmission,
			})
			o.also = append(o.also, h.quiet)
			o.start(t)
			replica := <-engine.running
			events, sources := newFakeController(t), newFakeController(t)
			g.Expect(sources.Watch(o.GetExtensionSource("owner", clustercache.EnqueueExtension))).To(Succeed())
			g.Eventually(func() error { _, err := o.GetClient(t.Context(), key("shared")); return err }).
				WithTimeout(patience).Should(HaveField("Reason", clustercache.ReasonNotOwned))
			g.Expect(h.requests.Load()).To(BeZero())

			before := series(t)
			g.Expect(replica.Take(t.Context(), engine.set("mine", true))).To(Succeed())
			g.Expect(replica.Take(t.Context(), engine.set("shared", true))).To(Succeed())
			c, err := o.GetClient(t.Context(), key("shared"))
			g.Expect(err).NotTo(HaveOccurred(), "Take returns when the extension is connected")
			other, err := o.GetClient(t.Context(), key("mine"))
			g.Expect(err).NotTo(HaveOccurred())
			watch := clustercache.NewWatcher(events.watch("content", &corev1.ConfigMap{}, ns))
			g.Expect(o.Watch(t.Context(), key("shared"), watch)).To(Succeed())
			create(t, configMap(ns, "before"))
			g.Eventually(events.seen).WithTimeout(patience).Should(ContainElement("create before"))

			written, release := h.createUnderWay(t, c, ns)
			defer release()
			g.Eventually(events.seen).WithTimeout(patience).Should(ContainElement("create under-way"))
			g.Expect(replica.GiveUp(t.Context(), engine.set("shared", false))).To(Succeed())
			err = <-written
			g.Expect(err).To(MatchError(clustercache.ErrOutcomeUnknown))
			expectReason(g, err, clustercache.ReasonNotOwned)
			g.Expect(err).To(MatchError(fence.ErrClosed), "its own term has ended")
			release()
			after := series(t)
			for name, want := range map[string]float64{"latchkey_ownership_moves_total direction=Taken": 2,
				"latchkey_ownership_moves_total direction=GivenUp":           1,
				"latchkey_ownership_move_duration_seconds direction=Taken":   2,
				"latchkey_ownership_move_duration_seconds direction=GivenUp": 1} {
				g.Expect(after[name]-before[name]).To(Equal(want), name)
			}
			g.Expect(after["latchkey_ownership_extensions owned=true"]).To(Equal(1.0))
			g.Expect(after["latchkey_ownership_extensions owned=false"]).To(BeNumerically(">=", 1.0))
			bySlice := map[string]float64{}
			for name, value := range after {
				if _, labels, ok := strings.Cut(name, "latchkey_ownership_slice_extensions "); ok {
					_, owned, _ := strings.Cut(labels, "owned=")
					bySlice["latchkey_ownership_extensions owned="+strings.Fields(owned)[0]] += value
				}
			}
			for name, sum := range bySlice {
				g.Expect(sum).To(Equal(after[name]), name)
			}
			g.Expect(bySlice).To(HaveLen(2))
			g.Expect(after["latchkey_fenced_requests_total"]).To(BeNumerically(">", before["latchkey_fenced_requests_total"]))

			g.Expect(other.Create(t.Context(), configMap(ns, "of-another"))).To(Succeed(), "others go on")
			create(t, configMap(ns, "after"))
			expectReason(g, c.Create(t.Context(), configMap(ns, "refused")), clustercache.ReasonNotOwned)
			_, err = o.GetClient(t.Context(), key("shared"))
			expectReason(g, err, clustercache.ReasonNotOwned)
			g.Consistently(events.seen).WithTimeout(time.Second).ShouldNot(ContainElement("create after"))

			g.Expect(replica.Take(t.Context(), engine.set("shared", true))).To(Succeed())
			g.Expect(o.Watch(t.Context(), key("shared"), watch)).To(Succeed())
			g.Eventually(events.seen).WithTimeout(patience).Should(ContainElement("create after"))
			expectReason(g, c.Create(t.Context(), configMap(ns, "refused")), clustercache.ReasonNotOwned)
			if fenced == "with a lease" {
				c, err := o.GetClient(t.Context(), key("shared"))
				g.Expect(err).NotTo(HaveOccurred())
				lease.Release()
				err = c.Create(t.Context(), configMap(ns, "refused"))
				expectReason(g, err, clustercache.ReasonNotOwned)
				g.Expect(err).To(MatchError(fence.ErrClosed))
				g.Expect(replica.GiveUp(t.Context(), engine.set("shared", true))).To(Succeed(), "as an engine does then")
				_, err = o.GetClient(t.Context(), key("shared"))
				g.Expect(err).To(MatchError(clustercache.ErrNotConnected))
				lease.Renew(3600)
				g.Expect(replica.Take(t.Context(), engine.set("shared", true))).To(Succeed())
				_, err = o.GetClient(t.Context(), key("shared"))
				g.Expect(err).NotTo(HaveOccurred(), "another term, another connection")
				expectReason(g, c.Create(t.Context(), configMap(ns, "refused")), clustercache.ReasonNotOwned)
			}
		})
	}
}

// Giving up waits for a Reconcile that acts on what the engine said before: what the Reconcile
// begins, it ends. Taking returns also for an extension that cannot be connected.
func TestGiveUpWaitsForReconciles(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "raced")
	engine := newHandEngine(nil)
	o := newOperator(t, clustercache.Options{Ownership: engine, AllowIdentity: clustercache.GuardedByAdmission}).start(t)
	replica := <-engine.running
	g.Eventually(func() error { _, err := o.GetClient(t.Context(), key("raced")); return err }).
		WithTimeout(patience).Should(HaveField("Reason", clustercache.ReasonNotOwned))

	engine.mu.Lock()
	hold := make(chan struct{})
	engine.hold = hold
	engine.mu.Unlock()
	share := engine.set("raced", true)
	extension := &unstructured.Unstructured{}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	extension.SetName("raced")
	g.Expect(admin.Patch(t.Context(), extension, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata": {"annotations": {"an": "event"}}}`)))).To(Succeed())
	<-hold // a Reconcile knows that the extension is this replica's
	engine.set("raced", false)
	gaveUp := make(chan error)
	go func() { gaveUp <- replica.GiveUp(t.Context(), share) }()
	g.Consistently(gaveUp).WithTimeout(300*time.Millisecond).ShouldNot(Receive(), "the Reconcile goes on")
	bounded, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	g.Expect(replica.GiveUp(bounded, share)).To(MatchError(context.DeadlineExceeded))
	<-hold
	g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
	_, err := o.GetClient(t.Context(), key("raced"))
	expectReason(g, err, clustercache.ReasonNotOwned)

	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "raced"))).To(Succeed())
	g.Expect(replica.Take(t.Context(), engine.set("raced", true))).To(Succeed())
	_, err = o.GetClient(t.Context(), key("raced"))
	expectReason(g, err, clustercache.ReasonServiceAccountNotFound)
}

// Giving up waits for the answer to a request that is under way while the extension is being
// connected, and does not connect the extension then.
func TestGiveUpWaitsForAnswers(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "asked")
	h := newHeld(t)
	config, _ := h.operatorConfig(t)
	engine := newHandEngine(nil)
	o := newOperatorAt(t, config, clustercache.Options{
		Ownership:     engine,
		AllowIdentity: clustercache.GuardedByAdmission,
	})
	o.also = append(o.also, h.quiet)
	o.start(t)
	replica := <-engine.running

	release := h.holdCreates("selfsubjectreviews")
	defer release()
	took := make(chan error, 1)
	go func() { took <- replica.Take(t.Context(), engine.set("asked", true)) }()
	g.Eventually(h.waiting.Load).WithTimeout(patience).Should(Equal(int64(1)), "a connect is under way")
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- replica.GiveUp(t.Context(), engine.set("asked", false)) }()
	g.Consistently(gaveUp).WithTimeout(300*time.Millisecond).ShouldNot(Receive(), "the answer has not come")
	release()
	g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
	g.Eventually(took).WithTimeout(patience).Should(Receive(BeNil()))
	_, err := o.GetClient(t.Context(), key("asked"))
	expectReason(g, err, clustercache.ReasonNotOwned)
	g.Expect(h.requests.Load()).To(Equal(int64(1)))

	g.Expect(replica.Take(t.Context(), engine.set("asked", true))).To(Succeed())
	_, err = o.GetClient(t.Context(), key("asked"))
	g.Expect(err).NotTo(HaveOccurred())
	state, _ := o.GetConnectionState(t.Context(), key("asked"))
	g.Expect(state.Lease.Err()).NotTo(HaveOccurred())
	g.Expect(replica.GiveUp(t.Context(), engine.set("asked", false))).To(Succeed())
	g.Expect(state.Lease.Err()).To(MatchError(fence.ErrClosed), "before another replica has it")
}

// Giving up waits for the event handlers that run, for 5 s and not for ever.
func TestGiveUpWaitsForHandlers(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "handled")
	engine := newHandEngine(nil)
	o := newOperator(t, clustercache.Options{Ownership: engine, AllowIdentity: clustercache.GuardedByAdmission}).start(t)
	replica := <-engine.running
	hang := make(chan struct{})
	defer func() { close(hang) }()
	give := func() (took time.Duration) {
		begun := time.Now()
		if err := replica.GiveUp(t.Context(), engine.set("handled", false)); err != nil {
			t.Error(err)
		}
		return time.Since(begun)
	}
	handle := func(hang chan struct{}) (running chan struct{}) {
		running = make(chan struct{})
		options := newFakeController(t).watch("content", &corev1.ConfigMap{}, ns)
		begin := sync.OnceFunc(func() { close(running) })
		options.EventHandler = handler.TypedFuncs[client.Object, reconcile.Request]{
			CreateFunc: func(context.Context, event.CreateEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				begin()
				<-hang
			}}
		g.Expect(replica.Take(t.Context(), engine.set("handled", true))).To(Succeed())
		g.Expect(o.Watch(t.Context(), key("handled"), clustercache.NewWatcher(options))).To(Succeed())
		return running
	}
	create(t, configMap(ns, "an-event"))

	none := make(chan struct{})
	close(none)
	<-handle(none)
	g.Expect(give()).To(BeNumerically("<", 4*time.Second))

	brief := make(chan struct{})
	<-handle(brief)
	gaveUp := make(chan time.Duration)
	go func() { gaveUp <- give() }()
	g.Consistently(gaveUp).WithTimeout(300*time.Millisecond).ShouldNot(Receive(), "a handler runs")
	close(brief)
	g.Expect(<-gaveUp).To(BeNumerically("<", 4*time.Second))

	<-handle(hang)
	g.Expect(give()).To(And(BeNumerically(">=", 5*time.Second), BeNumerically("<", patience)), "a handler that hangs")
}
