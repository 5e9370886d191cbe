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
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/deepcall"
)

// watchOf sends a watch and returns its events. It is the Watch of client-go's requests, except for
// what the result keeps while nothing happens: a goroutine with a small stack, and no buffers. Errors
// of the connection are returned; client-go returns a watch without events for some of them.
func watchOf(ctx context.Context, c collection, options metav1.ListOptions) (watch.Interface, error) {
	answer := &headers{next: c.httpClient().Transport}
	httpClient := *c.httpClient()
	httpClient.Transport = answer
	client, err := c.client(&httpClient)
	if err != nil {
		return nil, err
	}
	// Watches are not limited, as in client-go.
	body, err := c.get(client).SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.Unversioned).
		Throttle(nil).Stream(ctx)
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

// headers is a RoundTripper that records the Content-Type of the latest response, which rest.Request
// does not return with a stream.
type headers struct {
	next        http.RoundTripper // nil for http.DefaultTransport
	contentType string
}

func (h *headers) RoundTrip(req *http.Request) (*http.Response, error) {
	next := h.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(req)
	if err == nil {
		h.contentType = resp.Header.Get("Content-Type")
	}
	return resp, err
}

// decoder decodes the events of a watch, with client-go's decoder. It waits for the first byte of an
// event in a small frame, and decodes the event on a goroutine that ends: a stack that has grown, and
// a buffer for the largest event, would stay with each watch. Only Close may be called beside Decode.
type decoder struct {
	body    io.ReadCloser
	objects runtime.Decoder
	events  runtime.Decoder
	frames  runtime.Framer // nil for JSON, whose Framer reads more than one event
	read    []byte         // read from body, and not decoded yet
	first   [1]byte
}

func newDecoder(body io.ReadCloser, contentType string, decoders runtime.NegotiatedSerializer) (watch.Decoder, error) {
	mediaType, parameters, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, errors.Wrapf(err, "the API server answered a watch with the Content-Type %q", contentType)
	}
	objects, events, frames, err := runtime.NewClientNegotiator(decoders, metav1.Unversioned).
		StreamDecoder(mediaType, parameters)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	switch mediaType {
	case runtime.ContentTypeJSON:
		return &decoder{body: body, objects: objects, events: events}, nil
	case runtime.ContentTypeProtobuf:
		return &decoder{body: body, objects: objects, events: events, frames: frames}, nil
	}
	return restwatch.NewDecoder(streaming.NewDecoder(frames.NewFrameReader(body), events), objects), nil
}

// Decode implements watch.Decoder.
func (d *decoder) Decode() (watch.EventType, runtime.Object, error) {
	if len(d.read) == 0 {
		if err := d.await(); err != nil {
			return "", nil, err
		}
	}
	return d.decode()
}

// await reads the first byte of an event.
func (d *decoder) await() error {
	for {
		n, err := d.body.Read(d.first[:])
		if n > 0 && (d.frames != nil || !isSpace(d.first[0])) {
			d.read = d.first[:]
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func isSpace(b byte) bool { return b == '\n' || b == ' ' || b == '\r' || b == '\t' }

// decode decodes an event whose first byte has been read.
func (d *decoder) decode() (event watch.EventType, object runtime.Object, err error) {
	err = deepcall.Run(func() (err error) {
		var frame io.ReadCloser
		if d.frames == nil {
			frame, err = d.nextJSON()
		} else {
			frame = d.frames.NewFrameReader(io.NopCloser(io.MultiReader(bytes.NewReader(d.read), d.body)))
			d.read = nil
		}
		if err == nil {
			event, object, err = restwatch.NewDecoder(streaming.NewDecoder(frame, d.events), d.objects).Decode()
		}
		return err
	})
	return event, object, err
}

// nextJSON reads the next event, and keeps what was read of later ones.
func (d *decoder) nextJSON() (io.ReadCloser, error) {
	values := json.NewDecoder(io.MultiReader(bytes.NewReader(d.read), d.body))
	var value json.RawMessage
	if err := values.Decode(&value); err != nil {
		return nil, err // StreamWatcher knows the errors of io
	}
	rest, err := io.ReadAll(values.Buffered())
	if d.read = bytes.TrimLeft(rest, " \n\r\t"); len(d.read) == 0 {
		d.read = nil // not an empty part of a buffer
	}
	return &jsonFrame{rest: value}, err
}

// Close implements watch.Decoder.
func (d *decoder) Close() { _ = d.body.Close() }

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
