package listwatch

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/latchkey-dev/latchkey/internal/latch"
	"github.com/latchkey-dev/latchkey/internal/term"
)

// Observer learns how watches go that the API server has answered. client-go reports only some of
// that. The calls for one watch come in order, Began first and Ended last. They must not block.
type Observer interface {
	// WatchBegan is called before the first event. lists says whether a list comes first.
	WatchBegan(lists bool)
	// WatchListed is called when the informer has taken the bookmark that ends the list.
	WatchListed()
	// WatchEnded is called once for each watch, after it has lasted so long. stopped says that the
	// informer ended it. Else err is why, nil if client-go takes the end for one without an error,
	// and early says that the API server was asked to let it last a second longer, or more.
	WatchEnded(lasted time.Duration, early, stopped bool, err error)
}

// observedDecoder reports to an Observer what it decodes.
type observedDecoder struct {
	watch.Decoder
	observer Observer
	ctx      context.Context // of the request
	began    time.Time
	asked    time.Duration // how long the watch is to last; 0 if that was not said
	listed   bool          // the event before ended the list
	since    time.Time     // when the watch began, or the list that it begins with ended
	events   bool          // there was an event since then
	ended    atomic.Bool
	closed   latch.Latch
}

// observe returns a decoder that reports to observer how a watch with those options goes.
func observe(ctx context.Context, decoder watch.Decoder, observer Observer, options *metav1.ListOptions) watch.Decoder {
	if observer == nil {
		return decoder
	}
	observer.WatchBegan(ptr.Deref(options.SendInitialEvents, false))
	now := time.Now()
	return &observedDecoder{
		Decoder:  decoder,
		observer: observer,
		ctx:      ctx,
		began:    now,
		since:    now,
		asked:    time.Duration(ptr.Deref(options.TimeoutSeconds, 0)) * time.Second,
	}
}

// Decode implements watch.Decoder.
func (d *observedDecoder) Decode() (watch.EventType, runtime.Object, error) {
	if d.listed {
		d.listed = false
		d.observer.WatchListed()
	}
	event, object, err := d.Decoder.Decode()
	switch {
	case err == nil:
		d.events = true
	case errors.Is(err, term.ErrHandedOver):
		d.end(true, nil)
		d.awaitLeastWatch()
		return event, object, io.EOF
	}
	switch {
	case err != nil && d.ctx.Err() != nil:
		d.end(true, nil)
	case err != nil:
		d.end(false, unlessEOF(err))
	case event == watch.Error:
		d.end(false, errorOf(object))
	case event == watch.Bookmark:
		if d.listed = endsList(object); d.listed {
			d.since, d.events = time.Now(), false
		}
	}
	return event, object, err
}

// leastWatch is how long a watch without events lasts at least: client-go lists again after one
// that is shorter than a second. After the list that it may begin with, it is leastAfterList,
// because client-go begins to count when the list is in its store.
const leastWatch, leastAfterList = 1100 * time.Millisecond, 3 * time.Second

// awaitLeastWatch delays the end of a watch that another sender is to go on with, so that it goes
// on without a list. Nothing is lost: it goes on where it ended.
func (d *observedDecoder) awaitLeastWatch() {
	if d.events {
		return
	}
	least := leastWatch
	if d.since.After(d.began) {
		least = leastAfterList
	}
	select {
	case <-time.After(least - time.Since(d.since)):
	case <-d.ctx.Done():
	case <-d.closed.Done():
	}
}

// Close implements watch.Decoder.
func (d *observedDecoder) Close() {
	d.closed.Open()
	d.end(true, nil) // before Decode fails because of it
	d.Decoder.Close()
}

func (d *observedDecoder) end(stopped bool, err error) {
	if !d.ended.Swap(true) {
		lasted := time.Since(d.began)
		d.observer.WatchEnded(lasted, !stopped && lasted+time.Second < d.asked, stopped, err)
	}
}

// unlessEOF returns nil for an error that client-go's StreamWatcher takes for the end of the
// stream.
func unlessEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsProbableEOF(err) ||
		utilnet.IsTimeout(err) {
		return nil
	}
	return errors.Wrap(err, "reading a watch")
}

// errorOf returns the error in an ERROR event. An object that is no Status is not quoted.
func errorOf(object runtime.Object) error {
	if status, ok := object.(*metav1.Status); ok {
		return apierrors.FromObject(status)
	}
	return errors.Errorf("an ERROR event of a watch has a %T, and no Status", object)
}

// endsList reports whether a bookmark ends a streamed list.
func endsList(bookmark runtime.Object) bool {
	object, err := meta.Accessor(bookmark)
	return err == nil && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
