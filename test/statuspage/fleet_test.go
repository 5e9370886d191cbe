package statuspage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/statuspage"
)

// manyConnections is a ClusterCache with many extensions, of which some change all the time.
type manyConnections struct {
	clustercache.ClusterCache
	mu     sync.Mutex
	states []clustercache.ConnectionState // guarded by mu
	index  map[client.ObjectKey]int
}

func newManyConnections(n int) *manyConnections {
	m := &manyConnections{index: map[client.ObjectKey]int{}}
	began := time.Now().Add(-time.Hour)
	for i := range n {
		key := client.ObjectKey{Namespace: fmt.Sprintf("team-%03d", i%200), Name: fmt.Sprintf("extension-%05d", i)}
		m.index[key] = i
		m.states = append(m.states, clustercache.ConnectionState{
			Extension: key,
			UID:       "1",
			Phase:     clustercache.PhaseConnected,
			Since:     began,
			Epoch:     1,
			Target:    "https://server.example.com",
			Healthy:   true,
			Identity:  clustercache.Identity{Username: "system:serviceaccount:" + key.Namespace + ":sa"},
			Scopes: []clustercache.ScopeState{
				{
					GVK:            schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
					Representation: "Metadata",
					Scope:          clustercache.Scope{Namespace: key.Namespace},
					State:          clustercache.StateSynced,
					Objects:        12,
					Dependents:     []string{"content"},
				},
				{
					GVK:            schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
					Representation: "Typed",
					Scope:          clustercache.Scope{Namespace: key.Namespace},
					State:          clustercache.StateForbidden,
					Objects:        3,
				},
			},
		})
	}
	return m
}

func (m *manyConnections) ListConnectionStates(context.Context) []clustercache.ConnectionState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]clustercache.ConnectionState(nil), m.states...)
}

func (m *manyConnections) GetConnectionState(_ context.Context,
	key client.ObjectKey) (clustercache.ConnectionState, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, known := m.index[key]
	if !known {
		return clustercache.ConnectionState{}, false
	}
	return m.states[i], true
}

// SubscribeStates changes a hundred extensions twenty times a second.
func (m *manyConnections) SubscribeStates(ctx context.Context, f func([]client.ObjectKey)) {
	var keys []client.ObjectKey
	for key := range m.index {
		keys = append(keys, key)
	}
	f(keys)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			keys = keys[:0]
			m.mu.Lock()
			for range 100 {
				state := &m.states[rand.IntN(len(m.states))]
				if state.Phase, state.Reason = clustercache.PhaseConnected, ""; rand.IntN(2) == 0 {
					state.Phase, state.Reason = clustercache.PhaseDisconnected, clustercache.ReasonUnreachable
					state.DisconnectedSince = now
				} else {
					state.Epoch++
					state.Since, state.DisconnectedSince = now, time.Time{}
				}
				keys = append(keys, state.Extension)
			}
			m.mu.Unlock()
			f(keys)
		}
	}
}

// The page stays smooth with 10,000 extensions, of which 2,000 change each second.
func TestLargeFleet(t *testing.T) {
	g := NewWithT(t)
	connections := newManyConnections(10_000)
	page := statuspage.New(connections, statuspage.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- page.Start(ctx) }()
	server := httptest.NewServer(page)
	defer func() {
		cancel()
		g.Expect(<-done).To(Succeed())
		server.Close()
	}()
	b := openBrowser(t)
	b.run(chromedp.Navigate(server.URL + "/?extension=team-001/extension-00001"))
	b.eventually("#page", Equal("Rows 1 to 50 of 10,000"))
	b.eventually("#cost", Equal("2 informers with 15 objects in memory."))
	b.eventually("#scopes", And(ContainSubstring("Deployment of apps/v1"), ContainSubstring("Forbidden")))
	evaluate[chromedp.Void](b, `
		window.frames = [];
		let last = performance.now();
		const frame = (now) => { frames.push(now - last); last = now; requestAnimationFrame(frame); };
		requestAnimationFrame(frame);`)
	for n := range 5 {
		before := evaluate[int](b, "frames.length")
		b.click("#next")
		b.eventually("#page", Equal(fmt.Sprintf("Rows %d to %d of 10,000", 51+50*n, 100+50*n)))
		g.Eventually(func() int { return evaluate[int](b, "frames.length") }).WithTimeout(patience).
			Should(BeNumerically(">", before+60))
	}
	b.typeInto("#q", "extension-0999")
	b.eventually("#matching", Equal("10 extensions"))
	b.click(`#columns th[data-name="since"] button`)
	frames := evaluate[[]float64](b,
		"[frames.toSorted((x, y) => x - y)].map((f) => [f[f.length >> 1], f[Math.floor(f.length * .99)], f.at(-1)])[0]")
	t.Logf("frames: median %.0f ms, 99th percentile %.0f ms, longest %.0f ms", frames[0], frames[1], frames[2])
	g.Expect(frames[0]).To(BeNumerically("<", 100), "it moves")
	g.Expect(frames[2]).To(BeNumerically("<", 1000), "nobody waits for the page")
	g.Expect(evaluate[int](b, "document.querySelectorAll('#rows > tr').length")).To(BeNumerically("<=", 50))
	g.Expect(b.axe()).To(BeEmpty())
	g.Expect(b.consoleErrors()).To(BeEmpty())
}

// holdingProxy is a proxy that holds back a stream until it is released, as one that buffers does.
type holdingProxy struct {
	http.Handler
	release chan struct{}
}

func (p holdingProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/live") {
		w = &heldWriter{ResponseWriter: w, release: p.release}
	}
	p.Handler.ServeHTTP(w, r)
}

// heldWriter writes, and flushes, nothing before it is released.
type heldWriter struct {
	http.ResponseWriter
	release chan struct{}
}

func (w *heldWriter) Write(p []byte) (int, error) {
	<-w.release
	return w.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController calls.
func (w *heldWriter) FlushError() error {
	<-w.release
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Behind a proxy that holds the stream back, the page says that it waits, and is live once it
// comes.
func TestBufferedStream(t *testing.T) {
	g := NewWithT(t)
	page := statuspage.New(newManyConnections(3), statuspage.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- page.Start(ctx) }()
	proxy := holdingProxy{page, make(chan struct{})}
	release := sync.OnceFunc(func() { close(proxy.release) })
	server := httptest.NewServer(proxy)
	defer func() {
		release()
		cancel()
		g.Expect(<-done).To(Succeed())
		server.Close()
	}()
	b := openBrowser(t)
	b.run(chromedp.Navigate(server.URL + "/"))
	b.eventually("#live", ContainSubstring("A proxy on the way may hold back"))
	release()
	b.eventually("#live", Equal("Live"))
	b.eventually("#matching", Equal("3 extensions"))
	g.Expect(b.consoleErrors()).To(BeEmpty())
}
