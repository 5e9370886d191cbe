package accessor

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var red = client.ObjectKey{Name: "red"}

// shared is a driver of a replica that shares extensions with others, and has red. hold lets requests
// for /hold wait.
type shared struct {
	*driver
	server  *reviewer
	arrived chan struct{}
	release func()
}

func driveShared(t *testing.T) *shared {
	t.Helper()
	server := newReviewer(t)
	s := &shared{driver: drive(t, server.URL, rareProbes, noRetry), server: server, arrived: make(chan struct{}, 10)}
	held := make(chan struct{})
	s.release = sync.OnceFunc(func() { close(held) })
	t.Cleanup(s.release)
	server.hold.Store(new(func(req *http.Request) {
		if req.URL.Path == "/hold" {
			s.arrived <- struct{}{}
			<-held
		}
	}))
	s.options.Divided, s.divided = true, true
	s.extension("red", "red")
	s.eventually("red", connectedAs("user-of-red"))
	return s
}

// accessor returns the accessor of red and its connection.
func (s *shared) accessor() (*identityAccessor, *connection.Connection) {
	s.t.Helper()
	a, ok := s.byKey.Load(red)
	NewWithT(s.t).Expect(ok).To(BeTrue())
	return a, a.published.Load().conn
}

// request sends a request for /hold, and returns when it has arrived. The channel receives its error.
func (s *shared) request(conn *connection.Connection) <-chan error {
	s.t.Helper()
	result := make(chan error, 1)
	go func() { result <- put(conn, s.server.URL+"/hold") }()
	NewWithT(s.t).Eventually(s.arrived).WithTimeout(patience).Should(Receive())
	return result
}

func put(conn *connection.Connection, url string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := conn.HTTPClient().Do(req)
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}

// giveUp gives red up in the background. The channel receives the error of GiveUp.
func (s *shared) giveUp(ctx context.Context) <-chan error {
	s.mu.Lock()
	s.others["red"] = true
	s.mu.Unlock()
	result := make(chan error, 1)
	go func() { result <- s.GiveUp(ctx, func(client.Object) bool { return true }) }()
	return result
}

func reasonIs(reason connstate.Reason) gomegatypes.GomegaMatcher {
	return Satisfy(func(err error) bool {
		var notConnected *connstate.NotConnectedError
		return errors.As(err, &notConnected) && notConnected.Reason == reason
	})
}

const soon = 300 * time.Millisecond

// An extension that is given up refuses requests at once. Those under way get their answers, and GiveUp
// returns only then.
func TestGiveUpAwaitsAnswers(t *testing.T) {
	g := NewWithT(t)
	s := driveShared(t)
	a, conn := s.accessor()
	underWay := s.request(conn)
	gaveUp := s.giveUp(t.Context())
	g.Eventually(func() error { _, err := s.At(red).GetClient(); return err }).WithTimeout(patience).
		Should(reasonIs(connstate.ReasonNotOwned))
	g.Eventually(func() error { return put(conn, s.server.URL+"/hold") }).WithTimeout(patience).
		Should(reasonIs(connstate.ReasonNotOwned), "a request that has not started")
	g.Consistently(gaveUp).WithTimeout(soon).ShouldNot(Receive())
	g.Expect(a.left).NotTo(BeClosed())
	s.release()
	g.Eventually(underWay).WithTimeout(patience).Should(Receive(BeNil()))
	g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
	g.Expect(conn.Err()).To(reasonIs(connstate.ReasonNotOwned))
	g.Expect(s.disconnectReasons()).To(Equal([]string{"NotOwned"}), "one log line")
}

// A request that has no answer in time is cut, and its outcome is unknown. So it is if the caller of
// GiveUp has no more time.
func TestGiveUpCuts(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"after answerTimeout": time.Minute, "with the context": soon} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			s := driveShared(t)
			_, conn := s.accessor()
			underWay := s.request(conn)
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			gaveUp := s.giveUp(ctx)
			var err error
			g.Eventually(underWay).WithTimeout(patience).Should(Receive(&err))
			g.Expect(err).To(And(reasonIs(connstate.ReasonNotOwned), MatchError(fence.ErrOutcomeUnknown)))
			g.Expect(time.Since(begun)).To(BeNumerically(">=", min(timeout, answerTimeout)))
			if timeout < answerTimeout {
				g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(MatchError(context.DeadlineExceeded)))
			} else {
				g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
			}
		})
	}
}

// GiveUp returns when no event handler runs any more, whatever ended the connection before: another
// replica must not get the extension while one of this replica still handles events.
func TestGiveUpAwaitsTasks(t *testing.T) {
	for _, before := range []connstate.Reason{"", connstate.ReasonNotOwned, connstate.ReasonFiltered,
		connstate.ReasonDeleted} {
		t.Run("after "+string(before), func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			s := driveShared(t)
			a, _ := s.accessor()
			handled := make(chan struct{})
			defer sync.OnceFunc(func() { close(handled) })()
			g.Expect(a.tasks.Start(func() { <-handled })).To(BeTrue())
			s.mu.Lock()
			s.others["red"] = true
			s.mu.Unlock()
			if before != "" {
				s.Remove(red, before)
			}
			gaveUp := s.giveUp(t.Context())
			g.Consistently(gaveUp).WithTimeout(soon).ShouldNot(Receive())
			g.Eventually(s.Keys).WithTimeout(patience).Should(BeEmpty())
			handled <- struct{}{}
			g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
			g.Expect(a.left).To(BeClosed())
		})
	}
}

// What happens to the target while answers are awaited neither cuts the requests under way nor changes
// the reason of those that were refused.
func TestGiveUpKeepsItsReason(t *testing.T) {
	g := NewWithT(t)
	s := driveShared(t)
	a, conn := s.accessor()
	underWay := s.request(conn)
	gaveUp := s.giveUp(t.Context())
	g.Eventually(s.Keys).WithTimeout(patience).Should(BeEmpty())
	a.step(lifecycle.TargetDown{Target: lifecycle.TargetID(a.membership.ID()), Err: errDown}, eventPayload{})
	g.Expect(conn.Err()).NotTo(HaveOccurred())
	g.Expect(a.state()).To(Satisfy(disconnectedFor(connstate.ReasonNotOwned)))
	s.release()
	g.Eventually(underWay).WithTimeout(patience).Should(Receive(BeNil()))
	g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
}

// An extension can be taken again while answers of its earlier connection are awaited.
func TestTakenAgainWhileRefusing(t *testing.T) {
	g := NewWithT(t)
	s := driveShared(t)
	first, conn := s.accessor()
	underWay := s.request(conn)
	gaveUp := s.giveUp(t.Context())
	g.Eventually(s.Keys).WithTimeout(patience).Should(BeEmpty())
	s.mu.Lock()
	s.others["red"] = false
	s.mu.Unlock()
	s.wake <- red
	s.eventually("red", connectedAs("user-of-red"))
	second, _ := s.accessor()
	g.Expect(second).NotTo(BeIdenticalTo(first))
	g.Expect(put(conn, s.server.URL+"/hold")).To(reasonIs(connstate.ReasonNotOwned), "an earlier handle")
	s.release()
	g.Eventually(underWay).WithTimeout(patience).Should(Receive(BeNil()))
	g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
	g.Expect(s.Keys()).To(ConsistOf(red), "the end of the first accessor leaves the second")
	g.Expect(second.state()).To(Satisfy(connectedAs("user-of-red")))
}

// A manager that stops does not wait for answers that are awaited.
func TestShutdownWhileRefusing(t *testing.T) {
	g := NewWithT(t)
	s := driveShared(t)
	_, conn := s.accessor()
	underWay := s.request(conn)
	s.giveUp(t.Context())
	g.Eventually(s.Keys).WithTimeout(patience).Should(BeEmpty())
	s.shutdown()
	g.Eventually(underWay).WithTimeout(patience).Should(Receive(reasonIs(connstate.ReasonNotOwned)))
	leaving := 0
	s.leaving.Range(func(any, any) bool { leaving++; return true })
	g.Expect(leaving).To(BeZero())
}

// The state says that there is no connection as soon as the lease has ended, although no Reconcile
// follows: the workers may all be busy.
func TestStateWhenTheLeaseEnds(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	l, f := testutil.NewLease()
	d := driveFenced(t, r.URL, rareProbes, noRetry, f)
	d.extension("red", "red")
	l.Renew(3600)
	d.eventually("red", connectedAs("user-of-red"))
	a, _ := d.byKey.Load(red)
	conn := a.published.Load().conn

	var reconciles atomic.Int64
	block, blocked := make(chan struct{}), make(chan struct{}, 1)
	d.mu.Lock()
	d.tokens["busy"], d.newToken = "", func(name string) string {
		if name == "busy" && reconciles.Add(1) == 1 {
			blocked <- struct{}{}
			d.mu.Unlock()
			<-block
			d.mu.Lock()
		}
		return name
	}
	d.mu.Unlock()
	defer close(block)
	d.wake <- client.ObjectKey{Name: "busy"}
	g.Eventually(blocked).WithTimeout(patience).Should(Receive())

	l.Release()
	g.Eventually(func() error { _, err := d.At(red).GetClient(); return err }).WithTimeout(patience).
		Should(Satisfy(notLeading))
	g.Expect(a.state()).To(Satisfy(disconnectedFor(connstate.ReasonNotLeading)))
	g.Expect(a.state().Healthy).To(BeFalse())
	g.Expect(conn.Err()).To(Satisfy(notLeading))
	g.Expect(d.changed()).To(ContainElement("red"))
}
