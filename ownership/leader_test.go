package ownership

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var _ Fitter = (*fitting)(nil)

var leaderLease = types.NamespacedName{Namespace: "n", Name: "leader"}

// engine owns everything while it runs, in its term.
type engine struct {
	term *fence.Term // that Owns returns; may be nil

	mu      sync.Mutex
	running bool // guarded by mu
}

func (*engine) Kind() Kind { return Shared }

func (*engine) Check(schema.GroupKind, bool) error { return nil }

func (e *engine) Owns(client.Object) (*fence.Term, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term, e.running
}

func (e *engine) Run(ctx context.Context, _ Replica) error {
	e.set(true)
	defer e.set(false)
	<-ctx.Done()
	return nil
}

func (e *engine) set(running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = running
}

// sharing is a replica that shares, or a leader, in virtual time.
type sharing struct {
	Engine
	inner *engine
	stop  context.CancelFunc
	ended chan error
}

func (s *sharing) owns() bool {
	term, owned := s.Owns(&metav1.PartialObjectMetadata{})
	return owned && term.Err() == nil
}

func share(t *testing.T, leases *clientset.Clientset, logger logr.Logger) *sharing {
	t.Helper()
	s := &sharing{inner: &engine{}, ended: make(chan error, 1)}
	made, err := WithLeaderLease(s.inner, &rest.Config{}, LeaderOptions{Lease: leaderLease, Holder: "all"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	made.(*withLeaderLease).leases = leases.CoordinationV1()
	s.Engine = made
	ctx, cancel := context.WithCancel(ctrl.LoggerInto(t.Context(), logger))
	s.stop = cancel
	t.Cleanup(cancel)
	go func() { s.ended <- s.Run(ctx, nil) }()
	return s
}

// lead runs a leader election of the replicas that do not share.
func lead(t *testing.T, leases *clientset.Clientset) (leads func() bool, stop context.CancelFunc) {
	t.Helper()
	leader := &engine{}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: "n", Name: "leader"},
			Client:     leases.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: "a-leader"},
		},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leader.set(true) },
			OnStoppedLeading: func() { leader.set(false) },
		},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logr.Discard()))
	t.Cleanup(cancel)
	go elector.Run(ctx)
	return func() bool { _, leads := leader.Owns(nil); return leads }, cancel
}

// Replicas that share wait until the leader has ended, together keep another one away, and let it
// lead when none of them has run for the time that giving up takes.
func TestWithLeaderLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		leases := clientset.NewClientset()
		leads, stopLeading := lead(t, leases)
		synctest.Wait()
		g.Expect(leads()).To(BeTrue())
		one, two := share(t, leases, logr.Discard()), share(t, leases, logr.Discard())
		time.Sleep(time.Minute)
		g.Expect(leads()).To(BeTrue())
		g.Expect([]bool{one.owns(), two.owns()}).To(Equal([]bool{false, false}))

		stopLeading()
		time.Sleep(10 * time.Second)
		g.Expect([]bool{one.owns(), two.owns()}).To(Equal([]bool{true, true}))
		leads, _ = lead(t, leases)
		time.Sleep(time.Minute)
		one.stop()
		g.Expect(<-one.ended).NotTo(HaveOccurred())
		time.Sleep(time.Minute)
		g.Expect(leads()).To(BeFalse(), "one still shares")
		g.Expect(two.owns()).To(BeTrue())
		two.stop()
		g.Expect(<-two.ended).NotTo(HaveOccurred())
		time.Sleep(20 * time.Second)
		g.Expect(leads()).To(BeFalse(), "as if the last one had been killed")
		time.Sleep(20 * time.Second)
		g.Expect(leads()).To(BeTrue())
	})
}

// A replica that cannot renew the Lease gives everything up before the Lease ends, and Run says
// why. What keeps it from the Lease is logged.
func TestWithLeaderLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		leases := clientset.NewClientset()
		var mu sync.Mutex
		forbidden, log := true, ""
		leases.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return forbidden, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "leader", nil)
		})
		one := share(t, leases, funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			log += args
		}, funcr.Options{}))
		set := func(is bool) {
			mu.Lock()
			defer mu.Unlock()
			forbidden = is
		}
		time.Sleep(time.Minute)
		mu.Lock()
		g.Expect(strings.Count(log, "this program needs get, create and update on it")).To(BeNumerically(">", 5))
		mu.Unlock()
		g.Expect(one.owns()).To(BeFalse())
		set(false)
		time.Sleep(10 * time.Second)
		g.Expect(one.owns()).To(BeTrue())

		term, _ := one.Owns(&metav1.PartialObjectMetadata{})
		g.Expect(term.Err()).NotTo(HaveOccurred())
		set(true)
		begun := time.Now()
		err := <-one.ended
		g.Expect(err).To(MatchError(And(MatchRegexp("Lease n/leader, which keeps leaders away"))))
		g.Expect(err).To(MatchError(fence.ErrClosed))
		g.Expect(time.Since(begun)).To(BeNumerically("<", 15*time.Second))
		g.Expect(one.owns()).To(BeFalse())
		time.Sleep(15*time.Second - time.Since(begun))
		g.Expect(term.Err()).To(MatchError(fence.ErrClosed), "10 s before a leader can take the Lease")
	})
}

// A replica that finds that a leader has taken the Lease ends at once.
func TestWithLeaderLeaseIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		leases := clientset.NewClientset()
		one := share(t, leases, logr.Discard())
		synctest.Wait()
		g.Expect(one.owns()).To(BeTrue())
		taken := leases.CoordinationV1().Leases("n")
		leases.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "leader", nil)
		})
		lease, err := taken.Get(t.Context(), "leader", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		lease.Spec.HolderIdentity = new("a-leader")
		g.Expect(leases.Tracker().Update(schema.GroupVersionResource{
			Group:    "coordination.k8s.io",
			Version:  "v1",
			Resource: "leases",
		}, lease, "n")).To(Succeed())
		begun := time.Now()
		g.Expect(<-one.ended).To(MatchError(fence.ErrClosed))
		g.Expect(time.Since(begun)).To(BeNumerically("<", 3*time.Second))
	})
}

// fitting is an engine that knows whether others divide the extensions in another way.
type fitting struct {
	engine
	misfit atomic.Pointer[error]
}

func (f *fitting) Fits(context.Context) error {
	if err := f.misfit.Load(); err != nil {
		return *err
	}
	return nil
}

// A replica that divides the extensions in another way than those that hold the Lease ends, before
// it has written the Lease, and while it waits for it.
func TestWithLeaderLeaseDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		leases, misfit := clientset.NewClientset(), errors.New("another number")
		run := func(engine *fitting) chan error {
			made, err := WithLeaderLease(engine, &rest.Config{}, LeaderOptions{Lease: leaderLease, Holder: "12"})
			g.Expect(err).NotTo(HaveOccurred())
			made.(*withLeaderLease).leases = leases.CoordinationV1()
			ended := make(chan error, 1)
			go func() { ended <- made.Run(ctrl.LoggerInto(t.Context(), logr.Discard()), nil) }()
			return ended
		}
		one := &fitting{}
		one.misfit.Store(&misfit)
		g.Expect(<-run(one)).To(MatchError(misfit))
		g.Expect(leases.Actions()).To(BeEmpty())

		others := share(t, leases, logr.Discard())
		synctest.Wait()
		g.Expect(others.owns()).To(BeTrue())
		two := &fitting{}
		ended := run(two)
		time.Sleep(time.Minute)
		g.Expect(ended).NotTo(Receive())
		two.misfit.Store(&misfit)
		begun := time.Now()
		g.Expect(<-ended).To(MatchError(misfit))
		g.Expect(time.Since(begun)).To(BeNumerically("<", 3*time.Second))

		// Once it runs, the engine itself says so.
		others.stop()
		g.Expect(<-others.ended).NotTo(HaveOccurred())
		three := &fitting{}
		ended = run(three)
		time.Sleep(time.Minute)
		_, owned := three.Owns(nil)
		g.Expect(owned).To(BeTrue())
		three.misfit.Store(&misfit)
		time.Sleep(time.Minute)
		g.Expect(ended).NotTo(Receive())
	})
}

func TestLeaderOptions(t *testing.T) {
	g := NewWithT(t)
	for _, options := range []LeaderOptions{{}, {Lease: leaderLease}, {Holder: "all"},
		{Lease: leaderLease, Holder: "all", LeaseDuration: time.Millisecond}} {
		_, err := WithLeaderLease(&engine{}, &rest.Config{}, options)
		g.Expect(err).To(HaveOccurred())
	}
}

// The terms of an engine need the Lease, too, and each pair is one Term for as long as both last.
func TestTermsWithTheLeaderLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		bucket, bucketFence := testutil.NewLease()
		leader, leaderFence := testutil.NewLease()
		bucket.Renew(3600)
		leader.Renew(3600)
		inner := &engine{running: true, term: bucketFence.Term()}
		e := &withLeaderLease{Engine: inner}
		_, owned := e.Owns(nil)
		g.Expect(owned).To(BeFalse(), "the Lease is not held")
		e.term.Store(leaderFence.Term())
		term, owned := e.Owns(nil)
		g.Expect(owned).To(BeTrue())
		g.Expect(term.Err()).NotTo(HaveOccurred())
		again, _ := e.Owns(nil)
		g.Expect(again).To(BeIdenticalTo(term), "another one would end the connection")

		bucket.Release()
		g.Expect(term.Err()).To(MatchError(fence.ErrClosed))
		bucket.Renew(3600)
		inner.term = bucketFence.Term()
		next, owned := e.Owns(nil)
		g.Expect(owned).To(BeTrue())
		g.Expect(next).NotTo(BeIdenticalTo(term))
		synctest.Wait()
		g.Expect(e.joined.terms).To(HaveLen(1), "what has ended is forgotten")
		leader.Release()
		g.Expect(next.Err()).To(MatchError(fence.ErrClosed))
		synctest.Wait()
		g.Expect(e.joined.terms).To(BeEmpty())
		g.Expect(bucketFence.Open()).To(BeTrue())
		bucket.Release()
	})
}
