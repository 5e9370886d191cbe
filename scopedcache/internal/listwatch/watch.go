package listwatch

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"sync/atomic"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/deepcall"
)

// watchOf sends a watch and returns its events. It is the Watch of client-go's requests, except for
// three things. While nothing happens, the result keeps a goroutine with a small stack, and no
// buffers. Errors of the connection are returned; client-go repeats some of these watches, and then
// returns one without events. And the answer is not compressed: from 1.37 on an API server
// compresses watches that begin with a list, and a client keeps 44 KiB for each while it lasts.
func watchOf(ctx context.Context, c collection, options metav1.ListOptions,
	observer Observer) (watch.Interface, error) {
	answer := &answerRecorder{next: c.httpClient().Transport}
	httpClient := *c.httpClient()
	httpClient.Transport = answer
	client, err := c.client(&httpClient)
	if err != nil {
		return nil, err
	}
	request := c.newRequest(client).SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.Unversioned).
		SetHeader("Accept-Encoding", "identity")
	if limiter := client.GetRateLimiter(); limiter != nil {
		request.Throttle(&retryLimiter{RateLimiter: limiter})
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	decoder, err := newDecoder(body, answer.contentType, c.decoders())
	if answer.status != http.StatusOK { // Stream takes any 2xx, and Watch only this one
		err = apierrors.NewGenericServerResponse(answer.status, "watch", schema.GroupResource{}, "", "", 0, true)
	}
	if err != nil {
		_ = body.Close()
		return nil, err
	}
	decoder = observe(ctx, decoder, observer, &options)
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), decoder,
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

// retryLimiter limits the retries of a request, and not its first attempt, as client-go does for
// watches.
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

// answerRecorder is a RoundTripper that records the status and the Content-Type of the latest
// response, which rest.Request does not return with a stream.
type answerRecorder struct {
	next        http.RoundTripper // nil for http.DefaultTransport
	status      int
	contentType string
}

func (r *answerRecorder) RoundTrip(req *http.Request) (*http.Response, error) {
	next := r.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(req)
	if err == nil {
		r.status, r.contentType = resp.StatusCode, resp.Header.Get("Content-Type")
	}
	return resp, err
}

// eventDecoder decodes the events of a watch, with client-go's decoder. It waits for the first byte
// of an event in a small frame, and decodes the event on a goroutine that ends: a stack that has
// grown, and a buffer for the largest event, would stay with each watch. Only Close may be called
// beside Decode.
type eventDecoder struct {
	body    io.ReadCloser
	objects runtime.Decoder
	events  runtime.Decoder
	isJSON  bool          // else protobuf
	values  *json.Decoder // has read what follows, or a part of it; nil for nothing, and for protobuf
	first   [1]byte
	failed  error // came with the first byte
}

// maxEvent is the size of the largest event, the same as in client-go.
const maxEvent = 16 << 20

// firstStep is how much is allocated for an event before any of it is there.
const firstStep = 64 << 10

// newDecoder returns the decoder of a watch. Like client-go it takes an answer without Content-Type
// for one in the first encoding.
func newDecoder(stream io.ReadCloser, contentType string,
	decoders runtime.NegotiatedSerializer) (watch.Decoder, error) {
	body := &boundedBody{ReadCloser: stream, left: maxEvent + firstStep}
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
		return &closableDecoder{
			body:    body,
			Decoder: &eventDecoder{body: body, objects: objects, events: events, isJSON: true},
		}, nil
	case runtime.ContentTypeProtobuf:
		return &closableDecoder{body: body, Decoder: &eventDecoder{body: body, objects: objects, events: events}}, nil
	}
	return &closableDecoder{
		body:    body,
		Decoder: restwatch.NewDecoder(streaming.NewDecoder(frames.NewFrameReader(body), events), objects),
	}, nil
}

// boundedBody is the body of a watch. The decoders of JSON and CBOR read an event to its end before
// its size is known, so the body ends before that.
type boundedBody struct {
	io.ReadCloser
	left int // how much may be read for the event under way
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, streaming.ErrObjectTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// closableDecoder makes a watch that its receiver stopped end as one that the server ended. Else
// the error of the closed body is an event, at random, and a Reflector lists again after it.
type closableDecoder struct {
	watch.Decoder
	body   *boundedBody
	closed atomic.Bool
}

// Decode implements watch.Decoder.
func (d *closableDecoder) Decode() (watch.EventType, runtime.Object, error) {
	d.body.left = maxEvent + firstStep // an event with its length, and with what was read of the next one
	event, object, err := d.Decoder.Decode()
	if err != nil && d.closed.Load() {
		return "", nil, io.EOF
	}
	return event, object, err
}

// Close implements watch.Decoder.
func (d *closableDecoder) Close() {
	d.closed.Store(true)
	d.Decoder.Close()
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
		if n > 0 && (!d.isJSON || !isSpace(d.first[0])) {
			d.failed = err
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
	err = deepcall.Run(func() error {
		next := d.nextProtobuf
		if d.isJSON {
			next = d.nextJSON
		}
		encoded, err := next()
		if err != nil {
			return err // not wrapped: StreamWatcher compares it
		}
		event, object, err = restwatch.NewDecoder(oneEvent{encoded, d.events}, d.objects).Decode()
		return err
	})
	return event, object, err
}

// nextProtobuf reads an event, which follows its length in network byte order.
func (d *eventDecoder) nextProtobuf() ([]byte, error) {
	length := [4]byte{d.first[0]}
	if _, err := io.ReadFull(d, length[1:]); err != nil {
		return nil, unexpected(err)
	}
	size := int(binary.BigEndian.Uint32(length[:]))
	if size > maxEvent {
		return nil, streaming.ErrObjectTooLarge
	}
	event := make([]byte, 0, min(size, firstStep))
	for len(event) < size {
		if len(event) == cap(event) { // the length alone costs no memory, only what is sent
			event = append(make([]byte, 0, min(size, 2*len(event))), event...)
		}
		if _, err := io.ReadFull(d, event[len(event):cap(event)]); err != nil {
			if len(event) > 0 {
				err = unexpected(err)
			}
			return nil, err // io.EOF after a length, as client-go returns it
		}
		event = event[:cap(event)]
	}
	return event, nil
}

// unexpected returns the error of a stream that ends within an event.
func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // a wrapped one says more
		return io.ErrUnexpectedEOF
	}
	return err
}

// Read implements io.Reader: what follows the first byte of an event.
func (d *eventDecoder) Read(p []byte) (int, error) {
	if d.failed != nil {
		return 0, d.failed
	}
	return d.body.Read(p)
}

// nextJSON reads an event.
func (d *eventDecoder) nextJSON() ([]byte, error) {
	if d.values == nil {
		d.values = json.NewDecoder(io.MultiReader(bytes.NewReader(d.first[:]), d))
	}
	var event json.RawMessage
	if err := d.values.Decode(&event); err != nil {
		return nil, err
	}
	if len(event) > maxEvent {
		return nil, streaming.ErrObjectTooLarge
	}
	if isBlank(d.values.Buffered()) {
		d.values = nil
	}
	return event, nil
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

// oneEvent is a stream of one event.
type oneEvent struct {
	encoded []byte
	decoder runtime.Decoder
}

// Decode implements streaming.Decoder.
func (e oneEvent) Decode(defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object,
	*schema.GroupVersionKind, error) {
	return e.decoder.Decode(e.encoded, defaults, into)
}

// Close implements streaming.Decoder.
func (e oneEvent) Close() error { return nil }
