package scopedcache

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// member is a user of a shared cache in a test.
type member struct {
	*scopedCache
	leave   context.CancelCauseFunc
	ended   chan struct{}
	changes atomic.Int64 // of its scopes

	mu     sync.Mutex
	states []State // guarded by mu: that its callback got
}

// reported returns the states that the user's callback got.
func (m *member) reported() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.states)
}

func join(t *testing.T, c Cache) *member {
	life, leave := context.WithCancelCause(context.Background())
	m := &member{leave: leave, ended: make(chan struct{})}
	m.scopedCache = c.(*scopedCache).NewUser(life, nil, func(_ State, now ScopeState) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.states = append(m.states, now.State)
	}, func() { m.changes.Add(1) }, func() { close(m.ended) }).(*scopedCache)
	t.Cleanup(func() { leave(nil) })
	return m
}

// Users of a cache read the same informers: the second one sends nothing. Each has its own states.
func TestUsersShareScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		first, second, third := join(t, c), join(t, c), join(t, c)
		g.Expect(get(t, first, "a")).To(Succeed())
		requests := func() []int { return []int{a.reviews(), a.listed(inN), len(a.watches())} }
		alone := requests()
		g.Expect(get(t, second, "a")).To(Succeed())
		g.Expect(list(t.Context(), second, "n")).To(Succeed())
		handle, err := second.Hold(t.Context(), configMap(), Scope{Namespace: "n"}, HoldOptions{Name: "w"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(handle.List(t.Context(), configMapList())).To(Succeed())
		g.Expect(requests()).To(Equal(alone))

		g.Expect(first.States()).To(HaveLen(1))
		g.Expect(first.States()[0].Dependents).To(BeEmpty(), "of another user")
		g.Expect(second.States()).To(HaveLen(1))
		g.Expect(second.States()[0].Dependents).To(Equal([]string{"w"}))
		g.Expect(second.States()[0].Objects).To(Equal(1))
		g.Expect(third.States()).To(BeEmpty())
		g.Expect(third.changes.Load()).To(BeZero())

		// revoked
		a.deny(true)
		a.cut()
		time.Sleep(time.Minute)
		g.Expect(first.reported()).To(ContainElement(StateForbidden))
		g.Expect(second.reported()).To(ContainElement(StateForbidden))
		g.Expect(third.reported()).To(BeEmpty(), "of scopes that it does not use")
	})
}

// When a user's life ends, nothing that it ever got reads any more, and nothing is reported to it.
// Others notice nothing.
func TestEverythingOfAUserEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		stays, leaves := join(t, c), join(t, c)
		sets, scopes := []Scope{{}, {Namespace: "n"}, {Namespaces: InNamespaces("n", "m")}}, []*Handle{}
		var observed atomic.Int64
		var events atomic.Int64
		handler := toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { events.Add(1) }}
		var registrations []toolscache.ResourceEventHandlerRegistration
		for _, scope := range sets {
			handle, err := leaves.Hold(t.Context(), configMap(), scope, HoldOptions{
				Name:          "w",
				OnStateChange: func(ScopeState) { observed.Add(1) },
			})
			g.Expect(err).NotTo(HaveOccurred())
			scopes = append(scopes, handle)
			registration, err := handle.AddEventHandler(handler)
			g.Expect(err).NotTo(HaveOccurred())
			registrations = append(registrations, registration)
			_, err = stays.Hold(t.Context(), configMap(), scope, HoldOptions{Name: "w"})
			g.Expect(err).NotTo(HaveOccurred())
		}
		pinned, err := leaves.GetInformer(t.Context(), configMap())
		g.Expect(err).NotTo(HaveOccurred())
		_, err = pinned.AddEventHandler(handler)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(get(t, leaves, "a")).To(Succeed())
		g.Expect(get(t, stays, "a")).To(Succeed())
		synctest.Wait()
		g.Expect(events.Load()).To(BeEquivalentTo(5), "each scope has the object, and the set twice")

		reason := errors.New("the connection has ended")
		leaves.leave(reason)
		synctest.Wait()
		g.Expect(leaves.ended).To(BeClosed())
		key := client.ObjectKey{Namespace: "n", Name: "a"}
		failed := map[string]error{
			"Get":               leaves.Get(t.Context(), key, configMap()),
			"List":              leaves.List(t.Context(), configMapList()),
			"Informer.Get":      pinned.(Informer).Get(t.Context(), key, configMap()),
			"Informer.Readable": pinned.(Informer).Readable(t.Context()),
			"Informer.Indexers": pinned.AddIndexers(toolscache.Indexers{"x": nil}),
			"Informer.Handler":  func() error { _, err := pinned.AddEventHandler(handler); return err }(),
			"GetInformer":       func() error { _, err := leaves.GetInformer(t.Context(), configMap()); return err }(),
			"Hold": func() error {
				_, err := leaves.Hold(t.Context(), configMap(), Scope{}, HoldOptions{})
				return err
			}(),
			"Hold of a set": func() error {
				_, err := leaves.Hold(t.Context(), configMap(), Scope{Namespaces: InNamespaces("n")}, HoldOptions{})
				return err
			}(),
		}
		for _, handle := range scopes {
			of := handle.scope.String()
			failed["Handle.Get of "+of] = handle.Get(t.Context(), key, configMap())
			failed["Handle.List of "+of] = handle.List(t.Context(), configMapList())
			failed["Handle.Readable of "+of] = handle.Readable(t.Context())
			failed["Handle.AddEventHandler of "+of] = func() error { _, err := handle.AddEventHandler(handler); return err }()
		}
		for method, err := range failed {
			g.Expect(err).To(MatchError(reason), method)
		}
		for i, handle := range scopes {
			g.Expect(handle.IsStopped()).To(BeTrue())
			g.Expect(handle.State().State).NotTo(Equal(StateSynced), "%v: what others have is not theirs to know", handle.scope)
			g.Expect(handle.State().Objects).To(BeZero())
			for _, one := range handle.Members() {
				g.Expect(one.State).NotTo(Equal(StateSynced))
			}
			g.Expect(handle.RemoveEventHandler(registrations[i])).To(Succeed())
		}
		g.Expect(pinned.IsStopped()).To(BeTrue())
		g.Expect(leaves.States()).To(BeEmpty())
		g.Expect(leaves.WaitForCacheSync(t.Context())).To(BeTrue(), "there is nothing to wait for")

		calls, noticed, states := observed.Load(), leaves.changes.Load(), leaves.reported()
		a.deny(true)
		a.cut()
		time.Sleep(time.Minute)
		a.deny(false)
		time.Sleep(time.Minute)
		g.Expect(get(t, stays, "a")).To(Succeed())
		g.Expect(stays.reported()).To(ContainElements(StateForbidden, StateSynced))
		g.Expect(observed.Load()).To(Equal(calls))
		g.Expect(leaves.changes.Load()).To(Equal(noticed))
		g.Expect(leaves.reported()).To(Equal(states))
		g.Expect(events.Load()).To(BeEquivalentTo(5))
	})
}

// The end of a user waits for the calls of its handlers, and for nothing of others.
func TestEndOfAUserWaitsForItsHandlers(t *testing.T) {
	for name, scope := range map[string]Scope{"a scope": {}, "a set": {Namespaces: InNamespaces("n", "m")}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				c := newAPIServer(t).newCache(t)
				hung, quick := join(t, c), join(t, c)
				goOn := make(chan struct{})
				add := func(m *member, f func(any)) {
					handle, err := m.Hold(t.Context(), configMap(), scope, HoldOptions{Name: "w"})
					g.Expect(err).NotTo(HaveOccurred())
					_, err = handle.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: f})
					g.Expect(err).NotTo(HaveOccurred())
				}
				calls := 0
				add(hung, func(any) { calls++; <-goOn })
				add(quick, func(any) {})
				synctest.Wait()
				quick.leave(nil)
				synctest.Wait()
				g.Expect(quick.ended).To(BeClosed())
				hung.leave(nil)
				time.Sleep(time.Minute)
				g.Expect(hung.ended).NotTo(BeClosed(), "its handler is called")
				close(goOn)
				synctest.Wait()
				g.Expect(hung.ended).To(BeClosed())
				g.Expect(calls).To(Equal(1))
			})
		})
	}
}

// What one user removes or lets go of stays for others, and fails for itself.
func TestUsersRemoveForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		first, second := join(t, c), join(t, c)
		informers := map[*member]Informer{}
		for _, m := range []*member{first, second} {
			informer, err := m.GetInformer(t.Context(), configMap())
			g.Expect(err).NotTo(HaveOccurred())
			informers[m] = informer.(Informer)
		}
		calls := 0
		registration, err := informers[first].AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { calls++ },
			DeleteFunc: func(any) { calls++ },
		})
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		g.Expect(first.RemoveInformer(t.Context(), configMap())).To(Succeed())
		g.Expect(informers[first].IsStopped()).To(BeTrue())
		g.Expect(informers[first].Readable(t.Context())).To(MatchError(ErrReleased))
		g.Expect(first.States()).To(BeEmpty())
		g.Expect(informers[second].IsStopped()).To(BeFalse())
		g.Expect(informers[second].Readable(t.Context())).To(Succeed())
		g.Expect(entryCount(c)).To(Equal(1))
		g.Expect((*c.(*scopedCache).entries).registered()).To(BeZero(), "its handlers are gone")
		g.Expect(informers[first].RemoveEventHandler(registration)).To(Succeed())

		g.Expect(list(t.Context(), first, "")).To(Succeed(), "it may begin again")
		g.Expect(informers[first].Readable(t.Context())).To(MatchError(ErrReleased), "what ended never begins again")
		g.Expect(second.RemoveInformer(t.Context(), configMap())).To(Succeed())
		g.Expect(list(t.Context(), first, "")).To(Succeed())
		g.Expect(first.RemoveInformer(t.Context(), configMap())).To(Succeed())
		synctest.Wait()
		g.Expect(entryCount(c)).To(BeZero(), "the scope ends with its last use")
		g.Expect(a.watches()).To(BeEmpty())
		g.Expect(calls).To(Equal(1))

		g.Expect(first.IndexField(t.Context(), configMap(), "x", nil)).To(MatchError(errSharedIndex))
		informer, err := second.GetInformer(t.Context(), configMap())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(informer.AddIndexers(toolscache.Indexers{"field:x": nil})).To(MatchError(errSharedIndex))
		g.Expect(informer.AddIndexers(toolscache.Indexers{"x": nil})).To(Succeed(), "no read uses it")
		set, err := second.Hold(t.Context(), configMap(), Scope{Namespaces: InNamespaces("n")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(set.AddIndexers(toolscache.Indexers{"field:x": nil})).To(MatchError(errSharedIndex))
	})
}

func entryCount(c Cache) int {
	s := c.(*scopedCache).entries
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// registered returns the number of handlers of all scopes.
func (s *entrySet) registered() (n int) {
	s.mu.Lock()
	entries := make([]*entry, 0, len(s.entries))
	for e := range s.entries {
		entries = append(entries, e)
	}
	s.mu.Unlock()
	for _, e := range entries {
		e.mu.Lock()
		n += len(e.registrations)
		e.mu.Unlock()
	}
	return n
}

// A scope ends when none of its users has read it for IdleTimeout. Each has its own.
func TestIdleUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t, func(o *Options) { o.IdleTimeout, o.AccessReviewInterval = time.Hour, time.Hour })
		first, second := join(t, c), join(t, c)
		g.Expect(list(t.Context(), first, "")).To(Succeed())
		g.Expect(list(t.Context(), second, "")).To(Succeed())
		for range 5 {
			time.Sleep(50 * time.Minute)
			g.Expect(list(t.Context(), first, "")).To(Succeed())
		}
		g.Expect(first.States()).To(HaveLen(1))
		g.Expect(second.States()).To(BeEmpty(), "it has not read for a long time")
		time.Sleep(3 * time.Hour)
		g.Expect(entryCount(c)).To(BeZero())
	})
}

// A second Hold of one user returns its handle, and never that of another.
func TestHoldOfSiblings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newAPIServer(t).newCache(t)
		first, second := join(t, c), join(t, c)
		for _, scope := range []Scope{{}, {Namespaces: InNamespaces("n")}} {
			hold := func(m *member) *Handle {
				handle, err := m.Hold(t.Context(), configMap(), scope, HoldOptions{Name: "w", Dependent: "d"})
				g.Expect(err).NotTo(HaveOccurred())
				return handle
			}
			ours, theirs := hold(first), hold(second)
			g.Expect(hold(first)).To(BeIdenticalTo(ours))
			g.Expect(theirs).NotTo(BeIdenticalTo(ours))
			g.Expect(theirs.List(t.Context(), configMapList())).To(Succeed())
			ours.Release()
			g.Expect(ours.List(t.Context(), configMapList())).To(MatchError(ErrReleased))
			g.Expect(theirs.List(t.Context(), configMapList())).To(Succeed())
			g.Expect(theirs.State().Dependents).To(Equal([]string{"w d"}))
			theirs.Release()
			synctest.Wait()
			g.Expect(entryCount(c)).To(BeZero())
		}
	})
}

// What others have begun does not change which informer a user reads from: that which feeds its own
// handlers.
func TestUsersReadTheirOwnScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t)
		wide, narrow, selective := join(t, c), join(t, c), join(t, c)
		g.Expect(list(t.Context(), wide, "")).To(Succeed())
		g.Expect(get(t, narrow, "a")).To(Succeed())
		_, err := selective.Hold(t.Context(), configMap(), Scope{Namespace: "n", FieldSelector: named("a")}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		g.Expect(get(t, selective, "a")).To(Succeed())
		g.Expect(get(t, wide, "a")).To(Succeed())
		scopesOf := func(m *member) (scopes []string) {
			for _, state := range m.States() {
				scopes = append(scopes, state.Scope.String())
			}
			slices.Sort(scopes)
			return scopes
		}
		g.Expect(scopesOf(wide)).To(Equal([]string{Scope{}.String()}))
		g.Expect(scopesOf(narrow)).To(Equal([]string{Scope{Namespace: "n"}.String()}))
		g.Expect(scopesOf(selective)).To(Equal([]string{Scope{Namespace: "n", FieldSelector: named("a")}.String()}))
	})
}

// A scope that fails goes on to serve those who read it before. Who is new there waits.
func TestNewUserOfAScopeThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t, func(o *Options) { o.ReadTimeout = 10 * time.Second })
		before, after := join(t, c), join(t, c)
		g.Expect(list(t.Context(), before, "")).To(Succeed())
		a.answers(func(w http.ResponseWriter, req *http.Request) bool {
			if isReview(req) {
				return false
			}
			w.WriteHeader(http.StatusInternalServerError)
			return true
		})
		a.cut()
		time.Sleep(time.Minute)
		g.Expect(before.States()[0].State).To(Equal(StateFailing))
		g.Expect(list(t.Context(), before, "")).To(Succeed())
		var notSynced *NotSyncedError
		g.Expect(errors.As(list(t.Context(), after, ""), &notSynced)).To(BeTrue())
		handle, err := after.Hold(t.Context(), configMap(), Scope{}, HoldOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(errors.As(handle.List(t.Context(), configMapList()), &notSynced)).To(BeTrue())
		a.answers(nil)
		time.Sleep(time.Minute)
		g.Expect(list(t.Context(), after, "")).To(Succeed())
		g.Expect(handle.List(t.Context(), configMapList())).To(Succeed())
	})
}

func configMapList() client.ObjectList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(configMaps.GroupVersion().WithKind(configMaps.Kind + "List"))
	return list
}
