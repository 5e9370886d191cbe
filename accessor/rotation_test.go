package accessor

import (
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/testutil"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// ownerOf answers for tokens such as "red-2": it is red's.
func ownerOf(token string) authenticationv1.UserInfo {
	owner, _, _ := strings.Cut(token, "-")
	return authenticationv1.UserInfo{Username: owner, UID: "uid-of-" + owner}
}

// proves are the tokens that a server takes, and counts.
type proves struct {
	mu    sync.Mutex
	valid map[string]int // guarded by mu; answers to whoever sends the token
	seen  map[string]int // guarded by mu
}

func provesTokens(r *reviewer, valid ...string) *proves {
	p := &proves{valid: map[string]int{}, seen: map[string]int{}}
	p.accept(valid...)
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen[token]++
		if status := p.valid[token]; status != 0 {
			return status, ownerOf(token)
		}
		return http.StatusUnauthorized, authenticationv1.UserInfo{}
	})
	return p
}

func (p *proves) accept(tokens ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, token := range tokens {
		p.valid[token] = http.StatusCreated
	}
}

func (p *proves) revoke(tokens ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, token := range tokens {
		delete(p.valid, token)
	}
}

func (p *proves) count(token string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[token]
}

func messageHas(text string) func(ConnectionState) bool {
	return func(s ConnectionState) bool { return s.Phase == Connected && strings.Contains(s.Message, text) }
}

// soon are probes that leave a newer credential little to wait for.
var soon = healthprobe.Options{Interval: time.Millisecond, IdentityInterval: time.Hour, Timeout: 5 * time.Second,
	FailureThreshold: 3}

// tokenInUse is what requests of the extension's connection carry.
func tokenInUse(t *testing.T, d *driver, name string) string {
	t.Helper()
	conn, err := d.connected(client.ObjectKey{Name: name})
	if err != nil {
		return err.Error()
	}
	sent := ""
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, conn.config.Host, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, _ = (&identityRoundTripper{conn: conn,
		next: testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			sent = strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer secret-")
			return nil, errDown
		})}).RoundTrip(req)
	return sent
}

// A newer token of the same identity takes the place of the one in use, and nobody notices.
func TestNewerTokenIsTakenUp(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := provesTokens(r, "red-1", "red-2")
	d := drive(t, r.URL, rare, never)
	d.extension("red", "red-1")
	before := d.eventually("red", connectedAs("red"))
	conn, err := d.connected(client.ObjectKey{Name: "red"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-1"))
	d.extension("red", "red-2")
	g.Eventually(func() string { return tokenInUse(t, d, "red") }).WithTimeout(patience).Should(Equal("red-2"))
	after, _ := d.State(client.ObjectKey{Name: "red"})
	g.Expect(after.Generation).To(Equal(before.Generation))
	g.Expect(after.Since).To(Equal(before.Since))
	g.Expect(after.Message).To(BeEmpty())
	g.Expect(conn.err()).NotTo(HaveOccurred())
	g.Expect(p.count("red-2")).To(Equal(1), "asked once, before anything else was sent with it")
	g.Expect(d.changed()).To(Equal([]string{"red"}), "nobody is told")
	g.Expect(d.said()).To(BeEmpty())
}

// One that the API server does not accept is not used while the earlier one works; the state says
// so, and it is tried again.
func TestNewerTokenThatIsRefused(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := provesTokens(r, "red-1")
	d := drive(t, r.URL, soon, atOnce)
	d.extension("red", "red-1")
	before := d.eventually("red", connectedAs("red"))
	d.extension("red", "red-2")
	d.eventually("red", messageHas("connected with an earlier credential; the newest is not used"))
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-1"))

	// So is a third one.
	d.extension("red", "red-3")
	g.Eventually(func() int { return p.count("red-3") }).WithTimeout(patience).Should(BeNumerically(">", 1))
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-1"))
	// What is provided again is in use already.
	d.extension("red", "red-1")
	d.eventually("red", func(s ConnectionState) bool { return s.Phase == Connected && s.Message == "" })
	d.extension("red", "red-2")
	d.eventually("red", messageHas("newest is not used"))
	p.accept("red-2")
	g.Eventually(func() string { return tokenInUse(t, d, "red") }).WithTimeout(patience).Should(Equal("red-2"))
	after := d.eventually("red", func(s ConnectionState) bool { return s.Message == "" })
	g.Expect(after.Generation).To(Equal(before.Generation))
	g.Expect(d.said()).To(BeEmpty())
}

// When the earlier one stops working there is nothing left to be kept: the next connect uses the
// newest.
func TestNewerTokenWhenTheEarlierOneEnds(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := provesTokens(r, "red-1")
	d := drive(t, r.URL, fast, never)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	d.extension("red", "red-2")
	d.eventually("red", messageHas("newest is not used"))
	p.accept("red-2")
	p.revoke("red-1")
	d.eventually("red", func(s ConnectionState) bool {
		return s.Phase == Connected && s.Generation == 2 && s.Message == ""
	})
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-2"))
	g.Expect(d.said()).To(Equal([]string{"Unauthorized"}))
}

// A token of another identity is another connection, and nothing of the old one.
func TestNewerTokenOfAnother(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := provesTokens(r, "red-1", "blue-1")
	d := drive(t, r.URL, rare, never)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	old, err := d.connected(client.ObjectKey{Name: "red"})
	g.Expect(err).NotTo(HaveOccurred())
	d.extension("red", "blue-1")
	after := d.eventually("red", connectedAs("blue"))
	g.Expect(after.Generation).To(BeEquivalentTo(2))
	g.Expect(old.err()).To(MatchError(ErrNotConnected))
	g.Expect(d.said()).To(Equal([]string{"IdentityMismatch"}))
	g.Expect(p.count("blue-1")).To(Equal(2), "whose it is, and the connect")
}

// While nothing is connected the newest credential replaces the earlier one, also one that is being
// tried.
func TestNewerTokenWhileConnecting(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	held, release := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	var once sync.Once
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "red-1" {
			once.Do(func() { close(held) })
			<-release
		}
		return http.StatusCreated, ownerOf(token)
	})
	d := drive(t, r.URL, rare, never)
	d.extension("red", "red-1")
	<-held
	d.extension("red", "red-2")
	state := d.eventually("red", connectedAs("red"))
	g.Expect(state.Generation).To(BeEquivalentTo(1))
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-2"))
	free()

	// Refused ones are replaced without waiting for their backoff.
	p := provesTokens(r, "late-2")
	d.extension("late", "late-1")
	d.eventually("late", disconnectedFor(Unauthorized))
	d.extension("late", "late-2")
	d.eventually("late", connectedAs("late"))
	g.Expect(p.count("late-1")).To(Equal(1))
}

// An extension that goes while whose a newer credential is, is being asked, leaves nothing, and the
// answer changes nothing.
func TestGoneWhileANewerTokenIsVerified(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	held, release := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "red-2" {
			close(held)
			<-release
		}
		return http.StatusCreated, ownerOf(token)
	})
	d := drive(t, r.URL, rare, never)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	found, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	a := found.(*identityAccessor)
	conn := a.published.Load().conn
	d.extension("red", "red-2")
	<-held
	a.mu.Lock()
	newer := a.attempt.credential
	a.mu.Unlock()
	d.gone("red")
	free()
	g.Eventually(d.targets.List).WithTimeout(patience).Should(BeEmpty())
	g.Expect(newer.cred.Prepare(t.Context())).NotTo(Succeed(), "it was given up")
	g.Expect(conn.credential.Load()).NotTo(BeIdenticalTo(newer))
}

// A provider that gives another credential with every look is tried no more often than a probe
// would be.
func TestCredentialThatIsNeverTheSame(t *testing.T) {
	for name, status := range map[string]int{"accepted": http.StatusCreated, "refused": http.StatusUnauthorized} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReviewer(t)
			r.answers(func(token string) (int, authenticationv1.UserInfo) { return status, ownerOf(token) })
			d := drive(t, r.URL, rare, never)
			d.mu.Lock()
			d.fresh = func(name string) string { return name + "-" + rand.Text() }
			d.mu.Unlock()
			d.extension("red", "red-1")
			g.Eventually(r.asked.Load).WithTimeout(patience).Should(BeNumerically(">=", 1))
			for range 50 { // whatever wakes it
				d.wake <- client.ObjectKey{Name: "red"}
			}
			d.extension("other", "other-1") // behind them in the queue
			d.eventually("other", func(s ConnectionState) bool {
				return s.Phase != Connecting && s.Generation+int64(s.Health.ConsecutiveFailures) > 0
			})
			g.Expect(r.asked.Load()).To(BeNumerically("<=", 6), "of both: a connect, and a newer credential at once or two")
		})
	}
}

// What an API server says that a tenant chose is not shown, and neither is more than anybody could
// read.
func TestAnswersOfForeignServers(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rare, atOnce)
	d.mu.Lock()
	d.foreign = true
	d.mu.Unlock()
	r.echo.Store(true) // 502, with the request's headers
	d.extension("echoed", "token")
	state := d.eventually("echoed", disconnectedFor(ProbeFailed))
	g.Expect(state.Message).To(Equal("asking the API server who we are: it answered Bad Gateway"))
	r.echo.Store(false)
	for name, user := range map[string]authenticationv1.UserInfo{
		"long":       {Username: strings.Repeat("x", 2000)},
		"controlled": {Username: "red\nblue"},
		"groups":     {Username: "red", Groups: []string{"a\x00b"}},
	} {
		r.answers(func(string) (int, authenticationv1.UserInfo) { return http.StatusCreated, user })
		d.extension(name, "token")
		state := d.eventually(name, disconnectedFor(ProbeFailed))
		g.Expect(state.Message).To(ContainSubstring("nobody could read"))
	}
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated,
			authenticationv1.UserInfo{Username: "system:anonymous", Groups: []string{"system:unauthenticated"}}
	})
	d.extension("nobody", "token")
	d.eventually("nobody", disconnectedFor(Unauthorized))
	// An answer without end is not read to it.
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated,
			authenticationv1.UserInfo{
				Username: "red", Extra: map[string]authenticationv1.ExtraValue{"x": {strings.Repeat("x", 2*64<<10)}},
			}
	})
	d.extension("endless", "token")
	d.eventually("endless", func(s ConnectionState) bool { return s.Phase == Disconnected && s.Reason != NotStarted })
	g.Expect(untrusted.Shorten(strings.Repeat("ä", 1000))).To(HaveLen(1024 + len("…")))
}

// Groups are part of what a newer credential must prove, for what was read with the old ones is
// cached.
func TestNewerTokenOfOtherGroups(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		groups := map[string][]string{"red-1": {"a", "b"}, "red-2": {"b", "a"}, "red-3": {"a"}}[token]
		return http.StatusCreated, authenticationv1.UserInfo{Username: "red", Groups: groups}
	})
	d := drive(t, r.URL, soon, never)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	d.extension("red", "red-2")
	g.Eventually(func() string { return tokenInUse(t, d, "red") }).WithTimeout(patience).Should(Equal("red-2"))
	state, _ := d.State(client.ObjectKey{Name: "red"})
	g.Expect(state.Generation).To(BeEquivalentTo(1), "the same groups in another order")
	d.extension("red", "red-3")
	d.eventually("red", func(s ConnectionState) bool { return s.Generation == 2 && len(s.Identity.Groups) == 1 })
}

// While one asks whose a newer credential is, a 401 to the one in use is not forgotten.
func TestUnauthorizedWhileVerifying(t *testing.T) {
	r := newReviewer(t)
	held, release := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	var once sync.Once
	var revoked atomic.Bool
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "red-2" {
			once.Do(func() { close(held) })
			<-release
			return http.StatusInternalServerError, authenticationv1.UserInfo{}
		}
		if revoked.Load() {
			return http.StatusUnauthorized, authenticationv1.UserInfo{}
		}
		return http.StatusCreated, ownerOf(token)
	})
	d := drive(t, r.URL, soon, never)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	conn, err := d.connected(client.ObjectKey{Name: "red"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	d.extension("red", "red-2")
	<-held
	revoked.Store(true)
	conn.unauthorized()
	free()
	NewWithT(t).Eventually(d.said).WithTimeout(patience).Should(ContainElement("Unauthorized"))
}

// Under impersonation a denied review is the verdict, if it goes on.
func TestDeniedImpersonation(t *testing.T) {
	r := newReviewer(t)
	d := drive(t, r.URL, fast, never)
	d.mu.Lock()
	d.impersonated = true
	d.mu.Unlock()
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("user-of-red-1"))
	r.status(http.StatusForbidden)
	d.eventually("red", disconnectedFor(Unauthorized))
}
