package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/internal/term"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// answers is a lock whose answers a test decides.
type answers struct {
	resourcelock.Interface
	holder  string
	err     error
	during  func() // called while a request is under way
	records []resourcelock.LeaderElectionRecord

	transitions int
}

func (a *answers) Identity() string { return "me" }

func (a *answers) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if a.err != nil {
		return nil, nil, a.err
	}
	return &resourcelock.LeaderElectionRecord{HolderIdentity: a.holder, LeaderTransitions: a.transitions}, nil, nil
}

func (a *answers) Create(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	return a.write(r)
}
func (a *answers) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	return a.write(r)
}

func (a *answers) write(record resourcelock.LeaderElectionRecord) error {
	a.records = append(a.records, record)
	if a.during != nil {
		a.during()
	}
	return a.err
}

// What the API server answers about the lock opens the fence, closes it, or leaves it as it is.
func TestLock(t *testing.T) {
	record := func(holder string, seconds int) resourcelock.LeaderElectionRecord {
		return resourcelock.LeaderElectionRecord{HolderIdentity: holder, LeaseDurationSeconds: seconds}
	}
	gone := apierrors.NewNotFound(leases, "l")
	conflict := apierrors.NewConflict(leases, "l", errors.New("changed"))
	for name, tc := range map[string]struct {
		answer answers
		call   func(resourcelock.Interface) error
		// remaining of a fence that was closed, and of one that was open for 5 s more
		closed, open time.Duration
	}{
		"created": {
			call:   func(l resourcelock.Interface) error { return l.Create(t.Context(), record("me", 15)) },
			closed: 15 * second,
			open:   15 * second,
		},
		"renewed": {
			call:   func(l resourcelock.Interface) error { return l.Update(t.Context(), record("me", 15)) },
			closed: 15 * second,
			open:   15 * second,
		},
		"renewed for less": {
			call:   func(l resourcelock.Interface) error { return l.Update(t.Context(), record("me", 7)) },
			closed: 7 * second,
			open:   7 * second,
		},
		"renewed for more": {
			call:   func(l resourcelock.Interface) error { return l.Update(t.Context(), record("me", 70)) },
			closed: 15 * second,
			open:   15 * second,
		},
		"renewed, and the answer is lost": {
			answer: answers{err: errors.New("timeout")},
			call:   func(l resourcelock.Interface) error { return l.Update(t.Context(), record("me", 15)) },
			open:   5 * second,
		},
		"changed by another": {
			answer: answers{err: conflict},
			call:   func(l resourcelock.Interface) error { return l.Update(t.Context(), record("me", 15)) },
			open:   5 * second,
		},
		"deleted": {
			answer: answers{err: gone},
			call:   func(l resourcelock.Interface) error { return l.Update(t.Context(), record("me", 15)) },
		},
		"given up": {
			answer: answers{holder: "me"},
			call: func(l resourcelock.Interface) error {
				_ = get(l)
				return l.Update(t.Context(), record("", 1))
			},
		},
		"given up, and the answer is lost": {
			answer: answers{holder: "me", err: errors.New("timeout")},
			call: func(l resourcelock.Interface) error {
				l.(*fencedLock).holder = "me"
				return l.Update(t.Context(), record("", 1))
			},
		},
		"seen: ours":      {answer: answers{holder: "me"}, call: get, open: 5 * second},
		"seen: another's": {answer: answers{holder: "you"}, call: get},
		"seen: nobody's":  {call: get},
		"seen: gone":      {answer: answers{err: gone}, call: get},
		"not seen":        {answer: answers{err: errors.New("timeout")}, call: get, open: 5 * second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				for open, want := range map[bool]time.Duration{false: tc.closed, true: tc.open} {
					answer := tc.answer
					lock, f := ForLeaderElection(&answer, 15*second)
					if open {
						renew(f, time.Now(), 5*second)
					}
					err := tc.call(lock)
					if answer.err == nil {
						g.Expect(err).NotTo(HaveOccurred())
					} else {
						g.Expect(err).To(BeIdenticalTo(answer.err), "what the elector sees is the lock's own error")
					}
					g.Expect(f.Remaining()).To(Equal(want), "open before: %t", open)
					f.close("the end of the test")
				}
			})
		})
	}
}

func get(l resourcelock.Interface) error {
	_, _, err := l.Get(context.Background())
	return err
}

// A lock is given up after the fence has closed, and a renewal counts from before it was sent.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := &answers{}
		lock, f := ForLeaderElection(a, 15*second)
		a.during = func() {
			g.Expect(f.Open()).To(BeFalse(), "no answer yet")
			time.Sleep(3 * second)
		}
		record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15}
		g.Expect(lock.Create(t.Context(), record)).To(Succeed())
		g.Expect(f.Remaining()).To(Equal(12 * second))
		a.holder = "me"
		g.Expect(get(lock)).To(Succeed())
		asked := false
		a.during = func() {
			asked = true
			g.Expect(f.Open()).To(BeFalse(), "another replica may lead as soon as the API server has this")
		}
		g.Expect(lock.Update(t.Context(), resourcelock.LeaderElectionRecord{})).To(Succeed())
		g.Expect(asked).To(BeTrue())
	})
}

// The records have the number of the term: the same one while it lasts, and the next one when this
// replica takes its own lease again. A term that ends while its renewal is under way has ended.
func TestTermsAreNumbered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := &answers{}
		lock, f := ForLeaderElection(a, 15*second)
		record := resourcelock.LeaderElectionRecord{
			HolderIdentity:       "me",
			LeaseDurationSeconds: 15,
			LeaderTransitions:    7,
		}
		writes := func(number int64) {
			t.Helper()
			g.Expect(lock.Update(t.Context(), record)).To(Succeed())
			g.Expect(a.records[len(a.records)-1].LeaderTransitions).To(BeEquivalentTo(number))
		}
		writes(7)
		g.Expect(term.Count(f.Term())).To(BeEquivalentTo(7))
		writes(7)
		time.Sleep(10 * second)
		a.during = func() { time.Sleep(6 * second) }
		writes(7)
		a.during = nil
		g.Expect(f.Open()).To(BeFalse(), "the lease had ended before the answer came")
		writes(8)
		g.Expect(term.Count(f.Term())).To(BeEquivalentTo(8))
		writes(8)
		time.Sleep(15 * second)
		a.err = errors.New("timeout")
		g.Expect(lock.Update(t.Context(), record)).NotTo(Succeed())
		a.err = nil
		writes(10)
		g.Expect(term.Count(f.Term())).To(BeEquivalentTo(10), "the one without an answer may have arrived")
		f.close("the end of the test")
	})
}

// A new lock, such as that of a replica that takes a lease again, goes by what it reads.
func TestNewLockOfOwnLease(t *testing.T) {
	g := NewWithT(t)
	a := &answers{holder: "me", transitions: 7}
	lock, f := ForLeaderElection(a, 15*second)
	record, _, err := lock.Get(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	record.LeaseDurationSeconds = 15
	g.Expect(lock.Update(t.Context(), *record)).To(Succeed())
	g.Expect(a.records[0].LeaderTransitions).To(Equal(8))
	g.Expect(term.Count(f.Term())).To(BeEquivalentTo(8))
	f.close("the end of the test")
}

// A leader whose deadline for renewals is over does not give up the lease of the replica that leads
// meanwhile. client-go's LeaderElector tries to.
func TestLeaseOfAnotherIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &server{random: rand.New(rand.NewPCG(1, 1)), well: true}
		way := &network{server: s}
		lockOf := func(name string) *resourcelock.LeaseLock {
			return &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Name: "l"},
				Client:     way,
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			}
		}
		lock, f := ForLeaderElection(lockOf("slow"), 15*second)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		defer cancel()
		leads, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
				Lock:            lock,
				Name:            "slow",
				LeaseDuration:   15 * second,
				RenewDeadline:   10 * second,
				RetryPeriod:     2 * second,
				ReleaseOnCancel: true,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(context.Context) { close(leads) },
					OnStoppedLeading: func() {},
				},
			})
		}()
		<-leads
		time.Sleep(second)
		s.mu.Lock()
		way.cut = true
		s.well = false
		s.mu.Unlock()
		// A renewal is sent after 2 s, and then the lock is read, each for 5 s. Both are lost. Before the
		// deadline is over, another replica takes over, and the network is well again.
		time.Sleep(10*second + second/2)
		s.mu.Lock()
		taken := s.lease.DeepCopy()
		taken.Spec.HolderIdentity = new("other")
		way.storeLocked(taken)
		s.well = true
		s.mu.Unlock()
		<-ended
		time.Sleep(time.Minute) // for requests that are lost
		s.mu.Lock()
		defer s.mu.Unlock()
		g.Expect(*s.lease.Spec.HolderIdentity).To(Equal("other"))
		g.Expect(f.Open()).To(BeFalse())
	})
}

// Each record that is sent is another one, to the second, for other replicas compare records: if
// the same is sent again because the first answer was lost, if several are sent in a second, and if
// the clock is set back.
func TestRecordsAreDistinct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := &answers{}
		lock, f := ForLeaderElection(a, 15*second)
		base := time.Unix(1_000_000, 0)
		update := func(after time.Duration) {
			_ = lock.Update(t.Context(), resourcelock.LeaderElectionRecord{
				HolderIdentity:       "me",
				LeaseDurationSeconds: 15,
				RenewTime:            metav1.NewTime(base.Add(after)),
			})
		}
		a.err = errors.New("timeout")
		update(0)
		time.Sleep(5 * second)
		a.err = nil
		update(0)
		g.Expect(f.Remaining()).To(Equal(15*second), "others see this one")
		update(second / 2)
		update(7 * second)
		for n := range 100 {
			time.Sleep(2 * second)
			update(time.Duration(2*n)*second - time.Hour)
			g.Expect(f.Remaining()).To(Equal(15*second), "the clock was set back")
		}
		update(time.Hour)
		time.Sleep(2 * second)
		update(300 * second)
		g.Expect(a.records[len(a.records)-1].RenewTime.Time).
			To(BeTemporally("==", base.Add(300*second)), "a clock that was an hour ahead for a moment leaves nothing")
		for n := range 100 { // a clock that is ahead for minutes, and then is set back to times that were sent
			update(2*time.Hour + time.Duration(2*n)*second)
		}
		for n := range 100 {
			asked := 2*time.Hour + time.Duration(2*n)*second
			update(asked)
			g.Expect(a.records[len(a.records)-1].RenewTime.Sub(base)).
				To(Equal(asked+second), "a time is moved only to be another one")
		}
		seen := map[string]bool{}
		for _, record := range a.records {
			content, err := json.Marshal(record)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(seen).NotTo(HaveKey(string(content)))
			seen[string(content)] = true
		}
		g.Expect(seen).To(HaveLen(306))
		g.Expect(a.records[2].RenewTime.Time).To(BeTemporally("==", base.Add(2*second)))
		g.Expect(a.records[3].RenewTime.Time).To(BeTemporally("==", base.Add(7*second)), "a time that is new stays")
		f.close("the end of the test")
	})
}

// The times that are remembered are bounded.
func TestRememberedTimes(t *testing.T) {
	g := NewWithT(t)
	var sent sentTimes
	for second := range int64(3 * rememberedTimes) {
		g.Expect(sent.add(second)).To(Equal(second))
	}
	g.Expect(sent.seconds).To(HaveLen(rememberedTimes))
	g.Expect(sent.order).To(HaveLen(rememberedTimes))
	g.Expect(cap(sent.order)).To(BeNumerically("<", 2*rememberedTimes))
	g.Expect(sent.add(3*rememberedTimes-1)).To(BeEquivalentTo(3*rememberedTimes), "the last one is remembered")
	g.Expect(sent.add(0)).To(BeZero(), "the first one is not")
}

// server keeps a Lease as an API server does, with requests and answers that are slow, lost or
// refused at random.
type server struct {
	coordinationclient.LeasesGetter
	mu      sync.Mutex
	random  *rand.Rand // guarded by mu
	well    bool       // guarded by mu; nothing is slow or lost any more
	lease   *coordinationv1.Lease
	version int // guarded by mu
}

// network is the server as one replica reaches it.
type network struct {
	coordinationclient.LeaseInterface
	*server
	cut bool // guarded by mu
}

func (n *network) Leases(string) coordinationclient.LeaseInterface { return n }

// travel waits as long as a request or an answer takes, and returns an error if it is lost.
func (n *network) travel(ctx context.Context) error {
	n.mu.Lock()
	delay := time.Duration(n.random.IntN(200)) * time.Millisecond
	if n.random.IntN(8) == 0 {
		delay = time.Duration(n.random.IntN(40_000)) * time.Millisecond
	}
	lost := n.cut || n.random.IntN(12) == 0
	if n.well {
		delay, lost = 50*time.Millisecond, false
	}
	n.mu.Unlock()
	if lost {
		delay += time.Hour
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// do sends a request, which the server carries out although the client may have given up.
func (n *network) do(ctx context.Context, carryOut func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease,
	error) {
	type answer struct {
		lease *coordinationv1.Lease
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, 5*second) // as controller-runtime sets it: half of the deadline for renewals
	defer cancel()
	result := make(chan answer, 1)
	go func() {
		arrives, cancel := context.WithTimeout(context.WithoutCancel(ctx), 45*second) // what is lost is lost for good
		defer cancel()
		if n.travel(arrives) != nil {
			return
		}
		n.mu.Lock()
		lease, err := carryOut()
		n.mu.Unlock()
		result <- answer{lease, err}
	}()
	select {
	case a := <-result:
		if err := n.travel(ctx); err != nil {
			return nil, err
		}
		return a.lease, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *network) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return n.do(ctx, func() (*coordinationv1.Lease, error) {
		if n.lease == nil {
			return nil, apierrors.NewNotFound(leases, name)
		}
		return n.lease.DeepCopy(), nil
	})
}

func (n *network) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (
	*coordinationv1.Lease, error) {
	return n.do(ctx, func() (*coordinationv1.Lease, error) {
		if n.lease != nil {
			return nil, apierrors.NewAlreadyExists(leases, lease.Name)
		}
		return n.storeLocked(lease), nil
	})
}

func (n *network) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (
	*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return n.do(ctx, func() (*coordinationv1.Lease, error) {
		if n.lease == nil {
			return nil, apierrors.NewNotFound(leases, lease.Name)
		}
		if lease.ResourceVersion != n.lease.ResourceVersion {
			return nil, apierrors.NewConflict(leases, lease.Name, errors.New("changed"))
		}
		return n.storeLocked(lease), nil
	})
}

func (n *network) storeLocked(lease *coordinationv1.Lease) *coordinationv1.Lease {
	n.version++
	n.server.lease = lease.DeepCopy()
	n.server.lease.ResourceVersion = fmt.Sprint(n.version)
	return n.server.lease.DeepCopy()
}

// Three replicas with client-go's leader election, over a network that delays and loses requests
// and answers, and cuts replicas off: no two of their fences are open at the same time, each term
// has a higher number than those before, and in the end one is open.
func TestOneFenceIsOpen(t *testing.T) {
	var holders, handovers int
	var again bool
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s := &server{random: rand.New(rand.NewPCG(seed, 1))}
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
				var running sync.WaitGroup
				var fences []*Fence
				var networks []*network
				for n := range 3 {
					way := &network{server: s}
					networks = append(networks, way)
					lock, f := ForLeaderElection(&resourcelock.LeaseLock{
						LeaseMeta:  metav1.ObjectMeta{Name: "l"},
						Client:     way,
						LockConfig: resourcelock.ResourceLockConfig{Identity: fmt.Sprint("replica-", n)},
					}, 15*second)
					fences = append(fences, f)
					running.Go(func() {
						for ctx.Err() == nil {
							leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
								Lock:            lock,
								Name:            fmt.Sprint(n),
								LeaseDuration:   15 * second,
								RenewDeadline:   10 * second,
								RetryPeriod:     2 * second,
								ReleaseOnCancel: true,
								Callbacks: leaderelection.LeaderCallbacks{
									OnStartedLeading: func(context.Context) {},
									OnStoppedLeading: func() {},
								},
							})
						}
					})
				}
				last := -1
				terms := map[*Term]int64{}
				highest := int64(-1)
				for range 6000 { // five minutes
					time.Sleep(50 * time.Millisecond)
					open := -1
					for n, f := range fences {
						if !f.Open() {
							continue
						}
						g.Expect(open).To(Equal(-1), "replicas %d and %d", open, n)
						open = n
						current := f.Term()
						if _, seen := terms[current]; !seen {
							terms[current] = term.Count(current)
							g.Expect(terms[current]).To(BeNumerically(">", highest), "of replica %d", n)
							highest = terms[current]
							again = again || n == last
						}
					}
					if open >= 0 && open != last {
						if last >= 0 {
							handovers++
						}
						holders++
						last = open
					}
					s.mu.Lock()
					if s.random.IntN(400) == 0 {
						way := networks[s.random.IntN(3)]
						way.cut = !way.cut
					}
					s.mu.Unlock()
				}
				s.mu.Lock()
				s.well = true
				s.mu.Unlock()
				time.Sleep(2 * time.Minute)
				open := 0
				for _, f := range fences {
					if f.Open() {
						open++
					}
				}
				g.Expect(open).To(Equal(1), "when the network is well again")
				cancel()
				running.Wait()
				for _, f := range fences {
					g.Expect(f.Open()).To(BeFalse(), "given up")
				}
				time.Sleep(time.Hour) // for requests that are lost
			})
		})
	}
	t.Logf("%d times a replica led, %d times after another one", holders, handovers)
	NewWithT(t).Expect(handovers).To(BeNumerically(">", 60))
	NewWithT(t).Expect(again).To(BeTrue(), "a replica took its own lease again")
}
