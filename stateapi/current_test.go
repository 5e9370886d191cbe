package stateapi

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/internal/merge"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// runCurrent returns a current that runs until the test ends, in a term that does not end.
func runCurrent(t *testing.T, catchUp func(ctx context.Context) error) *current {
	t.Helper()
	c := newCurrent(nil, catchUp)
	ctx, end := context.WithCancel(context.Background())
	go c.run(ctx)
	t.Cleanup(func() {
		end()
		<-c.ended
	})
	return c
}

// What a replica serves that has just taken over, or hands over, has what another one may have
// shown: each read waits for what the others had when it came.
func TestReadsWhileAnotherReplicaMayServe(t *testing.T) {
	g := NewWithT(t)
	m := newView().merged
	m.Members([]string{"you"})
	scope := &v1alpha1.Scope{Status: v1alpha1.ScopeStatus{Extension: "red", Selection: v1alpha1.Selection{Kind: "Pod"}}}
	scope.Name = nameOfScope("red", scope.Status.Selection, "")
	epoch := int64(0)
	m.catchUp = func(_ context.Context, replica string) error {
		g.Expect(replica).To(Equal("you"))
		epoch++
		c := claim("red", "1", v1alpha1.StateConnected, 1)
		c.Status.Epoch = epoch
		m.Changed("you", connectionsResource, c)
		scope.Status.Objects = new(epoch)
		m.Changed("you", scopesResource, scope.DeepCopy())
		return nil
	}
	m.Replaced("you", connectionsResource, nil)
	m.Replaced("you", scopesResource, nil)
	m.Heard("you")
	ctx := apiserver.Context{Context: t.Context()}
	connections, scopes := m.stores(runCurrent(t, m.hearOut))
	list := func() int {
		found, err := connections.List(ctx, &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return len(found.Items)
	}
	g.Expect(list()).To(Equal(1))
	m.get = func(context.Context, string, string, string, string, runtime.Object) error {
		return errors.New("not heard")
	}
	one, err := connections.Get(ctx, "red", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(one.Status.Epoch).To(BeEquivalentTo(2))
	events, err := connections.Watch(ctx, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	var event apiserver.WatchEvent[*v1alpha1.Connection]
	g.Eventually(events).Should(Receive(&event))
	g.Expect(event.Type).To(Equal(watch.Added))
	g.Expect(event.Object.Status.Epoch).To(BeEquivalentTo(3))
	all, err := scopes.List(ctx, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all.Items).To(HaveLen(1))
	g.Expect(all.Items[0].Status.Objects).To(HaveValue(BeEquivalentTo(4)))
	found, err := scopes.Get(ctx, scope.Name, &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Status.Objects).To(HaveValue(BeEquivalentTo(5)))
	_, err = scopes.Watch(ctx, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(epoch).To(BeEquivalentTo(6))
}

// Reads that come while one catches up are answered after the next, all of them: the one that runs
// may have asked before they came.
func TestReadsCatchUpTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		begun := 0
		c := runCurrent(t, func(context.Context) error {
			begun++
			time.Sleep(time.Second)
			return nil
		})
		took := func() time.Duration {
			from := time.Now()
			g.Expect(c.await(t.Context())).To(Succeed())
			return time.Since(from)
		}
		var reads sync.WaitGroup
		reads.Go(func() { g.Expect(took()).To(Equal(time.Second)) })
		for range 5 {
			reads.Go(func() {
				time.Sleep(400 * time.Millisecond)
				g.Expect(took()).To(Equal(1600 * time.Millisecond))
			})
		}
		reads.Wait()
		g.Expect(begun).To(Equal(2))

		// What was begun for one that gives up goes on.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		reads.Go(func() { g.Expect(apierrors.IsTimeout(c.await(ctx))).To(BeTrue()) })
		reads.Go(func() {
			time.Sleep(50 * time.Millisecond)
			g.Expect(took()).To(Equal(1950 * time.Millisecond))
		})
		reads.Wait()
		g.Expect(begun).To(Equal(4))
	})
}

// Reads wait until all were heard out once after no other replica served any more.
func TestReadsWaitUntilAllWereHeardOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		begun := 0
		c := runCurrent(t, func(context.Context) error {
			begun++
			return nil
		})
		waits := func() bool {
			before := begun
			g.Expect(c.await(t.Context())).To(Succeed())
			synctest.Wait()
			return begun > before
		}
		g.Expect(waits()).To(BeTrue())
		time.Sleep(overlap)
		g.Expect(waits()).To(BeTrue(), "at the end of the time, and so too early")
		time.Sleep(time.Nanosecond)
		g.Expect(waits()).To(BeTrue())
		g.Expect(waits()).To(BeFalse())
		c.handOver()
		g.Expect(waits()).To(BeTrue())
		g.Expect(waits()).To(BeTrue())
	})
}

// A replica answers no read any more when another one may serve that does not reckon with it,
// however late it is to end: its process may have been suspended, also while it answers.
func TestReadsOfAReplicaThatWasSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		anotherServes := WithTransform(apierrors.IsServiceUnavailable, BeTrue())
		for _, handsOver := range []bool{false, true} {
			inTerm, endTerm := term.Join()
			c := newCurrent(inTerm, func(context.Context) error { return nil })
			ctx, end := context.WithCancel(t.Context())
			go c.run(ctx)
			ends := func() { endTerm("the lease was not renewed in time") }
			if handsOver {
				c.handOver()
				endTerm("the lease was released")
				ends = func() { time.Sleep(overlap) }
			}
			called := 0
			read := func(suspended func()) error {
				return c.read(t.Context(), func() error {
					called++
					suspended()
					return nil
				})
			}
			g.Expect(read(func() {})).To(Succeed())
			err := read(ends)
			g.Expect(err).To(anotherServes)
			seconds, again := apierrors.SuggestsClientDelay(err)
			g.Expect(again).To(BeTrue())
			g.Expect(seconds).To(Equal(1))
			g.Expect(read(func() {})).To(anotherServes)
			g.Expect(called).To(Equal(3))
			end()
			<-c.ended
		}

		// It hands over, and finds that its term is over.
		inTerm, endTerm := term.Join()
		c := newCurrent(inTerm, nil)
		endTerm("the lease was not renewed in time")
		c.handOver()
		g.Expect(c.check()).To(anotherServes)
	})
}

// What is asked of another replica may take long, too.
func TestReadsOfAReplicaThatIsSuspendedWhileItAsks(t *testing.T) {
	g := NewWithT(t)
	m := newView().merged
	inTerm, endTerm := term.Join()
	current := newCurrent(inTerm, nil)
	current.reads = merge.Reads{}
	connections, _ := m.stores(current)
	m.Replaced("you", connectionsResource, []runtime.Object{claim("red", "1", v1alpha1.StateConnected, 1)})
	m.Heard("you")
	m.get = func(context.Context, string, string, string, string, runtime.Object) error {
		endTerm("the lease was not renewed in time")
		return errors.New("not heard")
	}
	_, err := connections.Get(apiserver.Context{Context: t.Context()}, "red", &metav1.GetOptions{})
	g.Expect(apierrors.IsServiceUnavailable(err)).To(BeTrue())
}

// A server that loses its Lease ends at once. When one hands over, its reads wait from the moment
// at which another one may serve.
func TestGivingUp(t *testing.T) {
	g := NewWithT(t)
	begin := func() (f *fleet, s *turn) {
		s = &turn{current: newCurrent(nil, nil), running: &sync.WaitGroup{}}
		s.current.reads = merge.NewReads(overlap)
		s.life, s.end = context.WithCancel(t.Context())
		return newView(), s
	}
	waits := func(s *turn) bool { return s.current.reads.MustWait() }
	f, s := begin()
	g.Expect(waits(s)).To(BeFalse())
	f.giveUp(s, false)
	g.Expect(s.life.Err()).To(HaveOccurred())
	f, s = begin()
	f.giveUp(s, true)
	g.Expect(waits(s)).To(BeTrue())
	s.running.Wait() // there is no replica that could serve
	g.Expect(s.life.Err()).To(HaveOccurred())
}

// What a replica has is said to the others before it shows it itself, and it shows that before it
// has heard all out: each of two that serve shows what the other one has shown.
func TestOwnChangesAreSaidFirst(t *testing.T) {
	g := NewWithT(t)
	f := newView()
	rows := func(states *connectionStore) int {
		all, err := states.List(apiserver.Context{Context: t.Context()}, &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return len(all.Items)
	}
	saying, saidIt := make(chan struct{}), make(chan struct{})
	say := sync.OnceFunc(func() { close(saidIt) })
	defer say()
	go func() { // so that nothing can be said
		_, _ = f.api.states.Modify("", "red", func(*v1alpha1.Connection, bool) (*v1alpha1.Connection, bool, error) {
			close(saying)
			<-saidIt
			return nil, false, nil
		})
	}()
	<-saying
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		f.update(client.ObjectKey{Name: "red"}, claim("red", "1", v1alpha1.StateConnected, 1), nil,
			&clustercache.ConnectionState{UID: "1"}, clustercache.NotOwnedExtension{})
	}()
	g.Eventually(func() bool {
		free := f.merged.mu.TryLock()
		if free {
			f.merged.mu.Unlock()
		}
		return free
	}).WithTimeout(time.Minute).Should(BeFalse())
	heardOut := make(chan error, 1)
	go func() { heardOut <- f.merged.hearOut(t.Context()) }()
	g.Consistently(func() int { return rows(f.merged.states) + len(heardOut) }, "50ms").Should(BeZero())
	say()
	g.Eventually(heardOut).WithTimeout(time.Minute).Should(Receive(BeNil()))
	g.Expect([]int{rows(f.api.states), rows(f.merged.states)}).To(HaveEach(1))
	<-shown
}

// One replica that is never heard out delays reads for a time only, also if each of them gives up
// before.
func TestReadsDoNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := runCurrent(t, func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("replica you is slow")
		})
		begun := time.Now()
		waits := func(patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return c.await(ctx)
		}
		g.Expect(waits(time.Hour)).To(Succeed())
		g.Expect(time.Since(begun)).To(Equal(catchUpTimeout))
		failed := 0
		for waits(time.Second) != nil {
			failed++
		}
		g.Expect(failed).To(BeNumerically(">", 10))
		g.Expect(time.Since(begun)).To(BeNumerically("<=", overlap+2*catchUpTimeout+time.Second))
	})
}

// Reads that wait when their server has ended get an error, and not what there is: another one
// serves, and may have shown more.
func TestReadsOfAServerThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newCurrent(nil, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, end := context.WithCancel(t.Context())
		go c.run(ctx)
		var results [2]chan error
		for i := range results {
			results[i] = make(chan error, 1)
			go func() { results[i] <- c.await(t.Context()) }()
			synctest.Wait()
		}
		g.Expect(results[0]).NotTo(Receive())
		end()
		synctest.Wait()
		for i := range results {
			g.Expect(results[i]).To(Receive(WithTransform(apierrors.IsServiceUnavailable, BeTrue())))
		}
	})
}

// Replicas that are heard are heard out, and new ones, all at once; not those that are silent.
// First it must be known who is there.
func TestWhoIsHeardOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		m := newView().merged
		answers := map[string]func(ctx context.Context, attempt int) error{}
		var mu sync.Mutex
		asked := map[string]int{}
		m.catchUp = func(ctx context.Context, replica string) error {
			mu.Lock()
			asked[replica]++
			attempt := asked[replica]
			mu.Unlock()
			time.Sleep(time.Second)
			if answer := answers[replica]; answer != nil {
				return answer(ctx, attempt)
			}
			return nil
		}
		heard := func(replica string) {
			m.Replaced(replica, connectionsResource, nil)
			m.Heard(replica)
		}
		hearOut := func() (map[string]int, time.Duration, error) {
			from := time.Now()
			clear(asked)
			err := m.hearOut(t.Context())
			return maps.Clone(asked), time.Since(from), err
		}
		m.tick(time.Now())
		unknown := 0
		m.checkMembers = func(context.Context) error {
			if unknown++; unknown < 3 {
				return errors.New("replica you is not known yet")
			}
			return nil
		}
		_, took, err := hearOut()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(took).To(Equal(2 * askAgain))
		m.checkMembers = func(context.Context) error { return errors.New("no API server") }
		m.Members([]string{"you"})
		var who map[string]int
		who, took, err = hearOut()
		g.Expect(err).To(MatchError("no API server"))
		g.Expect(who).To(Equal(map[string]int{"you": 1}))
		g.Expect(took).To(BeNumerically("~", catchUpTimeout/2+time.Second, askAgain))
		m.checkMembers = func(context.Context) error { return nil }
		heard("silent")
		time.Sleep(2 * silence)
		m.tick(time.Now())
		heard("left")
		heard("you")
		m.Members([]string{"new", "half", "you"})
		m.Replaced("half", connectionsResource, nil) // and not heard, until it has said all
		who, took, err = hearOut()
		g.Expect(err).To(MatchError("replica silent is silent"))
		g.Expect(who).To(Equal(map[string]int{"new": 1, "half": 1, "you": 1, "left": 1}))
		g.Expect(took).To(Equal(time.Second))
		m.Gone("silent")
		_, _, err = hearOut()
		g.Expect(err).NotTo(HaveOccurred())

		// A member that fails is asked until it answers. Others are not.
		failed := errors.New("connection reset")
		for _, replica := range []string{"new", "left", "you"} {
			answers[replica] = func(_ context.Context, attempt int) error {
				if attempt < 3 {
					return failed
				}
				return nil
			}
		}
		who, _, err = hearOut()
		g.Expect(err).To(MatchError(failed))
		g.Expect(who).To(Equal(map[string]int{"new": 3, "half": 1, "you": 3, "left": 1}))

		// One that falls silent, or was never heard, is not waited for any longer.
		clear(answers)
		m.Gone("left")
		m.Gone("half")
		m.Members([]string{"you"})
		answers["you"] = func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		time.AfterFunc(2*silence, func() { m.tick(time.Now()) })
		_, took, err = hearOut()
		g.Expect(err).To(MatchError(ContainSubstring("replica you is silent")))
		g.Expect(took).To(BeNumerically("~", 2*silence, silenceInterval))
		m.Gone("you")
		m.Members([]string{"newest"})
		answers["newest"] = func(context.Context, int) error { return failed }
		_, took, err = hearOut()
		g.Expect(err).To(MatchError(failed))
		g.Expect(took).To(And(BeNumerically(">", silence), BeNumerically("<=", silence+time.Second)))
	})
}
