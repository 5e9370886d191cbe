package credential

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var red = tokenID{serviceAccount: types.NamespacedName{Namespace: "team", Name: "red"}, uid: "1"}

// issuer issues token-1, token-2, … that are valid for an hour.
type issuer struct {
	issued atomic.Int32
	fail   atomic.Bool
	takes  atomic.Int64 // nanoseconds
}

func (i *issuer) issue(ctx context.Context, id tokenID) (issuedToken, error) {
	n := i.issued.Add(1)
	select {
	case <-time.After(time.Duration(i.takes.Load())):
	case <-ctx.Done():
		return issuedToken{}, ctx.Err()
	}
	if i.fail.Load() {
		return issuedToken{}, errors.Wrap(identity.ErrTokenRequestFailed, id.serviceAccount.Name)
	}
	now := time.Now()
	return issuedToken{
		value:       newSecret(fmt.Sprintf("token-%d", n)),
		requestedAt: now,
		life:        time.Hour,
		renew:       48 * time.Minute,
	}, nil
}

// pass lets time pass in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// send sends a request and returns the Authorization that arrived; "" if none did.
func send(t *testing.T, c identity.Credential) (authorization string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server.invalid/", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.RoundTripper(testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		authorization = req.Header.Get("Authorization")
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})).RoundTrip(req)
	return authorization, err
}

func TestTokenIsRenewedNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := tokens{issue: source.issue}
		c := all.open(red)
		g.Expect(c.Expires()).To(BeZero())
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		g.Expect(c.Expires()).To(Equal(time.Now().Add(time.Hour)))
		pass(47 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		pass(2 * time.Minute)
		source.takes.Store(int64(time.Minute))
		g.Expect(send(t, c)).To(Equal("Bearer token-1"), "no request waits for a renewal while the token is valid")
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		pass(2 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"), "a TokenRequest takes at most 10 s")
		source.takes.Store(0)
		pass(time.Minute)
		_, err := send(t, c)
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		g.Expect(send(t, c)).To(HavePrefix("Bearer token-"))
		g.Expect(send(t, c)).NotTo(Equal("Bearer token-1"))
		c.Close()
	})
}

func TestTokenThatCannotBeRenewedIsUsedUntilItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := tokens{issue: source.issue}
		c := all.open(red)
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		source.fail.Store(true)
		pass(50 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		synctest.Wait()
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		synctest.Wait()
		g.Expect(source.issued.Load()).To(BeEquivalentTo(2), "a renewal that failed is not repeated at once")
		pass(9 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		pass(2 * time.Minute)
		authorization, err := send(t, c)
		g.Expect(err).To(MatchError(identity.ErrTokenRequestFailed))
		g.Expect(authorization).To(BeEmpty(), "a request without a valid token is not sent")
		var none *NoTokenError
		g.Expect(errors.As(err, &none)).To(BeTrue())
		g.Expect(none.ServiceAccount).To(Equal(red.serviceAccount))
		g.Expect(none.Expired).To(BeTemporally("<", time.Now()))
		requests := source.issued.Load()
		_, err = send(t, c)
		g.Expect(err).To(MatchError(identity.ErrTokenRequestFailed))
		g.Expect(source.issued.Load()).To(Equal(requests), "not every request causes a TokenRequest")
		source.fail.Store(false)
		g.Expect(c.Prepare(t.Context())).To(Succeed(), "a connect does not wait for the backoff")
		g.Expect(send(t, c)).To(HavePrefix("Bearer token-"))
		c.Close()
	})
}

func TestAfterFailure(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	var last *failure
	for _, want := range []time.Duration{5, 10, 20, 40, 60, 60, 60} {
		last = afterFailure(last, errors.New("no"), now, 0)
		g.Expect(last.retry).To(Equal(now.Add(want * time.Second)))
		g.Expect(afterFailure(nil, errors.New("no"), now, 0.999).retry).
			To(BeTemporally("~", now.Add(2500*time.Millisecond), 10*time.Millisecond))
	}
	last.count = 1000
	g.Expect(afterFailure(last, errors.New("no"), now, 0).retry).To(Equal(now.Add(time.Minute)))
}

// The age of a token is the larger value of two clocks: the monotonic clock stops while the machine
// sleeps, and the wall clock can be set back.
func TestAge(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	i := &issuedToken{requestedAt: now, life: time.Hour}
	g.Expect(i.age(now.Add(time.Minute))).To(Equal(time.Minute))
	g.Expect(i.age(now.Round(0).Add(time.Hour))).To(Equal(time.Hour), "only the wall clock is available")
	g.Expect(i.valid(now.Add(time.Hour - expiryMargin - 1))).To(BeTrue())
	g.Expect(i.valid(now.Add(time.Hour - expiryMargin))).To(BeFalse())
	g.Expect((*issuedToken)(nil).valid(now)).To(BeFalse())
	g.Expect((&issuedToken{requestedAt: now}).valid(now.Add(1000*time.Hour))).To(BeTrue(), "the expiry is unknown")
}

func TestLifeOf(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	answer := func(granted int64, until time.Duration) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{
			Spec:   authenticationv1.TokenRequestSpec{ExpirationSeconds: &granted},
			Status: authenticationv1.TokenRequestStatus{ExpirationTimestamp: metav1.NewTime(now.Add(until))},
		}
	}
	g.Expect(lifeOf(answer(3600, time.Hour), now)).To(Equal(time.Hour))
	g.Expect(lifeOf(answer(3600, 10*time.Minute), now)).To(Equal(10*time.Minute), "the server's timestamp decides")
	g.Expect(lifeOf(answer(3600, 3*time.Hour), now)).To(Equal(time.Hour), "the local clock is two hours behind")
	g.Expect(lifeOf(answer(0, time.Hour), now)).To(Equal(time.Hour))
}

// If a server refuses a token that it issued, one newer token is requested. No further token is
// requested until the new one is old enough.
func TestRefusedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := tokens{issue: source.issue}
		c := all.open(red)
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		server := &refusing{refuse: map[string]bool{"Bearer token-1": true}}
		post := func(body io.Reader) (*http.Response, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://server.invalid/", body)
			g.Expect(err).NotTo(HaveOccurred())
			return c.RoundTripper(server).RoundTrip(req)
		}
		status := func(body io.Reader) int {
			resp, err := post(body)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(resp.Body.Close()).To(Succeed())
			return resp.StatusCode
		}
		statusOf := func(method, url string) int {
			req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("x"))
			g.Expect(err).NotTo(HaveOccurred())
			resp, err := c.RoundTripper(server).RoundTrip(req)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(resp.Body.Close()).To(Succeed())
			return resp.StatusCode
		}
		g.Expect(status(strings.NewReader("a"))).To(Equal(http.StatusUnauthorized), "the token is too young to be replaced")
		g.Expect(source.issued.Load()).To(BeEquivalentTo(1))
		pass(youngToken)
		g.Expect(statusOf(http.MethodPost, "https://server.invalid/api/v1/namespaces/a/services/b/proxy/c")).
			To(Equal(http.StatusUnauthorized), "the request may have been applied behind the proxy")
		g.Expect(source.issued.Load()).To(BeEquivalentTo(1))
		g.Expect(status(io.MultiReader(strings.NewReader("b")))).
			To(Equal(http.StatusUnauthorized), "the body cannot be sent again")
		g.Expect(source.issued.Load()).To(BeEquivalentTo(1))
		g.Expect(status(strings.NewReader("c"))).To(Equal(http.StatusOK))
		g.Expect(source.issued.Load()).To(BeEquivalentTo(2))
		g.Expect(server.applied).To(Equal([]string{"c"}))
		g.Expect(server.open).To(BeZero(), "every body was closed")
		g.Expect(server.notRead).To(BeZero(), "every body was read to its end, so that the TCP connection can be reused")

		server.refuse["Bearer token-2"], server.refuse["Bearer token-3"] = true, true
		pass(youngToken)
		g.Expect(status(nil)).To(Equal(http.StatusUnauthorized), "a request is sent at most twice")
		g.Expect(source.issued.Load()).To(BeEquivalentTo(3))
		for range 100 {
			g.Expect(status(nil)).To(Equal(http.StatusUnauthorized))
		}
		g.Expect(source.issued.Load()).To(BeEquivalentTo(3),
			"a server that accepts no token causes no storm of TokenRequests")

		pass(youngToken)
		source.fail.Store(true)
		g.Expect(status(nil)).To(Equal(http.StatusUnauthorized), "without a newer token the 401 is returned")
		requests := source.issued.Load()
		g.Expect(status(nil)).To(Equal(http.StatusUnauthorized))
		g.Expect(source.issued.Load()).To(Equal(requests))
		c.Close()
	})
}

// All requests that are refused while a TokenRequest is in progress wait for its token.
func TestRefusedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := tokens{issue: source.issue}
		c := all.open(red)
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		pass(time.Minute)
		source.takes.Store(int64(time.Second))
		server := &refusing{refuse: map[string]bool{"Bearer token-1": true}}
		var ok atomic.Int32
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://server.invalid/",
					strings.NewReader(fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := c.RoundTripper(server).RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				if resp.StatusCode == http.StatusOK {
					ok.Add(1)
				}
				_ = resp.Body.Close()
			})
		}
		wg.Wait()
		g.Expect(ok.Load()).To(BeEquivalentTo(500))
		g.Expect(source.issued.Load()).To(BeEquivalentTo(2), "one TokenRequest for all")
		g.Expect(server.applied).To(HaveLen(500))
		c.Close()
	})
}

// refusing is a server that does not accept some tokens.
type refusing struct {
	refuse map[string]bool

	mu            sync.Mutex
	applied       []string
	open, notRead int
}

func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	var content []byte
	if req.Body != nil {
		content, _ = io.ReadAll(req.Body)
		_ = req.Body.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	r.notRead++
	resp := &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{},
		Body:       &watchedBody{server: r, Reader: strings.NewReader("answer")},
	}
	if r.refuse[req.Header.Get("Authorization")] {
		resp.StatusCode = http.StatusUnauthorized
	} else {
		r.applied = append(r.applied, string(content))
	}
	return resp, nil
}

// watchedBody records at its server when it was read to the end, and when it was closed.
type watchedBody struct {
	server *refusing
	io.Reader
	ended, closed bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF && !b.ended {
		b.ended = true
		b.server.mu.Lock()
		b.server.notRead--
		b.server.mu.Unlock()
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	if !b.closed {
		b.server.open--
		if !b.ended {
			b.server.notRead-- // the caller closed the body without reading all of it
		}
	}
	b.closed = true
	return nil
}

// A thousand identities send requests for a day. For a quarter of an hour all TokenRequests fail.
func TestADayOfTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		const identities, day = 1000, 24 * time.Hour
		begin := time.Now()
		downFrom, downTo := begin.Add(12*time.Hour), begin.Add(12*time.Hour+15*time.Minute)
		var (
			mu       sync.Mutex
			underWay = map[tokenID]bool{}
			life     = map[string]time.Time{} // expiry of tokens, by Authorization header
			minutes  = map[int]int{}          // TokenRequests in each
			refused  int
			last     = map[tokenID]time.Time{} // last failed attempt
		)
		all := tokens{issue: func(_ context.Context, id tokenID) (issuedToken, error) {
			mu.Lock()
			if underWay[id] {
				t.Errorf("two TokenRequests of %s", id.serviceAccount)
			}
			underWay[id] = true
			mu.Unlock()
			requestedAt := time.Now()
			pass(time.Duration(rand.IntN(2000)) * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			underWay[id] = false
			now := time.Now()
			if requestedAt.After(downFrom) && requestedAt.Before(downTo) {
				refused++
				if since := requestedAt.Sub(last[id]); since < retryFirst/2 {
					t.Errorf("%s tried again after %s", id.serviceAccount, since)
				}
				last[id] = now
				return issuedToken{}, errors.Wrap(identity.ErrTokenRequestFailed, "down")
			}
			minutes[int(now.Sub(begin)/time.Minute)]++
			value := fmt.Sprintf("%s-%d", id.serviceAccount.Name, now.UnixNano())
			life["Bearer "+value] = requestedAt.Add(time.Hour)
			return issuedToken{
				value:       newSecret(value),
				requestedAt: requestedAt,
				life:        time.Hour,
				renew:       renewAfter(time.Hour, rand.Float64()),
			}, nil
		}}
		var sent, failed atomic.Int64
		server := testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if until, ok := life[req.Header.Get("Authorization")]; !ok || !time.Now().Before(until) {
				t.Errorf("a request with an expired token, or none, was sent at %s", time.Since(begin))
			}
			sent.Add(1)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		var wg sync.WaitGroup
		for i := range identities {
			c := all.open(tokenID{serviceAccount: types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)}, uid: "1"})
			defer c.Close()
			wg.Go(func() {
				pass(time.Duration(rand.Int64N(int64(10 * time.Second))))
				rt := c.RoundTripper(server)
				for time.Since(begin) < day {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server.invalid/", nil)
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := rt.RoundTrip(req); err != nil {
						failed.Add(1)
						var none *NoTokenError
						if !errors.As(err, &none) || time.Now().Before(downFrom) ||
							time.Now().After(downTo.Add(retryMost+3*time.Second)) {
							t.Errorf("after %s: %v", time.Since(begin), err)
						}
					}
					pass(time.Duration(60+rand.IntN(120)) * time.Second)
				}
			})
		}
		wg.Wait()
		g.Expect(sent.Load()).To(BeNumerically(">", identities*day.Minutes()*4/10))
		g.Expect(refused).To(BeNumerically(">", 0))
		busiest, after, total := 0, 0, 0
		for minute, n := range minutes {
			total += n
			switch since := minute - int(downTo.Sub(begin)/time.Minute); {
			case minute == 0: // all identities start
			case since == 0 || since == 1: // all identities that had to wait
				after = max(after, n)
			default:
				busiest = max(busiest, n)
			}
		}
		// Each token is renewed after 36 to 48 minutes, so 34 times a day. Without jitter a
		// thousand would always fall into the same minute.
		g.Expect(total).To(BeNumerically("~", identities*34, identities*2))
		g.Expect(busiest).To(BeNumerically("<", identities/5))
		t.Logf(
			"%d requests, %d without a token, %d TokenRequests, %d of them refused, %d at most in a minute, %d after the "+
				"outage", sent.Load(), failed.Load(), total+refused, refused, busiest, after)
	})
}

func TestOneTokenRequestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		source.takes.Store(int64(time.Second))
		all := tokens{issue: source.issue}
		first, second := all.open(red), all.open(red)
		impatient, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = first.Prepare(impatient) })
		synctest.Wait()
		for i := range 100 {
			c := first
			if i%2 == 0 {
				c = second
			}
			wg.Go(func() {
				if err := c.Prepare(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel() // the first caller cannot cancel the TokenRequest of the others
		wg.Wait()
		g.Expect(source.issued.Load()).To(BeEquivalentTo(1))
		other := all.open(tokenID{serviceAccount: red.serviceAccount, uid: "2"})
		g.Expect(other.Prepare(t.Context())).To(Succeed())
		g.Expect(source.issued.Load()).To(BeEquivalentTo(2), "another UID is another identity")
		first.Close()
		second.Close()
		other.Close()
	})
}

func TestTokensEndWithTheirLastUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := tokens{issue: source.issue}
		first, second := all.open(red), all.open(red)
		g.Expect(first.Prepare(t.Context())).To(Succeed())
		first.Close()
		first.Close() // a second Close does nothing
		_, err := send(t, first)
		g.Expect(err).To(MatchError(ErrInvalidCredential))
		g.Expect(send(t, second)).To(Equal("Bearer token-1"))
		second.Close()
		g.Expect(all.byID).To(BeEmpty())

		// Close also ends a TokenRequest in progress.
		source.takes.Store(int64(time.Hour))
		third := all.open(red)
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { err = third.Prepare(t.Context()) })
		synctest.Wait()
		third.Close()
		wg.Wait()
		g.Expect(err).To(MatchError(context.Canceled))
		g.Expect(time.Since(begin)).To(BeZero())
	})
}

func TestDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := tokens{issue: source.issue}
		c, other := all.open(red), all.open(red)
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		pass(time.Second)
		requestedAt := time.Now() // both get a 401 for a request at this time
		pass(time.Second)
		c.Discard(requestedAt)
		g.Expect(send(t, c)).To(Equal("Bearer token-2"))
		other.Discard(requestedAt)
		g.Expect(send(t, other)).To(Equal("Bearer token-2"), "a token obtained since then is kept")
		c.Close()
		other.Close()
	})
}

func TestRenewAfter(t *testing.T) {
	g := NewWithT(t)
	g.Expect(renewAfter(100*time.Minute+expiryMargin, 0)).To(Equal(80 * time.Minute))
	g.Expect(renewAfter(100*time.Minute+expiryMargin, 0.999)).To(BeNumerically("~", 60*time.Minute, time.Minute))
	for _, life := range []time.Duration{expiryMargin + time.Second, 45 * time.Second, time.Minute, time.Hour} {
		token := &issuedToken{requestedAt: time.Now(), life: life, renew: renewAfter(life, 0)}
		renewed := token.requestedAt.Add(token.renew)
		g.Expect(token.valid(renewed)).To(BeTrue(), "a token of %s is renewed while it is valid", life)
	}
}

func TestClassify(t *testing.T) {
	g := NewWithT(t)
	resource := schema.GroupResource{Resource: "serviceaccounts"}
	g.Expect(classify(apierrors.NewNotFound(resource, "red"))).To(MatchError(identity.ErrServiceAccountNotFound))
	g.Expect(classify(apierrors.NewConflict(resource, "red", errors.New("UID")))).
		To(MatchError(identity.ErrServiceAccountNotFound))
	forbidden := classify(apierrors.NewForbidden(resource, "red", nil))
	g.Expect(forbidden).To(MatchError(identity.ErrTokenRequestFailed))
	g.Expect(apierrors.IsForbidden(forbidden)).To(BeTrue(), "the API's error stays in the chain")
	unreachable := errors.New("connection refused")
	g.Expect(classify(unreachable)).To(BeIdenticalTo(unreachable))
}

// No format verb prints a token of an exported value.
func TestSecretsAreNotPrinted(t *testing.T) {
	synctest.Test(t, testSecretsAreNotPrinted) // the bubble prevents other goroutines from running meanwhile
}

func testSecretsAreNotPrinted(t *testing.T) {
	g := NewWithT(t)
	const token = "hunter2-hunter2"
	all := tokens{issue: func(context.Context, tokenID) (issuedToken, error) {
		return issuedToken{value: newSecret(token), requestedAt: time.Now(), life: time.Hour, renew: time.Hour}, nil
	}}
	shared := all.open(red)
	g.Expect(shared.Prepare(t.Context())).To(Succeed())
	synctest.Wait()
	static := newStaticCredential(secretMaterial{token: newSecret(token)})
	current := shared.(*sharedToken).token.current.Load()
	for _, value := range []any{shared, static, current, *current, shared.(*sharedToken).token, &all,
		shared.RoundTripper(nil), static.RoundTripper(nil),
		identity.Resolution{OpenFunc: func() identity.Credential { return static }}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			printed := fmt.Sprintf(verb, value)
			g.Expect(strings.Contains(printed, token)).To(BeFalse(), "%s of %T", verb, value)
			g.Expect(strings.Contains(printed, fmt.Sprintf("%x", token))).To(BeFalse(), "%s of %T", verb, value)
		}
	}
	g.Expect(fmt.Sprintf("%v", struct{ s string }{token})).To(ContainSubstring(token), "the check detects a token")
	shared.Close()
}

// A request carries the identity's token and no other header that could name a user, even if the
// caller sets such headers.
func TestNothingElseNamesAUser(t *testing.T) {
	g := NewWithT(t)
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
	for _, header := range []string{"Authorization", "Impersonate-User", "Impersonate-Uid", "Impersonate-Group",
		"Impersonate-Extra-Scopes", "X-Remote-User", "X-Remote-Group", "X-Remote-Extra-A", "Cookie"} {
		req.Header.Set(header, "another user")
	}
	req.Header["impersonate-user"] = []string{"not canonical"}
	req.Header["Sec-Websocket-Protocol"] = []string{
		"v5.channel.k8s.io", "base64url.bearer.authorization.k8s.io.c29tZWJvZHk",
	}
	// the spelling in the RFC
	req.Header["Sec-WebSocket-Protocol"] = []string{"base64url.bearer.authorization.k8s.io.c29tZWJvZHk"}
	req.Header.Set("Accept", "application/json")
	before := req.Header.Clone()
	var sent http.Header
	_, err := newStaticCredential(secretMaterial{token: newSecret("mine")}).
		RoundTripper(testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			sent = req.Header
			return nil, errors.New("enough")
		})).RoundTrip(req)
	g.Expect(err).To(MatchError("enough"))
	g.Expect(sent).
		To(
			Equal(http.Header{"Authorization": {"Bearer mine"}, "Accept": {"application/json"},
				"Sec-Websocket-Protocol": {"v5.channel.k8s.io"}, "Sec-WebSocket-Protocol": {}}))
	g.Expect(req.Header).To(Equal(before), "a RoundTripper does not change the caller's request")
}

// The token is removed wherever a server or a proxy quotes it. The rest of the response is
// unchanged.
func TestEchoedToken(t *testing.T) {
	g := NewWithT(t)
	answer := func(resp *http.Response, err error) (*http.Response, error) {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		return newStaticCredential(secretMaterial{token: newSecret("hunter2")}).
			RoundTripper(testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) { return resp, err })).
			RoundTrip(req)
	}
	response := func(status int, body string) *http.Response {
		return &http.Response{
			StatusCode:    status,
			ContentLength: int64(len(body)),
			Body:          io.NopCloser(strings.NewReader(body)),
			Header:        http.Header{"Warning": {`299 - "you sent hunter2"`}, "Content-Length": {fmt.Sprint(len(body))}},
		}
	}
	for _, status := range []int{http.StatusMultiStatus, http.StatusFound, http.StatusBadRequest,
		http.StatusNotFound, http.StatusInternalServerError, http.StatusBadGateway} {
		resp, err := answer(response(status, "you sent Bearer hunter2, and hunter2 again"), nil)
		g.Expect(err).NotTo(HaveOccurred())
		body, err := io.ReadAll(resp.Body)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(body)).To(Equal("you sent Bearer [redacted], and [redacted] again"))
		g.Expect(resp.Header.Get("Warning")).To(Equal(`299 - "you sent [redacted]"`))
		g.Expect(resp.ContentLength).To(BeEquivalentTo(-1))
		g.Expect(resp.Header).NotTo(HaveKey("Content-Length"))
		g.Expect(resp.Request.Header).NotTo(HaveKey("Authorization"), "the response refers to the caller's request")
		g.Expect(resp.Body.Close()).To(Succeed())
	}
	broken := response(http.StatusBadGateway, "")
	broken.Body = io.NopCloser(iotest.ErrReader(errors.New("broken off")))
	resp, err := answer(broken, nil)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = io.ReadAll(resp.Body)
	g.Expect(err).To(MatchError("broken off"))

	resp, err = answer(response(http.StatusOK, "an object that quotes hunter2"), nil)
	g.Expect(err).NotTo(HaveOccurred())
	body, _ := io.ReadAll(resp.Body)
	g.Expect(string(body)).To(Equal("an object that quotes hunter2"), "the body of a successful response is unchanged")
	g.Expect(resp.ContentLength).To(BeEquivalentTo(len(body)))

	resp, err = answer(&http.Response{
		StatusCode: http.StatusOK,
		Status:     "200 hunter2",
		Header:     http.Header{},
		Trailer:    http.Header{"X": {"hunter2"}},
		Body:       http.NoBody,
	}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Status).To(Equal("200 [redacted]"))
	g.Expect(resp.Trailer).To(BeNil())

	_, err = answer(nil, errors.New(`malformed HTTP response "hunter2"`))
	g.Expect(err).To(MatchError(`malformed HTTP response "[redacted]"`))
	plain := errors.New("refused")
	_, err = answer(nil, plain)
	g.Expect(err).To(BeIdenticalTo(plain), "other errors keep their chain")
}

// A trailer, which the server sends after the body, does not reach the caller. net/http adds
// trailers to the response that it returned.
func TestTrailersAreDropped(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			g := NewWithT(t)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.WriteString(w, "content")
				w.(http.Flusher).Flush() // HTTP/1.1 has trailers only after chunks
				w.Header().Set(http.TrailerPrefix+"Quoted", req.Header.Get("Authorization"))
			}))
			server.EnableHTTP2 = protocol == "HTTP/2.0"
			server.StartTLS()
			defer server.Close()
			var sent *http.Response
			next := testutil.RoundTripperFunc(func(req *http.Request) (resp *http.Response, err error) {
				sent, err = server.Client().Transport.RoundTrip(req)
				return sent, err
			})
			own := newStaticCredential(secretMaterial{token: newSecret("hunter2")}).RoundTripper(next)
			req, err := http.NewRequest(http.MethodGet, server.URL, nil)
			g.Expect(err).NotTo(HaveOccurred())
			resp, err := own.RoundTrip(req)
			g.Expect(err).NotTo(HaveOccurred())
			defer func() { _ = resp.Body.Close() }()
			g.Expect(resp.Proto).To(Equal(protocol))
			body, err := io.ReadAll(resp.Body)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(body)).To(Equal("content"))
			g.Expect(sent.Trailer).To(HaveKeyWithValue("Quoted", []string{"Bearer hunter2"}), "the server sent it")
			g.Expect(resp.Trailer).To(BeNil())
			g.Expect(resp.Header).NotTo(BeEmpty())
			g.Expect(sent.Header).To(BeNil(), "a watch would keep them")
			g.Expect(sent.Request).To(BeNil(), "a watch would keep it")
		})
	}
}

// The caller's httptrace sees neither the credential, nor what the server sends before its answer.
// Other hooks are called.
func TestTracesSeeNoHeaders(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Link", req.Header.Get("Authorization"))
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	host := testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		req = utilnet.CloneRequest(req)
		if req.Header.Get("Authorization") == "" {
			req.Header.Set("Authorization", "Bearer hunter2") // the host operator's own
		}
		return server.Client().Transport.RoundTrip(req)
	})
	for name, own := range map[string]http.RoundTripper{
		"token": newStaticCredential(secretMaterial{token: newSecret("hunter2")}).RoundTripper(host),
		"impersonation": (&impersonationCredential{headers: http.Header{"Impersonate-User": {"u"}}}).
			RoundTripper(host),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var seen []string
			connected := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				GotConn:          func(httptrace.GotConnInfo) { connected = true },
				WroteHeaderField: func(name string, values []string) { seen = append(seen, name+fmt.Sprint(values)) },
				Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
					seen = append(seen, fmt.Sprint(header))
					return nil
				},
			})
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
			g.Expect(err).NotTo(HaveOccurred())
			resp, err := own.RoundTrip(req)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(resp.Body.Close()).To(Succeed())
			g.Expect(seen).To(BeEmpty())
			g.Expect(connected).To(BeTrue(), "other hooks are called")
		})
	}
}

// At most requestsAtOnce TokenRequests are in progress at the same time, even if more tokens are
// invalid.
func TestTokenRequestsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var now, most atomic.Int32
		all := tokens{
			turns: semaphore.NewWeighted(requestsAtOnce),
			issue: func(context.Context, tokenID) (issuedToken, error) {
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				pass(10 * time.Millisecond)
				return issuedToken{value: newSecret("t"), requestedAt: time.Now(), life: time.Hour, renew: time.Hour}, nil
			},
		}
		var wg sync.WaitGroup
		for i := range 1000 {
			c := all.open(tokenID{serviceAccount: types.NamespacedName{Name: fmt.Sprint(i)}})
			defer c.Close()
			wg.Go(func() {
				if err := c.Prepare(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		g.Expect(most.Load()).To(BeEquivalentTo(requestsAtOnce))
	})
}
