package credential

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var red = tokenID{serviceAccount: types.NamespacedName{Namespace: "team", Name: "red"}, uid: "1"}

// issuer issues token-1, token-2, … that live for an hour.
type issuer struct {
	issued atomic.Int32
	fail   atomic.Bool
	takes  atomic.Int64 // nanoseconds
}

func (i *issuer) issue(ctx context.Context, id tokenID) (issued, error) {
	n := i.issued.Add(1)
	select {
	case <-time.After(time.Duration(i.takes.Load())):
	case <-ctx.Done():
		return issued{}, ctx.Err()
	}
	if i.fail.Load() {
		return issued{}, errors.Wrap(ErrTokenRequestFailed, id.serviceAccount.Name)
	}
	now := time.Now()
	return issued{value: newSecret(fmt.Sprintf("token-%d", n)), at: now, expires: now.Add(time.Hour), renew: now.Add(48 * time.Minute)}, nil
}

// pass lets time pass in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// send sends a request and returns the Authorization that arrived; "" if none did.
func send(t *testing.T, c Credential) (authorization string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server.invalid/", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.RoundTripper(roundTripperFunc(func(req *http.Request) (*http.Response, error) {
		authorization = req.Header.Get("Authorization")
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})).RoundTrip(req)
	return authorization, err
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestTokenIsRenewedNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		from := &issuer{}
		all := tokens{issue: from.issue}
		c := all.open(red)
		g.Expect(c.Expires()).To(BeZero())
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		g.Expect(c.Expires()).To(Equal(time.Now().Add(time.Hour)))
		pass(47 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		pass(2 * time.Minute)
		from.takes.Store(int64(time.Minute))
		g.Expect(send(t, c)).To(Equal("Bearer token-1"), "nobody waits for a renewal while the token is good")
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		pass(2 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"), "a TokenRequest takes 10 s at the most")
		from.takes.Store(0)
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
		from := &issuer{}
		all := tokens{issue: from.issue}
		c := all.open(red)
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		from.fail.Store(true)
		pass(50 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		synctest.Wait()
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		synctest.Wait()
		g.Expect(from.issued.Load()).To(BeEquivalentTo(2), "a renewal that failed is not repeated at once")
		pass(9 * time.Minute)
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		pass(2 * time.Minute)
		authorization, err := send(t, c)
		g.Expect(err).To(MatchError(ErrTokenRequestFailed))
		g.Expect(authorization).To(BeEmpty(), "a request without a valid token does not leave")
		from.fail.Store(false)
		g.Expect(send(t, c)).To(HavePrefix("Bearer token-"))
		c.Close()
	})
}

func TestOneTokenRequestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		from := &issuer{}
		from.takes.Store(int64(time.Second))
		all := tokens{issue: from.issue}
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
		cancel() // who asked first cannot cancel it for the others
		wg.Wait()
		g.Expect(from.issued.Load()).To(BeEquivalentTo(1))
		other := all.open(tokenID{serviceAccount: red.serviceAccount, uid: "2"})
		g.Expect(other.Prepare(t.Context())).To(Succeed())
		g.Expect(from.issued.Load()).To(BeEquivalentTo(2), "another UID is another identity")
		first.Close()
		second.Close()
		other.Close()
	})
}

func TestTokensEndWithTheirLastUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		from := &issuer{}
		all := tokens{issue: from.issue}
		first, second := all.open(red), all.open(red)
		g.Expect(first.Prepare(t.Context())).To(Succeed())
		first.Close()
		first.Close() // again is nothing
		_, err := send(t, first)
		g.Expect(err).To(MatchError(ErrInvalidCredential))
		g.Expect(send(t, second)).To(Equal("Bearer token-1"))
		second.Close()
		g.Expect(all.byID).To(BeEmpty())

		// A TokenRequest under way ends too.
		from.takes.Store(int64(time.Hour))
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
		from := &issuer{}
		all := tokens{issue: from.issue}
		c, other := all.open(red), all.open(red)
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		pass(time.Second)
		asked := time.Now() // both are told 401 for a request of now
		pass(time.Second)
		c.Discard(asked)
		g.Expect(send(t, c)).To(Equal("Bearer token-2"))
		other.Discard(asked)
		g.Expect(send(t, other)).To(Equal("Bearer token-2"), "what was obtained since then is kept")
		c.Close()
		other.Close()
	})
}

func TestRenewAfter(t *testing.T) {
	g := NewWithT(t)
	g.Expect(renewAfter(100*time.Minute, 0)).To(Equal(80 * time.Minute))
	g.Expect(renewAfter(100*time.Minute, 0.999)).To(BeNumerically("~", 70*time.Minute, time.Minute))
}

func TestClassify(t *testing.T) {
	g := NewWithT(t)
	resource := schema.GroupResource{Resource: "serviceaccounts"}
	g.Expect(classify(apierrors.NewNotFound(resource, "red"))).To(MatchError(ErrServiceAccountNotFound))
	g.Expect(classify(apierrors.NewConflict(resource, "red", errors.New("UID")))).To(MatchError(ErrServiceAccountNotFound))
	forbidden := classify(apierrors.NewForbidden(resource, "red", nil))
	g.Expect(forbidden).To(MatchError(ErrTokenRequestFailed))
	g.Expect(apierrors.IsForbidden(forbidden)).To(BeTrue(), "the API's error stays in the chain")
	unreachable := errors.New("connection refused")
	g.Expect(classify(unreachable)).To(BeIdenticalTo(unreachable))
}

// No way of printing what we export shows a token.
func TestSecretsAreNotPrinted(t *testing.T) {
	synctest.Test(t, testSecretsAreNotPrinted) // so that nothing else runs while we look at it
}

func testSecretsAreNotPrinted(t *testing.T) {
	g := NewWithT(t)
	const token = "hunter2-hunter2"
	all := tokens{issue: func(context.Context, tokenID) (issued, error) {
		return issued{value: newSecret(token), at: time.Now(), expires: time.Now().Add(time.Hour), renew: time.Now().Add(time.Hour)}, nil
	}}
	shared := all.open(red)
	g.Expect(shared.Prepare(t.Context())).To(Succeed())
	synctest.Wait()
	fixed := &fixedToken{token: newSecret(token)}
	current := shared.(*sharedToken).token.current.Load()
	for _, value := range []any{shared, fixed, current, *current, shared.(*sharedToken).token, &all, shared.RoundTripper(nil), fixed.RoundTripper(nil),
		Resolved{open: func() Credential { return fixed }}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			printed := fmt.Sprintf(verb, value)
			g.Expect(strings.Contains(printed, token)).To(BeFalse(), "%s of %T", verb, value)
			g.Expect(strings.Contains(printed, fmt.Sprintf("%x", token))).To(BeFalse(), "%s of %T", verb, value)
		}
	}
	g.Expect(fmt.Sprintf("%v", struct{ s string }{token})).To(ContainSubstring(token), "the check would see one")
	shared.Close()
}

// A request carries the identity's token and nothing else that could name a user, whatever the caller set.
func TestNothingElseNamesAUser(t *testing.T) {
	g := NewWithT(t)
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
	for _, header := range []string{"Authorization", "Impersonate-User", "Impersonate-Uid", "Impersonate-Group", "Impersonate-Extra-Scopes", "X-Remote-User", "X-Remote-Group", "X-Remote-Extra-A", "Cookie"} {
		req.Header.Set(header, "somebody else")
	}
	req.Header["impersonate-user"] = []string{"not canonical"}
	req.Header["Sec-Websocket-Protocol"] = []string{"v5.channel.k8s.io", "base64url.bearer.authorization.k8s.io.c29tZWJvZHk"}
	req.Header.Set("Accept", "application/json")
	before := req.Header.Clone()
	var sent http.Header
	_, err := (&fixedToken{token: newSecret("mine")}).RoundTripper(roundTripperFunc(func(req *http.Request) (*http.Response, error) {
		sent = req.Header
		return nil, errors.New("enough")
	})).RoundTrip(req)
	g.Expect(err).To(MatchError("enough"))
	g.Expect(sent).To(Equal(http.Header{"Authorization": {"Bearer mine"}, "Accept": {"application/json"}, "Sec-Websocket-Protocol": {"v5.channel.k8s.io"}}))
	g.Expect(req.Header).To(Equal(before), "a RoundTripper does not change the caller's request")
}

// What a server or a proxy quotes of the token is removed, wherever it quotes it; the rest stays as it is.
func TestEchoedToken(t *testing.T) {
	g := NewWithT(t)
	answer := func(resp *http.Response, err error) (*http.Response, error) {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		return (&fixedToken{token: newSecret("hunter2")}).RoundTripper(roundTripperFunc(func(*http.Request) (*http.Response, error) { return resp, err })).RoundTrip(req)
	}
	response := func(status int, body string) *http.Response {
		return &http.Response{StatusCode: status, ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
			Header: http.Header{"Warning": {`299 - "you sent hunter2"`}, "Content-Length": {fmt.Sprint(len(body))}}}
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusNotFound, http.StatusInternalServerError, http.StatusBadGateway} {
		resp, err := answer(response(status, "you sent Bearer hunter2, and hunter2 again"), nil)
		g.Expect(err).NotTo(HaveOccurred())
		body, err := io.ReadAll(resp.Body)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(body)).To(Equal("you sent Bearer [redacted], and [redacted] again"))
		g.Expect(resp.Header.Get("Warning")).To(Equal(`299 - "you sent [redacted]"`))
		g.Expect(resp.ContentLength).To(BeEquivalentTo(-1))
		g.Expect(resp.Header).NotTo(HaveKey("Content-Length"))
		g.Expect(resp.Request.Header).NotTo(HaveKey("Authorization"), "it is the caller's request")
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
	g.Expect(string(body)).To(Equal("an object that quotes hunter2"), "what was asked for is not touched")
	g.Expect(resp.ContentLength).To(BeEquivalentTo(len(body)))

	_, err = answer(nil, errors.New(`malformed HTTP response "hunter2"`))
	g.Expect(err).To(MatchError(`malformed HTTP response "[redacted]"`))
	plain := errors.New("refused")
	_, err = answer(nil, plain)
	g.Expect(err).To(BeIdenticalTo(plain), "other errors keep their chain")
}
