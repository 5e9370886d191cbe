package stateapi

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// What a replica has that was not heard out in time is Unknown, until all is heard that it had,
// also if it was silent meanwhile.
func TestReplicaThatIsHeardLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newView()
		m := f.merged
		var answers, speaks, known atomic.Bool // the first two of one replica
		answers.Store(true)
		speaks.Store(true)
		known.Store(true)
		m.catchUp = func(ctx context.Context, replica string) error {
			if replica == "late" && !answers.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		m.checkMembers = func(context.Context) error {
			if !known.Load() {
				return errors.New("no API server")
			}
			return nil
		}
		m.Members([]string{"late", "other"})
		for replica, name := range map[string]string{"late": "red", "other": "blue"} {
			c := claim(name, "uid-"+name, v1alpha1.StateConnected, 1)
			c.Status.Epoch = 5
			m.Changed(replica, connectionsResource, c)
			m.Heard(replica)
		}
		f.know("green", "uid-green")
		var running sync.WaitGroup
		defer running.Wait()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		running.Go(func() {
			for tick := time.NewTicker(time.Second); ctx.Err() == nil; {
				select {
				case <-ctx.Done():
					tick.Stop()
				case <-tick.C:
					m.Heard("other")
					if speaks.Load() {
						m.Heard("late")
					}
					m.tick(time.Now())
				}
			}
		})
		serving, stop := context.WithCancel(ctx)
		running.Go(func() { m.hearOutLater(serving) })
		round := func() error {
			bounded, cancel := context.WithTimeout(ctx, catchUpTimeout)
			defer cancel()
			return m.hearOut(bounded)
		}
		shows := func(state string, epoch int64, unclaimed string) {
			t.Helper()
			synctest.Wait()
			for name, want := range map[string][]any{"red": {state, epoch}, "blue": {v1alpha1.StateConnected, int64(5)}} {
				c, _, _ := (&Replicas{f}).Show(client.ObjectKey{Name: name})
				g.Expect([]any{c.Status.State, c.Status.Epoch}).To(Equal(want), name)
			}
			c, _, _ := (&Replicas{f}).Show(client.ObjectKey{Name: "green"})
			g.Expect(c.Status.State).To(Equal(unclaimed))
			_, silent := (&Replicas{f}).Members()
			if state == v1alpha1.StateConnected {
				g.Expect(silent).To(BeEmpty())
				g.Expect(f.gauges().Silent).To(BeZero())
			} else {
				g.Expect(silent).To(HaveKey("late"))
				g.Expect(f.gauges().Silent).To(Equal(1))
			}
		}
		g.Expect(round()).To(Succeed())
		shows(v1alpha1.StateConnected, 5, v1alpha1.StateDisconnected)

		answers.Store(false)
		begun := time.Now()
		g.Expect(round()).NotTo(Succeed())
		shows(v1alpha1.StateUnknown, 0, v1alpha1.StateUnknown)
		c, _, _ := (&Replicas{f}).Show(client.ObjectKey{Name: "red"})
		g.Expect(c.Status.Message).To(Equal("replica late is heard late: it was asked at " +
			begun.UTC().Format(time.RFC3339) + " what it has, and may have said more since"))
		_, silent := (&Replicas{f}).Members()
		g.Expect(silent["late"]).To(BeTemporally("==", begun))

		// It is silent: it is not asked. When it is heard again, it is heard out before it is believed.
		speaks.Store(false)
		time.Sleep(2 * silence)
		g.Expect(round()).To(MatchError(ContainSubstring("replica late is silent")))
		c, _, _ = (&Replicas{f}).Show(client.ObjectKey{Name: "red"})
		g.Expect(c.Status.Message).To(HavePrefix("replica late was not heard since "))
		speaks.Store(true)
		time.Sleep(time.Minute)
		shows(v1alpha1.StateUnknown, 0, v1alpha1.StateUnknown)
		c, _, _ = (&Replicas{f}).Show(client.ObjectKey{Name: "red"})
		g.Expect(c.Status.Message).To(HavePrefix("replica late is heard late: "))
		_, silent = (&Replicas{f}).Members()
		g.Expect(silent["late"]).To(BeTemporally(">", begun))
		g.Expect(time.Since(silent["late"])).To(BeNumerically(">=", time.Minute), "what is asked later raises no doubt")
		answers.Store(true)
		speaks.Store(false)
		time.Sleep(2 * silence) // what was asked ends
		speaks.Store(true)
		time.Sleep(2 * time.Second)
		shows(v1alpha1.StateConnected, 5, v1alpha1.StateDisconnected)

		// Who is a member is not known for a while.
		known.Store(false)
		g.Expect(round()).To(MatchError("no API server"))
		shows(v1alpha1.StateConnected, 5, v1alpha1.StateUnknown)
		known.Store(true)
		time.Sleep(2 * askAgain)
		shows(v1alpha1.StateConnected, 5, v1alpha1.StateDisconnected)

		// Clients do not read what it shows any more.
		answers.Store(false)
		known.Store(false)
		g.Expect(round()).NotTo(Succeed())
		shows(v1alpha1.StateUnknown, 0, v1alpha1.StateUnknown)
		stop()
		synctest.Wait()
		m.settle()
		shows(v1alpha1.StateConnected, 5, v1alpha1.StateDisconnected)
	})
}

// What was in doubt is heard out while the server runs, one question at a time. When it has ended,
// nothing is in doubt. A round that ends with it raises no doubt.
func TestDoubtWhileAReplicaServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newView()
		m := f.merged
		var mu sync.Mutex
		asked, most := 0, 0
		answer := make(chan struct{})
		m.catchUp = func(ctx context.Context, _ string) error {
			mu.Lock()
			asked++
			most = max(most, asked)
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				asked--
			}()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-answer:
				return nil
			}
		}
		m.Members([]string{"late"})
		m.Changed("late", connectionsResource, claim("red", "1", v1alpha1.StateConnected, 1))
		m.Heard("late")
		shows := func(state string) {
			t.Helper()
			synctest.Wait()
			c, _, _ := (&Replicas{f}).Show(client.ObjectKey{Name: "red"})
			g.Expect(c.Status.State).To(Equal(state))
		}
		reading, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		current := newCurrent(nil, m.hearOut)
		var hearing sync.WaitGroup
		hearing.Go(func() { f.hear(reading, current, ended) })
		g.Expect(current.await(t.Context())).To(Succeed())
		shows(v1alpha1.StateUnknown)
		time.Sleep(10 * askLater)
		mu.Lock()
		g.Expect(most).To(Equal(1))
		mu.Unlock()
		close(answer)
		shows(v1alpha1.StateConnected)

		mu.Lock()
		answer = make(chan struct{})
		mu.Unlock()
		g.Expect(current.await(t.Context())).To(Succeed())
		shows(v1alpha1.StateUnknown)
		stop()
		shows(v1alpha1.StateUnknown)
		close(ended)
		hearing.Wait()
		shows(v1alpha1.StateConnected)

		reading, stop = context.WithCancel(t.Context())
		ended = make(chan struct{})
		current = newCurrent(nil, m.hearOut)
		hearing.Go(func() { f.hear(reading, current, ended) })
		hearing.Go(func() { g.Expect(current.await(t.Context())).NotTo(Succeed()) })
		synctest.Wait()
		stop()
		shows(v1alpha1.StateConnected)
		close(ended)
		hearing.Wait()
	})
}
