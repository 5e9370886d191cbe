package apiserver

import (
	"context"
	"sync/atomic"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// forwarder is the watch.Interface of a store's channel.
type forwarder struct {
	result chan watch.Event
	served atomic.Bool        // the library has begun to serve the watch, so it will call Stop
	cancel context.CancelFunc // ends the store's part
	end    func()             // ends the watch
}

// forward delivers the events of a store until ctx is done or the store closes the channel. Stop
// calls end. A client that does not read keeps its request, so the watch has ended only then.
func forward[T runtime.Object](ctx context.Context, cancel context.CancelFunc, end func(),
	events <-chan WatchEvent[T]) *forwarder {
	f := &forwarder{result: make(chan watch.Event), cancel: cancel, end: end}
	go func() {
		defer close(f.result)
		defer f.cancel()
		for event := range events {
			out := watch.Event{Type: event.Type}
			if event.Type == watch.Error {
				out.Object = statusObject(event.Err)
			} else {
				out.Object = event.Object
			}
			select {
			case f.result <- out:
			case <-ctx.Done():
				for range events { // until the store has closed the channel, as it must now
				}
				return
			}
		}
	}()
	return f
}

func statusObject(err error) runtime.Object {
	if err == nil {
		err = errors.New("the watch has ended")
	}
	if status, ok := statusOf(err).(apierrors.APIStatus); ok {
		full := status.Status()
		return &full
	}
	full := apierrors.NewInternalError(err).Status()
	return &full
}

// Stop implements watch.Interface.
func (f *forwarder) Stop() {
	f.cancel()
	f.end()
}

// ResultChan implements watch.Interface.
func (f *forwarder) ResultChan() <-chan watch.Event {
	f.served.Store(true)
	return f.result
}
