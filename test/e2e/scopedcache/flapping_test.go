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
)

var flapping = flag.Duration("flapping", 2*time.Minute, "how long rights flap")

// Of 200 scopes half gain and lose their rights for two minutes. The other half notice nothing: no
// list, no event missed or told twice. And nothing is left of what stopped.
func TestFlappingRights(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	const scopes = 200
	u := newUser(t)
	var lost, won atomic.Int64
	var lostIn sync.Map // by namespace
	c := u.start(t,
		scopedcache.Options{PerNamespace: true, AccessReviewInterval: 2 * time.Second,
			Observe: func(before scopedcache.State, now scopedcache.ScopeState) {
				switch {
				case before == scopedcache.Synced && now.State == scopedcache.Forbidden:
					lost.Add(1)
					lostIn.Store(now.Scope.Namespace, true)
				case before == scopedcache.Forbidden && now.State == scopedcache.Synced:
					won.Add(1)
				}
			}}, cache.Options{})
	type member struct {
		namespace string
		told      *ledger
		held      *scopedcache.Handle
		right     *grants
		created   int
	}
	var steady, moody []*member
	for i := range scopes {
		m := &member{namespace: namespace(t), told: newLedger()}
		m.right = u.grant(t, m.namespace, "configmaps", "list", "watch")
		create(t, configMap(m.namespace, "first"))
		var err error
		m.held, err = c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: m.namespace}, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = m.held.AddEventHandler(m.told)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.names(ctx, m.namespace)).To(Equal([]string{"first"}))
		if i%2 == 0 {
			steady = append(steady, m)
		} else {
			m.told.refeeds = true
			moody = append(moody, m)
		}
	}
	baseline := runtime.NumGoroutine()
	r := rand.New(rand.NewPCG(1, 1))
	allowed := make([]bool, len(moody))
	for i := range allowed {
		allowed[i] = true
	}
	for begun := time.Now(); time.Since(begun) < *flapping; {
		for range 10 {
			i := r.IntN(len(moody))
			if allowed[i] {
				moody[i].right.revoke(t)
			} else {
				moody[i].right.again(t)
			}
			allowed[i] = !allowed[i]
			moody[i].created++
			create(t, configMap(moody[i].namespace, fmt.Sprintf("moody-%d", moody[i].created)))
			if moody[i].created > 1 {
				remove(t, configMap(moody[i].namespace, fmt.Sprintf("moody-%d", moody[i].created-1)))
			}
			m := steady[r.IntN(len(steady))]
			m.created++
			create(t, configMap(m.namespace, fmt.Sprintf("steady-%d", m.created)))
		}
		<-time.After(200 * time.Millisecond)
	}
	for i, m := range moody {
		if !allowed[i] {
			m.right.again(t)
		}
	}
	for _, m := range append(append([]*member{}, steady...), moody...) {
		g.Eventually(func() (string, error) { return m.told.differs(ctx, m.namespace) }).WithTimeout(patience).
			Should(BeEmpty())
	}
	flapped := 0
	for _, m := range moody {
		g.Expect(m.told.wrong()).To(BeEmpty())
		if _, ok := lostIn.Load(m.namespace); ok {
			flapped++
		}
	}
	events := 0
	for _, m := range steady {
		g.Expect(u.sent.of("/"+m.namespace+"/configmaps")).To(Equal(1), "it was listed at the start, and never again")
		g.Expect(m.told.wrong()).To(BeEmpty())
		events += m.told.total()
		g.Expect(m.told.total()).To(Equal(1 + m.created))
	}
	t.Logf("%d times a right was lost, %d times won; the others were told of %d objects, each once; %d access reviews",
		lost.Load(), won.Load(), events, u.sent.reviews())
	g.Expect(flapped).To(BeNumerically(">", len(moody)/2), "lost their right at least once")
	g.Expect(lost.Load()).To(BeNumerically(">", 20))
	g.Expect(won.Load()).To(BeNumerically(">", 20))
	g.Eventually(func() int { return runtime.NumGoroutine() }).WithTimeout(patience).
		Should(BeNumerically("<=", baseline+20), "goroutines, with as many informers as before")
	for _, m := range append(steady, moody...) {
		m.held.Release()
	}
	g.Expect(c.RemoveInformer(context.Background(), &corev1.ConfigMap{})).To(Succeed())
	g.Expect(c.States()).To(BeEmpty())
}
