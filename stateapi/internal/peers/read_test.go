package peers

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// CatchUp returns when all was heard that a peer had when it was called: by the versions that the
// peer gives.
func TestCatchUp(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	var has atomic.Int64
	has.Store(100)
	var hangs atomic.Bool
	says := make(chan int64)
	follow(t, p, "you", memberAt(t, p, authority, "you", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := req.URL.Query()
		switch {
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case query.Get("watch") == "":
			if hangs.Load() {
				<-req.Context().Done()
			}
			_, _ = fmt.Fprintf(w, `{"kind": "ConfigMapList", "apiVersion": "state.latchkey.dev/v1alpha1", "metadata":
				{"resourceVersion": "%d"}}`, has.Load())
		default:
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for version := int64(100); ; {
				_, _ = fmt.Fprintf(w, `{"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion":
					"state.latchkey.dev/v1alpha1", "metadata": {"resourceVersion": "%d"}}}`+"\n", version)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-req.Context().Done():
					return
				case version = <-says:
				case <-tick.C:
				}
			}
		}
	}))
	catchUp := func(identity string) <-chan error {
		result := make(chan error, 1)
		go func() { result <- p.CatchUp(t.Context(), identity) }()
		return result
	}
	g.Eventually(p.listener.(*heard).all).WithTimeout(patience).Should(ContainElement("heard you"))
	g.Eventually(catchUp("you")).WithTimeout(patience).Should(Receive(BeNil()))
	g.Eventually(catchUp("stranger")).WithTimeout(patience).Should(Receive(MatchError("replica stranger is not known")))

	has.Store(2000) // and not heard yet
	waiting := catchUp("you")
	says <- 1999
	g.Consistently(waiting, "300ms").ShouldNot(Receive())
	has.Store(3000) // later than it was called
	says <- 2000
	g.Eventually(waiting).WithTimeout(patience).Should(Receive(BeNil()))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(p.CatchUp(ctx, "you")).To(MatchError(context.Canceled))
	hangs.Store(true)
	g.Eventually(catchUp("you")).WithTimeout(patience).Should(Receive(MatchError(context.DeadlineExceeded)))
	hangs.Store(false)
	waiting = catchUp("you")
	p.mu.Lock()
	you := p.known["you"]
	p.mu.Unlock()
	you.end()
	g.Eventually(waiting).WithTimeout(patience).Should(Receive(MatchError(ContainSubstring("replica you"))))
	you.client.Store(nil)
	g.Eventually(catchUp("you")).WithTimeout(patience).Should(Receive(MatchError("replica you is not connected")))
}

// A peer that ends is not waited for, and nor is one that names no version.
func TestHeardOut(t *testing.T) {
	g := NewWithT(t)
	s := &said{}
	ended := make(chan struct{})
	s.set("connections", "5")
	g.Expect(s.await(t.Context(), ended, "connections", "5")).To(Succeed())
	g.Expect(s.await(t.Context(), ended, "connections", "none")).NotTo(Succeed())
	close(ended)
	g.Expect(s.await(t.Context(), ended, "connections", "10")).To(MatchError(errEnded))
	g.Expect(s.await(t.Context(), ended, "scopes", "1")).To(MatchError(errEnded))
}
