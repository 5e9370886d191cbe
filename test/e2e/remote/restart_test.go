package remote

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// tenants is how many extensions lose their API server together.
const tenants = 500

// The remote API server is restarted while host is away, and cannot fetch the keys: it refuses all
// tokens, which are as good as before. latchkey keeps them, so host is not asked for one per tenant
// when it is back.
func TestRestartedWhileHostIsAway(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	options := tokensFor(always(at(second)))
	options.Lifetime = 2 * time.Hour // none is renewed meanwhile
	o := startOperator(t, credential.ServiceAccountTokens(options))
	for i := range tenants {
		name := fmt.Sprintf("tenant-%d", i)
		g.Expect(host.Admin.Create(t.Context(), serviceAccount(ns, name))).To(Succeed())
		create(t, &host, extension(ns, name))
	}
	count := func(wanted func(clustercache.ConnectionState) bool) func() int {
		return func() (n int) {
			for i := range tenants {
				state, _ := o.GetConnectionState(t.Context(), key(fmt.Sprintf("tenant-%d", i)))
				if wanted(state) {
					n++
				}
			}
			return n
		}
	}
	g.Eventually(count(connected)).WithTimeout(patience).Should(Equal(tenants))
	first := o.host.requests()
	g.Expect(first).To(BeNumerically("~", tenants, tenants/10))

	g.Expect(host.KillAPIServer(t.Context())).To(Succeed())
	isAway := true
	back := func() {
		if isAway {
			isAway = false
			g.Expect(host.StartAPIServer(context.Background())).To(Succeed())
		}
	}
	t.Cleanup(back)
	g.Expect(second.KillAPIServer(t.Context())).To(Succeed())
	g.Expect(second.StartAPIServer(t.Context())).To(Succeed())
	began := time.Now()
	g.Eventually(count(func(s clustercache.ConnectionState) bool {
		return !connected(s) && s.Reason == clustercache.ReasonUnauthorized
	})).WithTimeout(patience).Should(BeNumerically(">=", tenants-5))
	away := o.host.requests() - first
	back()
	g.Eventually(count(connected)).WithTimeout(patience).Should(Equal(tenants))
	more := o.host.requests() - first
	t.Logf("%d TokenRequests for %d tenants that were refused for %s, %d of them while host was away", more, tenants,
		time.Since(began).Round(time.Second), away)
	g.Expect(more).To(BeNumerically("<=", tenants/10), "of those that were requested to try, and their repetitions")
}
