package scopedcache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A user whose life has ended reads nothing, and gets no handler and no informer. Another user of
// the same scopes reads on, and neither gets the handle of the other.
func TestUsersEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAPIServer(t)
		c := a.newCache(t).(*scopedCache)
		life, end := context.WithCancelCause(t.Context())
		second := newUser(time.Minute)
		second.begin(life)
		sibling := &scopedCache{
			env:     c.env,
			entries: c.entries,
			user:    second,
			reader:  reader{env: c.env, entries: c.entries, user: second},
		}
		hold := func(of *scopedCache) *Handle {
			handle, err := of.Hold(t.Context(), configMap(), Scope{}, HoldOptions{Name: "w", Dependent: "uid"})
			g.Expect(err).NotTo(HaveOccurred())
			return handle
		}
		ours, theirs := hold(c), hold(sibling)
		g.Expect(hold(c)).To(BeIdenticalTo(ours))
		g.Expect(theirs).NotTo(BeIdenticalTo(ours))
		informer, err := sibling.GetInformer(t.Context(), configMap())
		g.Expect(err).NotTo(HaveOccurred())
		for _, handle := range []*Handle{ours, theirs} {
			g.Expect(handle.List(t.Context(), configMapList())).To(Succeed())
		}

		ended := errors.New("their connection has ended")
		end(ended)
		synctest.Wait()
		for method, err := range map[string]error{
			"Handle.Get":      theirs.Get(t.Context(), client.ObjectKey{Name: "a"}, configMap()),
			"Handle.List":     theirs.List(t.Context(), configMapList()),
			"Handle.Readable": theirs.Readable(t.Context()),
			"Get":             sibling.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "a"}, configMap()),
			"List":            sibling.List(t.Context(), configMapList()),
			"Informer.Get":    informer.(Informer).Get(t.Context(), client.ObjectKey{Name: "a"}, configMap()),
		} {
			g.Expect(err).To(MatchError(ended), method)
		}
		_, err = theirs.AddEventHandler(toolscache.ResourceEventHandlerFuncs{})
		g.Expect(err).To(MatchError(ended))
		_, err = sibling.Hold(t.Context(), configMap(), Scope{}, HoldOptions{Name: "w", Dependent: "uid"})
		g.Expect(err).To(MatchError(ended))
		_, err = sibling.GetInformer(t.Context(), configMap())
		g.Expect(err).To(MatchError(ended))
		g.Expect(informer.IsStopped()).To(BeTrue())
		g.Expect(ours.List(t.Context(), configMapList())).To(Succeed())
		g.Expect(c.List(t.Context(), configMapList())).To(Succeed())
		g.Expect(ours.IsStopped()).To(BeFalse())
	})
}

func configMapList() client.ObjectList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(configMaps.GroupVersion().WithKind(configMaps.Kind + "List"))
	return list
}

// A read that waits for an informer ends with the life of its user, while others wait on.
func TestWaitingUsersEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		env := &environment{}
		entries := newEntrySet(env)
		e := entries.newEntry(&kind{}, Scope{})
		life, end := context.WithCancelCause(t.Context())
		first, second := newUser(time.Minute), newUser(time.Hour)
		first.begin(t.Context())
		second.begin(life)
		results := map[*user]chan error{first: make(chan error, 2), second: make(chan error, 2)}
		for u, result := range results {
			go func() {
				_, err := u.awaitReading(t.Context(), e)
				result <- err
			}()
			go func() { result <- e.awaitSettled(t.Context(), u) }()
		}
		synctest.Wait()
		ended := errors.New("their connection has ended")
		end(ended)
		synctest.Wait()
		for range 2 {
			g.Expect(results[second]).To(Receive(MatchError(ended)))
			g.Expect(results[first]).NotTo(Receive())
		}
		e.gone.Open()
		for range 2 {
			g.Expect(<-results[first]).To(MatchError(ErrReleased))
		}
	})
}
