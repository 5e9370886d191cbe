package credential

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// away is the token of a ServiceAccount for a remote API server.
func away(name string) tokenID {
	return tokenID{serviceAccount: types.NamespacedName{Namespace: "team", Name: name}, target: "t", audience: "a"}
}

// sendTo sends a request to a server that answers with the status, and returns the Authorization
// that arrived; "" if none did.
func sendTo(t *testing.T, c identity.Credential, status func(authorization string) int) (authorization string,
	err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server.invalid/", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.RoundTripper(testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		authorization = req.Header.Get("Authorization")
		return &http.Response{StatusCode: status(authorization), Body: http.NoBody}, nil
	})).RoundTrip(req)
	return authorization, err
}

// attempt sends a request as a connect does, and discards what the server refuses.
func attempt(t *testing.T, c identity.Credential, status func(authorization string) int) (refused bool) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(c.Prepare(t.Context())).To(Succeed())
	_, err := sendTo(t, c, func(authorization string) int {
		code := status(authorization)
		refused = code == http.StatusUnauthorized
		return code
	})
	g.Expect(err).NotTo(HaveOccurred())
	if refused {
		c.Discard(time.Now().Add(time.Nanosecond))
	}
	return refused
}

func accept(string) int { return http.StatusOK }
func refuse(string) int { return http.StatusUnauthorized }

// newerThan accepts tokens that were issued after the nth.
func newerThan(n int32) func(authorization string) int {
	return func(authorization string) int {
		var serial int32
		if _, err := fmt.Sscanf(authorization, "Bearer token-%d", &serial); err == nil && serial > n {
			return http.StatusOK
		}
		return http.StatusUnauthorized
	}
}

// A renewed token is another version, which its extensions are woken for. The connection goes on
// with the token that it has, until that expires.
func TestRenewedTokenIsAnotherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := newTokenTargets(&tokens{issue: source.issue})
		woken := make(chan client.ObjectKey, 10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go all.run(ctx, func(extension client.ObjectKey) { woken <- extension })
		synctest.Wait()
		red, extension := away("red"), client.ObjectKey{Name: "e"}
		first := all.use(extension, red)
		c := all.open(red)
		defer c.Close()
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(all.use(extension, red)).To(Equal(first), "the first token is that version")
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		g.Expect(c.Expires()).To(Equal(time.Now().Add(time.Hour)))
		synctest.Wait()
		g.Expect(woken).To(BeEmpty())

		pass(49 * time.Minute) // without a request
		g.Expect(woken).To(HaveLen(1))
		g.Expect(<-woken).To(Equal(extension))
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		next := all.use(extension, red)
		g.Expect(next).NotTo(Equal(first))
		g.Expect(send(t, c)).To(Equal("Bearer token-1"))
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(send(t, c)).To(Equal("Bearer token-1"), "nothing replaces the token in use")
		candidate := all.open(red)
		g.Expect(candidate.Prepare(t.Context())).To(Succeed())
		g.Expect(send(t, candidate)).To(Equal("Bearer token-2"))
		candidate.Close()

		pass(11 * time.Minute)
		authorization, err := send(t, c)
		g.Expect(err).To(MatchError(errNotTakenUp))
		var none *NoTokenError
		g.Expect(errors.As(err, &none)).To(BeTrue())
		g.Expect(authorization).To(BeEmpty())
		g.Expect(c.Prepare(t.Context())).To(Succeed(), "a connect takes the newest")
		g.Expect(send(t, c)).To(Equal("Bearer token-2"))

		source.fail.Store(true)
		pass(3 * time.Hour)
		failed := source.issued.Load()
		_, err = send(t, c)
		g.Expect(err).To(MatchError(identity.ErrTokenRequestFailed), "there is none")
		g.Expect(failed).To(BeNumerically(">", 100), "it is tried again by the clock")
		version := all.use(extension, red)
		source.fail.Store(false)
		pass(2 * time.Minute)
		g.Expect(all.use(extension, red)).To(Equal(version), "it is in place of none that is valid")
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(send(t, c)).To(HavePrefix("Bearer token-"))
	})
}

// An API server that refuses all tokens, as after its restart while their issuer is away, costs a
// few TokenRequests, and not one per tenant.
func TestRefusedByTheWholeTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := newTokenTargets(&tokens{issue: source.issue})
		credentials := make([]identity.Credential, 0, 500)
		for i := range 500 {
			c := all.open(away(fmt.Sprint(i)))
			defer c.Close()
			credentials = append(credentials, c)
		}
		probe := func(status func(string) int) (refused int) {
			for _, c := range credentials {
				if attempt(t, c, status) {
					refused++
				}
			}
			synctest.Wait()
			return refused
		}
		g.Expect(probe(accept)).To(BeZero())
		g.Expect(source.issued.Load()).To(BeEquivalentTo(500))
		for range 60 { // 10 minutes
			pass(10 * time.Second)
			g.Expect(probe(refuse)).To(Equal(500))
		}
		trials := source.issued.Load() - 500
		g.Expect(trials).To(BeNumerically(">", 2), "a newer token may help")
		g.Expect(trials).To(BeNumerically("<", 10))
		g.Expect(probe(accept)).To(BeZero(), "the tokens are as good as before")
		g.Expect(source.issued.Load() - 500).To(Equal(trials))

		// The signing key is replaced: the tokens that were issued before do not work any more.
		onlyNewer := newerThan(source.issued.Load())
		var rounds []int
		for len(rounds) < 100 && !slices.Contains(rounds, 0) {
			pass(5 * time.Second)
			rounds = append(rounds, probe(onlyNewer))
		}
		t.Logf("refused: %v", rounds)
		g.Expect(rounds).To(ContainElement(0))
		g.Expect(len(rounds)).To(BeNumerically("<", 80), "each token that works is reason to request two")
	})
}

// A server that accepts each token once, and then refuses it, gets few of them.
func TestAcceptedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := newTokenTargets(&tokens{issue: source.issue})
		credentials := make([]identity.Credential, 0, 100)
		for i := range 100 {
			c := all.open(away(fmt.Sprint(i)))
			defer c.Close()
			credentials = append(credentials, c)
		}
		seen := map[string]bool{}
		for range 120 { // 10 minutes
			for _, c := range credentials {
				attempt(t, c, func(authorization string) int {
					if seen[authorization] {
						return http.StatusUnauthorized
					}
					seen[authorization] = true
					return http.StatusCreated
				})
			}
			synctest.Wait()
			pass(5 * time.Second)
		}
		g.Expect(source.issued.Load()-100).To(BeNumerically("<", 700), "of 12,000 requests that were refused")
	})
}

// A server that accepts the token and states another identity gets no other one.
func TestAnotherIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := newTokenTargets(&tokens{issue: source.issue})
		c := all.open(away("renamed"))
		defer c.Close()
		for range 60 {
			g.Expect(c.Prepare(t.Context())).To(Succeed())
			_, err := sendTo(t, c, func(string) int { return http.StatusCreated })
			g.Expect(err).NotTo(HaveOccurred())
			c.Discard(time.Now().Add(time.Nanosecond))
			synctest.Wait()
			pass(30 * time.Second)
		}
		g.Expect(source.issued.Load()).To(BeEquivalentTo(1))
	})
}

// One tenant whose tokens are refused for its own reason, and who asks more often than all others,
// does not keep them from theirs.
func TestRefusedBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := newTokenTargets(&tokens{issue: source.issue})
		open := func(name string) identity.Credential {
			c := all.open(away(name))
			t.Cleanup(c.Close)
			g.Expect(c.Prepare(t.Context())).To(Succeed())
			return c
		}
		bad := open("bad")
		var others []identity.Credential
		for i := range 20 {
			others = append(others, open(fmt.Sprint(i)))
		}
		onlyNewer := newerThan(source.issued.Load())
		began := time.Now()
		for waiting := len(others); waiting > 0; {
			for range 5 {
				pass(time.Second)
				attempt(t, bad, refuse)
				synctest.Wait()
			}
			waiting = 0
			for _, c := range others {
				if attempt(t, c, onlyNewer) {
					waiting++
				}
				synctest.Wait()
			}
			g.Expect(time.Since(began)).To(BeNumerically("<", 5*time.Minute), "%d wait", waiting)
		}
		t.Logf("all others had a new token after %s", time.Since(began))
	})
}

// A tenant whose tokens are refused for its own reason asks for few of them.
func TestRefusedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := newTokenTargets(&tokens{issue: source.issue})
		c := all.open(away("refused"))
		defer c.Close()
		for range 60 {
			attempt(t, c, refuse)
			synctest.Wait()
			pass(10 * time.Second)
		}
		g.Expect(source.issued.Load()).To(BeNumerically("<", 10))
	})
}

// A 401 is the caller's, also if there is a newer token: the server has not stated whose that is.
func TestRefusedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		source := &issuer{}
		all := newTokenTargets(&tokens{issue: source.issue})
		c := all.open(away("red"))
		defer c.Close()
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		pass(50 * time.Minute)
		g.Expect(source.issued.Load()).To(BeEquivalentTo(2), "there is a newer one")
		sent := 0
		refuse := func(string) int { sent++; return http.StatusUnauthorized }
		g.Expect(sendTo(t, c, refuse)).To(Equal("Bearer token-1"))
		g.Expect(sent).To(Equal(1))
		c.Discard(time.Now().Add(-time.Hour))
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(send(t, c)).To(Equal("Bearer token-1"), "what was refused was an earlier one")
		g.Expect(sendTo(t, c, refuse)).To(Equal("Bearer token-1"))
		c.Discard(time.Now().Add(time.Nanosecond))
		g.Expect(send(t, c)).To(Equal("Bearer token-1"), "until the next connect")
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(send(t, c)).To(Equal("Bearer token-2"))
		g.Expect(source.issued.Load()).To(BeEquivalentTo(2))
		c.Close()
		g.Expect(c.Prepare(t.Context())).To(MatchError(errClosed))
		_, err := send(t, c)
		g.Expect(err).To(MatchError(errClosed))
	})
}

// An audience of the operator's own is in use for one API server at a time.
func TestAudienceInUse(t *testing.T) {
	g := NewWithT(t)
	all := newTokenTargets(&tokens{issue: (&issuer{}).issue})
	one, other := away("red"), away("red")
	one.owner, other.owner, other.target = "one", "other", "u"
	first, second, third := all.open(one), all.open(one), all.open(other)
	g.Expect(third.Prepare(t.Context())).To(Succeed(), "opening alone is no use")
	third.Close()
	g.Expect(third.Prepare(t.Context())).To(MatchError(errClosed))
	g.Expect(first.Prepare(t.Context())).To(Succeed())
	g.Expect(second.Prepare(t.Context())).To(Succeed())
	g.Expect(second.Prepare(t.Context())).To(Succeed())
	third = all.open(other)
	g.Expect(third.Prepare(t.Context())).To(MatchError(ErrNotAllowed))
	_, err := send(t, third)
	g.Expect(err).To(HaveOccurred())
	first.Close()
	first.Close()
	g.Expect(third.Prepare(t.Context())).To(MatchError(ContainSubstring("still in use for another API server")))
	second.Close()
	g.Expect(third.Prepare(t.Context())).To(Succeed())
	third.Close()
	g.Expect(all.targets).To(BeEmpty())
	g.Expect(all.audiences).To(BeEmpty())
	g.Expect(all.all.byID).To(BeEmpty())
}

func TestUsersOfTokens(t *testing.T) {
	g := NewWithT(t)
	all := newTokenTargets(&tokens{issue: (&issuer{}).issue})
	a, b := client.ObjectKey{Name: "a"}, client.ObjectKey{Name: "b"}
	all.use(a, away("red"))
	all.use(b, away("red"))
	all.use(a, away("blue"))
	all.renewed(away("red")) // without run: no extension is woken
	g.Expect(all.extensions[away("red")].UnsortedList()).To(ConsistOf(b))
	all.forget(b)
	all.forget(b)
	all.forget(a)
	g.Expect(all.extensions).To(BeEmpty())
	g.Expect(all.byExtension).To(BeEmpty())
}
