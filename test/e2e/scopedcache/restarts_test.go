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
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

var restarts = flag.Int("restarts", testenv.Long(2, 5),
	"how many times TestRestartsOfTheAPIServer restarts the API server")

// TestRestartsOfTheAPIServer restarts the API server several times under load, with caches that
// send access reviews all the time. In its first moments the API server denies requests that RBAC
// allows, access reviews too. No cache may conclude that a permission was revoked, and handlers may
// miss no event.
func TestRestartsOfTheAPIServer(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	const caches = 20
	var mu sync.Mutex
	var wrongStates []string
	states := map[scopedcache.State]int{}
	reading, stopReading := context.WithCancel(ctx)
	var readers sync.WaitGroup
	var forbidden, failed, reads atomic.Int64
	type member struct {
		namespace string
		ledger    *ledger
		handle    *scopedcache.Handle
	}
	var members []member
	var counters []*requestCounter
	for range caches {
		ns, u := createNamespace(t), newUser(t)
		u.grant(t, ns, "configmaps", "list", "watch")
		u.grantRule(t, "",
			rbacv1.PolicyRule{
				APIGroups: []string{rbacv1.GroupName},
				Resources: []string{"*"},
				Verbs:     []string{"list", "watch"},
			})
		create(t, configMap(ns, "first"))
		c := u.start(t,
			scopedcache.Options{
				PerNamespace:         true,
				AccessReviewInterval: 50 * time.Millisecond,
				WatchRBAC:            true,
				OnStateChange: func(before scopedcache.State, now scopedcache.ScopeState) {
					mu.Lock()
					defer mu.Unlock()
					states[now.State]++
					if now.State == scopedcache.StateForbidden || now.State == scopedcache.StateNotServed {
						wrongStates = append(wrongStates,
							fmt.Sprintf("%s of %s changed from %s to %s: %v", now.GVK.Kind, u.name, before, now.State, now.LastError))
					}
				},
			}, cache.Options{})
		m := member{namespace: ns, ledger: newLedger()}
		var err error
		m.handle, err = c.Hold(ctx, &corev1.ConfigMap{}, scopedcache.Scope{Namespace: ns}, scopedcache.HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = m.handle.AddEventHandler(m.ledger)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.names(ctx, ns)).To(Equal([]string{"first"}))
		members = append(members, m)
		counters = append(counters, u.requests)
		defer c.stop() // before the cleanup checks whether a cache left goroutines behind
		readers.Go(func() {
			for reading.Err() == nil {
				_, err := c.names(reading, ns)
				switch {
				case apierrors.IsForbidden(err):
					forbidden.Add(1)
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
	countDenials := func() (n int) {
		for _, counter := range counters {
			n += counter.denials()
		}
		return n
	}
	const mostRestarts = 20
	// Further restarts follow while no API server has denied a request in its first moments.
	for restart := 0; restart < *restarts || restart < mostRestarts && countDenials() == 0; restart++ {
		g.Expect(cp.KillAPIServer(ctx)).To(Succeed())
		g.Expect(cp.StartAPIServer(ctx)).To(Succeed())
		for _, m := range members {
			create(t, configMap(m.namespace, fmt.Sprintf("after-%d", restart)))
		}
		mu.Lock()
		g.Expect(wrongStates).To(BeEmpty(), "after restart %d", restart+1)
		mu.Unlock()
	}
	for _, m := range members {
		g.Eventually(func() (string, error) { return m.ledger.diff(ctx, m.namespace) }).WithTimeout(patience).
			Should(BeEmpty())
		g.Expect(m.ledger.violations()).To(BeEmpty())
	}
	stopReading()
	readers.Wait()
	reviews, denialCount := 0, countDenials()
	for _, counter := range counters {
		reviews += counter.reviews()
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d reads, %d access reviews, %d denials of allowed requests; states: %v", reads.Load(), reviews, denialCount,
		states)
	g.Expect(wrongStates).To(BeEmpty())
	g.Expect(forbidden.Load()).To(BeZero())
	g.Expect(denialCount).To(BeNumerically(">", 0), "without denials this test proves nothing")
	g.Expect(failed.Load()).To(BeZero(), "reads return the cached objects")
	g.Expect(states[scopedcache.StateFailing]).To(BeNumerically(">=", caches), "each cache noticed a restart")
	for _, m := range members {
		m.handle.Release()
	}
}
