package peers

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
)

// counts is a member whose stream has as many versions as the test says. What it has is said only
// to those who ask for nothing else.
type counts struct {
	has, says atomic.Int64
	hangs     atomic.Bool
	asked     atomic.Int64
}

// ServeHTTP implements http.Handler.
func (c *counts) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := req.URL.Query()
	switch {
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
	case query.Get("watch") == "":
		version := c.says.Load()
		if query.Get("fieldSelector") == "metadata.name=-" {
			if c.hangs.Load() {
				<-req.Context().Done()
			}
			version = c.has.Load()
			c.asked.Add(1)
		}
		_, _ = fmt.Fprintf(w, `{"kind": "ConfigMapList", "apiVersion": "state.latchkey.dev/v1alpha1", "metadata":
			{"resourceVersion": "%d"}}`, version)
	default:
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			_, _ = fmt.Fprintf(w, `{"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion":
				"state.latchkey.dev/v1alpha1", "metadata": {"resourceVersion": "%d"}}}`+"\n", c.says.Load())
			_ = http.NewResponseController(w).Flush()
			select {
			case <-req.Context().Done():
				return
			case <-tick.C:
			}
		}
	}
}

// CatchUp returns when all was heard that a peer had when it was called: by the versions that the
// peer gives.
func TestCatchUp(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	member := &counts{}
	member.has.Store(100)
	member.says.Store(100)
	follow(t, p, "you", memberAt(t, p, authority, "you", member.ServeHTTP))
	catchUp := func(identity string) <-chan error {
		result := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		go func() { result <- p.CatchUp(ctx, identity) }()
		return result
	}
	g.Eventually(p.listener.(*heard).all).WithTimeout(patience).Should(ContainElement("heard you"))
	g.Eventually(catchUp("you")).WithTimeout(patience).Should(Receive(BeNil()))
	g.Eventually(catchUp("stranger")).WithTimeout(patience).Should(Receive(MatchError("replica stranger is not known")))

	member.has.Store(2000) // and has not said it yet
	asked := member.asked.Load()
	waiting := catchUp("you")
	g.Eventually(member.asked.Load).WithTimeout(patience).Should(Equal(asked + 1))
	member.has.Store(3000) // later than it was asked
	member.says.Store(1999)
	g.Consistently(waiting, "300ms").ShouldNot(Receive())
	member.says.Store(2000)
	g.Eventually(waiting).WithTimeout(patience).Should(Receive(BeNil()))
	g.Expect(member.asked.Load()).To(Equal(asked + 1))

	member.hangs.Store(true)
	g.Eventually(catchUp("you")).WithTimeout(patience).Should(Receive(MatchError(context.DeadlineExceeded)))
	member.hangs.Store(false)
	asked = member.asked.Load()
	waiting = catchUp("you")
	g.Eventually(member.asked.Load).WithTimeout(patience).Should(Equal(asked + 1))
	p.mu.Lock()
	you := p.known["you"]
	p.mu.Unlock()
	you.end()
	g.Eventually(waiting).WithTimeout(patience).Should(Receive(MatchError(errEnded)))
	you.client.Store(nil)
	g.Eventually(catchUp("you")).WithTimeout(patience).Should(Receive(MatchError("replica you is not connected")))
}

// A peer that ends is not waited for, and nor is one that names no version, or one that is never
// reached.
func TestHeardOut(t *testing.T) {
	g := NewWithT(t)
	s := &said{}
	ended := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s.set("connections", "5")
	g.Expect(s.await(ctx, ended, "connections", "5")).To(Succeed())
	g.Expect(s.await(ctx, ended, "connections", "none")).NotTo(Succeed())
	short, end := context.WithTimeout(t.Context(), time.Millisecond)
	defer end()
	g.Expect(s.await(short, ended, "connections", "999999999999999999999999")).To(MatchError(context.DeadlineExceeded))
	g.Expect(s.await(short, ended, "scopes", "none")).To(MatchError(context.DeadlineExceeded))
	close(ended)
	g.Expect(s.await(ctx, ended, "connections", "10")).To(MatchError(errEnded))
}

// blocking is a Listener that takes its time.
type blocking struct {
	heard
	replaced, wasHeard chan struct{}
}

func (b *blocking) Replaced(string, string, []runtime.Object) { <-b.replaced }
func (b *blocking) Heard(string)                              { <-b.wasHeard }

// What was heard of a peer is passed on before the version is known.
func TestHeardOutAfterTheListener(t *testing.T) {
	g := NewWithT(t)
	p, _ := fleetOf(t, "fleet")
	listener := &blocking{replaced: make(chan struct{}), wasHeard: make(chan struct{})}
	p.listener = listener
	one := &peer{peers: p, began: time.Now().Add(-time.Minute), heard: map[string]*atomic.Int64{"connections": {}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = (&stream{peer: one, resource: "connections", listed: func() {}}).Replace(nil, "7")
	}()
	version := func() string {
		version, _ := one.said.get("connections")
		return version
	}
	for _, passedOn := range []chan struct{}{listener.replaced, listener.wasHeard} {
		g.Consistently(version, "50ms").Should(BeEmpty())
		passedOn <- struct{}{}
	}
	g.Eventually(version).WithTimeout(patience).Should(Equal("7"))
	<-done
}
