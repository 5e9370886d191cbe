package extensionsource

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// extensions implements Extensions.
type extensions struct {
	objects   []client.Object
	unhealthy func() []Unhealthy
}

func (e extensions) Objects() []client.Object { return e.objects }
func (e extensions) Unhealthy() []Unhealthy {
	if e.unhealthy == nil {
		return nil
	}
	return e.unhealthy()
}

func object(name, version string) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// A consumer that hangs delays no other consumer. When it resumes, the consumer receives each
// extension once, in its last state.
func TestSourceCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		all := &Hub{}
		release := make(chan struct{})
		received := map[string]string{}
		calls := 0
		src := New(all, extensions{objects: []client.Object{object("known", "1")}}, Options{ControllerName: "slow"},
			func(_ context.Context, o client.Object) []ctrl.Request {
				<-release
				calls++
				received[o.GetName()] = o.GetResourceVersion()
				o.SetName("renamed")
				return nil
			})
		queue := priorityqueue.New[ctrl.Request]("test")
		ctx, cancel := context.WithCancel(t.Context())
		g.Expect(src.Start(ctx, queue)).To(Succeed())
		synctest.Wait() // the source hangs with "known"
		shared := object("shared", "1")
		all.Changed(shared)
		defer func() { g.Expect(shared.GetName()).To(Equal("shared"), "map functions get copies") }()
		for i := range 1000 {
			all.Changed(object("busy", fmt.Sprint(i)))
			all.Changed(object("other", fmt.Sprint(i)))
		}
		close(release)
		synctest.Wait()
		g.Expect(received).To(Equal(map[string]string{"known": "1", "busy": "999", "other": "999", "shared": "1"}))
		g.Expect(calls).To(Equal(4))

		cancel()
		synctest.Wait()
		g.Expect(all.changes.HasSubscribers()).To(BeFalse(), "a stopped source is removed")
		g.Expect(all.looks.HasSubscribers()).To(BeFalse())
		all.Changed(object("busy", "after"))
		g.Expect(received).NotTo(HaveKeyWithValue("busy", "after"))
		queue.ShutDown()
	})
}

// After a restart, what changes has precedence over what was there before.
func TestFirstEventsHaveALowPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		all := &Hub{}
		known := extensions{objects: []client.Object{object("known", "1"), object("changes", "1")}}
		toItself := func(_ context.Context, o client.Object) []ctrl.Request {
			return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
		}
		queue := priorityqueue.New[ctrl.Request]("test")
		ctx, cancel := context.WithCancel(t.Context())
		g.Expect(New(all, known, Options{}, toItself).Start(ctx, queue)).To(Succeed())
		synctest.Wait()
		all.Changed(object("changes", "1"))
		all.Changed(object("new", "1"))
		synctest.Wait()
		priorities := map[string]int{}
		for range 3 {
			request, priority, _ := queue.GetWithPriority()
			priorities[request.Name] = priority
			queue.Done(request)
		}
		g.Expect(priorities).To(Equal(map[string]int{"known": handler.LowPriority, "changes": 0, "new": 0}))
		cancel()
		queue.ShutDown()
		synctest.Wait()
	})
}

func TestSourceSurvivesItsMapFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		all := &Hub{}
		src := New(all, extensions{}, Options{ControllerName: "panics"},
			func(_ context.Context, o client.Object) []ctrl.Request {
				if o.GetName() == "bad" {
					panic("no")
				}
				return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
			})
		queue := priorityqueue.New[ctrl.Request]("test")
		ctx, cancel := context.WithCancel(t.Context())
		g.Expect(src.Start(ctx, queue)).To(Succeed())
		all.Changed(object("bad", "1"))
		synctest.Wait()
		all.Changed(object("good", "1"))
		synctest.Wait()
		g.Expect(queue.Len()).To(Equal(1))
		cancel()
		queue.ShutDown()
		synctest.Wait()
	})
}

func TestSourceNeedsAMapFunction(t *testing.T) {
	src := New[ctrl.Request](&Hub{}, extensions{}, Options{ControllerName: "none"}, nil)
	NewWithT(t).Expect(src.Start(t.Context(), nil)).To(MatchError(ContainSubstring("no map function")))
	NewWithT(t).Expect(fmt.Sprint(src)).To(ContainSubstring("none"))
}

// A source delivers one event per episode without success. A success ends the episode.
func TestProbeFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		const long = time.Minute
		var mu sync.Mutex
		var failing []Unhealthy // guarded by mu
		set := func(list ...Unhealthy) {
			mu.Lock()
			defer mu.Unlock()
			failing = list
		}
		var received []string // guarded by mu
		ctx, cancel := context.WithCancel(t.Context())
		go (&Hub{}).Listen(ctx, extensions{unhealthy: func() []Unhealthy {
			mu.Lock()
			defer mu.Unlock()
			return failing
		}}, long, func(o client.Object) {
			mu.Lock()
			defer mu.Unlock()
			received = append(received, o.GetName())
		})
		after := func(wait time.Duration) []string {
			<-time.After(wait)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			events := received
			received = nil
			return events
		}
		red, blue := object("red", "1"), object("blue", "1")
		begun := time.Now()
		set(Unhealthy{red, begun}, Unhealthy{blue, begun.Add(long / 2)})
		g.Expect(after(long-long/20)).To(BeEmpty(), "the episode has not lasted long enough")
		g.Expect(after(long / 10)).To(Equal([]string{"red"}))
		g.Expect(after(10*long)).To(Equal([]string{"blue"}), "each episode causes one event")
		set(Unhealthy{blue, begun.Add(long / 2)})
		g.Expect(after(long)).To(BeEmpty())
		set(Unhealthy{red, time.Now()}, Unhealthy{blue, begun.Add(long / 2)})
		g.Expect(after(2*long)).To(Equal([]string{"red"}), "another episode causes another event")
		set(Unhealthy{red, time.Now()})
		g.Expect(after(long / 2)).To(BeEmpty())
		g.Expect(after(2*long)).To(Equal([]string{"red"}), "a success between two checks ends an episode too")
		cancel()
	})
}

// racing is an Extensions that changes during a call of Objects.
type racing struct{ hub *Hub }

func (r racing) Objects() []client.Object {
	old := object("red", "1")
	r.hub.Changed(object("red", "2"))
	return []client.Object{old}
}
func (racing) Unhealthy() []Unhealthy { return nil }

// A change during the start of a source is not lost, and no older object replaces it.
func TestChangeWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := &Hub{}
		ctx, cancel := context.WithCancel(t.Context())
		var versions []string
		go hub.Listen(ctx, racing{hub}, 0, func(o client.Object) { versions = append(versions, o.GetResourceVersion()) })
		synctest.Wait()
		NewWithT(t).Expect(versions).To(Equal([]string{"2"}))
		cancel()
	})
}

// A consumer that has stopped receives nothing more, not even pending extensions.
func TestStopWhileDelivering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		(&Hub{}).Listen(ctx, extensions{objects: []client.Object{object("red", "1"), object("blue", "1")}}, 0,
			func(client.Object) { calls++; cancel() })
		NewWithT(t).Expect(calls).To(Equal(1))
	})
}

func TestEpisodes(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	red := object("red", "1")
	key := client.ObjectKeyFromObject(red)
	reported, news := episodes{}.next([]Unhealthy{{red, now.Add(-time.Minute)}}, now, time.Minute)
	g.Expect(news).To(HaveLen(1))
	g.Expect(reported).To(HaveKey(key))
	reported, news = reported.next([]Unhealthy{{red, now.Add(-time.Minute)}}, now.Add(time.Hour), time.Minute)
	g.Expect(news).To(BeEmpty(), "the episode was reported already")
	reported, news = reported.next([]Unhealthy{{red, now}}, now.Add(time.Hour), time.Minute)
	g.Expect(news).To(HaveLen(1), "another episode, without a check in between")
	reported, news = reported.next(nil, now.Add(time.Hour), time.Minute)
	g.Expect(reported).To(BeEmpty())
	g.Expect(news).To(BeEmpty())
}
