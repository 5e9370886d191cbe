package remote

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// hostile is a server that says what latchkey wants to hear, and keeps the tokens that it gets.
type hostile struct {
	*httptest.Server
	authority *certs.Authority

	mu  sync.Mutex
	got []string
}

func newHostile(t *testing.T, username string) *hostile {
	t.Helper()
	g := NewWithT(t)
	authority, err := certs.NewAuthority("hostile")
	g.Expect(err).NotTo(HaveOccurred())
	h := &hostile{authority: authority}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.got = append(h.got, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		h.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(authenticationv1.SelfSubjectReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
			Status: authenticationv1.SelfSubjectReviewStatus{
				UserInfo: authenticationv1.UserInfo{Username: username},
			},
		})
	}))
	certificate, key, err := authority.Issue(certs.Request{
		CommonName: "hostile",
		Hosts:      []string{"127.0.0.1"},
		ValidFor:   time.Hour,
	})
	g.Expect(err).NotTo(HaveOccurred())
	pair, err := tls.X509KeyPair(certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	h.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hostile) tokens() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.got)
}

// A server that an author chose gets a token, and can do nothing with it: neither where it is from,
// nor at another API server that trusts the same issuer.
func TestHostileTarget(t *testing.T) {
	g := NewWithT(t)
	logRequests(t)
	ns := namespace(t)
	server := newHostile(t, usernameOf(types.NamespacedName{Namespace: ns, Name: "victim"}))
	o := startOperator(t, credential.ServiceAccountTokens(tokensFor(always(credential.Target{
		Server:   server.URL,
		CAData:   server.authority.PEM(),
		Username: usernameOf,
	}))))
	begin := time.Now()
	tenant(t, ns, "victim")
	o.waitConnected(t, "victim")
	o.stop()
	stolen := server.tokens()
	g.Expect(stolen).NotTo(BeEmpty())
	g.Expect(stolen).To(HaveEach(o.host.issued()[0]))

	for _, env := range []*testenv.Env{&host, second, third} {
		g.Expect(review(t.Context(), env, stolen[0])).To(Equal(http.StatusUnauthorized))
		events := audit(t, env, begin)
		g.Expect(events).To(ContainElement(Satisfy(isRefused)))
		names, _ := users(events)
		g.Expect(names).NotTo(ContainElement(ContainSubstring(ns)))
	}
}

// table is the audiences of an operator, and the targets that extensions name by a label.
type table struct {
	mu      sync.Mutex
	targets map[string]credential.Target
	owners  map[string]credential.AudienceOwner
}

func (a *table) target(object client.Object) (credential.Target, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	target, ok := a.targets[object.GetLabels()["target"]]
	if !ok {
		return target, errors.New("no such target")
	}
	return target, nil
}

func (a *table) owner(audience string) (credential.AudienceOwner, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	owner, ok := a.owners[audience]
	if !ok {
		return owner, errors.New("unknown")
	}
	return owner, nil
}

func (a *table) give(audience string, env *testenv.Env, authorities ...[]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.owners[audience] = credential.AudienceOwner{Server: env.Config().Host, CAs: append(authorities, env.Config().CAData)}
}

func (a *table) credentials() credential.Provider {
	options := tokensFor(a.target)
	options.AudienceOwner = a.owner
	return credential.ServiceAccountTokens(options)
}

// pointed sets the target of an extension.
func pointed(t *testing.T, e *unstructured.Unstructured, target string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(host.Admin.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
	e.SetLabels(map[string]string{"target": target})
	g.Expect(host.Admin.Update(t.Context(), e)).To(Succeed())
}

func withAudience(target credential.Target, audience string) credential.Target {
	target.Audience = audience
	return target
}

// An author changes the server, the audience and the certificate authority: each change is another
// connection, and no token gets to a server that it is not for.
func TestTargetChanges(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	trust(t, second, derived(second), "named")
	other, err := certs.NewAuthority("other")
	g.Expect(err).NotTo(HaveOccurred())
	both := append(other.PEM(), second.Config().CAData...)
	moreAuthorities := at(second)
	moreAuthorities.CAData = both
	listed := withAudience(moreAuthorities, "named")
	a := &table{
		targets: map[string]credential.Target{
			"second": at(second),
			"third":  at(third),
			"named":  withAudience(at(second), "named"),
			"both":   moreAuthorities,
			"listed": listed,
			"stolen": withAudience(at(third), derived(second)),
		},
		owners: map[string]credential.AudienceOwner{},
	}
	a.give("named", second, both)
	o := startOperator(t, a.credentials())
	begin := time.Now()
	e := tenant(t, ns, "author")
	o.waitReason(t, "author", clustercache.ReasonInvalidReference)
	servers := map[string]*testenv.Env{"second": second, "third": third, "named": second, "listed": second}
	epoch := int64(0)
	for _, name := range []string{"second", "third", "named", "listed", "second"} {
		stale := e.DeepCopy()
		pointed(t, e, name)
		state := o.waitFor(t, "author", func(s clustercache.ConnectionState) bool {
			return connected(s) && s.Epoch > epoch
		})
		g.Expect(state.Epoch).To(Equal(epoch+1), name)
		g.Expect(state.Target).To(Equal(servers[name].Config().Host))
		epoch = state.Epoch
		o.acts(t, ns, "author")
		_, err := o.For(t.Context(), stale).GetClient(t.Context())
		g.Expect(err).To(MatchError(clustercache.ErrNotConnected), "the object that was read names another target")
	}
	for _, env := range []*testenv.Env{second, third} {
		g.Expect(audit(t, env, begin)).NotTo(ContainElement(Satisfy(isRefused)), "each token is for its server")
	}
	// The audience by other authorities is another one, which second does not accept.
	pointed(t, e, "both")
	o.waitReason(t, "author", clustercache.ReasonUnauthorized)
	pointed(t, e, "stolen")
	refused := o.waitReason(t, "author", clustercache.ReasonNotAllowed)
	g.Expect(refused.Message).To(ContainSubstring("derived from other authorities"))
	o.stop()
	g.Expect(audit(t, third, begin)).NotTo(ContainElement(Satisfy(isRefused)))

	audiences := map[any]any{}
	for _, token := range o.host.issued() {
		c := claimsOf(token)
		audiences[c["jti"]] = c["aud"].([]any)[0]
	}
	for env, wanted := range map[*testenv.Env][]any{second: {derived(second), "named"}, third: {derived(third)}} {
		_, tokens := users(audit(t, env, begin))
		var used []any
		for _, token := range tokens {
			if audience, ours := audiences[token]; ours {
				used = append(used, audience)
			}
		}
		g.Expect(used).NotTo(BeEmpty())
		g.Expect(used).To(HaveEach(BeElementOf(wanted...)))
	}
}

// An audience belongs to one API server, by the operator's table. One that host accepts is used
// nowhere.
func TestAudienceOwners(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	for _, env := range []*testenv.Env{second, third} {
		trust(t, env, derived(env), "shared", host.Issuer())
	}
	a := &table{
		targets: map[string]credential.Target{
			"second":   withAudience(at(second), "shared"),
			"third":    withAudience(at(third), "shared"),
			"unlisted": withAudience(at(third), "unlisted"),
			"host":     withAudience(at(second), host.Issuer()),
		},
		owners: map[string]credential.AudienceOwner{},
	}
	a.give("shared", second)
	a.give(host.Issuer(), second)
	o := startOperator(t, a.credentials())
	begin := time.Now()
	first, other := tenant(t, ns, "first"), tenant(t, ns, "other")
	pointed(t, other, "third")
	refused := o.waitReason(t, "other", clustercache.ReasonNotAllowed)
	g.Expect(refused.Message).To(ContainSubstring(`the audience "shared" belongs to another API server`))
	pointed(t, first, "second")
	o.waitConnected(t, "first")
	pointed(t, other, "unlisted")
	o.waitFor(t, "other", func(s clustercache.ConnectionState) bool {
		return s.Reason == clustercache.ReasonNotAllowed && strings.Contains(s.Message, `the owner of the audience "unlisted"`)
	})
	names, _ := users(audit(t, third, begin))
	g.Expect(names).NotTo(ContainElement(ContainSubstring(ns)))

	// The table gives it to the other one, which gets no token while the first has a connection: the
	// first is looked at again later, since nothing about it changes.
	begin = time.Now()
	a.give("shared", third)
	pointed(t, other, "third")
	o.waitFor(t, "other", func(s clustercache.ConnectionState) bool {
		return strings.Contains(s.Message, "is still in use for another API server") || connected(s)
	})
	if state, _ := o.GetConnectionState(t.Context(), key("first")); connected(state) {
		g.Expect(audit(t, third, begin)).NotTo(ContainElement(HaveField("User.Username", ContainSubstring(ns))))
	}
	g.Expect(host.Admin.Delete(t.Context(), first)).To(Succeed())
	state := o.waitConnected(t, "other")
	g.Expect(state.Target).To(Equal(third.Config().Host))

	before := o.host.requests()
	begin = time.Now()
	pointed(t, other, "host")
	accepted := o.waitReason(t, "other", clustercache.ReasonTokenRequestFailed)
	g.Expect(accepted.Message).To(ContainSubstring("does not refuse it (HTTP status 201)"))
	g.Expect(o.host.requests()).To(BeNumerically(">", before))
	o.stop()
	names, _ = users(audit(t, second, begin))
	g.Expect(names).NotTo(ContainElement(ContainSubstring(ns)), "the token is not sent")
}

// Trust that is taken away ends connections, and comes back.
func TestRevokedTrust(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	o := startOperator(t, credential.ServiceAccountTokens(tokensFor(always(at(second)))))
	tenant(t, ns, "trusted")
	first := o.waitConnected(t, "trusted")
	t.Cleanup(func() { g.Expect(setTrust(context.Background(), second, derived(second))).To(Succeed()) })
	g.Expect(second.SetAuthenticationConfig("")).To(Succeed())
	o.waitReason(t, "trusted", clustercache.ReasonUnauthorized)
	g.Expect(setTrust(t.Context(), second, derived(second))).To(Succeed())
	g.Expect(o.waitConnected(t, "trusted").Epoch).To(Equal(first.Epoch + 1))
	o.acts(t, ns, "trusted")
}

// Who the remote API server says we are decides.
func TestOtherNames(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	wrong := at(second)
	wrong.Username = func(account types.NamespacedName) string { return "cluster-1:" + account.Name }
	o := startOperator(t, credential.ServiceAccountTokens(tokensFor(always(wrong))))
	tenant(t, ns, "renamed")
	state := o.waitReason(t, "renamed", clustercache.ReasonIdentityMismatch)
	g.Expect(state.Message).To(ContainSubstring("cluster-1:renamed"))
	o.stop()
	options := tokensFor(always(at(second)))
	options.AllowTarget = func(_ context.Context, _ client.Object, account types.NamespacedName,
		target credential.Target) error {
		return errors.Errorf("%s may not act at %s for %s", account.Name, target.Server, target.Audience)
	}
	o = startOperator(t, credential.ServiceAccountTokens(options))
	state = o.waitReason(t, "renamed", clustercache.ReasonNotAllowed)
	g.Expect(state.Message).To(ContainSubstring("renamed may not act at " + second.Config().Host))
	g.Expect(state.Message).To(ContainSubstring(derived(second)))
	g.Expect(o.host.requests()).To(BeZero())
}
