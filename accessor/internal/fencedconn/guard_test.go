package fencedconn

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tcpPair returns a guarded connection and its other side.
func tcpPair(t *testing.T, g *Guard) (ours *guardedConn, theirs net.Conn) {
	t.Helper()
	gm := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	gm.Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	gm.Expect(err).NotTo(HaveOccurred())
	theirs = <-accepted
	gm.Expect(theirs).NotTo(BeNil())
	ours = Wrap(context.WithValue(t.Context(), guardKey{}, g), dialed).(*guardedConn)
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// A guard forgets requests, and blocks nothing that needs no term.
func TestGuard(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	l.Renew(3600)
	var none *Guard
	g.Expect(none.Begin(f.Term())).To(BeNil())
	own := &Guard{}
	left, right := tcpPair(t, own)
	g.Expect(own.Begin(nil)).To(BeNil())
	var running sync.WaitGroup
	for range 100 {
		running.Go(func() {
			use := own.Begin(f.Term())
			g.Expect(own.check()).To(Succeed())
			use.WroteRequest()
			use.HasReturned()
		})
	}
	running.Wait()
	g.Expect(own.uses).To(BeEmpty())
	late := own.Begin(f.Term())
	late.HasReturned() // cancelled by its caller, while net/http is about to write it
	g.Expect(own.check()).To(Succeed())
	late.returned = time.Now().Add(-lateWrite)
	own.Begin(f.Term()).WroteRequest()
	g.Expect(own.uses).To(BeEmpty())
	late = own.Begin(f.Term())
	late.HasReturned()
	l.Release()
	_, err := left.Write([]byte("late"))
	g.Expect(err).To(MatchError(fence.ErrClosed))
	received, _ := io.ReadAll(right)
	g.Expect(received).To(BeEmpty(), "the connection is closed")
}

// fill writes until the buffers of both sides are full, and returns how much.
func fill(t *testing.T, conn *guardedConn) int64 {
	t.Helper()
	g := NewWithT(t)
	g.Expect(conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
	n, err := conn.Write(make([]byte, 64<<20))
	g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
	g.Expect(conn.SetWriteDeadline(time.Time{})).To(Succeed())
	return int64(n)
}

// A write that waits for room looks again when there is room.
func TestWriteThatWaits(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	l.Renew(3600)
	own := &Guard{}
	left, right := tcpPair(t, own)
	filled := fill(t, left)
	own.Begin(f.Term())
	result := make(chan error, 1)
	go func() {
		_, err := left.Write(make([]byte, 8<<20))
		result <- err
	}()
	g.Consistently(result).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
	l.Release() // the context of the request goes on
	received, _ := io.Copy(io.Discard, right)
	g.Expect(<-result).To(MatchError(fence.ErrClosed))
	g.Expect(received).To(BeNumerically("<", filled+8<<20))
}

// Closing a connection drops what the other side has not acknowledged of a request that needs a
// term.
func TestCloseDropsWhatIsNotAcknowledged(t *testing.T) {
	for name, tc := range map[string]struct {
		uses  func(*Guard, *fence.Fence)
		whole bool
	}{
		"a request that needs a term": {uses: func(own *Guard, f *fence.Fence) { own.Begin(f.Term()).WroteRequest() }},
		"no such request":             {uses: func(*Guard, *fence.Fence) {}, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			l, f := testutil.NewLease()
			l.Renew(3600)
			defer l.Release()
			own := &Guard{}
			left, right := tcpPair(t, own)
			filled := fill(t, left)
			tc.uses(own, f)
			g.Expect(left.Close()).To(Succeed())
			received, err := io.Copy(io.Discard, right)
			if tc.whole {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(received).To(Equal(filled))
			} else {
				g.Expect(err).To(MatchError(syscall.ECONNRESET))
				g.Expect(received).To(BeNumerically("<", filled))
			}
		})
	}
}

// A request that was written, and that the other side does not acknowledge, takes its connection
// with it when its term ends; an acknowledged one does not.
func TestUnacknowledgedRequest(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	for _, acknowledged := range []bool{true, false} {
		l.Renew(3600)
		own := &Guard{}
		left, right := tcpPair(t, own)
		use := own.Begin(f.Term())
		if acknowledged {
			_, err := left.Write([]byte("request"))
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			fill(t, left)
		}
		use.WroteRequest()
		if acknowledged {
			_, err := io.ReadFull(right, make([]byte, 7))
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func() bool {
				own.mu.Lock()
				defer own.mu.Unlock()
				return own.isDeliveredLocked(use.upTo)
			}).Should(BeTrue())
		}
		l.Release()
		use.HasReturned()
		use.abortUnlessDelivered()
		_, err := left.Write([]byte("next"))
		g.Expect(err == nil).To(Equal(acknowledged), "%v", err)
	}
}

// A request that the other side has acknowledged takes no connection with it, although a later one
// of another extension is not acknowledged yet.
func TestLaterRequestsDoNotCount(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	defer l.Release()
	l.Renew(3600)
	own := &Guard{}
	left, right := tcpPair(t, own)
	part, endPart := term.Join(f.Term())
	givenUp, stays := own.Begin(part), own.Begin(f.Term())
	_, err := left.Write([]byte("request"))
	g.Expect(err).NotTo(HaveOccurred())
	givenUp.WroteRequest()
	_, err = io.ReadFull(right, make([]byte, 7))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() bool {
		own.mu.Lock()
		defer own.mu.Unlock()
		return own.isDeliveredLocked(givenUp.upTo)
	}).Should(BeTrue())
	fill(t, left)
	stays.WroteRequest()
	endPart("given up")
	givenUp.HasReturned()
	givenUp.abortUnlessDelivered()
	go func() { _, _ = io.Copy(io.Discard, right) }()
	_, err = left.Write([]byte("next"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left.Close()).To(Succeed())
}

// A connection that ends waits for a write under way, and so the write must not wait for the one
// that ends the connection.
func TestTermEndsDuringAWrite(t *testing.T) {
	g := NewWithT(t)
	l, f := testutil.NewLease()
	l.Renew(3600)
	own := &Guard{}
	left, _ := tcpPair(t, own)
	use := own.Begin(f.Term())
	inside, goOn := make(chan struct{}), make(chan struct{})
	written, returned := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := writeChecked(left.TCPConn, []byte("request"), func() error {
			close(inside)
			<-goOn
			return own.check()
		})
		written <- err
	}()
	<-inside
	l.Release()
	go func() {
		defer close(returned)
		use.HasReturned()
	}()
	g.Eventually(func() error {
		raw, err := left.SyscallConn()
		if err == nil {
			err = raw.Control(func(uintptr) {})
		}
		return err
	}).Should(HaveOccurred(), "the connection has begun to end")
	close(goOn)
	g.Eventually(written).Should(Receive(MatchError(fence.ErrClosed)))
	g.Eventually(returned).Should(BeClosed())
}

// A new request makes the guard forget only what cannot be written any more: not a request that is
// under way, and not one whose term has ended, however long ago it returned.
func TestGuardRemembers(t *testing.T) {
	for name, returned := range map[string]func() time.Time{
		"under way":       func() time.Time { return time.Time{} },
		"returned before": func() time.Time { return time.Now().Add(-2 * lateWrite) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			lease, f := testutil.NewLease()
			lease.Renew(3600)
			own := &Guard{}
			part, endPart := term.Join(f.Term())
			use := own.Begin(part)
			use.returned = returned()
			if name == "returned before" {
				endPart("given up")
			}
			own.Begin(f.Term())
			if name == "under way" {
				endPart("given up")
			}
			g.Expect(own.check()).To(MatchError(fence.ErrClosed))
		})
	}
}
