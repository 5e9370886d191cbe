package drainedwatch

import "k8s.io/apimachinery/pkg/watch"

// New returns stream with a Stop that receives the remaining events. watch.Filter needs this: an
// unread event would block its goroutine for ever. controller-runtime passes metadata watches
// through watch.Filter. When a stream is cancelled, its last event is an error, which no one
// receives any more. So each stopped metadata informer would leak a goroutine.
func New(stream watch.Interface) watch.Interface { return drained{stream} }

type drained struct{ watch.Interface }

// Stop stops the stream and receives its remaining events. The stream then closes its channel,
// which ends the goroutine.
func (d drained) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
		}
	}()
}
