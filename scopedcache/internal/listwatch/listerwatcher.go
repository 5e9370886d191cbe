package listwatch

import (
	"context"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/deepcall"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// ListerWatcher lists and watches for an informer, and reports every answer of the API server. The
// informer itself does not always report: it retries errors that it takes for temporary without a
// notice.
//
// Temporary errors are retried here, because an informer that receives an error waits up to a
// minute before its next request.
type ListerWatcher struct {
	toolscache.ListerWatcherWithContext
	// Report is called after every list and watch, with the time when it was sent. err is nil if
	// the API server served it. retry says whether to send the request again.
	Report    func(request monitor.Request, sent time.Time, err error) (retry bool)
	OnWatch   func(stream watch.Interface) // called for each watch
	Unstreams func() bool                  // whether the kind is listed, and not streamed; may become true
	// Turn, if not nil, waits for the turn of a list, or of a watch that begins with a list. release
	// ends the turn: called here if the request fails, or when a list has been read; the list of a
	// watch has been read when its Observer says so. begins is false for further pages of a list.
	Turn      func(ctx context.Context, begins bool) (release func(), err error)
	ReturnAll bool          // return every error to the informer
	Poll      time.Duration // if not 0, the interval of lists instead of watches
	// Consistent makes a list that may be of any version one of the latest version. Streamed lists
	// are.
	Consistent bool
}

// errNotStreamed makes a Reflector that has begun to stream lists fall back to list.
var errNotStreamed = errors.New("the lists of this kind are not streamed")

// IsWatchListSemanticsUnSupported makes client-go list if there are no watches, or no streamed
// lists, or if the wrapped ListerWatcher asks for that.
func (l *ListerWatcher) IsWatchListSemanticsUnSupported() bool {
	return l.Poll > 0 || l.Unstreams() || watchlist.DoesClientNotSupportWatchListSemantics(l.ListerWatcherWithContext)
}

// List implements toolscache.ListerWatcher.
func (l *ListerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// ListWithContext implements toolscache.ListerWatcherWithContext.
func (l *ListerWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return sendUntilServed(ctx, l, newRequest("list", options), func() (runtime.Object, error) {
		release, err := l.turn(ctx, options.Continue == "")
		if err != nil {
			return nil, err
		}
		defer release()
		if l.Consistent && options.ResourceVersion == "0" {
			// API servers answer lists of any version in one page whatever the limit is. So does this.
			options.ResourceVersion, options.Limit = "", 0
		}
		return l.ListerWatcherWithContext.ListWithContext(ctx, options)
	})
}

// Watch implements toolscache.ListerWatcher.
func (l *ListerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements toolscache.ListerWatcherWithContext.
func (l *ListerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if l.Poll > 0 {
		return newPoll(l.Poll), nil
	}
	request := newRequest("watch", options)
	var release func()
	var err error
	if request.Lists && !l.Unstreams() {
		if release, err = l.turn(ctx, true); err != nil { // here, because many wait at once
			return nil, err
		}
	}
	stream := deepcall.Run(func() (stream watch.Interface) {
		stream, err = l.watch(ctx, options, request, release)
		return stream
	})
	return stream, err
}

// watch sends a watch. release ends the turn that it has, nil for none.
func (l *ListerWatcher) watch(ctx context.Context, options metav1.ListOptions, request monitor.Request,
	release func()) (watch.Interface, error) {
	if request.Lists && l.Unstreams() {
		if release != nil {
			release()
		}
		return nil, errNotStreamed // before it is reported: the API server was not asked
	}
	stream, err := sendUntilServed(ctx, l, request, func() (stream watch.Interface, err error) {
		if request.Lists && release == nil { // an attempt has failed
			if release, err = l.turn(ctx, true); err != nil {
				return nil, err
			}
		}
		if stream, err = l.ListerWatcherWithContext.WatchWithContext(ctx, options); err != nil && release != nil {
			release()
			release = nil
		}
		return stream, err
	})
	if err != nil {
		return nil, err
	}
	l.OnWatch(stream)
	return stream, nil
}

// turn waits for the turn of a list.
func (l *ListerWatcher) turn(ctx context.Context, begins bool) (release func(), err error) {
	if l.Turn == nil {
		return func() {}, nil
	}
	return l.Turn(ctx, begins)
}

// newRequest describes a request.
func newRequest(verb string, options metav1.ListOptions) monitor.Request {
	return monitor.Request{
		Verb: verb,
		Fresh: options.ResourceVersion == "" &&
			options.Continue == "",
		Lists: options.SendInitialEvents != nil && *options.SendInitialEvents,
	}
}

// sendUntilServed sends a request until the API server serves it, or answers with an error that is
// not to be retried.
func sendUntilServed[result any](ctx context.Context, l *ListerWatcher, request monitor.Request,
	send func() (result, error)) (result, error) {
	pauses := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: .1, Steps: 10, Cap: 10 * time.Second}
	for {
		sent := time.Now()
		r, err := send()
		if errors.Is(err, term.ErrHandedOver) && ctx.Err() == nil {
			continue // the next sender answers
		}
		if ctx.Err() != nil || !l.Report(request, sent, err) || l.ReturnAll {
			return r, err
		}
		select {
		case <-time.After(pauses.Step()):
		case <-ctx.Done():
			return r, err
		}
	}
}

// newPoll returns a watch that reports after the given time that its version is too old, so that
// the informer lists again.
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
