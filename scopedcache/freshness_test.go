package scopedcache

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/term"
)

// lagging has ConfigMaps of one namespace. Its watches can lag behind.
type lagging struct {
	api     *apiServer
	mu      sync.Mutex
	version int               // guarded by mu; of the latest write of any kind
	objects map[string]int    // guarded by mu; their versions by name
	events  []laggingEvent    // guarded by mu
	lags    bool              // guarded by mu
	flows   chan struct{}     // guarded by mu; closed and replaced when watches have something to send
	lists   []string          // guarded by mu; the queries of the lists
	refuse  func(string) bool // guarded by mu; returns true for lists that are refused, by what they continue
}

type laggingEvent struct {
	kind, name string
	version    int
}

// lag makes the watches of a server lag behind.
func lag(a *apiServer) *lagging {
	l := &lagging{api: a, version: 7, objects: map[string]int{"a": 5, "b": 6}, flows: make(chan struct{})}
	a.answers(l.answer)
	return l
}

func (l *lagging) flowLocked() {
	close(l.flows)
	l.flows = make(chan struct{})
}

// write writes an object. deleted deletes it instead.
func (l *lagging) write(name string, deleted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version += 2 // another kind has changed, too
	kind := "ADDED"
	if _, exists := l.objects[name]; exists {
		kind = "MODIFIED"
	}
	if l.objects[name] = l.version; deleted {
		kind = "DELETED"
		delete(l.objects, name)
	}
	l.events = append(l.events, laggingEvent{kind, name, l.version})
	l.version++
	l.flowLocked()
}

func (l *lagging) set(lags bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lags = lags
	l.flowLocked()
}

func (l *lagging) refuseLists(refuse func(string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = refuse
}

// listed returns the queries of the lists so far.
func (l *lagging) listed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lists)
}

func (l *lagging) answer(w http.ResponseWriter, req *http.Request) bool {
	if req.URL.Path != everywhere || l.denied() {
		return false
	}
	query := req.URL.Query()
	if query.Get("watch") == "" {
		l.list(w, req)
		return true
	}
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/json")
	if query.Get("sendInitialEvents") == "true" {
		l.mu.Lock()
		from = l.version
		for _, name := range slices.Sorted(maps.Keys(l.objects)) {
			_ = out.Encode(map[string]any{"type": "ADDED", "object": configMapOf(name, l.objects[name])})
		}
		l.mu.Unlock()
		bookmark := configMapOf("", from)
		bookmark["metadata"].(map[string]any)["annotations"] = map[string]any{metav1.InitialEventsAnnotationKey: "true"}
		_ = out.Encode(map[string]any{"type": "BOOKMARK", "object": bookmark})
	}
	for !l.denied() {
		l.mu.Lock()
		lags, flows := l.lags, l.flows
		var events []laggingEvent
		for _, event := range l.events {
			if !lags && event.version > from {
				events = append(events, event)
				from = event.version
			}
		}
		l.mu.Unlock()
		for _, event := range events {
			_ = out.Encode(map[string]any{"type": event.kind, "object": configMapOf(event.name, event.version)})
		}
		_ = flush.Flush()
		select {
		case <-flows:
		case <-req.Context().Done():
			return true
		}
	}
	return true
}

func (l *lagging) denied() bool {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	return l.api.denied
}

// list answers a list, in pages if the request asks for that.
func (l *lagging) list(w http.ResponseWriter, req *http.Request) {
	query := req.URL.Query()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lists = append(l.lists, "limit="+query.Get("limit")+" continue="+query.Get("continue"))
	if l.refuse != nil && l.refuse(query.Get("continue")) {
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	names := slices.Sorted(maps.Keys(l.objects))
	first, _ := strconv.Atoi(query.Get("continue"))
	metadata := map[string]any{"resourceVersion": strconv.Itoa(l.version)}
	names = names[first:]
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && len(names) > limit {
		names = names[:limit]
		metadata["continue"] = strconv.Itoa(first + limit)
	}
	items := []any{}
	for _, name := range names {
		items = append(items, configMapOf(name, l.objects[name]))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata,
		"items": items})
}

func configMapOf(name string, version int) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"namespace": "n", "name": name, "resourceVersion": strconv.Itoa(version)}}
}

// takeOver adds a user that acts in a term that begins now.
func takeOver(t *testing.T, c Cache) Cache {
	in, end := term.Join()
	t.Cleanup(func() { end("the test has ended") })
	return joinIn(t, c, in)
}

func joinIn(t *testing.T, c Cache, in *term.Term) Cache {
	life, leave := context.WithCancel(context.Background())
	t.Cleanup(leave)
	return c.(*scopedCache).NewUser(life, in, nil, nil, func() {})
}

// What was written before a user came is in its first read, and its handlers receive nothing older,
// whatever kind of write the informer lacks. Others read on.
func TestReadsOfATakeOverAreFresh(t *testing.T) {
	for _, test := range []struct {
		name   string
		write  func(*lagging)
		after  []string
		events []string
	}{
		{"created", func(l *lagging) { l.write("c", false) }, []string{"a", "b", "c"}, []string{"a 5", "b 6", "c 9"}},
		{"updated", func(l *lagging) { l.write("a", false) }, []string{"a", "b"}, []string{"a 9", "b 6"}},
		{"deleted", func(l *lagging) { l.write("a", true) }, []string{"b"}, []string{"b 6"}},
		{"all deleted", func(l *lagging) { l.write("a", true); l.write("b", true) }, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				a := newAPIServer(t)
				l := lag(a)
				c := a.newCache(t, func(o *Options) { o.AccessReviewInterval, o.ReadTimeout = time.Hour, time.Minute })
				before := join(t, c)
				g.Expect(list(t.Context(), before, "")).To(Succeed())
				l.set(true)
				test.write(l)
				after := takeOver(t, c)
				events := &eventLog{}
				handle, err := after.Hold(t.Context(), configMap(), Scope{}, HoldOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				registration, err := handle.AddEventHandler(events)
				g.Expect(err).NotTo(HaveOccurred())
				var names []string
				read := make(chan struct{})
				go func() {
					defer close(read)
					names, err = namesOf(t, after)
				}()
				time.Sleep(20 * time.Second)
				select {
				case <-read:
					t.Fatalf("it reads %v (%v), which is old", names, err)
				default:
				}
				g.Expect(registration.HasSynced()).To(BeFalse())
				g.Expect(handle.HasSynced()).To(BeFalse())
				g.Expect(namesOf(t, before)).To(ConsistOf("a", "b"), "who was there before reads on")
				g.Expect(l.listed()).To(Equal([]string{"limit=500 continue="}))
				l.set(false)
				<-read
				slices.Sort(names)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(names).To(Equal(test.after))
				synctest.Wait()
				g.Expect(events.sorted()).To(Equal(test.events))
				g.Expect(handle.HasSynced()).To(BeTrue())
				g.Expect(registration.HasSynced()).To(BeTrue())
				g.Expect(list(t.Context(), after, "")).To(Succeed())
				g.Expect(l.listed()).To(HaveLen(1), "later reads need none")
			})
		})
	}
}

// eventLog is a handler that records what it receives.
type eventLog struct {
	mu     sync.Mutex
	events []string // guarded by mu
}

func (e *eventLog) add(event string, object any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := object.(client.Object)
	e.events = append(e.events, event+o.GetName()+" "+o.GetResourceVersion())
}

// OnAdd implements toolscache.ResourceEventHandler.
func (e *eventLog) OnAdd(object any, _ bool) { e.add("", object) }

// OnUpdate implements toolscache.ResourceEventHandler.
func (e *eventLog) OnUpdate(_, object any) { e.add("update ", object) }

// OnDelete implements toolscache.ResourceEventHandler.
func (e *eventLog) OnDelete(object any) { e.add("delete ", object) }

func (e *eventLog) sorted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.events))
}

// What came and went before a take-over, while the watch lagged, is not seen after it.
func TestThePastIsNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		l := lag(a)
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour })
		g.Expect(list(t.Context(), join(t, c), "")).To(Succeed())
		l.set(true)
		l.write("c", false)
		l.write("c", true)
		l.write("d", false)
		l.write("d", true)
		after, events := takeOver(t, c), &eventLog{}
		g.Expect(namesOf(t, after)).To(ConsistOf("a", "b"))
		handle, err := after.Hold(t.Context(), configMap(), Scope{}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = handle.AddEventHandler(events)
		g.Expect(err).NotTo(HaveOccurred())
		l.set(false)
		time.Sleep(time.Second)
		g.Expect(events.sorted()).To(Equal([]string{"a 5", "b 6"}))
		l.write("a", false)
		l.write("c", false)
		l.write("b", true)
		time.Sleep(time.Second)
		g.Expect(namesOf(t, after)).To(ConsistOf("a", "c"))
		g.Expect(events.sorted()).To(Equal([]string{"a 5", "b 6", "c 24", "delete b 27", "update a 21"}))
	})
}

// GetInformer waits until the informer is fresh, as with an own one until it has synced. So does
// WaitForCacheSync.
func TestInformerOfATakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		l := lag(a)
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour })
		g.Expect(list(t.Context(), join(t, c), "")).To(Succeed())
		l.set(true)
		l.write("c", false)
		after := takeOver(t, c)
		bounded, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := after.GetInformer(bounded, configMap())
		g.Expect(apierrors.IsTimeout(err)).To(BeTrue(), "%v", err)
		informer, err := after.GetInformer(t.Context(), configMap(), cache.BlockUntilSynced(false))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(informer.HasSynced()).To(BeFalse())
		g.Expect(after.WaitForCacheSync(bounded)).To(BeFalse())
		synced := informer.HasSyncedChecker().Done()
		l.set(false)
		<-synced
		g.Expect(informer.HasSynced()).To(BeTrue())
		g.Expect(after.WaitForCacheSync(t.Context())).To(BeTrue())
		g.Expect(get(t, after, "c")).To(Succeed())
	})
}

// If the informer lacks nothing, a take-over takes one list, and waits for no bookmark. Users that
// come at once share that list. An informer that began in the term needs none.
func TestTakeOverOfWhatIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		l := lag(a)
		c := a.newCache(t)
		first, endFirst := term.Join()
		second, endSecond := term.Join(first)
		defer endFirst("the test has ended")
		defer endSecond("the test has ended")
		g.Expect(list(t.Context(), joinIn(t, c, first), "")).To(Succeed())
		g.Expect(list(t.Context(), joinIn(t, c, first), "")).To(Succeed())
		g.Expect(list(t.Context(), joinIn(t, c, second), "")).To(Succeed())
		g.Expect(l.listed()).To(BeEmpty(), "the informer began after their terms")
		start := time.Now()
		third := takeOver(t, c)
		g.Expect(list(t.Context(), third, "")).To(Succeed())
		g.Expect(list(t.Context(), third, "")).To(Succeed())
		g.Expect(l.listed()).To(HaveLen(1))
		g.Expect(time.Since(start)).To(BeNumerically("<", 100*time.Millisecond))
		l.write("c", false)
		var many []Cache
		for range 50 {
			many = append(many, takeOver(t, c))
		}
		var reading sync.WaitGroup
		for _, next := range many {
			reading.Go(func() {
				if names, err := namesOf(t, next); err != nil || len(names) != 3 {
					t.Errorf("%v %v", names, err)
				}
			})
		}
		reading.Wait()
		g.Expect(l.listed()).To(HaveLen(2), "they share a list")
	})
}

// A list has pages. If the API server does not know the next one any more, it is sent anew.
func TestTakeOverListsInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		l := lag(a)
		for n := range listPage {
			l.write(fmt.Sprint("more-", n), false)
		}
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval = time.Hour })
		g.Expect(list(t.Context(), join(t, c), "")).To(Succeed())
		g.Expect(list(t.Context(), takeOver(t, c), "")).To(Succeed())
		g.Expect(l.listed()).To(Equal([]string{"limit=500 continue=", "limit=500 continue=500"}))
		l.refuseLists(func(next string) bool { return next != "" })
		g.Expect(list(t.Context(), takeOver(t, c), "")).To(Succeed())
		g.Expect(l.listed()[2:]).To(Equal([]string{"limit=500 continue=", "limit=500 continue=500", "limit= continue="}))
	})
}

// A read that cannot be served in time says why: nothing was listed, or the watch does not get
// there. It is served when that is over, and so are handlers.
func TestTakeOverThatCannotBeFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		l := lag(a)
		c := a.newCache(t, func(o *Options) { o.AccessReviewInterval, o.ReadTimeout = time.Hour, 10*time.Second })
		g.Expect(list(t.Context(), join(t, c), "")).To(Succeed())
		l.refuseLists(func(string) bool { return true })
		after := takeOver(t, c)
		handle, err := after.Hold(t.Context(), configMap(), Scope{}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		registration, err := handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{})
		g.Expect(err).NotTo(HaveOccurred())
		var notSynced *NotSyncedError
		err = list(t.Context(), after, "")
		g.Expect(errors.As(err, &notSynced)).To(BeTrue())
		g.Expect(err).To(MatchError(ContainSubstring("/v1, Kind=ConfigMap is not read yet: you may not")))
		g.Expect(errors.Is(err, context.DeadlineExceeded)).To(BeTrue())

		l.set(true)
		l.write("c", false)
		l.refuseLists(nil)
		err = handle.List(t.Context(), configMapList())
		g.Expect(err).To(MatchError(errNotReached))
		g.Expect(registration.HasSynced()).To(BeFalse())
		g.Expect(handle.State().State).To(Equal(StateSynced), "as it is for others")
		g.Expect(len(l.listed())).To(BeNumerically("<", 10), "failed lists are tried again at longer and longer intervals")
		l.set(false)
		time.Sleep(time.Minute)
		g.Expect(registration.HasSynced()).To(BeTrue())
		g.Expect(get(t, after, "c")).To(Succeed())
	})
}
