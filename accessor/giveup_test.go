package accessor

import (
	"context"
	"net/http"
	"sync"
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
)

var red = client.ObjectKey{Name: "red"}

// shared is a driver of a replica that shares extensions with others, and has red. hold lets
// requests for /hold wait.
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
	s.options.ReplicasShare, s.replicasShare = true, true
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

// request sends a request for /hold, and returns when it has arrived. The channel receives its
// error.
func (s *shared) request(conn *connection.Connection) <-chan error {
	s.t.Helper()
	result := make(chan error, 1)
	go func() { result <- put(conn, s.server.URL+"/hold") }()
	NewWithT(s.t).Eventually(s.arrived).WithTimeout(patience).Should(Receive())
	return result
}

func put(conn *connection.Connection, url string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, url, nil)
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

// refusing is red with a request under way, given up.
type refusing struct {
	*shared
	a                *identityAccessor
	conn             *connection.Connection
	underWay, gaveUp <-chan error
}

func driveRefusing(t *testing.T) refusing {
	t.Helper()
	r := refusing{shared: driveShared(t)}
	r.a, r.conn = r.accessor()
	r.underWay = r.request(r.conn)
	r.gaveUp = r.giveUp(t.Context())
	NewWithT(t).Eventually(r.Keys).WithTimeout(patience).Should(BeEmpty())
	return r
}

// expectAnswered lets the request have its answer, and expects that this ends everything.
func (r refusing) expectAnswered() {
	r.t.Helper()
	r.release()
	g := NewWithT(r.t)
	g.Eventually(r.underWay).WithTimeout(patience).Should(Receive(BeNil()))
	g.Eventually(r.gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
}

func reasonIs(reason connstate.Reason) gomegatypes.GomegaMatcher {
	return Satisfy(func(err error) bool {
		var notConnected *connstate.NotConnectedError
		return errors.As(err, &notConnected) && notConnected.Reason == reason
	})
}

const soon = 300 * time.Millisecond

// An extension that is given up refuses requests at once. Those under way get their answers, and
// GiveUp returns only then.
func TestGiveUpAwaitsAnswers(t *testing.T) {
	g := NewWithT(t)
	r := driveRefusing(t)
	g.Eventually(func() error { _, err := r.At(red).GetClient(t.Context()); return err }).WithTimeout(patience).
		Should(reasonIs(connstate.ReasonNotOwned))
	g.Eventually(func() error { return put(r.conn, r.server.URL+"/hold") }).WithTimeout(patience).
		Should(reasonIs(connstate.ReasonNotOwned), "a request that has not started")
	g.Consistently(r.gaveUp).WithTimeout(soon).ShouldNot(Receive())
	g.Expect(r.a.done).NotTo(BeClosed())
	r.expectAnswered()
	g.Expect(r.conn.Err()).To(reasonIs(connstate.ReasonNotOwned))
	g.Expect(r.disconnectReasons()).To(Equal([]string{"NotOwned"}), "one log line")
}

// A request that has no answer in time is cut, and its outcome is unknown. So it is if the caller
// of GiveUp has no more time.
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
	for name, before := range map[string]func(*Set, *identityAccessor){
		"connected": func(*Set, *identityAccessor) {},
		"not owned": func(s *Set, a *identityAccessor) { s.RemoveNotOwned(a.lastObject()) },
		"filtered":  func(s *Set, _ *identityAccessor) { s.Remove(red, Filtered) },
		"deleted":   func(s *Set, _ *identityAccessor) { s.Remove(red, Deleted) },
	} {
		t.Run(name, func(t *testing.T) {
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
			before(s.Set, a)
			gaveUp := s.giveUp(t.Context())
			g.Consistently(gaveUp).WithTimeout(soon).ShouldNot(Receive())
			g.Eventually(s.Keys).WithTimeout(patience).Should(BeEmpty())
			handled <- struct{}{}
			g.Eventually(gaveUp).WithTimeout(patience).Should(Receive(BeNil()))
			g.Expect(a.done).To(BeClosed())
		})
	}
}

// What happens to the target while answers are awaited neither cuts the requests under way nor
// changes the reason of those that were refused.
func TestGiveUpKeepsItsReason(t *testing.T) {
	g := NewWithT(t)
	r := driveRefusing(t)
	r.a.step(lifecycle.TargetDown{Target: lifecycle.TargetID(r.a.membership.ID()), Err: errDown}, eventPayload{})
	g.Expect(r.conn.Err()).NotTo(HaveOccurred())
	g.Expect(r.a.state()).To(Satisfy(disconnectedFor(connstate.ReasonNotOwned)))
	r.expectAnswered()
}

// An extension can be taken again while answers of its earlier connection are awaited.
func TestTakenAgainWhileRefusing(t *testing.T) {
	g := NewWithT(t)
	r := driveRefusing(t)
	r.mu.Lock()
	r.others["red"] = false
	r.mu.Unlock()
	r.wake <- red
	r.eventually("red", connectedAs("user-of-red"))
	second, _ := r.accessor()
	g.Expect(second).NotTo(BeIdenticalTo(r.a))
	g.Expect(put(r.conn, r.server.URL+"/hold")).To(reasonIs(connstate.ReasonNotOwned), "an earlier handle")
	r.expectAnswered()
	g.Expect(r.Keys()).To(ConsistOf(red), "the end of the first accessor leaves the second")
	g.Expect(second.state()).To(Satisfy(connectedAs("user-of-red")))
}

// A manager that stops does not wait for answers that are awaited.
func TestShutdownWhileRefusing(t *testing.T) {
	g := NewWithT(t)
	r := driveRefusing(t)
	r.shutdown()
	g.Eventually(r.underWay).WithTimeout(patience).Should(Receive(reasonIs(connstate.ReasonNotOwned)))
	draining := 0
	r.draining.Range(func(any, any) bool { draining++; return true })
	g.Expect(draining).To(BeZero())
}
