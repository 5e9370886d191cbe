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

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// ownerOf returns the user of a token: token "red-2" belongs to user "red".
func ownerOf(token string) authenticationv1.UserInfo {
	owner, _, _ := strings.Cut(token, "-")
	return authenticationv1.UserInfo{Username: owner, UID: "uid-of-" + owner}
}

// tokenReviews holds the tokens that a server accepts, and counts the reviews of each token.
type tokenReviews struct {
	mu    sync.Mutex
	valid map[string]int // guarded by mu; the status of the answer by token
	seen  map[string]int // guarded by mu
}

func acceptTokens(r *reviewer, valid ...string) *tokenReviews {
	p := &tokenReviews{valid: map[string]int{}, seen: map[string]int{}}
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

func (p *tokenReviews) accept(tokens ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, token := range tokens {
		p.valid[token] = http.StatusCreated
	}
}

func (p *tokenReviews) revoke(tokens ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, token := range tokens {
		delete(p.valid, token)
	}
}

func (p *tokenReviews) count(token string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[token]
}

func messageHas(text string) func(State) bool {
	return func(s State) bool {
		return s.Phase == connstate.PhaseConnected && strings.Contains(message(s), text)
	}
}

// shortInterval lets a newer credential be tried again after a millisecond.
var shortInterval = connstate.ProbeOptions{
	Interval:         time.Millisecond,
	IdentityInterval: time.Hour,
	Timeout:          5 * time.Second,
	FailureThreshold: 3,
}

// connected returns the connection of an extension.
func (d *driver) connected(name string) (*connection.Connection, error) {
	_, published, err := d.At(client.ObjectKey{Name: name}).published()
	if err != nil {
		return nil, err
	}
	return published.conn, nil
}

// tokenInUse returns the token that requests of the extension's connection carry.
func tokenInUse(t *testing.T, d *driver, name string) string {
	t.Helper()
	conn, err := d.connected(name)
	if err != nil {
		return err.Error()
	}
	sent := ""
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, conn.Host(), nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, _ = conn.RESTConfig().WrapTransport(testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		sent = strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer secret-")
		return nil, errDown
	})).RoundTrip(req)
	return sent
}

// A newer token of the same identity replaces the one in use without any notification.
func TestNewerTokenIsTakenUp(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := acceptTokens(r, "red-1", "red-2")
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "red-1")
	previous := d.eventually("red", connectedAs("red"))
	conn, err := d.connected("red")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-1"))
	d.extension("red", "red-2")
	g.Eventually(func() string { return tokenInUse(t, d, "red") }).WithTimeout(patience).Should(Equal("red-2"))
	after, _ := d.At(client.ObjectKey{Name: "red"}).State()
	g.Expect(after.Epoch).To(Equal(previous.Epoch))
	g.Expect(after.Since).To(Equal(previous.Since))
	g.Expect(previous.CredentialSince).To(Equal(previous.Since))
	g.Expect(after.CredentialSince).To(BeTemporally(">", previous.CredentialSince))
	g.Expect(message(after)).To(BeEmpty())
	g.Expect(conn.Err()).NotTo(HaveOccurred())
	g.Expect(p.count("red-2")).To(Equal(1), "one review, before any other request with the token")
	g.Expect(d.changed()).To(Equal([]string{"red"}), "the rotation causes no notification")
	g.Expect(d.disconnectReasons()).To(BeEmpty())
}

// A newer token that the API server rejects is not used while the earlier one works. The state
// reports that, and the accessor tries the newer token again.
func TestNewerTokenThatIsRefused(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := acceptTokens(r, "red-1")
	d := drive(t, r.URL, shortInterval, immediateRetry)
	d.extension("red", "red-1")
	previous := d.eventually("red", connectedAs("red"))
	d.extension("red", "red-2")
	d.eventually("red", messageHas("connected with an earlier credential; the newest is not used"))
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-1"))

	// A third token is tried again, too.
	d.extension("red", "red-3")
	g.Eventually(func() int { return p.count("red-3") }).WithTimeout(patience).Should(BeNumerically(">", 1))
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-1"))
	// The provider returns the token that is in use again, so the message disappears.
	d.extension("red", "red-1")
	d.eventually("red", func(s State) bool { return s.Phase == connstate.PhaseConnected && s.Err == nil })
	d.extension("red", "red-2")
	d.eventually("red", messageHas("newest is not used"))
	p.accept("red-2")
	g.Eventually(func() string { return tokenInUse(t, d, "red") }).WithTimeout(patience).Should(Equal("red-2"))
	after := d.eventually("red", func(s State) bool { return s.Err == nil })
	g.Expect(after.Epoch).To(Equal(previous.Epoch))
	g.Expect(after.CredentialSince).To(BeTemporally(">", previous.CredentialSince))
	g.Expect(d.disconnectReasons()).To(BeEmpty())
	p.revoke("red-2")
	d.extension("red", "red-4")
	g.Expect(d.eventually("red", func(s State) bool {
		return s.Phase == connstate.PhaseDisconnected
	}).CredentialSince).To(BeZero())
}

// When the earlier token stops working, the connection ends, and the next connect uses the newest
// token.
func TestNewerTokenWhenTheEarlierOneEnds(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := acceptTokens(r, "red-1")
	d := drive(t, r.URL, fastProbes, noRetry)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	d.extension("red", "red-2")
	d.eventually("red", messageHas("newest is not used"))
	p.accept("red-2")
	p.revoke("red-1")
	d.eventually("red", func(s State) bool {
		return s.Phase == connstate.PhaseConnected && s.Epoch == 2 && s.Err == nil
	})
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-2"))
	g.Expect(d.disconnectReasons()).To(Equal([]string{"Unauthorized"}))
}

// A token of another identity causes a new connection, and the old one ends.
func TestNewerTokenOfAnother(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	p := acceptTokens(r, "red-1", "blue-1")
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	old, err := d.connected("red")
	g.Expect(err).NotTo(HaveOccurred())
	d.extension("red", "blue-1")
	after := d.eventually("red", connectedAs("blue"))
	g.Expect(after.Epoch).To(BeEquivalentTo(2))
	g.Expect(old.Err()).To(MatchError(connstate.ErrNotConnected))
	g.Expect(d.disconnectReasons()).To(Equal([]string{"IdentityMismatch"}))
	g.Expect(p.count("blue-1")).To(Equal(2), "one review by the verify, and one by the connect")
}

// While there is no connection, the newest credential replaces the earlier one, even during a
// connect.
func TestNewerTokenWhileConnecting(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	blocked, release := make(chan struct{}), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	t.Cleanup(unblock)
	var once sync.Once
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "red-1" {
			once.Do(func() { close(blocked) })
			<-release
		}
		return http.StatusCreated, ownerOf(token)
	})
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "red-1")
	<-blocked
	d.extension("red", "red-2")
	state := d.eventually("red", connectedAs("red"))
	g.Expect(state.Epoch).To(BeEquivalentTo(1))
	g.Expect(tokenInUse(t, d, "red")).To(Equal("red-2"))
	unblock()

	// A newer token replaces a rejected token without waiting for the backoff.
	p := acceptTokens(r, "late-2")
	d.extension("late", "late-1")
	d.eventually("late", disconnectedFor(connstate.ReasonUnauthorized))
	d.extension("late", "late-2")
	d.eventually("late", connectedAs("late"))
	g.Expect(p.count("late-1")).To(Equal(1))
}

// An extension that is deleted while a newer credential is being verified leaves no target behind.
// The answer of the verify has no effect.
func TestGoneWhileANewerTokenIsVerified(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	blocked, release := make(chan struct{}), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	t.Cleanup(unblock)
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "red-2" {
			close(blocked)
			<-release
		}
		return http.StatusCreated, ownerOf(token)
	})
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	conn := a.published.Load().conn
	d.extension("red", "red-2")
	<-blocked
	a.mu.Lock()
	newer := a.attempt.credential
	a.mu.Unlock()
	d.deleteExtension("red")
	unblock()
	g.Eventually(d.shared.targets.List).WithTimeout(patience).Should(BeEmpty())
	g.Expect(newer.Prepare(t.Context())).NotTo(Succeed(), "the credential is closed")
	g.Expect(conn.Credential()).NotTo(BeIdenticalTo(newer))
}

// If a provider returns another credential for each Resolve, the accessor tries them no more often
// than it probes.
func TestCredentialThatIsNeverTheSame(t *testing.T) {
	for name, status := range map[string]int{"accepted": http.StatusCreated, "refused": http.StatusUnauthorized} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReviewer(t)
			r.answers(func(token string) (int, authenticationv1.UserInfo) { return status, ownerOf(token) })
			d := drive(t, r.URL, rareProbes, noRetry)
			d.mu.Lock()
			d.newToken = func(name string) string { return name + "-" + rand.Text() }
			d.mu.Unlock()
			d.extension("red", "red-1")
			g.Eventually(r.reviews.Load).WithTimeout(patience).Should(BeNumerically(">=", 1))
			for range 50 { // any number of wakes
				d.wake <- client.ObjectKey{Name: "red"}
			}
			d.extension("other", "other-1") // after them in the queue
			d.eventually("other", func(s State) bool {
				return s.Phase != connstate.PhaseConnecting && s.Epoch+int64(s.Health.ConsecutiveFailures) > 0
			})
			g.Expect(r.reviews.Load()).To(BeNumerically("<=", 6),
				"for each of the two extensions: one connect, and one or two newer credentials")
		})
	}
}

// The state does not show the answers of an API server that a tenant chose. The state shows no user
// name that is too long or not printable.
func TestAnswersOfForeignServers(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, immediateRetry)
	d.mu.Lock()
	d.untrustedServer = true
	d.mu.Unlock()
	r.echo.Store(true) // 502, with the request's headers
	d.extension("echoed", "token")
	state := d.eventually("echoed", disconnectedFor(connstate.ReasonProbeFailed))
	g.Expect(message(state)).To(Equal("asking the API server who we are: the API server answered Bad Gateway"))
	r.echo.Store(false)
	for name, user := range map[string]authenticationv1.UserInfo{
		"long":       {Username: strings.Repeat("x", 2000)},
		"controlled": {Username: "red\nblue"},
		"groups":     {Username: "red", Groups: []string{"a\x00b"}},
	} {
		r.answers(func(string) (int, authenticationv1.UserInfo) { return http.StatusCreated, user })
		d.extension(name, "token")
		state := d.eventually(name, disconnectedFor(connstate.ReasonProbeFailed))
		g.Expect(message(state)).To(ContainSubstring("are not printable or too long"))
	}
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated,
			authenticationv1.UserInfo{Username: "system:anonymous", Groups: []string{"system:unauthenticated"}}
	})
	d.extension("anonymous", "token")
	d.eventually("anonymous", disconnectedFor(connstate.ReasonUnauthorized))
	// An answer that is too long is not read completely.
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated,
			authenticationv1.UserInfo{
				Username: "red",
				Extra:    map[string]authenticationv1.ExtraValue{"x": {strings.Repeat("x", 2*64<<10)}},
			}
	})
	d.extension("endless", "token")
	d.eventually("endless", func(s State) bool {
		return s.Phase == connstate.PhaseDisconnected && s.Reason != connstate.ReasonNotStarted
	})
	g.Expect(untrusted.Shorten(strings.Repeat("ä", 1000))).To(HaveLen(1024 + len("…")))
}

// A newer credential must have the same groups, because the cache holds objects that were read with
// the old groups.
func TestNewerTokenOfOtherGroups(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		groups := map[string][]string{"red-1": {"a", "b"}, "red-2": {"b", "a"}, "red-3": {"a"}}[token]
		return http.StatusCreated, authenticationv1.UserInfo{Username: "red", Groups: groups}
	})
	d := drive(t, r.URL, shortInterval, noRetry)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	d.extension("red", "red-2")
	g.Eventually(func() string { return tokenInUse(t, d, "red") }).WithTimeout(patience).Should(Equal("red-2"))
	state, _ := d.At(client.ObjectKey{Name: "red"}).State()
	g.Expect(state.Epoch).To(BeEquivalentTo(1), "the same groups in another order")
	d.extension("red", "red-3")
	d.eventually("red", func(s State) bool { return s.Epoch == 2 && len(s.Identity.Groups) == 1 })
}

// A 401 to a request is not lost while a newer credential is being verified.
func TestUnauthorizedWhileVerifying(t *testing.T) {
	r := newReviewer(t)
	blocked, release := make(chan struct{}), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	t.Cleanup(unblock)
	var once sync.Once
	var revoked atomic.Bool
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "red-2" {
			once.Do(func() { close(blocked) })
			<-release
			return http.StatusInternalServerError, authenticationv1.UserInfo{}
		}
		if revoked.Load() {
			return http.StatusUnauthorized, authenticationv1.UserInfo{}
		}
		return http.StatusCreated, ownerOf(token)
	})
	d := drive(t, r.URL, shortInterval, noRetry)
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("red"))
	conn, err := d.connected("red")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	d.extension("red", "red-2")
	<-blocked
	revoked.Store(true)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, conn.Host()+"/apis", http.NoBody)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	resp, err := conn.HTTPClient().Do(req)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	NewWithT(t).Expect(resp.StatusCode).To(Equal(http.StatusUnauthorized))
	unblock()
	NewWithT(t).Eventually(d.disconnectReasons).WithTimeout(patience).Should(ContainElement("Unauthorized"))
}

// Under impersonation, reviews that stay denied end the connection.
func TestDeniedImpersonation(t *testing.T) {
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, noRetry)
	d.mu.Lock()
	d.impersonated = true
	d.mu.Unlock()
	d.extension("red", "red-1")
	d.eventually("red", connectedAs("user-of-red-1"))
	r.status(http.StatusForbidden)
	d.eventually("red", disconnectedFor(connstate.ReasonUnauthorized))
}
