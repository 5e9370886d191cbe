package stateapi

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// What a replica serves that has just taken over, or hands over, has what another one may have
// shown: each read waits for what the others had when it came.
func TestReadsWhileAnotherReplicaMayServe(t *testing.T) {
	g := NewWithT(t)
	m := newView().merged
	m.Members([]string{"you"})
	scope := &v1alpha1.Scope{Status: v1alpha1.ScopeStatus{Extension: "red", Selection: v1alpha1.Selection{Kind: "Pod"}}}
	scope.Name = nameOfScope("red", scope.Status.Selection, "")
	epoch := int64(0)
	m.catchUp = func(_ context.Context, replica string) error {
		g.Expect(replica).To(Equal("you"))
		epoch++
		c := claim("red", "1", v1alpha1.StateConnected, 1)
		c.Status.Epoch = epoch
		m.Changed("you", connectionsResource, c)
		scope.Status.Objects = new(epoch)
		m.Changed("you", scopesResource, scope.DeepCopy())
		return nil
	}
	m.Replaced("you", connectionsResource, nil)
	m.Replaced("you", scopesResource, nil)
	m.Heard("you")
	ctx, connections, scopes := apiserver.Context{Context: t.Context()}, m.connections(), m.currentScopes()
	list := func() int {
		found, err := connections.List(ctx, &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return len(found.Items)
	}
	g.Expect(list()).To(BeZero(), "nothing is shared yet")
	m.current.shared()
	g.Expect(list()).To(Equal(1))
	m.get = func(context.Context, string, string, string, string, runtime.Object) error {
		return errors.New("not heard")
	}
	one, err := connections.Get(ctx, "red", &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(one.Status.Epoch).To(BeEquivalentTo(2))
	events, err := connections.Watch(ctx, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	var event apiserver.WatchEvent[*v1alpha1.Connection]
	g.Eventually(events).Should(Receive(&event))
	g.Expect(event.Type).To(Equal(watch.Added))
	g.Expect(event.Object.Status.Epoch).To(BeEquivalentTo(3))
	all, err := scopes.List(ctx, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all.Items).To(HaveLen(1))
	g.Expect(all.Items[0].Status.Objects).To(HaveValue(BeEquivalentTo(4)))
	found, err := scopes.Get(ctx, scope.Name, &metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Status.Objects).To(HaveValue(BeEquivalentTo(5)))
	_, err = scopes.Watch(ctx, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(epoch).To(BeEquivalentTo(6))
}

// Reads that come while one catches up are answered after the next, all of them: the one that runs
// may have asked before they came.
func TestReadsCatchUpTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		begun := 0
		c := newCurrent(func(context.Context) bool {
			begun++
			time.Sleep(time.Second)
			return true
		})
		c.shared()
		took := func() time.Duration {
			from := time.Now()
			g.Expect(c.await(t.Context())).To(Succeed())
			return time.Since(from)
		}
		var reads sync.WaitGroup
		reads.Go(func() { g.Expect(took()).To(Equal(time.Second)) })
		for range 5 {
			reads.Go(func() {
				time.Sleep(400 * time.Millisecond)
				g.Expect(took()).To(Equal(1600 * time.Millisecond))
			})
		}
		reads.Wait()
		g.Expect(begun).To(Equal(2))

		// One that gives up lets the others go on.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		reads.Go(func() { g.Expect(c.await(ctx)).To(MatchError(context.DeadlineExceeded)) })
		reads.Go(func() {
			time.Sleep(50 * time.Millisecond)
			g.Expect(took()).To(Equal(1950 * time.Millisecond))
		})
		reads.Wait()
	})
}

// Reads wait until all were heard out once after no other replica served any more; and not for ever
// for a replica that is not heard out.
func TestReadsWaitForATime(t *testing.T) {
	for name, tc := range map[string]struct {
		all  bool
		ends time.Duration
	}{
		"all are heard out": {true, overlap},
		"one never is":      {false, overlap + catchUpAtMost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				begun := 0
				c := newCurrent(func(ctx context.Context) bool {
					begun++
					if !tc.all {
						<-ctx.Done()
					}
					return tc.all
				})
				reads := func() int {
					before := begun
					g.Expect(c.await(t.Context())).To(Succeed())
					return begun - before
				}
				g.Expect(reads()).To(BeZero())
				for range 2 {
					c.shared()
					from := time.Now()
					g.Expect(reads()).To(Equal(1))
					if !tc.all {
						g.Expect(time.Since(from)).To(Equal(catchUpTimeout))
					}
					time.Sleep(time.Until(from.Add(tc.ends)))
					g.Expect(reads()).To(Equal(1), "at the end of the time, and so too early")
					time.Sleep(time.Nanosecond)
					g.Expect(reads()).To(Equal(1))
					g.Expect(reads()).To(BeZero())
				}
			})
		})
	}
}

// Replicas that are heard are waited for, and new ones; not those that are silent.
func TestWhoIsHeardOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		m := newView().merged
		var mu sync.Mutex
		var asked []string
		m.catchUp = func(_ context.Context, replica string) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, replica)
			if replica == "failing" {
				return errors.New("it gives no answer")
			}
			return nil
		}
		heard := func(replica string) {
			m.Replaced(replica, connectionsResource, nil)
			m.Heard(replica)
		}
		m.tick(time.Now())
		g.Expect(m.catchUpAll(t.Context())).To(BeTrue())
		g.Expect(asked).To(BeEmpty())
		heard("silent")
		time.Sleep(2 * silence)
		m.tick(time.Now())
		heard("without a Lease")
		heard("you")
		m.Members([]string{"new", "you"})
		g.Expect(m.catchUpAll(t.Context())).To(BeFalse())
		g.Expect(asked).To(ConsistOf("new", "you", "without a Lease"))
		m.Gone("silent")
		g.Expect(m.catchUpAll(t.Context())).To(BeTrue())
		m.Members([]string{"failing", "new", "you"})
		g.Expect(m.catchUpAll(t.Context())).To(BeFalse())
	})
}
