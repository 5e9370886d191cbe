package scopedcache_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

var restarts = flag.Int("restarts", 10, "how often the API server restarts")

// An API server in its first moments denies rightful requests, access reviews too. Ten of its
// restarts under load, with caches that ask all the time, make no cache believe that a right was
// lost; and nothing is lost to handlers.
func TestRestartsOfTheAPIServer(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	const caches = 20
	var mu sync.Mutex
	var lost []string
	states := map[scopedcache.State]int{}
	reading, stopReading := context.WithCancel(ctx)
	var readers sync.WaitGroup
	var refused, failed, reads atomic.Int64
	type member struct {
		namespace string
		told      *ledger
		held      *scopedcache.Handle
	}
	var members []member
	var asked []*requests
	for range caches {
		ns, u := namespace(t), newUser(t)
		u.grant(t, ns, "configmaps", "list", "watch")
		u.grantRule(t, "",
			rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"*"},
				Verbs: []string{"list", "watch"}})
		create(t, configMap(ns, "first"))
		c := u.start(t,
			scopedcache.Options{PerNamespace: true, AccessReviewInterval: 50 * time.Millisecond, WatchRBAC: true,
				Observe: func(before scopedcache.State, now scopedcache.ScopeState) {
					mu.Lock()
					defer mu.Unlock()
					states[now.State]++
					if now.State == scopedcache.Forbidden || now.State == scopedcache.NotServed {
						lost = append(lost,
							fmt.Sprintf("%s of %s: %s, then %s: %v", now.GVK.Kind, u.name, before, now.State, now.LastError))
					}
				}}, cache.Options{})
		m := member{namespace: ns, told: newLedger()}
		var err error
		m.held, err = c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = m.held.AddEventHandler(m.told)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.names(ctx, ns)).To(Equal([]string{"first"}))
		members = append(members, m)
		asked = append(asked, u.sent)
		defer c.stop() // before it is looked whether one of them left something behind
		readers.Go(func() {
			for reading.Err() == nil {
				_, err := c.names(reading, ns)
				switch {
				case apierrors.IsForbidden(err):
					refused.Add(1)
				case err != nil && reading.Err() == nil:
					failed.Add(1)
				}
				reads.Add(1)
				select {
				case <-reading.Done():
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	defer readers.Wait()
	defer stopReading()
	for restart := range *restarts {
		g.Expect(cp.KillAPIServer(ctx)).To(Succeed())
		g.Expect(cp.StartAPIServer(ctx)).To(Succeed())
		for _, m := range members {
			create(t, configMap(m.namespace, fmt.Sprintf("after-%d", restart)))
		}
		mu.Lock()
		g.Expect(lost).To(BeEmpty(), "after restart %d", restart+1)
		mu.Unlock()
	}
	for _, m := range members {
		g.Eventually(func() (string, error) { return m.told.differs(ctx, m.namespace) }).WithTimeout(patience).
			Should(BeEmpty())
		g.Expect(m.told.wrong()).To(BeEmpty())
	}
	stopReading()
	readers.Wait()
	reviews, denials := 0, 0
	for _, sent := range asked {
		reviews += sent.reviews()
		denials += sent.denied()
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d reads, %d access reviews, %d rightful requests were denied, states: %v", reads.Load(), reviews, denials,
		states)
	g.Expect(lost).To(BeEmpty())
	g.Expect(refused.Load()).To(BeZero())
	g.Expect(denials).To(BeNumerically(">", 0), "else this shows nothing")
	g.Expect(failed.Load()).To(BeZero(), "reads are served from what there is")
	g.Expect(states[scopedcache.Failing]).To(BeNumerically(">=", caches), "they noticed")
	for _, m := range members {
		m.held.Release()
	}
}
