package remote

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// short is the lifetime of tokens that are renewed during a test.
const short = 45 * time.Second

// restart restarts the API server of env.
func restart(t *testing.T, env *testenv.Env) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(env.KillAPIServer(t.Context())).To(Succeed())
	g.Expect(env.StartAPIServer(t.Context())).To(Succeed())
}

// uses waits until requests of the ServiceAccount with another token than the known one succeed at
// second.
func uses(t *testing.T, account types.NamespacedName, since time.Time, known any) {
	t.Helper()
	NewWithT(t).Eventually(func() bool {
		events := slices.DeleteFunc(audit(t, second, since), func(event auditv1.Event) bool {
			return event.User.Username != usernameOf(account)
		})
		_, ids := users(events)
		return slices.ContainsFunc(ids, func(id string) bool { return id != known })
	}).WithTimeout(patience).WithPolling(200*time.Millisecond).Should(BeTrue(), "a renewed token is used")
}

// A signing key that the remote API server knows before it is used costs no request: the connection
// takes up the renewed token.
func TestSigningKeyReplacedWithOverlap(t *testing.T) {
	g := NewWithT(t)
	logRequests(t)
	ns := namespace(t)
	next, err := host.PublishServiceAccountKey()
	g.Expect(err).NotTo(HaveOccurred())
	restart(t, &host)
	t.Cleanup(func() { g.Expect(setTrust(context.Background(), third, derived(third))).To(Succeed()) })
	trust(t, second, derived(second)) // another configuration: it fetches the keys again

	o := startOperator(t, credential.ServiceAccountTokens(tokensFor(always(at(second)))))
	o.host.set(lasting(short))
	begin := time.Now()
	tenant(t, ns, "overlap")
	state := o.waitConnected(t, "overlap")
	o.watches(t, second, ns, "overlap", "before")
	old := claimsOf(o.host.issued()[0])["jti"]
	g.Expect(host.UseServiceAccountKey(next)).To(Succeed()) // from now on, tokens are signed with it
	uses(t, types.NamespacedName{Namespace: ns, Name: "overlap"}, begin, old)
	o.acts(t, ns, "overlap")
	o.watches(t, second, ns, "overlap", "after")
	user := usernameOf(types.NamespacedName{Namespace: ns, Name: "overlap"})
	g.Expect(watchesOf(audit(t, second, begin), user)).To(Equal(1), "the watch goes on")
	after, _ := o.GetConnectionState(t.Context(), key("overlap"))
	g.Expect(after.Epoch).To(Equal(state.Epoch), "the connection goes on")
	o.stop()
	g.Expect(audit(t, second, begin)).NotTo(ContainElement(Satisfy(isRefused)))
	restart(t, &host)
}

// Without that overlap, renewed tokens are refused. The connection keeps the token that works until
// it expires, and the state says why.
func TestSigningKeyReplacedWithoutOverlap(t *testing.T) {
	g := NewWithT(t)
	logRequests(t)
	ns := namespace(t)
	o := startOperator(t, credential.ServiceAccountTokens(tokensFor(always(at(second)))))
	o.host.set(lasting(75 * time.Second)) // a renewed one is refused well before that
	begin := time.Now()
	tenant(t, ns, "abrupt")
	first := o.waitConnected(t, "abrupt")
	old := claimsOf(o.host.issued()[0])["jti"]
	expires := time.Unix(int64(claimsOf(o.host.issued()[0])["exp"].(float64)), 0)
	g.Expect(host.RotateServiceAccountKey()).To(Succeed()) // from now on, tokens are signed with the new one
	t.Cleanup(func() { g.Expect(setTrust(context.Background(), second, derived(second))).To(Succeed()) })
	t.Cleanup(func() { g.Expect(setTrust(context.Background(), third, derived(third))).To(Succeed()) })

	refused := o.waitFor(t, "abrupt", func(s clustercache.ConnectionState) bool {
		return strings.Contains(s.Message, "the newest is not used")
	})
	g.Expect(time.Now()).To(BeTemporally("<", expires))
	g.Expect(refused.Phase).To(Equal(clustercache.PhaseConnected))
	g.Expect(refused.Message).To(ContainSubstring("the API server answered Unauthorized"))
	o.acts(t, ns, "abrupt")
	_, ids := users(audit(t, second, begin))
	g.Expect(ids).To(HaveEach(old))

	ended := o.waitReason(t, "abrupt", clustercache.ReasonUnauthorized)
	g.Expect(ended.Epoch).To(Equal(first.Epoch))
	t.Logf("the token expired at %s, and the connection ended at %s", expires.Format(time.TimeOnly),
		ended.DisconnectedSince.Format(time.TimeOnly))
	restart(t, &host)
	g.Expect(setTrust(t.Context(), second, derived(second))).To(Succeed()) // it fetches the keys again
	g.Expect(o.waitConnected(t, "abrupt").Epoch).To(Equal(first.Epoch + 1))
	uses(t, types.NamespacedName{Namespace: ns, Name: "abrupt"}, begin, old)
}

// Tokens whose times are wrong: of a cluster whose clock differs from that of the remote API server
// and of latchkey.
func TestShiftedClocks(t *testing.T) {
	ns := namespace(t)
	o := startOperator(t, credential.ServiceAccountTokens(tokensFor(always(at(second)))))
	for _, tc := range []struct {
		name   string
		by     time.Duration
		reason clustercache.Reason // empty: it connects
		says   string
	}{
		{"ahead-30s", 30 * time.Second, "", ""},
		{"ahead-90s", 90 * time.Second, clustercache.ReasonTokenRequestFailed, "it is valid only in 1m"},
		{"ahead-11m", 11 * time.Minute, clustercache.ReasonTokenRequestFailed, "it is valid only in 1"},
		{"behind-30s", -30 * time.Second, "", ""},
		{"behind-90s", -90 * time.Second, "", ""},
		{"behind-11m", -11 * time.Minute, clustercache.ReasonTokenRequestFailed, "it has expired by the clock of the host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			o.host.set(shifted(tc.by))
			begin := time.Now()
			tenant(t, ns, tc.name)
			if tc.reason == "" {
				o.waitConnected(t, tc.name)
				o.acts(t, ns, tc.name)
				return
			}
			g.Expect(o.waitReason(t, tc.name, tc.reason).Message).To(ContainSubstring(tc.says))
			g.Expect(audit(t, second, begin)).NotTo(ContainElement(Satisfy(isRefused)), "the token is not sent")
		})
	}
}
