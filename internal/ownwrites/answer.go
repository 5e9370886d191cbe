package ownwrites

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// maxAnswer bounds what is kept of an answer to a deletion. What a longer one says is unknown.
const maxAnswer = 4 << 20

// exchange is what becomes of a request.
type exchange struct {
	wantsAnswer bool // the answer is kept, because the client does not return it
	sent        bool
	doubtful    bool // an attempt before the latest one may have changed something
	last        bool // so may the latest one
	answer      *bytes.Buffer
}

// mayHaveChanged reports whether a request may have been executed that was answered with an error.
func mayHaveChanged(code int) bool {
	return code < http.StatusBadRequest || code >= http.StatusInternalServerError || code == http.StatusRequestTimeout
}

type exchangeKey struct{}

// withExchange returns a context whose requests are noted in the exchange. They come one after
// another.
func withExchange(ctx context.Context, e *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

// HTTPClient returns a copy of an HTTP client that notes what becomes of the requests of a
// [Client]. The client that is wrapped has to send through it.
func HTTPClient(of *http.Client) *http.Client {
	noting, next := *of, of.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	noting.Transport = transport{next}
	return &noting
}

type transport struct{ next http.RoundTripper }

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	e, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return t.next.RoundTrip(req)
	}
	e.doubtful = e.doubtful || e.last // client-go tries again after some errors
	e.sent, e.answer = true, nil
	resp, err := t.next.RoundTrip(req)
	e.last = err != nil || mayHaveChanged(resp.StatusCode)
	if err == nil && e.wantsAnswer && resp.Body != nil {
		e.answer = &bytes.Buffer{}
		resp.Body = keptBody{resp.Body, e.answer}
	}
	return resp, err
}

// keptBody keeps what is read of an answer.
type keptBody struct {
	io.ReadCloser
	kept *bytes.Buffer
}

// Read implements io.Reader.
func (b keptBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.kept.Len() <= maxAnswer {
		b.kept.Write(into[:n])
	}
	return n, err
}

// deletion is what the answer to a deletion says: the object as it is now, or what is gone. It is a
// Status or the object.
type deletion struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta     `json:"metadata"`
	Details  *metav1.StatusDetails `json:"details"`
}

// protobufPrefix begins answers in the encoding application/vnd.kubernetes.protobuf.
var protobufPrefix = []byte{'k', '8', 's', 0}

// readDeletion reads the answer to a deletion. It returns false if that cannot be read.
func readDeletion(answer []byte) (d deletion, ok bool) {
	if !bytes.HasPrefix(answer, protobufPrefix) {
		err := json.Unmarshal(answer, &d)
		return d, err == nil && d.Kind != ""
	}
	var envelope runtime.Unknown
	if envelope.Unmarshal(answer[len(protobufPrefix):]) != nil {
		return d, false
	}
	d.Kind, d.APIVersion = envelope.Kind, envelope.APIVersion
	if d.isStatus() {
		var status metav1.Status
		err := status.Unmarshal(envelope.Raw)
		d.Details = status.Details
		return d, err == nil
	}
	var object metav1.PartialObjectMetadata // every object has its metadata in the same field
	err := object.Unmarshal(envelope.Raw)
	d.Metadata = object.ObjectMeta
	return d, err == nil
}

func (d *deletion) isStatus() bool { return d.Kind == "Status" && d.APIVersion == "v1" }
