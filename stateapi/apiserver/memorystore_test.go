package apiserver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/latchkey-dev/latchkey/examples/extensionapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
)

type memoryStore = apiserver.MemoryStore[*v1alpha1.Reservation, *v1alpha1.ReservationList]

type storeOptions = apiserver.MemoryStoreOptions[*v1alpha1.Reservation]

func newStore(options storeOptions) *memoryStore {
	options.Resource = v1alpha1.GroupVersion.WithResource("reservations").GroupResource()
	return apiserver.NewMemoryStore[*v1alpha1.Reservation, *v1alpha1.ReservationList](options)
}

func reservation(namespace, name, room string) *v1alpha1.Reservation {
	return &v1alpha1.Reservation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      name,
			Labels:    map[string]string{"room": room},
		},
		Spec: v1alpha1.ReservationSpec{Room: room},
	}
}

func in(t *testing.T, namespace string) apiserver.Context {
	return apiserver.Context{Context: t.Context(), Namespace: namespace}
}

func list(t *testing.T, s *memoryStore, namespace string, options metav1.ListOptions) *v1alpha1.ReservationList {
	t.Helper()
	found, err := s.List(in(t, namespace), &options)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return found
}

func names(found *v1alpha1.ReservationList) (names []string) {
	for i := range found.Items {
		names = append(names, found.Items[i].Namespace+"/"+found.Items[i].Name)
	}
	return names
}

// watching records the events of a watch.
type watching struct {
	lines  []string
	events []apiserver.WatchEvent[*v1alpha1.Reservation]
	ended  bool
}

// watchStore watches until the test ends, inside of a bubble. It returns when there are no more
// initial events.
func watchStore(t *testing.T, s *memoryStore, namespace string, options metav1.ListOptions) *watching {
	t.Helper()
	events, err := s.Watch(in(t, namespace), &options)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	w := &watching{}
	go func() {
		for event := range events {
			line := string(event.Type)
			if event.Type == watch.Error {
				line += " " + string(apierrors.ReasonForError(event.Err))
			} else if event.Type != watch.Bookmark {
				line += " " + event.Object.Name + " " + event.Object.Spec.Room
			} else if event.Object.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				line += " end of initial events"
			}
			w.lines, w.events = append(w.lines, line), append(w.events, event)
		}
		w.ended = true
	}()
	synctest.Wait() // until the watch has its initial events
	return w
}

func TestPut(t *testing.T) {
	g := NewWithT(t)
	s := newStore(storeOptions{})
	s.Put(reservation("b", "a", "red"))
	s.Put(reservation("a-b", "a", "red"))
	s.Put(reservation("a", "b", "red"))
	s.Put(reservation("a", "a", "red"))
	before := list(t, s, "", metav1.ListOptions{})
	g.Expect(names(before)).To(Equal([]string{"a/a", "a/b", "a-b/a", "b/a"}), "by namespace, then by name")
	g.Expect(names(list(t, s, "a", metav1.ListOptions{}))).To(Equal([]string{"a/a", "a/b"}))

	s.Put(reservation("a", "a", "red"))
	g.Expect(list(t, s, "", metav1.ListOptions{}).ResourceVersion).To(Equal(before.ResourceVersion),
		"the same object is no change")
	s.Put(reservation("a", "a", "blue"))
	after := list(t, s, "", metav1.ListOptions{})
	g.Expect(after.ResourceVersion > before.ResourceVersion).To(BeTrue())
	g.Expect(after.Items[0].ResourceVersion).To(Equal(after.ResourceVersion))

	g.Expect(s.Remove("a", "a")).To(BeTrue())
	g.Expect(s.Remove("a", "a")).To(BeFalse())
	_, err := s.Get(in(t, "a"), "a", nil)
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
	got, err := s.Get(in(t, "a"), "b", nil)
	g.Expect(err).NotTo(HaveOccurred())
	got.Spec.Room = "changed"
	got, err = s.Get(in(t, "a"), "b", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Spec.Room).To(Equal("red"), "a copy")
}

func TestModify(t *testing.T) {
	g := NewWithT(t)
	s := newStore(storeOptions{})
	set := func(room string, err error) (*v1alpha1.Reservation, error) {
		return s.Modify("n", "a", func(current *v1alpha1.Reservation, found bool) (*v1alpha1.Reservation, bool, error) {
			if !found {
				current = reservation("n", "a", room)
			}
			current.Spec.Room = room
			return current, room != "", err
		})
	}
	stored, err := set("red", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stored.ResourceVersion).NotTo(BeEmpty())
	again, err := set("red", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.ResourceVersion).To(Equal(stored.ResourceVersion), "the same object is no change")
	_, err = set("blue", errFailed)
	g.Expect(err).To(MatchError(errFailed))
	g.Expect(list(t, s, "", metav1.ListOptions{}).Items[0].Spec.Room).To(Equal("red"), "an error changes nothing")
	_, err = s.Modify("n", "a", func(*v1alpha1.Reservation, bool) (*v1alpha1.Reservation, bool, error) {
		return reservation("n", "other", "red"), true, nil
	})
	g.Expect(err).To(MatchError(ContainSubstring("another name")))
	_, err = set("", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(list(t, s, "", metav1.ListOptions{}).Items).To(BeEmpty())
}

var errFailed = fmt.Errorf("failed")

// The version of a list is that of a watch that misses nothing, and versions of an earlier process
// are too old.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		earlier := newStore(storeOptions{})
		earlier.Put(reservation("n", "a", "red"))
		old := list(t, earlier, "", metav1.ListOptions{}).ResourceVersion
		time.Sleep(time.Second) // inside of the bubble
		s := newStore(storeOptions{History: 10})
		start := list(t, s, "", metav1.ListOptions{}).ResourceVersion
		_, err := s.Watch(in(t, ""), &metav1.ListOptions{ResourceVersion: old})
		g.Expect(apierrors.IsResourceExpired(err)).To(BeTrue(), "%v", err)
		_, err = earlier.Watch(in(t, ""), &metav1.ListOptions{ResourceVersion: start})
		g.Expect(apierrors.IsTimeout(err)).To(BeTrue(), "%v", err)
		_, err = earlier.List(in(t, ""), &metav1.ListOptions{ResourceVersion: start})
		g.Expect(apierrors.IsTimeout(err)).To(BeTrue(), "%v", err)
		_, err = s.List(in(t, ""), &metav1.ListOptions{
			ResourceVersion:      old,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		})
		g.Expect(apierrors.IsResourceExpired(err)).To(BeTrue(), "%v", err)
		_, err = s.Watch(in(t, ""), &metav1.ListOptions{ResourceVersion: "x"})
		g.Expect(apierrors.IsBadRequest(err)).To(BeTrue(), "%v", err)

		for i := range 15 { // without the clock moving on
			s.Put(reservation("n", fmt.Sprintf("%02d", i), "red"))
		}
		seen := map[string]bool{}
		for _, item := range list(t, s, "", metav1.ListOptions{}).Items {
			seen[item.ResourceVersion] = true
		}
		g.Expect(seen).To(HaveLen(15), "each change has a version of its own")
		w := watchStore(t, s, "", metav1.ListOptions{ResourceVersion: start})
		synctest.Wait()
		g.Expect(w.lines).To(HaveLen(15))
		for i := range 1000 {
			s.Put(reservation("n", "00", fmt.Sprint(i)))
		}
		_, err = s.Watch(in(t, ""), &metav1.ListOptions{ResourceVersion: start})
		g.Expect(apierrors.IsResourceExpired(err)).To(BeTrue(), "the history is bounded: %v", err)
	})
}

// A client that wants pages gets one list, and a watch that follows leads from there to what the
// store has now: nothing goes back.
func TestWholeLists(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			random := rand.New(rand.NewPCG(seed, 1))
			s := newStore(storeOptions{})
			change := func() {
				for range random.IntN(6) {
					name := string(rune('a' + random.IntN(12)))
					if random.IntN(3) == 0 {
						s.Remove("n", name)
					} else {
						s.Put(reservation("n", name, strconv.Itoa(random.IntN(5))))
					}
				}
			}
			for range 10 {
				change()
			}
			whole := list(t, s, "", metav1.ListOptions{})
			options := metav1.ListOptions{Limit: 1 + random.Int64N(3)}
			found := list(t, s, "", options)
			g.Expect(found.Items).To(Equal(whole.Items))
			g.Expect(found.Continue).To(BeEmpty())
			g.Expect(found.RemainingItemCount).To(BeNil())
			for range 10 {
				change()
			}
			events, err := s.Watch(in(t, ""), &metav1.ListOptions{ResourceVersion: found.ResourceVersion})
			g.Expect(err).NotTo(HaveOccurred())
			watched := map[string]v1alpha1.Reservation{}
			for _, object := range found.Items {
				watched[object.Name] = object
			}
			synctest.Wait()
			for more := true; more; synctest.Wait() {
				select {
				case event := <-events:
					_, known := watched[event.Object.Name]
					g.Expect(event.Type == watch.Added).To(Equal(!known), "seed %d: %s %s", seed, event.Type, event.Object.Name)
					if watched[event.Object.Name] = *event.Object; event.Type == watch.Deleted {
						delete(watched, event.Object.Name)
					}
				default:
					more = false
				}
			}
			now := map[string]v1alpha1.Reservation{}
			for _, object := range list(t, s, "", metav1.ListOptions{}).Items {
				now[object.Name] = object
			}
			g.Expect(watched).To(Equal(now), "seed %d", seed)
		})
	}
	for _, token := range []string{"x", "e30", "!"} { // of an older version, or of another server
		_, err := newStore(storeOptions{}).List(in(t, ""), &metav1.ListOptions{Continue: token, Limit: 2})
		NewWithT(t).Expect(apierrors.IsResourceExpired(err)).To(BeTrue(), "%v", err)
	}
}

// A watch sees what enters its selection as added, and what leaves it as deleted, with the state
// before.
func TestWatchSelection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newStore(storeOptions{Fields: map[string]func(*v1alpha1.Reservation) string{
			"spec.room": func(r *v1alpha1.Reservation) string { return r.Spec.Room },
		}})
		s.Put(reservation("n", "a", "red"))
		s.Put(reservation("n", "b", "blue"))
		byLabel := watchStore(t, s, "n", metav1.ListOptions{LabelSelector: "room=red"})
		byField := watchStore(t, s, "", metav1.ListOptions{FieldSelector: "spec.room=red"})
		other := watchStore(t, s, "other", metav1.ListOptions{})
		s.Put(reservation("n", "b", "red"))
		seats := reservation("n", "b", "red")
		seats.Spec.Seats = 2
		s.Put(seats)
		s.Put(reservation("n", "a", "blue"))
		s.Remove("n", "a")
		s.Remove("n", "b")
		synctest.Wait()
		want := []string{"ADDED a red", "ADDED b red", "MODIFIED b red", "DELETED a red", "DELETED b red"}
		g.Expect(byLabel.lines).To(Equal(want))
		g.Expect(byField.lines).To(Equal(want))
		g.Expect(other.lines).To(BeEmpty())
		versions := map[string]bool{}
		for _, event := range byLabel.events {
			versions[event.Object.ResourceVersion] = true
		}
		g.Expect(versions).To(HaveLen(len(want)), "each event has its own version, deletions too")
		for _, options := range []metav1.ListOptions{{FieldSelector: "spec.seats=2"}, {LabelSelector: "a in"}} {
			_, err := s.Watch(in(t, ""), &options)
			g.Expect(apierrors.IsBadRequest(err)).To(BeTrue(), "%v", err)
			_, err = s.List(in(t, ""), &options)
			g.Expect(apierrors.IsBadRequest(err)).To(BeTrue(), "%v", err)
		}
	})
}

// The initial events end with a bookmark, and later bookmarks come from time to time.
func TestBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newStore(storeOptions{BookmarkInterval: time.Minute})
		s.Put(reservation("n", "a", "red"))
		yes, no := true, false
		initial := watchStore(t, s, "", metav1.ListOptions{
			SendInitialEvents:    &yes,
			AllowWatchBookmarks:  true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		plain := watchStore(t, s, "", metav1.ListOptions{})
		later := watchStore(t, s, "", metav1.ListOptions{SendInitialEvents: &no})
		synctest.Wait()
		g.Expect(initial.lines).To(Equal([]string{"ADDED a red", "BOOKMARK end of initial events"}))
		g.Expect(plain.lines).To(Equal([]string{"ADDED a red"}))
		g.Expect(later.lines).To(BeEmpty())
		s.Put(reservation("other", "b", "red"))
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		g.Expect(initial.lines[2:]).To(Equal([]string{"ADDED b red", "BOOKMARK"}))
		g.Expect(initial.events[3].Object.ResourceVersion).To(Equal(list(t, s, "", metav1.ListOptions{}).ResourceVersion))
		g.Expect(plain.lines).To(HaveLen(2), "not asked for bookmarks")
	})
}

// An object of another UID is another object.
func TestRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(storeOptions{})
		one := reservation("n", "a", "red")
		one.UID = types.UID("one")
		s.Put(one)
		w := watchStore(t, s, "", metav1.ListOptions{})
		two := reservation("n", "a", "blue")
		two.UID = types.UID("two")
		s.Put(two)
		synctest.Wait()
		NewWithT(t).Expect(w.lines).To(Equal([]string{"ADDED a red", "DELETED a red", "ADDED a blue"}))
	})
}

// A watch that is not read ends, and delays no other.
func TestStalledWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newStore(storeOptions{WatchTimeout: time.Minute})
		stalled, err := s.Watch(in(t, ""), &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		reading := watchStore(t, s, "", metav1.ListOptions{})
		for i := range 100 {
			s.Put(reservation("n", "a", fmt.Sprint(i)))
			synctest.Wait() // a store that waits for the stalled watch never gets here
		}
		g.Expect(reading.lines).To(HaveLen(100))
		time.Sleep(time.Minute)
		synctest.Wait()
		_, open := <-stalled
		g.Expect(open).To(BeFalse(), "late by time")
		g.Expect(reading.ended).To(BeFalse())
	})
}

// A burst of changes ends no watch whose client reads: what it has not read yet comes from the
// history.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newStore(storeOptions{})
		const objects = 2000
		for i := range objects {
			s.Put(reservation("n", fmt.Sprint(i), "red"))
		}
		version := list(t, s, "", metav1.ListOptions{}).ResourceVersion
		w := watchStore(t, s, "", metav1.ListOptions{ResourceVersion: version})
		slow, err := s.Watch(in(t, ""), &metav1.ListOptions{ResourceVersion: version})
		g.Expect(err).NotTo(HaveOccurred())
		for i := range objects {
			s.Put(reservation("n", fmt.Sprint(i), "blue"))
		}
		synctest.Wait()
		g.Expect(w.ended).To(BeFalse())
		g.Expect(w.lines).To(HaveLen(objects))
		for i := range objects { // a client that takes its time for each event
			time.Sleep(time.Second)
			event := <-slow
			g.Expect(event.Type).To(Equal(watch.Modified))
			g.Expect(event.Object.Name).To(Equal(fmt.Sprint(i)))
		}
	})
}

// A watch that is behind the history gets what is under way, then status 410, and ends.
func TestTrimmedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newStore(storeOptions{History: 10})
		late, err := s.Watch(in(t, ""), &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		for i := range 1000 {
			s.Put(reservation("n", "a", fmt.Sprint(i)))
			if i == 0 {
				synctest.Wait()
			}
		}
		first, end := <-late, <-late
		g.Expect(first.Type).To(Equal(watch.Added))
		g.Expect(end.Type).To(Equal(watch.Error))
		g.Expect(apierrors.IsResourceExpired(end.Err)).To(BeTrue(), "%v", end.Err)
		_, open := <-late
		g.Expect(open).To(BeFalse())
	})
}

// What changes while the initial events are sent is sent once, in order, and nothing is lost.
func TestInitialEventsWhileChanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		random := rand.New(rand.NewPCG(1, 2))
		s := newStore(storeOptions{})
		name := func() string { return fmt.Sprintf("%03d", random.IntN(200)) }
		for range 100 {
			s.Put(reservation("n", name(), "red"))
		}
		yes := true
		events, err := s.Watch(in(t, ""), &metav1.ListOptions{
			SendInitialEvents:    &yes,
			AllowWatchBookmarks:  true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		g.Expect(err).NotTo(HaveOccurred())
		seen, versions, ended := map[string]string{}, map[string]int64{}, false
		read := func() bool {
			synctest.Wait()
			select {
			case event := <-events:
				version, err := strconv.ParseInt(event.Object.ResourceVersion, 10, 64)
				g.Expect(err).NotTo(HaveOccurred())
				key := event.Object.Name
				_, known := seen[key]
				switch event.Type {
				case watch.Bookmark:
					ended = true
					return true
				case watch.Added:
					g.Expect(known).To(BeFalse(), key)
				default:
					g.Expect(known).To(BeTrue(), key)
				}
				g.Expect(version).To(BeNumerically(">", versions[key]), key)
				if versions[key], seen[key] = version, event.Object.Spec.Room; event.Type == watch.Deleted {
					delete(seen, key)
				}
				return true
			default:
				return false
			}
		}
		for i := range 300 {
			switch random.IntN(4) {
			case 0:
				s.Remove("n", name())
			case 1:
				s.Put(reservation("n", name(), fmt.Sprint(i)))
			default:
				read()
			}
		}
		for read() {
		}
		g.Expect(ended).To(BeTrue())
		want := map[string]string{}
		for _, item := range list(t, s, "", metav1.ListOptions{}).Items {
			want[item.Name] = item.Spec.Room
		}
		g.Expect(seen).To(Equal(want))
	})
}

// An idle watch costs the same whatever the number of objects, whether its client has read them or
// not.
func TestWatchesAreSmall(t *testing.T) {
	for _, reads := range []bool{true, false} {
		t.Run(fmt.Sprintf("reads=%t", reads), func(t *testing.T) {
			g := NewWithT(t)
			const objects, watches = 5000, 20
			s := newStore(storeOptions{})
			for i := range objects {
				s.Put(reservation("n", fmt.Sprint(i), "red"))
			}
			inUse := func() uint64 {
				runtime.GC()
				runtime.GC()
				var stats runtime.MemStats
				runtime.ReadMemStats(&stats)
				return stats.HeapAlloc + stats.StackInuse
			}
			before := inUse()
			var open []<-chan apiserver.WatchEvent[*v1alpha1.Reservation]
			for range watches {
				events, err := s.Watch(in(t, ""), &metav1.ListOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				for range objects {
					if reads {
						<-events
					}
				}
				open = append(open, events)
			}
			g.Eventually(func() uint64 { return (max(inUse(), before) - before) / watches }).WithTimeout(patience).
				Should(BeNumerically("<", 24<<10), "bytes for each watch")
			runtime.KeepAlive(open)
		})
	}
}

// A client that does not read keeps no objects in memory.
func TestStalledWatchKeepsNothing(t *testing.T) {
	g := NewWithT(t)
	s := newStore(storeOptions{History: 1})
	stalled, err := s.Watch(in(t, ""), &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	var kept []weak.Pointer[v1alpha1.Reservation]
	for i := range 100 {
		object := reservation("n", "a", fmt.Sprint(i))
		kept = append(kept, weak.Make(object))
		s.Put(object)
	}
	g.Eventually(func() (alive int) {
		runtime.GC()
		for _, object := range kept {
			if object.Value() != nil {
				alive++
			}
		}
		return alive
	}).WithTimeout(patience).Should(BeNumerically("<=", 5), "the history of one object")
	for range stalled { // until it is closed
	}
}

// A watch ends with its context, and its channel is closed.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newStore(storeOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		s.Put(reservation("n", "a", "red"))
		events, err := s.Watch(apiserver.Context{Context: ctx}, &metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		cancel()
		synctest.Wait()
		for range events { // at most what was under way
		}
	})
}

// What changes all the time is filled in on read, and is no change.
func TestOnRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		seats := int32(0)
		s := newStore(storeOptions{
			OnRead: func(r *v1alpha1.Reservation) { r.Spec.Seats = seats },
			OnGet:  func(r *v1alpha1.Reservation) { r.Spec.Seats = 100 * seats },
		})
		s.Put(reservation("n", "a", "red"))
		version := list(t, s, "", metav1.ListOptions{}).ResourceVersion
		seats = 7
		found := list(t, s, "", metav1.ListOptions{})
		g.Expect(found.Items[0].Spec.Seats).To(BeEquivalentTo(7))
		g.Expect(found.ResourceVersion).To(Equal(version))
		w := watchStore(t, s, "", metav1.ListOptions{})
		synctest.Wait()
		g.Expect(w.events[0].Object.Spec.Seats).To(BeEquivalentTo(7))
		got, err := s.Get(in(t, "n"), "a", nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.Spec.Seats).To(BeEquivalentTo(700))
		s.Put(reservation("n", "a", "red"))
		g.Expect(list(t, s, "", metav1.ListOptions{}).ResourceVersion).To(Equal(version))
	})
}

// A function of Fields that panics ends its request, and leaves the store usable.
func TestPanickingField(t *testing.T) {
	g := NewWithT(t)
	s := newStore(storeOptions{Fields: map[string]func(*v1alpha1.Reservation) string{
		"spec.room": func(*v1alpha1.Reservation) string { panic("no room") },
	}})
	options := &metav1.ListOptions{FieldSelector: "spec.room=red"}
	before, err := s.Watch(in(t, ""), options)
	g.Expect(err).NotTo(HaveOccurred())
	s.Put(reservation("n", "a", "red")) // the owner of the store is not touched
	g.Expect(func() { _, _ = s.List(in(t, ""), options) }).To(Panic())
	after, err := s.Watch(in(t, ""), options)
	g.Expect(err).NotTo(HaveOccurred())
	for _, events := range []<-chan apiserver.WatchEvent[*v1alpha1.Reservation]{before, after} {
		g.Eventually(events).WithTimeout(patience).Should(BeClosed())
	}
	s.Put(reservation("n", "b", "red"))
	g.Expect(list(t, s, "", metav1.ListOptions{}).Items).To(HaveLen(2))
}
