package scopedcache

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// drained makes every watch of lw leave nothing behind when it is stopped, and calls watching when one begins.
//
// controller-runtime passes metadata watches through watch.Filter, whose goroutine blocks for ever on the event that
// nobody takes any more: the error that a cancelled stream ends with. So each stopped metadata informer would leak a
// goroutine.
func drained(lw toolscache.ListerWatcher, watching func()) toolscache.ListerWatcher {
	return drainedListerWatcher{toolscache.ToListerWatcherWithContext(lw), watching}
}

type drainedListerWatcher struct {
	toolscache.ListerWatcherWithContext
	watching func()
}

func (d drainedListerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return d.ListWithContext(context.Background(), options)
}

func (d drainedListerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return d.WatchWithContext(context.Background(), options)
}

func (d drainedListerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	stream, err := d.ListerWatcherWithContext.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	d.watching()
	return drainedWatch{stream}, nil
}

type drainedWatch struct{ watch.Interface }

// Stop stops the stream and takes what it still holds. The stream then closes its channel, which ends the goroutine.
func (d drainedWatch) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
		}
	}()
}
