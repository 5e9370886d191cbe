package scopedcache

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// listerWatcher is what an informer lists and watches with. It tells what the API server answers,
// which the informer itself does not always do: it tries again in silence what it takes for
// passing.
//
// What passes it tries again by itself, for an informer that is told of errors waits up to a minute
// after the last of them.
//
// And it makes every watch leave nothing behind when it is stopped. controller-runtime passes
// metadata watches through watch.Filter, whose goroutine blocks for ever on the event that nobody
// takes any more: the error that a cancelled stream ends with. So each stopped metadata informer
// would leak a goroutine.
type listerWatcher struct {
	toolscache.ListerWatcherWithContext
	// answered is told of every list and watch, and when it was sent; err is nil if it was served.
	answered func(what monitor.Request, sent time.Time, err error) (passes bool)
	began    func(stream watch.Interface, lists bool) // told of every watch, and whether it lists first
	tellAll  bool                                     // the informer is told of every error
	poll     time.Duration                            // if not 0, there are no watches, but lists so far apart
}

// IsWatchListSemanticsUnSupported tells client-go to list when there are no watches, or when who is
// wrapped says so.
func (l *listerWatcher) IsWatchListSemanticsUnSupported() bool {
	return l.poll > 0 || watchlist.DoesClientNotSupportWatchListSemantics(l.ListerWatcherWithContext)
}

func (l *listerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

func (l *listerWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return served(ctx, l, requestOf("list", options), func() (runtime.Object, error) {
		return l.ListerWatcherWithContext.ListWithContext(ctx, options)
	})
}

func (l *listerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

func (l *listerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if l.poll > 0 {
		return newPoll(l.poll), nil
	}
	what := requestOf("watch", options)
	stream, err := served(ctx, l, what, func() (watch.Interface, error) {
		return l.ListerWatcherWithContext.WatchWithContext(ctx, options)
	})
	if err != nil {
		return nil, err
	}
	l.began(stream, what.Lists)
	return drainedWatch{stream}, nil
}

// requestOf describes a request.
func requestOf(verb string, options metav1.ListOptions) monitor.Request {
	return monitor.Request{Verb: verb, Fresh: options.ResourceVersion == "" &&
		options.Continue == "", Lists: options.SendInitialEvents != nil && *options.SendInitialEvents}
}

// served sends a request until it is served, or refused for good.
func served[result any](ctx context.Context, l *listerWatcher, what monitor.Request,
	send func() (result, error)) (result, error) {
	pauses := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: .1, Steps: 10, Cap: 10 * time.Second}
	for {
		sent := time.Now()
		r, err := send()
		if ctx.Err() != nil || !l.answered(what, sent, err) || l.tellAll {
			return r, err
		}
		select {
		case <-time.After(pauses.Step()):
		case <-ctx.Done():
			return r, err
		}
	}
}

type drainedWatch struct{ watch.Interface }

// Stop stops the stream and takes what it still holds. The stream then closes its channel, which
// ends the goroutine.
func (d drainedWatch) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
		}
	}()
}

// newPoll returns a watch that says after a while that it is too old, so that the informer lists.
func newPoll(after time.Duration) watch.Interface {
	events := make(chan watch.Event, 1)
	timer := time.AfterFunc(after, func() {
		status := apierrors.NewResourceExpired("it is time to list again").Status()
		events <- watch.Event{Type: watch.Error, Object: &status}
	})
	return &pollWatch{events: events, timer: timer}
}

type pollWatch struct {
	events chan watch.Event
	timer  *time.Timer
}

func (p *pollWatch) Stop()                          { p.timer.Stop() }
func (p *pollWatch) ResultChan() <-chan watch.Event { return p.events }
