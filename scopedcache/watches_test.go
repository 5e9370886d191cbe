package scopedcache

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// Lists work, and each watch is answered with 200 and ends: the scope is Failing with the reason,
// while reads are served, until a watch lasts.
func TestWatchesThatEndAtOnce(t *testing.T) {
	const expired = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,` +
		`"reason":"Expired","message":"too old resource version"}}`
	const added = `{"type":"ADDED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"n",` +
		`"name":"b","uid":"v","resourceVersion":"2"}}}`
	const listEnd = `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"2",` +
		`"annotations":{"k8s.io/initial-events-end":"true"}}}}`
	for name, test := range map[string]struct {
		body, reason string
		streams      bool // lists are streamed, and finished
		isMended     bool // in the end
	}{
		"EOF":                   {"", monitor.ErrEndsAtOnce.Error(), false, true},
		"EOF, streamed lists":   {"", monitor.ErrEndsAtOnce.Error(), true, false}, // client-go lists after EOF
		"an event and EOF":      {added, monitor.ErrEndsAtOnce.Error(), false, false},
		"an ERROR event":        {expired, "too old resource version", false, true},
		"an event and an ERROR": {added + expired, "too old resource version", false, false},
		"no event at all":       {"<html>", "reading a watch", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				a := newAPIServer(t)
				var mended atomic.Bool
				var ended atomic.Int64
				a.answers(func(w http.ResponseWriter, req *http.Request) bool {
					query := req.URL.Query()
					switch {
					case query.Get("watch") == "" || mended.Load():
						return false
					case query.Get("sendInitialEvents") == "true" && test.streams:
						w.Header().Set("Content-Type", "application/json")
						_, _ = w.Write([]byte(added + listEnd))
						ended.Add(1)
						return true
					case query.Get("sendInitialEvents") == "true":
						refuse(w, http.StatusUnprocessableEntity, "Invalid")
						return true
					}
					ended.Add(1)
					<-time.After(time.Millisecond) // client-go waits for nothing else before it watches again
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(test.body))
					return true
				})
				c := a.newCache(t)
				var states stateLog
				handle := hold(t, c, HoldOptions{OnStateChange: states.add})
				g.Eventually(handle.State).WithTimeout(patience).Should(SatisfyAll(
					HaveField("State", StateFailing), HaveField("LastError", MatchError(ContainSubstring(test.reason)))))
				g.Expect(ended.Load()).To(BeNumerically(">=", 3), "one or two mean nothing")
				g.Expect(list(t.Context(), c, "n")).To(Succeed(), "what the lists had is still served")
				if !test.isMended {
					return
				}
				synced := states.count(StateSynced)
				before := ended.Load()
				g.Eventually(ended.Load).WithTimeout(patience).Should(BeNumerically(">", before))
				g.Expect(handle.State().State).To(Equal(StateFailing), "a list between two watches changes nothing")
				g.Expect(states.count(StateSynced)).To(Equal(synced))

				mended.Store(true)
				g.Eventually(handle.State).WithTimeout(2 * patience).Should(HaveField("State", StateSynced))
				g.Expect(handle.State().LastError).NotTo(HaveOccurred())
			})
		})
	}
}

// stateLog records the states of a scope.
type stateLog struct {
	mu   sync.Mutex
	list []ScopeState
}

func (l *stateLog) add(state ScopeState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, state)
}

func (l *stateLog) count(state State) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.list {
		if s.State == state {
			n++
		}
	}
	return n
}

// errorOf returns the text of the error of the first entry with that state.
func (l *stateLog) errorOf(state State) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.list {
		if s.State == state && s.LastError != nil {
			return s.LastError.Error()
		}
	}
	return ""
}

// A streamed list that has no end, or ends before its end is marked, is given up: the holders of
// the scope learn why, the informer lists, and no other cache of that API server streams the kind.
func TestStreamWithoutBookmarks(t *testing.T) {
	const bookmark = `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap",` +
		`"metadata":{"resourceVersion":"1"}}}`
	for name, test := range map[string]struct {
		body string
		hang bool
	}{
		"silence":                   {"", true},
		"bookmarks without the end": {bookmark + bookmark, true},
		"a bookmark and EOF":        {bookmark, false}, // client-go streams again, for ever
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				a := newAPIServer(t)
				var streamed atomic.Int64
				a.answers(func(w http.ResponseWriter, req *http.Request) bool {
					if req.URL.Query().Get("sendInitialEvents") != "true" {
						return false
					}
					streamed.Add(1)
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusOK)
					_, _ = w.Write([]byte(test.body))
					w.(http.Flusher).Flush()
					if test.hang {
						<-req.Context().Done()
					}
					return true
				})
				kinds := &UnstreamedKinds{}
				share := func(o *Options) { o.UnstreamedKinds = kinds }
				c := a.newCache(t, share)
				var states stateLog
				handle := hold(t, c, HoldOptions{OnStateChange: states.add})
				if test.hang {
					ctx, cancel := context.WithCancel(t.Context())
					first := make(chan error, 1)
					go func() { first <- list(ctx, c, "n") }()
					g.Eventually(func() bool {
						running := entryOf(handle).tryRunning()
						return running != nil && running.streams()
					}).WithTimeout(patience).Should(BeTrue())
					cancel()
					g.Expect(<-first).To(MatchError(ContainSubstring(
						"has begun to stream objects, and no bookmark has said yet that these are all")))
				}
				g.Eventually(handle.State).WithTimeout(patience).Should(HaveField("State", StateSynced))
				g.Expect(list(t.Context(), c, "n")).To(Succeed())
				g.Eventually(a.watches).WithTimeout(patience).Should(Equal([]string{inN}), "and then it watches")
				g.Expect(handle.State().LastError).NotTo(HaveOccurred())
				if test.hang {
					g.Expect(states.errorOf(StateFailing)).To(ContainSubstring("has begun to stream objects"))
					g.Expect(streamed.Load()).To(BeEquivalentTo(1))
				}

				before := streamed.Load()
				other := hold(t, a.newCache(t, share), HoldOptions{})
				g.Eventually(other.State).WithTimeout(patience).Should(HaveField("State", StateSynced))
				watchCount := func() int {
					a.mu.Lock()
					defer a.mu.Unlock()
					return a.watchCount
				}
				g.Eventually(a.watches).WithTimeout(patience).Should(HaveLen(2))
				counted := watchCount()
				a.cut()
				g.Eventually(watchCount).WithTimeout(patience).Should(Equal(counted + 2))
				g.Expect(streamed.Load()).To(Equal(before), "it is remembered")
			})
		})
	}
}

// Between two of its reports, an informer's requests can fail: the run takes what watches say
// first. A mailbox that is not taken keeps the latest reports, and none of an earlier life.
func TestReportsOfWatches(t *testing.T) {
	g := NewWithT(t)
	errAny := errors.New("any")
	var m mailbox
	end := func(life monitor.LifeID, lasted time.Duration) {
		m.reportWatch(life, monitor.WatchEnded{Life: life, Lasted: lasted})
	}
	end(1, 0)
	m.reportServed(1)
	m.reportWatch(2, monitor.WatchBegan{Life: 2})
	end(1, time.Hour)
	end(2, time.Minute)
	m.reportError(2, monitor.OutcomeFailed, errAny, time.Time{})
	taken, _ := m.take()
	g.Expect(taken.watches).To(Equal([]monitor.Event{monitor.WatchBegan{Life: 2},
		monitor.WatchEnded{Life: 2, Lasted: time.Minute}}))
	g.Expect(taken.events).To(Equal([]monitor.Event{monitor.Failed{Life: 2, Err: errAny}}))
	for n := range 1000 {
		end(2, time.Duration(n))
	}
	taken, _ = m.take()
	g.Expect(taken.watches).To(HaveLen(maxWatches))
	g.Expect(taken.watches[maxWatches-1]).To(Equal(monitor.WatchEnded{Life: 2, Lasted: 999}))
}

// With HideServerMessages, the end of a watch has nothing that the server sent, in whatever form.
func TestHiddenEndsOfWatches(t *testing.T) {
	g := NewWithT(t)
	const words = "words of the server"
	expired := apierrors.NewResourceExpired(words).Status()
	for _, err := range []error{errors.New("got invalid watch event type: " + words), apierrors.FromObject(&expired),
		apierrors.FromObject(&corev1.ConfigMap{Data: map[string]string{"data": words}})} {
		e := &entry{env: &environment{options: Options{HideServerMessages: true}}}
		watchObserver{run: &run{entry: e}, informer: &informer{}, life: 1}.WatchEnded(0, false, false, err)
		taken, _ := e.mail.take()
		shown := taken.watches[0].(monitor.WatchEnded).Err
		g.Expect(shown).To(HaveOccurred())
		g.Expect(shown.Error()).NotTo(ContainSubstring(words))
	}
}

// A holder may release its handle when it hears of a state, also that of the next holder. Then it
// hears no more, and the scope ends with the last one.
func TestReleaseInOnStateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		a.deny(true)
		held := make(chan struct{})
		a.answers(func(_ http.ResponseWriter, req *http.Request) bool {
			if isReview(req) {
				<-held
			}
			return false
		})
		c := a.newCache(t)
		var calls [3]atomic.Int64
		handles := make([]*Handle, len(calls))
		for n := range handles {
			var err error
			handles[n], err = c.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{
				OnStateChange: func(ScopeState) {
					calls[n].Add(1)
					handles[n].Release()
					handles[1].Release()
				},
			})
			g.Expect(err).NotTo(HaveOccurred())
		}
		close(held)
		synctest.Wait()
		g.Expect(calls[0].Load()).To(BeEquivalentTo(1))
		g.Expect(calls[1].Load()).To(BeZero(), "released by the first")
		g.Expect(calls[2].Load()).To(BeEquivalentTo(1))
		g.Expect(c.States()).To(BeEmpty())
		g.Expect(handles[0].IsStopped()).To(BeTrue())
	})
}
