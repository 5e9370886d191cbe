package scopedcache

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// A scope that is Forbidden is missed only if something needs it: not if it is tried on the way to
// a Get that goes to the API server; for ten minutes after a read that was refused; and as long as
// it has a holder.
func TestMissed(t *testing.T) {
	for name, config := range map[string]cache.Options{
		"all":        {},
		"configured": {DefaultNamespaces: map[string]cache.Config{cache.AllNamespaces: {}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				a, s := newAPIServer(t), &getOnly{}
				s.serve(a)
				var changes atomic.Int64
				c := a.newCacheOf(t, config, func(o *Options) {
					o.LiveGet, o.AccessReviewInterval = true, time.Minute
					o.OnScopesChange = func() { changes.Add(1) }
				})
				missed := func() bool {
					return slices.ContainsFunc(c.States(), func(s ScopeState) bool { return s.Missed })
				}
				g.Expect(get(t, c, "a")).To(Succeed())
				g.Expect(missed()).To(BeFalse())

				s.get.Store(http.StatusForbidden)
				synctest.Wait()
				before := changes.Load()
				for range 3 {
					g.Expect(get(t, c, "c")).To(Satisfy(apierrors.IsForbidden))
				}
				g.Expect(missed()).To(BeTrue())
				g.Expect(changes.Load()).To(Equal(before+1), "users hear it once")
				time.Sleep(10 * time.Minute)
				g.Expect(missed()).To(BeFalse())
				g.Expect(list(t.Context(), c, "n")).To(Satisfy(apierrors.IsForbidden))
				g.Expect(missed()).To(BeTrue(), "a List, too")
				time.Sleep(10 * time.Minute)
				g.Expect(missed()).To(BeFalse())
				handle := hold(t, c, HoldOptions{})
				g.Eventually(missed).WithTimeout(patience).Should(BeTrue())
				time.Sleep(time.Hour)
				g.Expect(missed()).To(BeTrue())
				handle.Release()
			})
		})
	}
}
