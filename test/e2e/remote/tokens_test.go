package remote

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// A ServiceAccount of host acts at second, without a Secret. The remote API server would accept the
// token of a deleted ServiceAccount until it expires; the connection ends at once.
func TestActsAtAnotherCluster(t *testing.T) {
	g := NewWithT(t)
	logRequests(t)
	ctx, begin := t.Context(), time.Now()
	ns := namespace(t)
	tenant(t, ns, "remote")
	account := serviceAccount(ns, "remote")
	g.Expect(host.Admin.Get(ctx, client.ObjectKeyFromObject(account), account)).To(Succeed())
	o := startOperator(t, credential.ServiceAccountTokens(tokensFor(always(at(second)))))
	state := o.waitConnected(t, "remote")
	username := usernameOf(types.NamespacedName{Namespace: ns, Name: "remote"})
	g.Expect(state.Identity.Username).To(Equal(username))
	g.Expect(state.Identity.UID).To(Equal(account.UID))
	o.acts(t, ns, "remote")
	o.watches(t, second, ns, "remote", "first")
	o.watches(t, second, ns, "remote", "second")
	g.Expect(watchesOf(audit(t, second, begin), username)).To(Equal(1))

	g.Expect(o.host.issued()).To(HaveLen(1))
	token := claimsOf(o.host.issued()[0])
	g.Expect(token["aud"]).To(Equal([]any{derived(second)}))
	names, ids := users(audit(t, second, begin))
	g.Expect(names).To(ContainElement(username))
	g.Expect(ids).To(HaveEach(token["jti"]))
	names, _ = users(audit(t, &host, begin))
	g.Expect(names).NotTo(ContainElement(ContainSubstring(ns)), "the token is worthless at its own cluster")
	g.Expect(audit(t, third, begin)).NotTo(ContainElement(Satisfy(isRefused)), "it gets no token")
	g.Expect(audit(t, second, begin)).NotTo(ContainElement(Satisfy(isRefused)))

	deleted := time.Now()
	g.Expect(host.Admin.Delete(ctx, account)).To(Succeed())
	o.waitReason(t, "remote", clustercache.ReasonServiceAccountNotFound)
	t.Logf("disconnected %s after the deletion began", time.Since(deleted).Round(time.Millisecond))
	again := serviceAccount(ns, "remote")
	create(t, &host, again)
	state = o.waitConnected(t, "remote")
	g.Expect(state.Identity.UID).To(Equal(again.UID))
	g.Expect(again.UID).NotTo(Equal(account.UID))
}
