package lightinformer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/objectpool"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m)
}

// recorder is a handler that records what it receives, for each object. In the result of a list the
// order of objects says nothing.
type recorder struct {
	events map[string][]string
	block  chan struct{} // if not nil, calls wait for it
}

func newRecorder() *recorder { return &recorder{events: map[string][]string{}} }

func (r *recorder) record(object any, format string, args ...any) {
	if r.block != nil {
		<-r.block
	}
	name := object.(*corev1.ConfigMap).Name
	r.events[name] = append(r.events[name], fmt.Sprintf(format, args...))
}

func (r *recorder) OnAdd(object any, initial bool) {
	r.record(object, "add %s, initial: %t", describe(object), initial)
}

func (r *recorder) OnUpdate(old, object any) {
	r.record(object, "update %s to %s", describe(old), describe(object))
}

func (r *recorder) OnDelete(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		r.record(unknown.Obj, "delete %s, unseen: %s", unknown.Key, describe(unknown.Obj))
		return
	}
	r.record(object, "delete %s", describe(object))
}

func describe(object any) string {
	c := object.(*corev1.ConfigMap)
	return fmt.Sprintf("%s@%s %s", c.UID, c.ResourceVersion, c.Annotations["transformed"])
}

// markTransformed is idempotent, as client-go demands of a transform.
func markTransformed(object any) (any, error) {
	object.(*corev1.ConfigMap).Annotations = map[string]string{"transformed": "yes"}
	return object, nil
}

// subject is an informer under test, with a source and handlers of its own.
type subject struct {
	informer      toolscache.SharedIndexInformer
	source        *source
	recorders     []*recorder
	registrations []toolscache.ResourceEventHandlerRegistration
}

func (s *subject) add(g Gomega, resync time.Duration) {
	r := newRecorder()
	registration, err := s.informer.AddEventHandlerWithOptions(r, toolscache.HandlerOptions{ResyncPeriod: &resync})
	g.Expect(err).NotTo(HaveOccurred())
	s.recorders, s.registrations = append(s.recorders, r), append(s.registrations, registration)
}

// do does one step of a script. Equal seeds do the same.
func (s *subject) do(g Gomega, random *rand.Rand) {
	switch random.IntN(10) {
	case 0, 1, 2, 3:
		s.source.put(fmt.Sprintf("object-%d", random.IntN(5)))
	case 4, 5:
		s.source.delete(fmt.Sprintf("object-%d", random.IntN(5)))
	case 6: // changes that no watch reports
		s.source.pause()
		for range random.IntN(5) {
			if name := fmt.Sprintf("object-%d", random.IntN(5)); random.IntN(2) == 0 {
				s.source.put(name)
			} else {
				s.source.delete(name)
			}
		}
		s.source.expire()
		time.Sleep(5 * time.Minute) // more than all delays of the Reflector
	case 7:
		s.source.close()
		time.Sleep(5 * time.Minute)
	case 8:
		s.add(g, 0)
	case 9:
		if n := random.IntN(len(s.registrations)); n > 0 {
			g.Expect(s.informer.RemoveEventHandler(s.registrations[n])).To(Succeed())
		}
	}
}

// Handlers receive what client-go's SharedIndexInformer gives them, whatever happens, and the store
// has the same objects.
func TestAsClientGo(t *testing.T) {
	for seed := range uint64(60) {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, streaming %t", seed, streaming), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := NewWithT(t)
					ours, theirs := compare(t, seed, streaming)
					for n := range theirs.recorders {
						g.Expect(ours.recorders[n].events).To(Equal(theirs.recorders[n].events), "handler %d", n)
						g.Expect(ours.registrations[n].HasSynced()).To(Equal(theirs.registrations[n].HasSynced()), "handler %d", n)
					}
					g.Expect(ours.informer.GetStore().List()).To(ConsistOf(theirs.informer.GetStore().List()...))
					g.Expect(ours.informer.GetStore().ListKeys()).To(HaveLen(ours.informer.(*Informer).Objects()))
					g.Expect(ours.informer.LastSyncResourceVersion()).To(Equal(theirs.informer.LastSyncResourceVersion()))
				})
			})
		}
	}
}

// indexers are those that a cache gives to its informers.
var indexers = toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}

// compare runs the same script with an informer of ours and one of client-go.
func compare(t *testing.T, seed uint64, streaming bool) (ours, theirs *subject) {
	ours, theirs = &subject{source: newSource(streaming)}, &subject{source: newSource(streaming)}
	ours.informer = New(ours.source, &corev1.ConfigMap{}, 0, indexers)
	theirs.informer = toolscache.NewSharedIndexInformer(theirs.source, &corev1.ConfigMap{}, 0, indexers)
	for _, s := range []*subject{ours, theirs} {
		NewWithT(t).Expect(s.informer.SetTransform(markTransformed)).To(Succeed())
		defer s.runScript(t, seed, func() {})()
	}
	return ours, theirs
}

// runScript starts the informer and runs the script of a seed. It calls check after each step.
func (s *subject) runScript(t *testing.T, seed uint64, check func()) (stop func()) {
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range random.IntN(4) {
		s.source.put(fmt.Sprintf("object-%d", random.IntN(5)))
	}
	s.add(g, 0)
	stop = run(t, s.informer)
	synctest.Wait()
	check()
	for range 25 {
		s.do(g, random)
		synctest.Wait()
		check()
	}
	return stop
}

// Informers with one pool have the same objects once, each of which was transformed once, and leave
// nothing in the pool.
func TestSharedObjects(t *testing.T) {
	for seed := range uint64(20) {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, streaming %t", seed, streaming), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := NewWithT(t)
					pool := &objectpool.Pool{}
					var subjects []*subject
					var stops []func()
					for range 3 {
						s := &subject{source: newSource(streaming)} // equal seeds make equal objects
						informer := New(s.source, &corev1.ConfigMap{}, 0, indexers)
						informer.ShareObjects(pool)
						g.Expect(informer.SetTransform(transformOnce(t))).To(Succeed())
						s.informer = informer
						stops = append(stops, s.runScript(t, seed, func() {
							if len(subjects) == 0 {
								g.Expect(pool.Len()).To(Equal(informer.Objects()))
							}
						}))
						subjects = append(subjects, s)
					}
					for _, object := range subjects[0].informer.GetStore().List() {
						for _, other := range subjects[1:] {
							same, exists, err := other.informer.GetStore().Get(object)
							g.Expect(err).NotTo(HaveOccurred())
							g.Expect(exists).To(BeTrue())
							g.Expect(same).To(BeIdenticalTo(object))
						}
					}
					g.Expect(pool.Len()).To(Equal(len(subjects[0].informer.GetStore().List())))
					for _, stop := range stops {
						stop()
					}
					g.Expect(pool.Len()).To(BeZero())
				})
			})
		}
	}
}

// transformOnce returns a transform that fails the test if it receives its own result.
func transformOnce(t *testing.T) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if object.(*corev1.ConfigMap).Annotations["transformed"] != "" {
			t.Error("an object was transformed twice")
		}
		return markTransformed(object)
	}
}

// Objects of the same UID and resourceVersion whose contents differ are not shared, and a list that
// fails leaves nothing in the pool.
func TestWhatIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		pool := &objectpool.Pool{}
		for n := range 2 {
			s := &subject{source: newSource(true)}
			s.source.put("object")
			informer := New(s.source, &corev1.ConfigMap{}, 0, indexers)
			informer.ShareObjects(pool)
			g.Expect(informer.SetTransform(func(object any) (any, error) {
				object.(*corev1.ConfigMap).Data = map[string]string{"seen by": fmt.Sprint(n)}
				return object, nil
			})).To(Succeed())
			defer run(t, informer)()
			synctest.Wait()
			g.Expect(informer.GetStore().List()).To(ConsistOf(HaveField("Data", HaveKeyWithValue("seen by", fmt.Sprint(n)))))
		}
		g.Expect(pool.Len()).To(Equal(2))

		failing := &store{Informer: New(nil, &corev1.ConfigMap{}, 0, indexers)}
		failing.ShareObjects(pool)
		good := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "1"}}
		g.Expect(failing.Replace([]any{good, "no object"}, "1")).NotTo(Succeed())
		g.Expect(pool.Len()).To(Equal(2))
	})
}

// run runs an informer. The returned function stops it and waits for its end.
func run(t *testing.T, informer toolscache.SharedIndexInformer) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		informer.Run(end)
	}()
	return func() {
		close(end)
		<-ended
	}
}

// Handlers are resynced at the same times as client-go's.
func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var counts [2][]int
		for n, create := range []func(*source) toolscache.SharedIndexInformer{
			func(s *source) toolscache.SharedIndexInformer { return New(s, &corev1.ConfigMap{}, time.Hour, nil) },
			func(s *source) toolscache.SharedIndexInformer {
				return toolscache.NewSharedIndexInformer(s, &corev1.ConfigMap{}, time.Hour, nil)
			},
		} {
			s := &subject{source: newSource(false)}
			s.source.put("object")
			s.informer = create(s.source)
			for _, period := range []time.Duration{0, time.Hour, 40 * time.Second, time.Millisecond} {
				s.add(g, period)
			}
			stop := run(t, s.informer)
			time.Sleep(10*time.Minute + time.Second/2)
			s.add(g, time.Second/2) // after the start, so not more often than before
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			for _, r := range s.recorders {
				counts[n] = append(counts[n], len(r.events["object"]))
			}
			stop()
		}
		t.Log("events of each handler:", counts[0])
		g.Expect(counts[0]).To(Equal(counts[1]))
		g.Expect(counts[0][2]).To(BeNumerically("~", 30, 1), "20.5 minutes, every 40 s")
	})
}

// ofHandlers returns how many goroutines handlers have.
func ofHandlers() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:goruntime.Stack(stacks, true)]), "lightinformer.(*listener).deliver")
}

// A handler has no goroutine while there is nothing to deliver.
func TestIdleHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &subject{source: newSource(true)}
		s.source.put("object")
		s.informer = New(s.source, &corev1.ConfigMap{}, 0, nil)
		defer run(t, s.informer)()
		synctest.Wait()
		before := ofHandlers()
		for range 10 {
			s.add(g, 0)
		}
		synctest.Wait()
		g.Expect(ofHandlers()).To(Equal(before))
		for _, r := range s.recorders {
			g.Expect(r.events).To(HaveLen(1))
		}
	})
}

// A handler that hangs delays no other handler and not the store. A removed handler receives
// nothing that is still in its queue. The informer ends when the last call has returned.
func TestHandlerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &subject{source: newSource(true)}
		s.source.put("first")
		s.informer = New(s.source, &corev1.ConfigMap{}, 0, nil)
		for range 3 {
			s.add(g, 0)
		}
		s.recorders[0].block, s.recorders[1].block = make(chan struct{}), make(chan struct{})
		stop := run(t, s.informer)
		synctest.Wait()
		s.source.put("second")
		synctest.Wait()
		g.Expect(s.recorders[2].events).To(HaveLen(2))
		g.Expect(s.informer.GetStore().List()).To(HaveLen(2))
		g.Expect(s.registrations[0].HasSynced()).To(BeFalse())
		g.Expect(s.registrations[2].HasSynced()).To(BeTrue())

		g.Expect(s.informer.RemoveEventHandler(s.registrations[0])).To(Succeed())
		shutdown := make(chan error, 1)
		go func() { shutdown <- toolscache.ShutDownEventHandler(s.informer, s.registrations[0]) }()
		synctest.Wait()
		g.Expect(shutdown).NotTo(Receive(), "a call is in progress")
		close(s.recorders[0].block)
		synctest.Wait()
		g.Expect(shutdown).To(Receive(BeNil()))
		g.Expect(s.recorders[0].events).To(HaveLen(1), "the second object was still in its queue")

		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		synctest.Wait()
		g.Expect(stopped).NotTo(BeClosed(), "a call is in progress")
		g.Expect(s.informer.IsStopped()).To(BeTrue())
		_, err := s.informer.AddEventHandler(newRecorder())
		g.Expect(err).To(MatchError(ContainSubstring("stopped")))
		close(s.recorders[1].block)
		<-stopped
		g.Expect(s.recorders[1].events).To(HaveLen(1), "what is in queues is dropped")
	})
}

// The store has the whole result of a list at once.
func TestListAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &subject{source: newSource(true)}
		for n := range 50 {
			s.source.put(fmt.Sprint("object-", n))
		}
		s.informer = New(s.source, &corev1.ConfigMap{}, 0, nil)
		var sizes []int
		_, err := s.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) {
			sizes = append(sizes, len(s.informer.GetStore().ListKeys()))
		}})
		g.Expect(err).NotTo(HaveOccurred())
		defer run(t, s.informer)()
		synctest.Wait()
		g.Expect(slices.Compact(sizes)).To(Equal([]int{50}))
	})
}

// A server that refuses lists is asked as rarely as client-go's informer asks it, and every error
// is reported.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var lists, errs [2]int
		for n, create := range []func(toolscache.ListerWatcher) toolscache.SharedIndexInformer{
			func(lw toolscache.ListerWatcher) toolscache.SharedIndexInformer {
				return New(lw, &corev1.ConfigMap{}, 0, nil)
			},
			func(lw toolscache.ListerWatcher) toolscache.SharedIndexInformer {
				return toolscache.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, 0, nil)
			},
		} {
			informer := create(&refusing{source: newSource(false), lists: &lists[n]})
			g.Expect(informer.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {
				errs[n]++
			})).To(Succeed())
			stop := run(t, informer)
			time.Sleep(time.Hour)
			stop()
			g.Expect(informer.SetTransform(nil)).NotTo(Succeed(), "it has started")
		}
		t.Log("lists in an hour:", lists)
		g.Expect(lists[0]).To(BeNumerically("~", lists[1], 30))
		g.Expect(errs[0]).To(Equal(lists[0]))
	})
}

// refusing is a source that refuses lists.
type refusing struct {
	*source
	lists *int
}

func (r *refusing) List(metav1.ListOptions) (runtime.Object, error) {
	*r.lists++
	return nil, errors.New("refused")
}

// A transform that panics ends the process. Where utilruntime.ReallyCrash says otherwise, the
// informer lists again later, as client-go's does, and what it has had so far is not held.
func TestTransformThatPanics(t *testing.T) {
	really, handlers := utilruntime.ReallyCrash, utilruntime.PanicHandlers
	defer func() { utilruntime.ReallyCrash, utilruntime.PanicHandlers = really, handlers }()
	utilruntime.ReallyCrash = false
	for name, streaming := range map[string]bool{"list": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				var panics []any
				utilruntime.PanicHandlers = []func(context.Context, any){func(_ context.Context, cause any) {
					panics = append(panics, cause)
				}}
				s := newSource(streaming)
				s.put("a")
				s.put("b")
				pool := &objectpool.Pool{}
				informer := New(s, &corev1.ConfigMap{}, 0, indexers)
				informer.ShareObjects(pool)
				g.Expect(informer.SetTransform(func(object any) (any, error) {
					if object.(*corev1.ConfigMap).Name == "b" && len(panics) < 3 {
						panic("no b")
					}
					return object, nil
				})).To(Succeed())
				stop := run(t, informer)
				time.Sleep(time.Minute)
				synctest.Wait()
				g.Expect(panics).To(HaveLen(3))
				g.Expect(fmt.Sprint(panics[0])).To(ContainSubstring("no b"))
				g.Expect(informer.HasSynced()).To(BeTrue())
				g.Expect(pool.Len()).To(Equal(2))
				stop()
				g.Expect(pool.Len()).To(BeZero())
			})
		})
	}
}

// A panic ends the process at once, and does not wait for handlers.
func TestPanicWhileAHandlerHangs(t *testing.T) {
	really, handlers := utilruntime.ReallyCrash, utilruntime.PanicHandlers
	defer func() { utilruntime.ReallyCrash, utilruntime.PanicHandlers = really, handlers }()
	utilruntime.ReallyCrash, utilruntime.PanicHandlers = true, nil
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newSource(false)
		s.put("a")
		informer := New(s, &corev1.ConfigMap{}, 0, indexers)
		g.Expect(informer.SetTransform(func(object any) (any, error) {
			if object.(*corev1.ConfigMap).Name == "b" {
				panic("no b")
			}
			return object, nil
		})).To(Succeed())
		goOn := make(chan struct{})
		defer close(goOn)
		_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { <-goOn }})
		g.Expect(err).NotTo(HaveOccurred())
		panicked := make(chan any, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			defer func() { panicked <- recover() }()
			informer.RunWithContext(ctx)
		}()
		synctest.Wait()
		g.Expect(informer.HasSynced()).To(BeTrue())
		s.put("b")
		synctest.Wait()
		g.Expect(panicked).To(Receive(MatchError(ContainSubstring("no b"))))
	})
}

// An index function that panics leaves the holds of other informers alone, where the process goes
// on.
func TestIndexThatPanics(t *testing.T) {
	g := NewWithT(t)
	object := func() any {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "1"}}
	}
	pool := &objectpool.Pool{}
	other := pool.Hold(object())
	panics := true
	s := &store{Informer: New(nil, &corev1.ConfigMap{}, 0, toolscache.Indexers{"i": func(any) ([]string, error) {
		if panics {
			panic("no index")
		}
		return nil, nil
	}})}
	s.ShareObjects(pool)
	g.Expect(func() { _ = s.Replace([]any{object()}, "1") }).To(Panic())
	panics = false
	g.Expect(s.Replace([]any{object()}, "1")).To(Succeed())
	g.Expect(s.Objects()).To(Equal(1))
	g.Expect(s.Replace(nil, "2")).To(Succeed())
	g.Expect(pool.Len()).To(Equal(1), "the other informer has it")
	pool.Release(other)
	g.Expect(pool.Len()).To(BeZero())

	panics = true
	g.Expect(func() { _ = s.Add(object()) }).To(Panic())
	panics = false
	g.Expect(s.Objects()).To(Equal(len(s.indexer.List())))
	g.Expect(s.Replace(nil, "3")).To(Succeed())
	g.Expect(pool.Len()).To(BeZero())
}

// Transforms, and so what the store does, run on goroutines that end, and not on that of the
// Reflector.
func TestReflectorKeepsASmallStack(t *testing.T) {
	for name, streaming := range map[string]bool{"list": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s := newSource(streaming)
				s.put("a")
				informer := New(s, &corev1.ConfigMap{}, 0, indexers)
				var stacks []string
				g.Expect(informer.SetTransform(func(object any) (any, error) {
					stacks = append(stacks, string(debug.Stack()))
					return object, nil
				})).To(Succeed())
				stop := run(t, informer)
				defer stop()
				synctest.Wait()
				s.put("b")
				s.put("b")
				s.delete("b")
				synctest.Wait()
				g.Expect(stacks).To(HaveLen(4))
				for _, stack := range stacks {
					g.Expect(stack).NotTo(ContainSubstring("ListAndWatchWithContext("))
				}
			})
		})
	}
}

// A streamed list takes the objects of other informers as it comes, and keeps nothing of it when it
// has ended. A list that has a name twice leaves no hold.
func TestStreamedObjects(t *testing.T) {
	g := NewWithT(t)
	pool := &objectpool.Pool{}
	object := func(version string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: version}}
	}
	known := object("1")
	pool.Hold(known)
	s := &store{Informer: New(nil, &corev1.ConfigMap{}, 0, indexers)}
	s.ShareObjects(pool)
	streamed, err := s.Transformer()(object("1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(streamed).To(BeIdenticalTo(known))
	g.Expect(s.Replace([]any{streamed}, "1")).To(Succeed())
	g.Expect(s.streamed).To(BeNil())
	g.Expect(s.Replace([]any{object("2"), object("3")}, "3")).To(Succeed())
	g.Expect(s.Objects()).To(Equal(1))
	pool.Release(known)
	g.Expect(pool.Len()).To(Equal(1))
	g.Expect(s.Replace(nil, "4")).To(Succeed())
	g.Expect(pool.Len()).To(BeZero())
	g.Expect(s.Bookmark("5")).To(Succeed())
	g.Expect(s.Update("text")).NotTo(Succeed())
}

// A stream that ends before its bookmark begins anew, with one Transformer for all attempts. What
// the earlier attempts have sent is not kept.
func TestStreamsThatEndEarly(t *testing.T) {
	g := NewWithT(t)
	s := &store{Informer: New(nil, &corev1.ConfigMap{}, 0, indexers)}
	transforms := 0
	g.Expect(s.SetTransform(func(object any) (any, error) { transforms++; return object, nil })).To(Succeed())
	transform := s.Transformer()
	const attempts = 50
	var latest any
	for range attempts {
		var err error
		latest, err = transform(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}})
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(s.streamed).To(HaveLen(1))
	g.Expect(s.Replace([]any{latest}, "1")).To(Succeed())
	g.Expect(transforms).To(Equal(attempts), "the object of the last attempt is not transformed twice")
}

// An object that a list names twice is one object to handlers, with its last state.
func TestListThatNamesAnObjectTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		informer := New(nil, &corev1.ConfigMap{}, 0, indexers)
		s := &store{Informer: informer}
		r := newRecorder()
		_, err := informer.AddEventHandler(r)
		g.Expect(err).NotTo(HaveOccurred())
		object := func(version string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: version}}
		}
		g.Expect(s.Replace([]any{object("1"), object("2"), object("2")}, "3")).To(Succeed())
		synctest.Wait()
		g.Expect(r.events["a"]).To(Equal([]string{"add a@2 , initial: true"}))
		g.Expect(s.Replace([]any{object("4"), object("5")}, "6")).To(Succeed())
		synctest.Wait()
		g.Expect(r.events["a"]).To(HaveLen(2))
		g.Expect(r.events["a"][1]).To(Equal("update a@2  to a@5 "))
	})
}

// A handler that is added late has synced when the objects that are there were delivered to it, and
// not before.
func TestLateHandlerSyncsAfterItsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &subject{source: newSource(true)}
		s.source.put("first")
		s.informer = New(s.source, &corev1.ConfigMap{}, 0, nil)
		stop := run(t, s.informer)
		synctest.Wait()
		g.Expect(s.informer.HasSynced()).To(BeTrue())
		late := newRecorder()
		late.block = make(chan struct{})
		registration, err := s.informer.AddEventHandler(late)
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		g.Expect(registration.HasSynced()).To(BeFalse(), "the handler has not returned")
		close(late.block)
		synctest.Wait()
		g.Expect(registration.HasSynced()).To(BeTrue())
		stop()
	})
}

// A handler that is removed during a call receives nothing more, also not the rest of what was
// taken with that call's event.
func TestRemovedDuringABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &subject{source: newSource(true)}
		s.source.put("first")
		s.informer = New(s.source, &corev1.ConfigMap{}, 0, nil)
		s.add(g, 0)
		r := s.recorders[0]
		r.block = make(chan struct{})
		stop := run(t, s.informer)
		synctest.Wait() // in the call about the first object
		s.source.put("second")
		s.source.put("third")
		synctest.Wait()
		r.block <- struct{}{}
		synctest.Wait() // in the call about the second one, with the third in the same batch
		g.Expect(s.informer.RemoveEventHandler(s.registrations[0])).To(Succeed())
		close(r.block)
		synctest.Wait()
		g.Expect(r.events).To(And(HaveKey("first"), HaveKey("second"), Not(HaveKey("third"))))
		stop()
	})
}

// journal is a handler that records its calls in their order, and that of synced among them.
type journal struct {
	calls []string
	block chan struct{} // if not nil, calls wait for it
}

func (j *journal) record(call string) {
	if j.block != nil {
		<-j.block
	}
	j.calls = append(j.calls, call)
}

func (j *journal) OnAdd(object any, _ bool) { j.record("add " + object.(*corev1.ConfigMap).Name) }
func (j *journal) OnUpdate(_, object any)   { j.record("update " + object.(*corev1.ConfigMap).Name) }
func (j *journal) OnDelete(object any)      { j.record("delete " + object.(*corev1.ConfigMap).Name) }
func (j *journal) synced()                  { j.record("synced") }
func (j *journal) addTo(g Gomega, i *Informer) (registration toolscache.ResourceEventHandlerRegistration) {
	registration, err := i.AddEventHandlerThen(j, toolscache.HandlerOptions{}, j.synced)
	g.Expect(err).NotTo(HaveOccurred())
	return registration
}

// The call that a handler has synced comes once, after the initial objects and before what follows:
// for one that waits for the first list, without a goroutine, and for one that is added later.
func TestCallsWhenSynced(t *testing.T) {
	for name, objects := range map[string][]string{"with an object": {"object"}, "without objects": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				var initial []string
				s := newSource(true)
				for _, name := range objects {
					s.put(name)
					initial = append(initial, "add "+name)
				}
				informer := New(s, &corev1.ConfigMap{}, 0, nil)
				before := ofHandlers()
				early, late := &journal{}, &journal{block: make(chan struct{})}
				early.addTo(g, informer)
				synctest.Wait()
				g.Expect(ofHandlers()).To(Equal(before), "nothing waits for the list")
				g.Expect(early.calls).To(BeEmpty())
				defer run(t, informer)()
				synctest.Wait()
				g.Expect(early.calls).To(Equal(append(initial, "synced")))

				registration := late.addTo(g, informer)
				synctest.Wait()
				s.put("later")
				synctest.Wait()
				g.Expect(late.calls).To(BeEmpty())
				g.Expect(registration.HasSynced()).To(Equal(len(objects) == 0), "objects come first")
				close(late.block)
				synctest.Wait()
				g.Expect(late.calls).To(Equal(append(initial, "synced", "add later")))
				g.Expect(early.calls).To(Equal(late.calls))
			})
		})
	}
}

// A handler that is removed before it has synced gets no call that it has, and neither does one
// whose informer stops before.
func TestNoCallBeforeSynced(t *testing.T) {
	for name, end := range map[string]func(i *Informer, of toolscache.ResourceEventHandlerRegistration, stop func()){
		"removed": func(i *Informer, of toolscache.ResourceEventHandlerRegistration, _ func()) {
			_ = i.RemoveEventHandler(of)
		},
		"stopped": func(_ *Informer, _ toolscache.ResourceEventHandlerRegistration, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s := newSource(true)
				s.put("object")
				informer := New(s, &corev1.ConfigMap{}, 0, nil)
				j := &journal{block: make(chan struct{})}
				registration := j.addTo(g, informer)
				stop := sync.OnceFunc(run(t, informer))
				synctest.Wait() // in the call about the object
				go end(informer, registration, stop)
				synctest.Wait()
				close(j.block)
				synctest.Wait()
				g.Expect(j.calls).To(Equal([]string{"add object"}))
				stop()
			})
		})
	}
}
