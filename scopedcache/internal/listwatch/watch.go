package listwatch

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/deepcall"
)

// watchOf sends a watch and returns its events. It is the Watch of client-go's requests, except for two
// things. While nothing happens, the result keeps a goroutine with a small stack, and no buffers. And
// errors of the connection are returned; client-go repeats some of these watches, and then returns one
// without events.
func watchOf(ctx context.Context, c collection, options metav1.ListOptions) (watch.Interface, error) {
	answer := &contentTypeRecorder{next: c.httpClient().Transport}
	httpClient := *c.httpClient()
	httpClient.Transport = answer
	client, err := c.client(&httpClient)
	if err != nil {
		return nil, err
	}
	request := c.newRequest(client).SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.Unversioned)
	if limiter := client.GetRateLimiter(); limiter != nil {
		request.Throttle(&retryLimiter{RateLimiter: limiter})
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	decoder, err := newDecoder(body, answer.contentType, c.decoders())
	if err != nil {
		_ = body.Close()
		return nil, err
	}
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), decoder,
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

// retryLimiter limits the retries of a request, and not its first attempt, as client-go does for watches.
type retryLimiter struct {
	flowcontrol.RateLimiter
	sent bool
}

// Wait implements flowcontrol.RateLimiter.
func (l *retryLimiter) Wait(ctx context.Context) error {
	if !l.sent {
		l.sent = true
		return nil
	}
	return l.RateLimiter.Wait(ctx)
}

// contentTypeRecorder is a RoundTripper that records the Content-Type of the latest response, which
// rest.Request does not return with a stream.
type contentTypeRecorder struct {
	next        http.RoundTripper // nil for http.DefaultTransport
	contentType string
}

func (r *contentTypeRecorder) RoundTrip(req *http.Request) (*http.Response, error) {
	next := r.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(req)
	if err == nil {
		r.contentType = resp.Header.Get("Content-Type")
	}
	return resp, err
}

// eventDecoder decodes the events of a watch, with client-go's decoder. It waits for the first byte of
// an event in a small frame, and decodes the event on a goroutine that ends: a stack that has grown, and
// a buffer for the largest event, would stay with each watch. Only Close may be called beside Decode.
type eventDecoder struct {
	body    io.ReadCloser
	objects runtime.Decoder
	events  runtime.Decoder
	frames  runtime.Framer // nil for JSON, whose Framer reads more than one event
	// values has read a part of what follows, or all of it; nil between events. Only for JSON.
	values *json.Decoder
	first  [1]byte
}

// newDecoder returns the decoder of a watch. Like client-go it takes an answer without Content-Type for
// one in the first encoding.
func newDecoder(body io.ReadCloser, contentType string, decoders runtime.NegotiatedSerializer) (watch.Decoder, error) {
	mediaType, parameters, _ := mime.ParseMediaType(contentType) // an error leaves what could be read
	encoding := mediaType
	if mediaType == runtime.ContentTypeCBORSequence {
		encoding = runtime.ContentTypeCBOR // of each event
	}
	objects, events, frames, err := runtime.NewClientNegotiator(decoders, metav1.Unversioned).
		StreamDecoder(encoding, parameters)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	switch mediaType {
	case runtime.ContentTypeJSON:
		return &eventDecoder{body: body, objects: objects, events: events}, nil
	case runtime.ContentTypeProtobuf:
		return &eventDecoder{body: body, objects: objects, events: events, frames: frames}, nil
	}
	return restwatch.NewDecoder(streaming.NewDecoder(frames.NewFrameReader(body), events), objects), nil
}

// Decode implements watch.Decoder.
func (d *eventDecoder) Decode() (watch.EventType, runtime.Object, error) {
	if d.values == nil {
		if err := d.await(); err != nil {
			return "", nil, err
		}
	}
	return d.decode()
}

// await reads the first byte of an event.
func (d *eventDecoder) await() error {
	for {
		n, err := d.body.Read(d.first[:])
		if n > 0 && (d.frames != nil || !isSpace(d.first[0])) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func isSpace(b byte) bool { return b == '\n' || b == ' ' || b == '\r' || b == '\t' }

// decode decodes an event whose first byte has been read.
func (d *eventDecoder) decode() (event watch.EventType, object runtime.Object, err error) {
	err = deepcall.Run(func() (err error) {
		var frame io.ReadCloser
		if d.frames != nil {
			frame = d.frames.NewFrameReader(io.NopCloser(d.fromFirst()))
		} else if frame, err = d.nextJSON(); err != nil {
			return err
		}
		event, object, err = restwatch.NewDecoder(streaming.NewDecoder(frame, d.events), d.objects).Decode()
		return err
	})
	return event, object, err
}

// fromFirst reads the byte that await has read, and the body after it.
func (d *eventDecoder) fromFirst() io.Reader {
	return io.MultiReader(bytes.NewReader(d.first[:]), d.body)
}

// nextJSON reads an event.
func (d *eventDecoder) nextJSON() (io.ReadCloser, error) {
	if d.values == nil {
		d.values = json.NewDecoder(d.fromFirst())
	}
	var value json.RawMessage
	if err := d.values.Decode(&value); err != nil {
		return nil, err // StreamWatcher knows the errors of io
	}
	if isBlank(d.values.Buffered()) {
		d.values = nil
	}
	return &jsonFrame{rest: value}, nil
}

// isBlank reports whether text is white space only.
func isBlank(text io.Reader) bool {
	var b [1]byte
	for {
		if _, err := text.Read(b[:]); err != nil {
			return true
		}
		if !isSpace(b[0]) {
			return false
		}
	}
}

// Close implements watch.Decoder.
func (d *eventDecoder) Close() { _ = d.body.Close() }

// jsonFrame reads the bytes of one event.
type jsonFrame struct{ rest []byte }

func (f *jsonFrame) Read(p []byte) (int, error) {
	n := copy(p, f.rest)
	if f.rest = f.rest[n:]; len(f.rest) > 0 {
		return n, io.ErrShortBuffer // the decoder's buffer grows
	}
	return n, nil
}

func (f *jsonFrame) Close() error { return nil }
