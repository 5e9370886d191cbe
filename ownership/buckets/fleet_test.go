package buckets

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/ownership"
)

const fleetBuckets = 8

// leaseServer has Leases with versions, as an API server has.
type leaseServer struct {
	*clientset.Clientset
	version int // guarded by the lock of the Clientset, which calls one reactor at a time
}

func newLeaseServer() *leaseServer {
	s := &leaseServer{Clientset: clientset.NewClientset()}
	s.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		writing, ok := action.(interface{ GetObject() runtime.Object })
		if !ok {
			return false, nil, nil
		}
		object, err := meta.Accessor(writing.GetObject())
		if err != nil {
			return true, nil, err
		}
		if action.GetVerb() == "update" {
			stored, err := s.Tracker().Get(action.GetResource(), action.GetNamespace(), object.GetName())
			if err != nil {
				return true, nil, err
			}
			last, err := meta.Accessor(stored)
			if err != nil || last.GetResourceVersion() != object.GetResourceVersion() {
				return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), object.GetName(), err)
			}
		}
		s.version++
		object.SetResourceVersion(strconv.Itoa(s.version))
		return false, nil, nil
	})
	return s
}

// path is how a replica reaches the server.
type path struct {
	coordinationclient.LeasesGetter
	cut *atomic.Bool
}

func (path) IsWatchListSemanticsUnSupported() bool { return true }

func (p path) Leases(namespace string) coordinationclient.LeaseInterface {
	return leasesOverPath{p.LeasesGetter.Leases(namespace), p.cut}
}

// member is a replica with an engine. It notes what it has.
type member struct {
	ownership.Replica
	t      *testing.T
	name   string
	fleet  *virtualFleet
	engine *Engine
	stop   context.CancelFunc
	stops  context.Context // for the manager
	ended  chan error
	cut    atomic.Bool
}

// virtualFleet is replicas in virtual time.
type virtualFleet struct {
	t      *testing.T
	server *leaseServer
	uids   []types.UID // one in each bucket

	mu     sync.Mutex
	has    [fleetBuckets]string        // guarded by mu; the replica that acts for each bucket
	since  [fleetBuckets]time.Time     // guarded by mu; since when none does, or the one above
	gap    time.Duration               // guarded by mu; the longest time without one
	moving map[string]map[int]struct{} // guarded by mu; what each replica has given up, and none has taken
	// orderly is whether buckets are only handed over, and not lost or given up at an end. Guarded by
	// mu.
	orderly bool
}

func newVirtualFleet(t *testing.T) *virtualFleet {
	f := &virtualFleet{
		t:       t,
		server:  newLeaseServer(),
		uids:    make([]types.UID, fleetBuckets),
		moving:  map[string]map[int]struct{}{},
		orderly: true,
	}
	for i, left := 0, fleetBuckets; left > 0; i++ {
		uid := types.UID(fmt.Sprint("uid-", i))
		if b := bucketOf(uid, fleetBuckets); f.uids[b] == "" {
			f.uids[b] = uid
			left--
		}
	}
	// A fleet that is new waits first: see TestTwoDivisions.
	_, err := f.server.CoordinationV1().Leases("n").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "fleet-fleet",
			Labels:      map[string]string{FleetLabel: "fleet", roleLabel: roleFleet},
			Annotations: map[string]string{bucketsAnnotation: strconv.Itoa(fleetBuckets), kindAnnotation: "X"},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("8 buckets of X"), LeaseDurationSeconds: new(int32(15))},
	}, metav1.CreateOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return f
}

func (f *virtualFleet) bucketOf(share ownership.Share) int {
	for b, uid := range f.uids {
		if share(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid}}) {
			return b
		}
	}
	return -1
}

// join starts a replica.
func (f *virtualFleet) join(name string) *member {
	g := NewWithT(f.t)
	engine, err := New(&rest.Config{}, Options{Name: "fleet", Namespace: "n", Identity: name, Buckets: fleetBuckets})
	g.Expect(err).NotTo(HaveOccurred())
	m := &member{t: f.t, name: name, fleet: f, engine: engine, ended: make(chan error, 1)}
	engine.leases = path{f.server.CoordinationV1(), &m.cut}
	engine.watching = engine.leases
	g.Expect(engine.Check(schema.GroupKind{Kind: "X"}, false)).To(Succeed())
	ctx, cancel := context.WithCancel(ctrl.LoggerInto(f.t.Context(), logr.Discard()))
	m.stop, m.stops = cancel, engine.HandOver(ctx)
	f.t.Cleanup(m.stop)
	go func() { m.ended <- engine.Run(m.stops, m) }()
	return m
}

// Take implements ownership.Replica. It takes a second.
func (m *member) Take(ctx context.Context, share ownership.Share) error {
	f, b := m.fleet, m.fleet.bucketOf(share)
	f.mu.Lock()
	if f.has[b] != "" {
		m.t.Errorf("%s takes bucket %d, which %s has", m.name, b, f.has[b])
	}
	if !f.since[b].IsZero() {
		f.gap = max(f.gap, time.Since(f.since[b]))
	}
	f.has[b] = m.name
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, buckets := range f.moving {
		delete(buckets, b)
	}
	return nil
}

// GiveUp implements ownership.Replica. It takes a tenth of a second.
func (m *member) GiveUp(_ context.Context, share ownership.Share) error {
	f, b := m.fleet, m.fleet.bucketOf(share)
	if _, owned := m.engine.Owns(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: f.uids[b]}}); owned {
		m.t.Errorf("%s owns bucket %d while it gives it up", m.name, b)
	}
	time.Sleep(100 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.has[b], f.since[b] = "", time.Now()
	if f.moving[m.name] == nil {
		f.moving[m.name] = map[int]struct{}{}
	}
	f.moving[m.name][b] = struct{}{}
	if n := len(f.moving[m.name]); f.orderly && n > 2 {
		m.t.Errorf("%s hands over %d buckets at once", m.name, n)
	}
	return nil
}

// shares returns how many buckets each replica has.
func (f *virtualFleet) shares() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	shares := map[string]int{}
	for _, name := range f.has {
		shares[name]++
	}
	return shares
}

func (f *virtualFleet) setOrderly(orderly bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.moving)
	f.orderly = orderly
}

// longestGap returns the longest time that a bucket was without a replica, and begins anew.
func (f *virtualFleet) longestGap() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.gap = 0 }()
	return f.gap
}

// Replicas share the buckets, one has a bucket only after another one has given it up, two are
// handed over at a time, and a replica that is cut off loses its buckets after its lease.
func TestFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newVirtualFleet(t)
		a, b := f.join("a"), f.join("b")
		time.Sleep(20 * time.Second)
		g.Expect(f.shares()).To(Equal(map[string]int{"a": 4, "b": 4}))

		c := f.join("c")
		time.Sleep(20 * time.Second)
		g.Expect(f.shares()).To(And(HaveLen(3), HaveEach(BeNumerically("<=", 3)), Not(HaveKey(""))))
		g.Expect(f.longestGap()).To(BeNumerically("<", time.Second))

		begun := time.Now()
		b.stop()
		<-b.stops.Done()
		g.Expect(f.shares()).NotTo(HaveKey("b"))
		g.Expect(time.Since(begun)).To(BeNumerically("<", b.engine.options.HandOverTimeout))
		g.Expect(<-b.ended).NotTo(HaveOccurred())
		time.Sleep(5 * time.Second)
		g.Expect(f.shares()).To(Equal(map[string]int{"a": 4, "c": 4}))
		g.Expect(f.longestGap()).To(BeNumerically("<", time.Second))

		f.setOrderly(false) // c loses everything
		c.cut.Store(true)
		time.Sleep(40 * time.Second)
		g.Expect(f.shares()).To(Equal(map[string]int{"a": 8}))
		g.Expect(f.longestGap()).To(BeNumerically("<", 15*time.Second))
		f.setOrderly(true)
		c.cut.Store(false)
		time.Sleep(40 * time.Second)
		g.Expect(f.shares()).To(Equal(map[string]int{"a": 4, "c": 4}))

		other, err := New(&rest.Config{}, Options{Name: "fleet", Namespace: "n", Buckets: 2 * fleetBuckets})
		g.Expect(err).NotTo(HaveOccurred())
		other.leases, other.kind = a.engine.leases, a.engine.kind
		g.Expect(other.Run(ctrl.LoggerInto(t.Context(), logr.Discard()), a)).To(MatchError(And(
			ContainSubstring(`buckets "8", and this replica has "16"`), ContainSubstring("Lease fleet-fleet"))))
		otherKind, err := New(&rest.Config{}, Options{Name: "fleet", Namespace: "n", Buckets: fleetBuckets})
		g.Expect(err).NotTo(HaveOccurred())
		otherKind.leases, otherKind.kind = a.engine.leases, schema.GroupKind{Kind: "Y"}
		g.Expect(otherKind.Run(ctrl.LoggerInto(t.Context(), logr.Discard()), a)).To(MatchError(ContainSubstring(`kind "X"`)))

		for _, m := range []*member{c, a} {
			m.stop()
			g.Expect(<-m.ended).NotTo(HaveOccurred())
			f.setOrderly(false) // the last one has no successor
		}
		leases, err := f.server.CoordinationV1().Leases("n").List(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(leases.Items).To(HaveLen(fleetBuckets+1), "those of members are gone")
		for _, lease := range leases.Items {
			if lease.Name == "fleet-fleet" {
				continue // it is left to expire
			}
			g.Expect(lease.Spec.HolderIdentity).To(Or(BeNil(), HaveValue(BeEmpty())), lease.Name)
		}
	})
}

// A replica that waits for others stops waiting when the first bucket is taken.
func TestAwaitOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newVirtualFleet(t)
		f.orderly = false
		a := f.join("a")
		// Each of them may need a tenth of a second until its informer counts as synced: client-go looks
		// that often, and first at once.
		time.Sleep(a.engine.options.RetryPeriod - 200*time.Millisecond)
		b := f.join("b")
		time.Sleep(time.Second)
		g.Expect(f.shares()).To(Equal(map[string]int{"a": 4, "b": 4}))
		for _, m := range []*member{a, b} {
			m.stop()
			g.Expect(<-m.ended).NotTo(HaveOccurred())
		}
	})
}

var errCut = errors.New("the path is cut")
