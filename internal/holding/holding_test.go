package holding

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientset "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/latchkey-dev/latchkey/fence"
)

// server has a Lease, and may be out of reach, or lose a write.
type server struct {
	*clientset.Clientset
	cut   atomic.Bool
	loses atomic.Bool // the next write
}

func newServer() *server {
	s := &server{Clientset: clientset.NewClientset()}
	s.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return s.cut.Load(), nil, errors.New("out of reach")
	})
	s.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return s.loses.CompareAndSwap(true, false), nil,
			apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "l")
	})
	return s
}

func (s *server) lock(identity string) resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: "n", Name: "l"},
		Client:     s.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
}

func (s *server) holder(g Gomega) string {
	lease, err := s.CoordinationV1().Leases("n").Get(context.Background(), "l", metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	return *lease.Spec.HolderIdentity
}

// A lease is held until serve has returned, and released then. Another one waits for that.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, times := newServer(), Times{}.WithDefaults()
		ctx, cancel := context.WithCancel(t.Context())
		finish, held := make(chan struct{}), make(chan bool)
		go func() {
			held <- Hold(ctx, Options{Times: times}, s.lock("one"), func(ctx context.Context, term *fence.Term) {
				<-ctx.Done()
				if term.Err() != nil {
					t.Error("the term ends before the lease is released")
				}
				<-finish
			})
		}()
		synctest.Wait()
		g.Expect(s.holder(g)).To(Equal("one"))
		brief := Options{Times: times, Timeout: time.Minute}
		g.Expect(Hold(t.Context(), brief, s.lock("two"), nil)).To(BeFalse(), "another one holds it")
		cancel()
		time.Sleep(time.Minute)
		g.Expect(s.holder(g)).To(Equal("one"), "serve has not returned")
		close(finish)
		g.Expect(<-held).To(BeTrue())
		g.Expect(s.holder(g)).To(BeEmpty())
		g.Expect(Hold(t.Context(), brief, s.lock("two"), func(context.Context, *fence.Term) {
			g.Expect(s.holder(g)).To(Equal("two"))
		})).To(BeTrue())
	})
}

// When the lease cannot be renewed, the context of serve ends before the lease expires. The lease
// is not released before serve has returned, even if the server can be reached again.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, times := newServer(), Times{}.WithDefaults()
		lost, finish, held := make(chan time.Time, 1), make(chan struct{}), make(chan bool)
		go func() {
			held <- Hold(t.Context(), Options{Times: times}, s.lock("one"), func(ctx context.Context, _ *fence.Term) {
				<-ctx.Done()
				lost <- time.Now()
				<-finish
			})
		}()
		time.Sleep(time.Minute)
		s.cut.Store(true)
		begun := time.Now()
		// The elector begins to give up after RenewDeadline, and the lease would end after LeaseDuration.
		g.Expect((<-lost).Sub(begun)).To(And(BeNumerically(">", times.RetryPeriod), BeNumerically("<", times.LeaseDuration)))
		s.cut.Store(false)
		time.Sleep(time.Minute)
		g.Expect(s.holder(g)).To(Equal("one"), "serve has not returned")
		close(finish)
		g.Expect(<-held).To(BeTrue())
	})
}

// A fence can close while the elector goes on. With KeepLost the lease is kept then too, and
// released at an end that was asked for.
func TestKeepLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, times := newServer(), Times{}.WithDefaults()
		for keep, holder := range map[Keep]string{KeepLost: "one", KeepAlways: "one", KeepNever: ""} {
			held := make(chan bool)
			go func() {
				held <- Hold(t.Context(), Options{Times: times, Keep: keep}, s.lock("one"),
					func(ctx context.Context, _ *fence.Term) { <-ctx.Done() })
			}()
			synctest.Wait()
			s.loses.Store(true)
			g.Expect(<-held).To(BeTrue())
			g.Expect(s.holder(g)).To(Equal(holder))
		}
		for keep, holder := range map[Keep]string{KeepLost: "", KeepAlways: "one"} {
			ctx, cancel := context.WithCancel(t.Context())
			g.Expect(Hold(ctx, Options{Times: times, Keep: keep}, s.lock("one"),
				func(context.Context, *fence.Term) { cancel() })).To(BeTrue())
			g.Expect(s.holder(g)).To(Equal(holder))
		}
	})
}

// A lease that the elector releases by itself is released when serve returns, and only if it is
// still held.
func TestDeferredRelease(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	fenced, _ := fence.ForLeaderElection(s.lock("one"), 15*time.Second)
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: "one", LeaseDurationSeconds: 15}
	g.Expect(fenced.Create(t.Context(), mine)).To(Succeed())
	d := &deferredRelease{Interface: fenced}
	g.Expect(d.Update(t.Context(), mine)).To(Succeed(), "a renewal")
	g.Expect(d.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1})).To(Succeed())
	g.Expect(s.holder(g)).To(Equal("one"))
	d.served(t.Context(), Times{RenewDeadline: time.Second}, false)
	g.Expect(s.holder(g)).To(BeEmpty())

	d = &deferredRelease{Interface: fenced}
	_, _, err := fenced.Get(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Update(t.Context(), mine)).To(Succeed())
	g.Expect(d.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1})).To(Succeed())
	d.served(t.Context(), Times{RenewDeadline: time.Second}, true)
	g.Expect(s.holder(g)).To(Equal("one"), "it is kept until it expires")

	d = &deferredRelease{Interface: fenced}
	g.Expect(d.Update(t.Context(), mine)).To(Succeed())
	g.Expect(d.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1})).To(Succeed())
	other := s.lock("two")
	_, _, err = other.Get(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(other.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "two"})).To(Succeed())
	d.served(t.Context(), Times{RenewDeadline: time.Second}, false)
	g.Expect(s.holder(g)).To(Equal("two"))
}

func TestTimes(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Times{}.WithDefaults()).To(Equal(Times{15 * time.Second, 10 * time.Second, 15 * time.Second / 7}))
	g.Expect(Times{LeaseDuration: time.Second}.WithDefaults().Validate()).To(Succeed())
}

// A lease that was taken by a request without an answer is released.
func TestUnseenLeaseIsReleased(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	fenced, _ := fence.ForLeaderElection(s.lock("one"), 15*time.Second)
	times := Times{}.WithDefaults()
	releaseUnseen(t.Context(), fenced, times) // there is none
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: "one", LeaseDurationSeconds: 15}
	g.Expect(s.lock("one").Create(t.Context(), mine)).To(Succeed())
	releaseUnseen(t.Context(), fenced, times)
	g.Expect(s.holder(g)).To(BeEmpty())
	other := s.lock("two")
	_, _, err := other.Get(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(other.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "two"})).To(Succeed())
	releaseUnseen(t.Context(), fenced, times)
	g.Expect(s.holder(g)).To(Equal("two"))
}

// found is a lock whose Lease another replica creates first.
type found struct {
	resourcelock.Interface
	updates int
}

func (*found) Describe() string { return "n/l" }

func (*found) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "leases"}, "l")
}

func (f *found) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	f.updates++
	return nil
}

func (*found) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: "another"}, nil, nil
}

// A Lease that was gone, and that another replica has created, is not updated before it was read: a
// LeaderElector that still holds the one before would take it.
func TestTogetherReadsWhatItFinds(t *testing.T) {
	g := NewWithT(t)
	inner := &found{}
	var logged []string
	lock := Together(inner, funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{}))
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "all"}
	g.Expect(lock.Update(t.Context(), record)).To(Succeed())
	g.Expect(lock.Create(t.Context(), record)).NotTo(Succeed())
	for range 2 {
		g.Expect(lock.Update(t.Context(), record)).To(MatchError(errUnread))
	}
	g.Expect(inner.updates).To(Equal(1))
	_, _, err := lock.Get(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lock.Update(t.Context(), record)).To(Succeed())
	g.Expect(logged).To(BeEmpty(), "nothing is wrong")
}

// What keeps a replica from the Lease is logged, and the rights that it needs if it lacks them.
func TestTogetherLogsWhy(t *testing.T) {
	g := NewWithT(t)
	var logged []string
	inner := &refusing{}
	lock := Together(inner, funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{}))
	for err, text := range map[error]string{
		apierrors.NewForbidden(coordinationv1.Resource("leases"), "a", nil): "needs get, create and update on it",
		context.DeadlineExceeded: `replicas hold together" "lease"`,
		apierrors.NewNotFound(coordinationv1.Resource("leases"), "a"): "",
		context.Canceled: "",
	} {
		inner.err, logged = err, nil
		_, _, got := lock.Get(t.Context())
		g.Expect(got).To(MatchError(err))
		if text == "" {
			g.Expect(logged).To(BeEmpty())
			continue
		}
		g.Expect(logged).To(ConsistOf(ContainSubstring(text)))
	}
}

// refusing is a lock whose Lease cannot be read.
type refusing struct {
	resourcelock.Interface
	err error
}

func (*refusing) Describe() string { return "a lease" }

func (r *refusing) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return nil, nil, r.err
}

// busy is the Lease of a server that takes a second for each request, and of many replicas.
type busy struct {
	resourcelock.Interface
	server  *busyServer
	version int // that this replica remembers
}

// busyServer is what replicas renew.
type busyServer struct {
	mu       sync.Mutex
	version  int                               // guarded by mu
	record   resourcelock.LeaderElectionRecord // guarded by mu
	changed  time.Time                         // guarded by mu; when who waits for the Lease saw it renewed last
	requests int                               // guarded by mu
}

func (*busy) Identity() string { return "all" }
func (*busy) Describe() string { return "a lease" }

func (b *busy) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	time.Sleep(time.Second / 2)
	defer time.Sleep(time.Second / 2)
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	b.server.requests++
	b.version = b.server.version
	record := b.server.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (b *busy) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	time.Sleep(time.Second / 2)
	defer time.Sleep(time.Second / 2)
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	b.server.requests++
	if b.version != b.server.version {
		return apierrors.NewConflict(coordinationv1.Resource("leases"), "a", nil)
	}
	b.server.version++
	b.version = b.server.version
	if !record.RenewTime.Truncate(time.Second).Equal(b.server.record.RenewTime.Truncate(time.Second)) {
		b.server.changed = time.Now()
	}
	b.server.record = record
	return nil
}

// However many replicas renew a Lease together, and however slow the server is, each of them
// renews it in time; and who waits for it has seen it renewed since that renewal began, or in the
// second before.
func TestTogetherRenewsInTime(t *testing.T) {
	for replicas := 1; replicas <= 20; replicas++ {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			server := &busyServer{record: resourcelock.LeaderElectionRecord{HolderIdentity: "all"}}
			var running sync.WaitGroup
			var longest, unseen time.Duration
			for n := range replicas {
				lock := Together(&busy{server: server}, logr.Discard())
				random := rand.New(rand.NewPCG(uint64(n), 0)) //nolint:gosec // not a secret
				running.Go(func() {
					for range 50 {
						time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
						begun := time.Now()
						err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{
							HolderIdentity: "all",
							RenewTime:      metav1.Time{Time: begun},
						})
						if err != nil {
							t.Error(err)
						}
						server.mu.Lock()
						longest = max(longest, time.Since(begun))
						unseen = max(unseen, begun.Sub(server.changed))
						server.mu.Unlock()
					}
				})
			}
			running.Wait()
			t.Logf("%d replicas: %s, %d requests", replicas, longest, server.requests)
			g.Expect(unseen).To(BeNumerically("<=", time.Second))
			g.Expect(longest).To(BeNumerically("<=", 10*time.Second), "the RenewDeadline of a Lease of 15 s")
		})
	}
}

// contested is a lock whose first update meets that of another replica.
type contested struct {
	resourcelock.Interface
	written []int // numbers of terms
}

func (*contested) Identity() string { return "all" }
func (*contested) Describe() string { return "a lease" }

func (c *contested) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	c.written = append(c.written, record.LeaderTransitions)
	return nil
}

func (c *contested) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	if c.written = append(c.written, record.LeaderTransitions); len(c.written) == 1 {
		return apierrors.NewConflict(coordinationv1.Resource("leases"), "a", nil)
	}
	return nil
}

func (*contested) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: "all", LeaderTransitions: 5}, nil, nil
}

// The number of a term is not followed by a lower one when replicas hold a Lease together, although
// an elector does not learn that what it writes has a higher number.
func TestTogetherKeepsNumbers(t *testing.T) {
	g := NewWithT(t)
	inner := &contested{}
	lock := Together(inner, logr.Discard())
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "all", LeaderTransitions: 2}
	g.Expect(lock.Update(t.Context(), record)).To(Succeed())
	g.Expect(lock.Update(t.Context(), record)).To(Succeed())
	record.LeaderTransitions = 0
	g.Expect(lock.Create(t.Context(), record)).To(Succeed()) // it was deleted
	record.LeaderTransitions = 7
	g.Expect(lock.Update(t.Context(), record)).To(Succeed())
	g.Expect(inner.written).To(Equal([]int{2, 5, 5, 5, 7}))
}

// renewed is a lock whose Lease other replicas write each time before this one does, twice. Those
// who wait for it see what is read, the same each time unless the writes change it.
type renewed struct {
	contested
	changes bool
	ago     time.Duration // since that renewal began
	lasts   int
	reads   int
}

func (r *renewed) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	if r.written = append(r.written, record.LeaderTransitions); len(r.written) <= 2 {
		return apierrors.NewConflict(coordinationv1.Resource("leases"), "a", nil)
	}
	return nil
}

func (r *renewed) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, _, err := r.contested.Get(ctx)
	if r.changes {
		r.reads++
	}
	record.RenewTime, record.LeaseDurationSeconds = metav1.NewTime(time.Now().Add(-r.ago)), r.lasts
	return record, []byte{byte(r.reads)}, err
}

// Another replica's renewal is as good as one's own, if it began no earlier, lasts as long, those
// who wait for the Lease see it, and the number of the term does not go back.
func TestTogetherTakesTheRenewalOfAnother(t *testing.T) {
	for _, test := range []struct {
		changes bool
		ago     time.Duration
		lasts   int
		number  int
		written []int
	}{
		{true, 0, 15, 2, []int{2, 5}},
		{true, 0, 15, 7, []int{7, 7, 7}},
		{false, 0, 15, 2, []int{2, 5, 5}},
		{true, 2 * time.Second, 15, 2, []int{2, 5, 5}},
		{true, 0, 14, 2, []int{2, 5, 5}},
	} {
		g := NewWithT(t)
		inner := &renewed{changes: test.changes, ago: test.ago, lasts: test.lasts}
		lock := Together(inner, logr.Discard())
		g.Expect(lock.Update(t.Context(), resourcelock.LeaderElectionRecord{
			HolderIdentity:       "all",
			LeaderTransitions:    test.number,
			LeaseDurationSeconds: 15,
		})).To(Succeed())
		g.Expect(inner.written).To(Equal(test.written))
	}
}

// old is a lock that notes when what it writes was renewed. The first write meets another one.
type old struct {
	contested
	times []time.Time
}

func (o *old) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	o.times = append(o.times, record.RenewTime.Time)
	time.Sleep(2 * time.Second)
	return o.contested.Update(ctx, record)
}

// What is written late is no record of before: those who wait for the Lease may have seen that.
func TestTogetherWritesNoOldRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		inner, begun := &old{}, time.Now()
		g.Expect(Together(inner, logr.Discard()).Update(t.Context(), resourcelock.LeaderElectionRecord{
			HolderIdentity: "all",
			RenewTime:      metav1.NewTime(begun.Add(-5 * time.Second)),
		})).To(Succeed())
		g.Expect(inner.times).To(HaveLen(2))
		g.Expect(inner.times[0]).To(BeTemporally("==", begun))
		g.Expect(inner.times[1]).To(BeTemporally("==", begun.Add(2*time.Second)))

		later := begun.Add(time.Hour) // of a replica whose clock is ahead, or a fence that makes records distinct
		g.Expect(Together(inner, logr.Discard()).Update(t.Context(), resourcelock.LeaderElectionRecord{
			HolderIdentity: "all",
			RenewTime:      metav1.NewTime(later),
		})).To(Succeed())
		g.Expect(inner.times[2]).To(BeTemporally("==", later))
	})
}
