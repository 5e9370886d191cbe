package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// idle is a store whose watches have no events.
type idle struct{}

func (idle) Watch(ctx Context, _ *metav1.ListOptions) (<-chan WatchEvent[*metav1.PartialObjectMetadata], error) {
	events := make(chan WatchEvent[*metav1.PartialObjectMetadata])
	context.AfterFunc(ctx, func() { close(events) })
	return events, nil
}

func idleVerb() watchVerb[*metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList] {
	return watchVerb[*metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList]{
		store: &storage[*metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList]{
			watcher: idle{},
			watches: &watchLimit{perUser: 1, total: 1},
		},
	}
}

// A watch ends after an hour, whatever the client asks for.
func TestWatchTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		long := int64(1_000_000)
		verb := idleVerb()
		w, err := verb.Watch(t.Context(), &internalversion.ListOptions{TimeoutSeconds: &long})
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(maxWatchTime - time.Second)
		synctest.Wait()
		g.Expect(w.ResultChan()).NotTo(BeClosed())
		time.Sleep(time.Second)
		synctest.Wait()
		g.Expect(w.ResultChan()).To(BeClosed())
		w.Stop()
	})
}

// A watch counts until its request has ended: a client that does not read keeps its place. A
// request that the library refuses after Watch does not keep one.
func TestWatchCountsUntilItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		verb := idleVerb()
		begin := func(ctx context.Context) (watch.Interface, error) { return verb.Watch(ctx, nil) }
		refused, cancelRefused := context.WithCancel(t.Context())
		_, err := begin(refused)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = begin(t.Context())
		g.Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
		cancelRefused() // without Stop, as the library does then
		synctest.Wait()

		served, cancelServed := context.WithCancel(t.Context())
		w, err := begin(served)
		g.Expect(err).NotTo(HaveOccurred())
		events := w.ResultChan()
		cancelServed() // the request still is in Write
		synctest.Wait()
		g.Expect(events).To(BeClosed())
		_, err = begin(t.Context())
		g.Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
		w.Stop()
		w.Stop()
		last, err := begin(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		last.Stop()
		g.Expect(verb.store.watches.byUser).To(BeEmpty())
		g.Expect(verb.store.watches.open).To(BeZero())
	})
}
