package statuspage

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/advice"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeCache is a ClusterCache whose states a test sets.
type fakeCache struct {
	clustercache.ClusterCache
	changes chan []client.ObjectKey

	mu     sync.Mutex
	states map[client.ObjectKey]clustercache.ConnectionState // guarded by mu
}

func (f *fakeCache) SubscribeStates(ctx context.Context, report func([]client.ObjectKey)) {
	for {
		select {
		case <-ctx.Done():
			return
		case keys := <-f.changes:
			report(keys)
		}
	}
}

func (f *fakeCache) GetConnectionState(_ context.Context, key client.ObjectKey) (clustercache.ConnectionState, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, known := f.states[key]
	return state, known
}

func (f *fakeCache) ListConnectionStates(context.Context) (states []clustercache.ConnectionState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, state := range f.states {
		states = append(states, state)
	}
	return states
}

// set sets states and reports them.
func (f *fakeCache) set(states ...clustercache.ConnectionState) {
	var keys []client.ObjectKey
	f.mu.Lock()
	for _, state := range states {
		f.states[state.Extension] = state
		keys = append(keys, state.Extension)
	}
	f.mu.Unlock()
	f.changes <- keys
}

// startPage starts a page over states. It ends when end is called.
func startPage(t *testing.T, states ...clustercache.ConnectionState) (page *Page, cache *fakeCache, end func()) {
	t.Helper()
	cache = &fakeCache{
		changes: make(chan []client.ObjectKey),
		states:  map[client.ObjectKey]clustercache.ConnectionState{},
	}
	page = New(cache, Options{Name: "<team>"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- page.Start(ctx) }()
	if states != nil {
		cache.set(states...)
		cache.set() // so that the former has been taken over
	}
	return page, cache, func() {
		cancel()
		NewWithT(t).Expect(<-done).To(Succeed())
	}
}

func get(handler http.Handler, path string) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return recorder
}

func viewAt(t *testing.T, page *Page, parameters string) (v view) {
	t.Helper()
	got := get(page, "/status/view?"+parameters)
	NewWithT(t).Expect(got.Code).To(Equal(http.StatusOK), "%s", got.Body)
	NewWithT(t).Expect(json.Unmarshal(got.Body.Bytes(), &v)).To(Succeed())
	return v
}

func named(name string, state clustercache.ConnectionState) clustercache.ConnectionState {
	state.Extension = keyOf(name)
	return state
}

func names(v view) (list []string) {
	for _, r := range v.Page.Rows {
		list = append(list, r.Extension)
	}
	return list
}

func TestView(t *testing.T) {
	g := NewWithT(t)
	page, cache, end := startPage(t, named("b", connected()), named("ns/a", disconnected("Unauthorized", "401 of Server")),
		named("c", connected(func(s *clustercache.ConnectionState) {
			s.Healthy, s.Epoch = false, 7
			s.Scopes = append(s.Scopes, scope("Secret", clustercache.StateForbidden, "denied"))
			s.Problems = []clustercache.Problem{{Reason: clustercache.ProblemScopesFailing, Message: "no answer", Since: at(9)},
				{Reason: clustercache.ProblemScopesForbidden, Message: "denied", Muted: true}}
		})))
	defer end()
	v := viewAt(t, page, "")
	g.Expect(v.Name).To(Equal("<team>"))
	g.Expect(v.Ready).To(BeTrue())
	g.Expect(v.Fleet).To(Equal(summary{
		Extensions: 3,
		States:     map[string]int{"Connected": 1, "Degraded": 1, "Disconnected": 1},
		Scopes:     3,
		Troubled:   1,
	}))
	g.Expect(names(v)).To(Equal([]string{"ns/a", "c", "b"}), "problems first")
	g.Expect(v.Problems).To(Equal([]problemGroup{{
		State:      "Disconnected",
		Reason:     "Unauthorized",
		Extensions: 1,
		Latest:     at(5),
		Advice:     advice.For("Unauthorized"),
		Named:      []string{"ns/a"},
		Message:    "401 of Server",
	}, {
		State:      "Degraded",
		Reason:     "ScopesFailing",
		Extensions: 1,
		Latest:     at(9),
		Advice:     advice.For("ScopesFailing"),
		Named:      []string{"c"},
		Message:    "no answer",
	}}))
	g.Expect(v.Problems[1].Advice).NotTo(BeEmpty())
	g.Expect(v.Extension).To(BeNil())
	g.Expect(v.Page.Rows[0].Since).To(Equal(at(5)), "the time of the disconnect, not that of the last retry")

	for parameters, want := range map[string][]string{
		"sort=-extension": {"ns/a", "c", "b"}, "sort=connects": {"b", "ns/a", "c"}, "sort=-scopes": {"c", "b", "ns/a"},
		"sort=state": {"ns/a", "c", "b"}, "sort=-reason": {"ns/a", "c", "b"}, "sort=since": {"b", "ns/a", "c"},
		"sort=identity": {"ns/a", "b", "c"}, "sort=server": {"b", "c", "ns/a"}, "sort=extension": {"b", "c", "ns/a"},
		"state=Disconnected": {"ns/a"}, "reason=Unauthorized": {"ns/a"}, "problems=true": {"ns/a", "c"},
		"q=SERVER": {"ns/a", "c", "b"}, "q=ns/A": {"ns/a"}, "q=server+401": {"ns/a"}, "q=server+402": nil,
		"q=connected&state=Connected": {"b"}, "q=" + strings.Repeat("b+", 100): {"b"},
	} {
		g.Expect(names(viewAt(t, page, parameters))).To(Equal(want), parameters)
	}
	v = viewAt(t, page, "size=2&page=2")
	g.Expect(names(v)).To(Equal([]string{"b"}))
	g.Expect(v.Page.First).To(Equal(3))
	g.Expect([]int{v.Page.Number, v.Page.Pages, v.Page.Matching}).To(Equal([]int{2, 2, 3}))
	g.Expect(viewAt(t, page, "size=2&page=9").Page.Number).To(Equal(2), "beyond the end is the end")
	g.Expect(viewAt(t, page, "q=none").Page.Rows).To(Equal([]*row{}))
	for parameters, part := range map[string]string{"page=0": "page", "size=x": "size", "sort=colour": "sort",
		"q=" + strings.Repeat("x", 257): "q", "q=a+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q": "q"} {
		got := get(page, "/status/view?"+parameters)
		g.Expect(got.Code).To(Equal(http.StatusBadRequest))
		g.Expect(got.Body.String()).To(HavePrefix(part + ": "))
		g.Expect(get(page, "/status/live?"+parameters).Code).To(Equal(http.StatusBadRequest))
	}

	selection := viewAt(t, page, "q=none&extension="+url.QueryEscape("ns/a")).Extension
	g.Expect(selection.Row.Reason).To(Equal("Unauthorized"))
	g.Expect(selection.Advice).To(ContainSubstring("audiences"))
	g.Expect(selection.Timeline).To(HaveLen(1))
	selection = viewAt(t, page, "extension=c").Extension
	g.Expect(selection.Advice).To(Equal(advice.For("ScopesFailing")))
	g.Expect(selection.Others).To(HaveLen(1))
	g.Expect(selection.Others[0].Muted).To(BeTrue())
	g.Expect(selection.Others[0].Advice).To(Equal(advice.For("ScopesForbidden")))
	cache.mu.Lock()
	delete(cache.states, keyOf("ns/a"))
	cache.mu.Unlock()
	cache.changes <- []client.ObjectKey{keyOf("ns/a"), keyOf("never/known")}
	cache.set()
	selection = viewAt(t, page, "extension=ns/a").Extension
	g.Expect(selection.Row).To(BeNil())
	g.Expect(selection.Timeline[0].What).To(Equal(entryRemoved), "the timeline stays")
	g.Expect(viewAt(t, page, "extension=never/known").Extension.Timeline).To(Equal([]entry{}))
}

// Each state is a problem or none, and each column has an order of its own.
func TestProblemsAndColumns(t *testing.T) {
	g := NewWithT(t)
	change := func(name string, f func(*clustercache.ConnectionState)) clustercache.ConnectionState {
		return named(name, connected(f))
	}
	states := []clustercache.ConnectionState{
		named("fine", connected()),
		change("degraded", func(s *clustercache.ConnectionState) {
			s.Problems = []clustercache.Problem{{Reason: clustercache.ProblemRequestsRefused, Since: at(3)}}
		}),
		change("degraded later", func(s *clustercache.ConnectionState) {
			s.Problems = []clustercache.Problem{{Reason: clustercache.ProblemRequestsRefused, Since: at(4)}}
		}),
		change("muted", func(s *clustercache.ConnectionState) {
			s.Problems = []clustercache.Problem{{Reason: clustercache.ProblemRequestsRefused, Since: at(3), Muted: true}}
		}),
		change("troubled", func(s *clustercache.ConnectionState) {
			s.Scopes = []clustercache.ScopeState{scope("Secret", clustercache.StateForbidden, "denied")}
		}),
		named("disconnected", disconnected(clustercache.ReasonUnauthorized, "")),
		named("beginning", func() clustercache.ConnectionState {
			s := disconnected(clustercache.ReasonNotStarted, "")
			s.Epoch = 0
			return s
		}()),
	}
	for n := range maxPageSize {
		states = append(states, change(fmt.Sprintf("x%03d", n), func(s *clustercache.ConnectionState) {
			s.Since, s.Epoch = at(1000-n), int64(10+n)
		}))
	}
	page, _, end := startPage(t, states...)
	defer end()
	v := viewAt(t, page, "problems=true")
	g.Expect(names(v)).To(Equal([]string{"disconnected", "degraded later", "degraded"}))
	g.Expect(v.Problems).To(HaveLen(2))
	g.Expect(v.Problems[1].Named).To(Equal([]string{"degraded later", "degraded"}))
	g.Expect(names(viewAt(t, page, ""))[3]).To(Equal("beginning"))
	g.Expect(viewAt(t, page, "size=100000").Page.Rows).To(HaveLen(maxPageSize))
	for column, want := range map[string]string{"state": "disconnected", "-since": "x000",
		"-connects": "x499", "-reason": "disconnected", "-scopes": "troubled"} {
		g.Expect(names(viewAt(t, page, "sort="+column))[0]).To(Or(Equal(want), Equal("fine")), column)
		if column[0] == '-' {
			g.Expect(names(viewAt(t, page, "sort="+column))[0]).To(Equal(want), column)
		}
	}
	g.Expect(viewAt(t, page, "extension=fine").Extension.Advice).To(BeEmpty())
	g.Expect(viewAt(t, page, "q=serviceaccount+ns/sa+fine").Page.Matching).To(Equal(1), "the source is searched, too")
}

// Every answer has the headers that keep it from being kept, framed, or taken for something else.
func TestSecurityHeaders(t *testing.T) {
	g := NewWithT(t)
	page, _, end := startPage(t, named("red", connected()))
	defer end()
	guarded := page.Guard(&reviewer{}, "/status/")
	for _, answer := range []*httptest.ResponseRecorder{get(page, "/status/"), get(page, "/status/view"),
		get(page, "/status/connections"), get(page, "/status/none"), get(guarded, "/status/"), get(guarded, "/status/view")} {
		header := answer.Header()
		g.Expect(header.Get("X-Content-Type-Options")).To(Equal("nosniff"))
		g.Expect(header.Get("Cache-Control")).To(Equal("no-store"))
		g.Expect(header.Get("Referrer-Policy")).To(Equal("no-referrer"))
		csp := strings.Split(header.Get("Content-Security-Policy"), "; ")
		g.Expect(csp).To(ContainElements("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'",
			"form-action 'none'", "base-uri 'none'"))
	}
	g.Expect(get(guarded, "/status/view").Header().Get("WWW-Authenticate")).To(Equal("Bearer"))
}

func TestPage(t *testing.T) {
	g := NewWithT(t)
	page, _, end := startPage(t, named("red", connected()))
	defer end()
	for _, path := range []string{"/status/", "/", "/a/b/"} {
		document := get(page, path)
		g.Expect(document.Code).To(Equal(http.StatusOK))
		g.Expect(document.Body.String()).To(And(ContainSubstring("<title>&lt;team&gt;: connections</title>"),
			ContainSubstring(pageJS), ContainSubstring(pageCSS), Not(ContainSubstring("{{")),
			Not(ContainSubstring("system:serviceaccount"))))
		g.Expect(document.Header().Get("Content-Security-Policy")).To(And(ContainSubstring("default-src 'none'"),
			ContainSubstring("script-src 'sha256-"), Not(ContainSubstring("unsafe"))))
	}
	details := get(page, "/status/connections?extension=red&format=json")
	g.Expect(details.Body.String()).To(ContainSubstring("system:serviceaccount"))
	g.Expect(get(page, "/status/other").Code).To(Equal(http.StatusNotFound))
	post := httptest.NewRecorder()
	page.ServeHTTP(post, httptest.NewRequest(http.MethodPost, "/status/", http.NoBody))
	g.Expect(post.Code).To(Equal(http.StatusMethodNotAllowed))
	head := httptest.NewRecorder()
	page.ServeHTTP(head, httptest.NewRequest(http.MethodHead, "/status/live", http.NoBody))
	g.Expect(head.Header().Get("Content-Type")).To(Equal("text/event-stream"))
	g.Expect(head.Header().Get("X-Accel-Buffering")).To(Equal("no"), "nginx would hold the view back")
	g.Expect(head.Body.Len()).To(BeZero())
	g.Expect(page.NeedLeaderElection()).To(BeFalse())
	g.Expect(New(nil, Options{}).name).To(Equal("latchkey"))
}

// A stream over HTTP/2 stays open although nothing changes: the deadline of a write ends with the
// write.
func TestQuietStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		page, cache, end := startPage(t, named("a", connected()))
		listener := testutil.NewPipeListener()
		http2 := new(http.Protocols)
		http2.SetUnencryptedHTTP2(true)
		server := &http.Server{Handler: page, Protocols: http2, ReadHeaderTimeout: time.Second}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		transport := &http.Transport{Protocols: http2, DialContext: listener.DialContext}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://page/status/live", http.NoBody)
		g.Expect(err).NotTo(HaveOccurred())
		resp, err := transport.RoundTrip(req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.ProtoMajor).To(Equal(2))
		received, ended := make(chan string, 100), make(chan error, 1)
		go func() {
			for lines := bufio.NewReader(resp.Body); ; {
				line, err := lines.ReadString('\n')
				if err != nil {
					ended <- err
					return
				}
				if strings.HasPrefix(line, "event:") {
					received <- line
				}
			}
		}()
		<-received
		time.Sleep(3 * time.Minute)
		cache.set(named("b", connected()))
		<-received // the stream is the first one, and goes on
		time.Sleep(streamTime)
		g.Expect(<-ended).To(Equal(io.EOF), "the end is a clean one")
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		end()
		g.Expect(server.Shutdown(t.Context())).To(Succeed())
		g.Expect(<-served).To(Equal(http.ErrServerClosed))
	})
}

// A page whose process ends begins no stream, and says when to ask again.
func TestStreamAfterTheEnd(t *testing.T) {
	g := NewWithT(t)
	page, _, end := startPage(t, named("a", connected()))
	end()
	got := get(page, "/status/live")
	g.Expect(got.Code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(got.Header().Get("Retry-After")).To(Equal("10"))
}

// A client that sends no body, or reads no answer, ends with its connection: within a second, and
// half a minute.
func TestSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		states := make([]clustercache.ConnectionState, 1000)
		for i := range states {
			states[i] = named(fmt.Sprint("extension-", i), connected())
		}
		page, _, end := startPage(t, states...)
		listener := testutil.NewPipeListener()
		server := &http.Server{Handler: page.Guard(&reviewer{}, "/status/"), ReadHeaderTimeout: time.Second}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		send := func(request string) net.Conn {
			conn, err := listener.DialContext(t.Context(), "", "")
			g.Expect(err).NotTo(HaveOccurred())
			_, err = conn.Write([]byte(request))
			g.Expect(err).NotTo(HaveOccurred())
			return conn
		}
		conn := send("GET /status/ HTTP/1.1\r\nHost: page\r\nContent-Length: 100\r\n\r\n")
		begun := time.Now()
		answer, err := io.ReadAll(conn)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(answer)).To(HavePrefix("HTTP/1.1 413 "))
		g.Expect(time.Since(begun)).To(BeNumerically("<=", 2*time.Second))

		unread := send("GET /status/connections HTTP/1.1\r\nHost: page\r\nAuthorization: Bearer secret-good\r\n\r\n")
		time.Sleep(answerTimeout + time.Second)
		_, err = io.ReadAll(unread)
		g.Expect(err).NotTo(HaveOccurred(), "the server has closed the connection")
		end()
		g.Expect(server.Shutdown(t.Context())).To(Succeed())
		g.Expect(<-served).To(Equal(http.ErrServerClosed))
	})
}

// A page that shows nothing yet says so.
func TestReplicaThatDoesNotLead(t *testing.T) {
	page, cache, end := startPage(t)
	defer end()
	NewWithT(t).Expect(viewAt(t, page, "").Ready).To(BeFalse())
	cache.set()
	cache.set()
	NewWithT(t).Expect(viewAt(t, page, "").Ready).To(BeTrue(), "no extensions is a state too")
}

// events is an http.ResponseWriter that keeps what a stream sends.
type events struct {
	mu      sync.Mutex
	header  http.Header
	text    strings.Builder // guarded by mu
	refuses bool            // guarded by mu
}

func (e *events) Header() http.Header { return e.header }
func (e *events) WriteHeader(int)     {}
func (e *events) Flush()              {}
func (e *events) Write(content []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refuses {
		return 0, http.ErrHandlerTimeout
	}
	return e.text.Write(content)
}

// count returns how many views, and how many comments, were sent.
func (e *events) count() (views, comments int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Count(e.text.String(), "event: view\n"), strings.Count(e.text.String(), ": nothing new\n")
}

// A stream sends the view, and again after changes of it, merged.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		page, cache, end := startPage(t, named("a", connected()), named("b", connected()))
		answer := &events{header: http.Header{}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/status/live?q=a&state=", http.NoBody))
		}()
		expect := func(views, comments int) {
			t.Helper()
			synctest.Wait()
			gotViews, gotComments := answer.count()
			g.Expect([]int{gotViews, gotComments}).To(Equal([]int{views, comments}))
		}
		expect(1, 0)
		for i := range 10 {
			cache.set(named("a", connected(func(s *clustercache.ConnectionState) { s.Epoch = int64(2 + i) })))
		}
		expect(1, 0)
		time.Sleep(liveInterval)
		expect(2, 0)
		time.Sleep(keepAlive + time.Second)
		expect(2, 1)
		cache.set(named("b", connected())) // nothing that the view shows
		time.Sleep(liveInterval)
		expect(2, 1)
		cache.set(named("b", disconnected("Unauthorized", ""))) // the summary shows it
		expect(3, 1)
		time.Sleep(streamTime)
		<-done
		end()
	})
}

// Streams end with the page, with the browser, and when the browser takes nothing; there are only
// so many.
func TestLiveEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		page, cache, end := startPage(t, named("a", connected()))
		var streams sync.WaitGroup
		var answers []*events
		ctx, leave := context.WithCancel(t.Context())
		for range maxViewers {
			answer := &events{header: http.Header{}}
			answers = append(answers, answer)
			streams.Go(func() {
				page.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/live", http.NoBody))
			})
		}
		synctest.Wait()
		refused := get(page, "/live")
		g.Expect(refused.Code).To(Equal(http.StatusServiceUnavailable))
		g.Expect(refused.Header().Get("Retry-After")).NotTo(BeEmpty())
		answers[0].mu.Lock()
		answers[0].refuses = true
		answers[0].mu.Unlock()
		time.Sleep(time.Second)
		cache.set(named("b", connected()))
		synctest.Wait()
		g.Expect(page.viewers).To(HaveLen(maxViewers - 1))
		leave()
		streams.Wait()
		g.Expect(page.viewers).To(BeEmpty())
		for range 2 { // one in its pause, one that waits
			streams.Go(func() {
				page.ServeHTTP(&events{header: http.Header{}}, httptest.NewRequest(http.MethodGet, "/live", http.NoBody))
			})
			synctest.Wait()
			time.Sleep(liveInterval - time.Millisecond)
		}
		ended := time.Now()
		end()
		streams.Wait()
		g.Expect(time.Since(ended)).To(BeZero(), "both end at once")
	})
}

func TestLocal(t *testing.T) {
	g := NewWithT(t)
	handler := Local(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for host, want := range map[string]int{
		"localhost": http.StatusOK, "localhost:8082": http.StatusOK, "127.0.0.1:8082": http.StatusOK,
		"127.1.2.3": http.StatusOK, "[::1]:8082": http.StatusOK, "[::1]": http.StatusOK, "::1": http.StatusOK,
		"": http.StatusForbidden, "evil.example.com": http.StatusForbidden, "evil.example.com:8082": http.StatusForbidden,
		"localhost.example.com": http.StatusForbidden, "127.0.0.1.example.com": http.StatusForbidden,
		"10.0.0.1:8082": http.StatusForbidden, "[": http.StatusForbidden, "[]": http.StatusForbidden,
	} {
		request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		request.Host = host
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		g.Expect(answer.Code).To(Equal(want), host)
	}
}

// reviewer is an API server's answers to reviews.
type reviewer struct {
	client.Client
	err     map[string]error // by kind
	reviews atomic.Int64     // of tokens
	hold    chan struct{}

	mu    sync.Mutex
	paths []string // guarded by mu while reviews run
}

func (r *reviewer) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	switch o := object.(type) {
	case *authenticationv1.TokenReview:
		r.reviews.Add(1)
		if r.hold != nil {
			<-r.hold
		}
		o.Status.Authenticated = !strings.HasPrefix(o.Spec.Token, "secret-bad")
		o.Status.User = authenticationv1.UserInfo{
			Username: strings.TrimPrefix(o.Spec.Token, "secret-"),
			UID:      "1",
			Groups:   []string{"g"},
			Extra:    map[string]authenticationv1.ExtraValue{"k": {"v"}},
		}
		return r.err["TokenReview"]
	case *authorizationv1.SubjectAccessReview:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.paths = append(r.paths, o.Spec.NonResourceAttributes.Verb+" "+o.Spec.NonResourceAttributes.Path)
		complete := o.Spec.UID == "1" && o.Spec.Groups[0] == "g" && o.Spec.Extra["k"][0] == "v"
		o.Status.Allowed = complete && o.Spec.User != "nobody"
		o.Status.Denied = o.Spec.User == "denied"
		return r.err["SubjectAccessReview"]
	}
	return errors.Errorf("unexpected %T", object)
}

// Guard shows people without a token a form, and data to users who may get the path.
func TestGuard(t *testing.T) {
	g := NewWithT(t)
	page, _, end := startPage(t, named("red", connected()))
	defer end()
	server := &reviewer{}
	handler := page.Guard(server, "/status/")
	with := func(path, authorization string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodGet, "/status/"+path, http.NoBody)
		if authorization != "" {
			request.Header.Set("Authorization", authorization)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		return answer
	}
	form := with("", "")
	g.Expect(form.Code).To(Equal(http.StatusUnauthorized))
	g.Expect(form.Body.String()).To(ContainSubstring(`data-access="token"`))
	for _, path := range []string{"", "view", "connections", "other"} {
		for authorization, want := range map[string]int{"": 401, "Bearer": 401, "Bearer ": 401, "Basic secret-good": 401,
			"Bearer secret-bad": 401, "Bearer secret-nobody": 403, "Bearer secret-denied": 403} {
			got := with(path, authorization)
			g.Expect(got.Code).To(Equal(want), path+authorization)
			g.Expect(got.Body.String()).NotTo(Or(ContainSubstring("secret-"), ContainSubstring("system:serviceaccount")))
		}
	}
	server.paths = nil
	g.Expect(with("", "Bearer secret-good").Body.String()).To(ContainSubstring(`data-access="open"`))
	g.Expect(with("view", "Bearer secret-good").Body.String()).To(ContainSubstring(`"red"`))
	g.Expect(server.paths).To(Equal([]string{"get /status/", "get /status/view"}))
	server.paths = nil
	with("../healthz/view", "Bearer secret-one")
	with("a//b/view", "Bearer secret-two")
	g.Expect(server.paths).To(Equal([]string{"get /status/view", "get /status/view"}), "wherever the handler is")
	for _, kind := range []string{"TokenReview", "SubjectAccessReview"} {
		server.err = map[string]error{kind: errors.New("connection refused, secret-new")}
		failed := with("view", "Bearer secret-new")
		g.Expect(failed.Code).To(Equal(http.StatusServiceUnavailable))
		g.Expect(failed.Header().Get("Retry-After")).NotTo(BeEmpty())
		g.Expect(failed.Body.String()).NotTo(ContainSubstring("secret-"))
		server.err[kind] = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		forbidden := with("view", "Bearer secret-new")
		g.Expect(forbidden.Code).To(Equal(http.StatusInternalServerError), "a failed review is no verdict")
		g.Expect(forbidden.Body.String()).To(ContainSubstring("system:auth-delegator"))
	}
	before := server.reviews.Load()
	g.Expect(with("view", "Bearer "+strings.Repeat("x", maxToken+1)).Code).To(Equal(http.StatusUnauthorized))
	g.Expect(server.reviews.Load()).To(Equal(before), "what is no token is not reviewed")
	body := httptest.NewRequest(http.MethodGet, "/status/view", strings.NewReader("body"))
	body.Header.Set("Authorization", "Bearer secret-good")
	refused := httptest.NewRecorder()
	handler.ServeHTTP(refused, body)
	g.Expect(refused.Code).To(Equal(http.StatusRequestEntityTooLarge))
}

// A verdict counts for a while, requests that ask the same wait for one review, and a flood of
// tokens is not passed on.
func TestReviewsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		server := &reviewer{hold: make(chan struct{})}
		handler := new(Page).Guard(server, "/status/")
		address := "192.0.2.1:1000"
		status := func(token string) int {
			request := httptest.NewRequest(http.MethodGet, "/status/other", http.NoBody)
			request.RemoteAddr = address
			request.Header.Set("Authorization", "Bearer "+token)
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			return answer.Code
		}
		var asking sync.WaitGroup
		for range 10 {
			asking.Go(func() { g.Expect(status("secret-bad")).To(Equal(http.StatusUnauthorized)) })
		}
		synctest.Wait()
		close(server.hold)
		asking.Wait()
		g.Expect(server.reviews.Load()).To(BeEquivalentTo(1))
		time.Sleep(verdictTime - time.Millisecond)
		status("secret-bad")
		g.Expect(server.reviews.Load()).To(BeEquivalentTo(1))
		time.Sleep(2 * time.Millisecond)
		status("secret-bad")
		g.Expect(server.reviews.Load()).To(BeEquivalentTo(2))

		g.Expect(status("secret-good")).To(Equal(http.StatusNotFound), "the page has no such path")
		accepted := server.reviews.Load()
		time.Sleep(time.Minute)
		answers := map[int]int{}
		for n := range 1000 {
			answers[status(fmt.Sprint("secret-bad", n))]++
		}
		g.Expect(answers[http.StatusTooManyRequests]).To(Equal(1000-reviewBurst/2), "of one address")
		g.Expect(server.reviews.Load() - accepted).To(BeEquivalentTo(reviewBurst / 2))
		g.Expect(status("secret-good")).To(Equal(http.StatusNotFound), "a token that was accepted has a rate of its own")
		address = "192.0.2.2:1000"
		g.Expect(status("secret-bad-elsewhere")).To(Equal(http.StatusUnauthorized), "another address has its own half")
		address = "192.0.2.1:1000"
		time.Sleep(time.Second)
		g.Expect(status("secret-bad")).To(Equal(http.StatusUnauthorized), "afterwards there is room again")

		// More than maxReviews do not ask at once, and none waits for longer than reviewTimeout.
		time.Sleep(time.Minute)
		server.hold = make(chan struct{})
		var codes sync.Map
		for n := range maxReviews + 1 {
			asking.Go(func() { codes.Store(n, status(fmt.Sprint("secret-bad-", n))) })
		}
		time.Sleep(reviewTimeout)
		synctest.Wait()
		waited := 0
		codes.Range(func(_, code any) bool {
			g.Expect(code).To(Equal(http.StatusServiceUnavailable))
			waited++
			return true
		})
		g.Expect(waited).To(Equal(1))
		close(server.hold)
		asking.Wait()
	})
}

// BenchmarkView is one view of a large fleet, as JSON.
func BenchmarkView(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		f := newFleet()
		var keys []client.ObjectKey
		for i := range n {
			keys = append(keys, client.ObjectKey{Name: fmt.Sprintf("extension-%05d", i)})
		}
		f.update(keys, func(key client.ObjectKey) (shown, bool) { return own(named(key.Name, connected())), true }, t0)
		page := &Page{fleet: f}
		for _, parameters := range []string{"", "sort=-since", "q=extension-09"} {
			b.Run(fmt.Sprintf("extensions=%d/%s", n, parameters), func(b *testing.B) {
				values, _ := url.ParseQuery(parameters)
				q, err := queryOf(values)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					v, _ := page.view(q)
					if _, err := json.Marshal(v); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// A scope that extensions share counts once, and each row says how many share its cache.
func TestSharedCaches(t *testing.T) {
	g := NewWithT(t)
	sharing := func(cache string, scopes ...clustercache.ScopeState) clustercache.ConnectionState {
		return connected(func(s *clustercache.ConnectionState) { s.SharedCache, s.Scopes = cache, scopes })
	}
	synced := scope("ConfigMap", clustercache.StateSynced, "")
	denied := scope("Secret", clustercache.StateForbidden, "denied")
	page, cache, end := startPage(t, named("a", sharing("x", synced)), named("b", sharing("x", synced, denied)),
		named("c", sharing("x")), named("d", sharing("y", synced, denied)), named("e", sharing("", synced, denied)),
		named("f", sharing("", synced)))
	defer end()
	set := func(state clustercache.ConnectionState) {
		cache.set(state)
		cache.set() // so the page knows it
	}
	expect := func(scopes, troubled int, sharedBy ...int) {
		t.Helper()
		v := viewAt(t, page, "extension=b&sort=extension")
		g.Expect([]int{v.Fleet.Scopes, v.Fleet.Troubled}).To(Equal([]int{scopes, troubled}))
		var got []int
		for _, r := range v.Page.Rows {
			got = append(got, r.SharedBy)
		}
		g.Expect(got).To(Equal(sharedBy))
		if row := v.Extension.Row; row != nil {
			g.Expect(row.SharedBy).To(Equal(sharedBy[1]))
		}
	}
	expect(2+2+2+1, 1+1+1, 3, 3, 3, 1, 0, 0)
	set(named("c", sharing("x", denied)))
	expect(7, 3, 3, 3, 3, 1, 0, 0)
	set(named("b", sharing("y", synced)))
	expect(7, 3, 2, 2, 2, 2, 0, 0)
	set(named("c", disconnected(clustercache.ReasonUnauthorized, "")))
	expect(1+2+2+1, 2, 1, 2, 0, 2, 0, 0)
	cache.mu.Lock()
	delete(cache.states, keyOf("a"))
	cache.mu.Unlock()
	cache.changes <- []client.ObjectKey{keyOf("a")}
	cache.set()
	v := viewAt(t, page, "")
	g.Expect([]int{v.Fleet.Scopes, v.Fleet.Troubled}).To(Equal([]int{2 + 2 + 1, 2}))
	page.fleet.mu.Lock()
	defer page.fleet.mu.Unlock()
	g.Expect(page.fleet.shared.extensions).To(Equal(map[string]int{"y": 2}), "nothing is left of the others")
}
