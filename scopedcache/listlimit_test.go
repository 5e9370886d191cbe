package scopedcache

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func kindOf(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

// So many lists are read at a time, half of them of one kind. A list that takes too long, is done,
// or is given up, makes way.
func TestListLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		l := NewListLimit(4)
		acquire := func(resource string) (release func(), waited time.Duration) {
			began := time.Now()
			release, err := l.acquire(t.Context(), kindOf(resource))
			g.Expect(err).NotTo(HaveOccurred())
			return release, time.Since(began)
		}
		var releases []func()
		for _, resource := range []string{"a", "a", "b", "b"} {
			release, waited := acquire(resource)
			releases = append(releases, release)
			g.Expect(waited).To(BeZero())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.acquire(ctx, kindOf("c"))
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		releases[0]()
		releases[0]() // a second time without effect
		release, waited := acquire("c")
		g.Expect(waited).To(BeZero())
		release()
		release, waited = acquire("a")
		g.Expect(waited).To(BeZero())
		release()
		_, err = l.acquire(ctx, kindOf("b")) // ctx is done
		g.Expect(err).To(HaveOccurred())
		release, waited = acquire("b")
		g.Expect(waited).To(Equal(longList-time.Second), "the first ones took too long")
		release()
		releases[2]() // after its time: it gives nothing back twice

		// A kind whose lists took too long has turns of its own, until one is in time. One of b was.
		time.Sleep(time.Second)
		began := time.Now()
		acquire("a")
		acquire("a")
		for _, resource := range []string{"c", "c", "d", "d"} {
			release, _ := acquire(resource)
			defer release()
		}
		g.Expect(time.Since(began)).To(BeZero())
		time.Sleep(longList + time.Second)
		release, _ = acquire("a")
		release()
		for range 2 {
			acquire("e")
			acquire("f")
		}
		release, waited = acquire("a")
		g.Expect(waited).To(Equal(longList), "among all again")
		release()
	})
}

// Many informers list, and watch that begins with a list, only so many at a time; the turn ends
// with the list, also if the API server refuses it.
func TestInformersTakeTurns(t *testing.T) {
	for _, streams := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			a := newAPIServer(t)
			var mu sync.Mutex
			now, most, failures := 0, 0, 5
			a.answers(func(w http.ResponseWriter, req *http.Request) bool {
				stream := req.URL.Query().Get("sendInitialEvents") == "true"
				if !stream && !isList(req) {
					return false
				}
				if stream && !streams {
					refuse(w, http.StatusUnprocessableEntity, "Invalid")
					return true
				}
				mu.Lock()
				now++
				most = max(most, now)
				failures--
				fail := failures >= 0
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
				if fail {
					refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable")
				}
				return fail
			})
			c := a.newCache(t, func(o *Options) {
				o.ListLimit, o.AccessReviewInterval, o.ReadTimeout = NewListLimit(6), time.Hour, time.Hour
			})
			began := time.Now()
			var readers sync.WaitGroup
			for n := range 30 {
				readers.Go(func() {
					if err := list(t.Context(), c, string(rune('a'+n))); err != nil {
						t.Error(err)
					}
				})
			}
			readers.Wait()
			g.Expect(time.Since(began)).To(BeNumerically("<", 30*time.Second), "35 seconds of lists, three at a time")
			mu.Lock()
			defer mu.Unlock()
			g.Expect(most).To(Equal(3), "half, because they are of one kind")
		})
	}
}
