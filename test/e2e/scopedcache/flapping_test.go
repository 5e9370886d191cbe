package scopedcache_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

var flappingDuration = flag.Duration("flapping", testenv.Long(15*time.Second, time.Minute),
	"how long TestFlappingPermissions revokes and grants permissions")

// TestFlappingPermissions revokes and grants the permissions of 100 of 200 scopes for a while. The
// other 100 scopes are not affected: their informers send no second list, and their handlers
// receive each event exactly once. Stopped informers leave no goroutines behind.
func TestFlappingPermissions(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	const scopes = 200
	u := newUser(t)
	var revoked, restored atomic.Int64
	var revokedIn sync.Map // by namespace
	c := u.start(t,
		scopedcache.Options{
			PerNamespace:         true,
			AccessReviewInterval: 2 * time.Second,
			OnStateChange: func(before scopedcache.State, now scopedcache.ScopeState) {
				switch {
				case before == scopedcache.StateSynced && now.State == scopedcache.StateForbidden:
					revoked.Add(1)
					revokedIn.Store(now.Scope.Namespace, true)
				case before == scopedcache.StateForbidden && now.State == scopedcache.StateSynced:
					restored.Add(1)
				}
			},
		}, cache.Options{})
	type member struct {
		namespace string
		ledger    *ledger
		handle    *scopedcache.Handle
		grant     *roleGrant
		created   int
	}
	var steady, unstable []*member
	for i := range scopes {
		m := &member{namespace: createNamespace(t), ledger: newLedger()}
		m.grant = u.grant(t, m.namespace, "configmaps", "list", "watch")
		create(t, configMap(m.namespace, "first"))
		var err error
		m.handle, err = c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: m.namespace},
			scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = m.handle.AddEventHandler(m.ledger)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.names(ctx, m.namespace)).To(Equal([]string{"first"}))
		if i%2 == 0 {
			steady = append(steady, m)
		} else {
			m.ledger.allowReadds = true
			unstable = append(unstable, m)
		}
	}
	baseline := runtime.NumGoroutine()
	r := rand.New(rand.NewPCG(1, 1))
	allowed := make([]bool, len(unstable))
	for i := range allowed {
		allowed[i] = true
	}
	flapped := func() (n int) {
		for _, m := range unstable {
			if _, ok := revokedIn.Load(m.namespace); ok {
				n++
			}
		}
		return n
	}
	enough := func() bool { return flapped() > len(unstable)/2 && revoked.Load() > 20 && restored.Load() > 20 }
	for started := time.Now(); time.Since(started) < *flappingDuration ||
		!enough() && time.Since(started) < *flappingDuration+patience; {
		for range 10 {
			i := r.IntN(len(unstable))
			if allowed[i] {
				unstable[i].grant.revoke(t)
			} else {
				unstable[i].grant.restore(t)
			}
			allowed[i] = !allowed[i]
			unstable[i].created++
			create(t, configMap(unstable[i].namespace, fmt.Sprintf("unstable-%d", unstable[i].created)))
			if unstable[i].created > 1 {
				remove(t, configMap(unstable[i].namespace, fmt.Sprintf("unstable-%d", unstable[i].created-1)))
			}
			m := steady[r.IntN(len(steady))]
			m.created++
			create(t, configMap(m.namespace, fmt.Sprintf("steady-%d", m.created)))
		}
		<-time.After(200 * time.Millisecond)
	}
	for i, m := range unstable {
		if !allowed[i] {
			m.grant.restore(t)
		}
	}
	for _, m := range append(append([]*member{}, steady...), unstable...) {
		g.Eventually(func() (string, error) { return m.ledger.diff(ctx, m.namespace) }).WithTimeout(patience).
			Should(BeEmpty())
	}
	for _, m := range unstable {
		g.Expect(m.ledger.violations()).To(BeEmpty())
	}
	events := 0
	for _, m := range steady {
		g.Expect(u.requests.lists("/"+m.namespace+"/configmaps")).
			To(Equal(1), "the informer lists once at the start, and never again")
		g.Expect(m.ledger.violations()).To(BeEmpty())
		events += m.ledger.eventCount()
		g.Expect(m.ledger.eventCount()).To(Equal(1 + m.created))
	}
	t.Logf("scopes became Forbidden %d times, and Synced again %d times; the handlers of the steady scopes "+
		"received %d events, each once; %d access reviews",
		revoked.Load(), restored.Load(), events, u.requests.reviews())
	g.Expect(flapped()).To(BeNumerically(">", len(unstable)/2), "scopes that became Forbidden at least once")
	g.Expect(revoked.Load()).To(BeNumerically(">", 20))
	g.Expect(restored.Load()).To(BeNumerically(">", 20))
	g.Eventually(func() int { return runtime.NumGoroutine() }).WithTimeout(patience).
		Should(BeNumerically("<=", baseline+20), "goroutines; there are as many informers as before")
	for _, m := range append(steady, unstable...) {
		m.handle.Release()
	}
	g.Expect(c.RemoveInformer(context.Background(), &corev1.ConfigMap{})).To(Succeed())
	g.Expect(c.States()).To(BeEmpty())
}
