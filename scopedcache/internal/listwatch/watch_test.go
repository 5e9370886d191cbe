package listwatch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// scheme has ConfigMaps only, which can be encoded as JSON and as protobuf.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	s.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ConfigMap{}, &corev1.ConfigMapList{})
	return s
}()

var typed = serializer.NewCodecFactory(scheme).WithoutConversion()

// body is the body of a response in parts, of which a Read returns at most one.
type body struct {
	parts  [][]byte
	end    error    // after the parts
	stacks []string // of the calls of Read
	closed bool
}

func (b *body) Read(p []byte) (int, error) {
	b.stacks = append(b.stacks, string(debug.Stack()))
	if len(b.parts) == 0 {
		return 0, b.end
	}
	n := copy(p, b.parts[0])
	if b.parts[0] = b.parts[0][n:]; len(b.parts[0]) == 0 {
		b.parts = b.parts[1:]
	}
	return n, nil
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

// encode returns an event as an API server sends it.
func encode(t testing.TB, mediaType string, event watch.EventType, object runtime.Object) []byte {
	t.Helper()
	g := NewWithT(t)
	info, found := runtime.SerializerInfoForMediaType(typed.SupportedMediaTypes(), mediaType)
	g.Expect(found).To(BeTrue())
	var raw, encoded bytes.Buffer
	g.Expect(typed.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(object, &raw)).To(Succeed())
	g.Expect(info.StreamSerializer.Serializer.Encode(&metav1.WatchEvent{
		Type:   string(event),
		Object: runtime.RawExtension{Raw: raw.Bytes()},
	}, &encoded)).To(Succeed())
	if mediaType == runtime.ContentTypeProtobuf {
		return append(binary.BigEndian.AppendUint32(nil, uint32(encoded.Len())), encoded.Bytes()...) //nolint:gosec // short
	}
	return encoded.Bytes()
}

// decoded is what Decode returned.
type decoded struct {
	event       watch.EventType
	object      runtime.Object
	err         string
	isEOF, isIO bool // the error is one that StreamWatcher compares with, and not one around it
}

func decodeAll(d watch.Decoder) (all []decoded) {
	for {
		event, object, err := d.Decode()
		if err != nil {
			//nolint:errorlint // StreamWatcher compares so
			return append(all, decoded{err: err.Error(), isEOF: err == io.EOF, isIO: err == io.ErrUnexpectedEOF})
		}
		all = append(all, decoded{event: event, object: object})
	}
}

// asClientGo returns what client-go's decoder returns.
func asClientGo(mediaType string, answer []byte) []decoded {
	info, _ := runtime.SerializerInfoForMediaType(typed.SupportedMediaTypes(), mediaType)
	return decodeAll(restwatch.NewDecoder(streaming.NewDecoder(
		info.StreamSerializer.NewFrameReader(io.NopCloser(bytes.NewReader(answer))),
		info.StreamSerializer.Serializer), typed.DecoderToVersion(info.Serializer, nil)))
}

// inParts returns what the decoder returns if each Read returns at most so many bytes.
func inParts(t *testing.T, mediaType string, answer []byte, size int) []decoded {
	t.Helper()
	sent := &body{end: io.EOF}
	for part := range slices.Chunk(answer, size) {
		sent.parts = append(sent.parts, part)
	}
	d, err := newDecoder(sent, mediaType+";stream=watch", typed)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return decodeAll(d)
}

func configMap(name string, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, ResourceVersion: "7"},
		Data:       map[string]string{"key": strings.Repeat(name[:1], size)},
	}
}

// Events of any sizes, however they are split, are decoded as by client-go.
func TestBurstsOfEvents(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(mediaType, func(t *testing.T) {
			g := NewWithT(t)
			random := rand.New(rand.NewPCG(1, 2))
			for range 60 {
				var answer []byte
				sizes := []int{10, 500, 600, 1_000, 5_000}[:1+random.IntN(5)]
				for n := range 1 + random.IntN(60) {
					event := encode(t, mediaType, watch.Added,
						configMap(fmt.Sprintf("%c%d", 'a'+n%26, n), random.IntN(sizes[random.IntN(len(sizes))])))
					if mediaType == runtime.ContentTypeJSON && random.IntN(3) == 0 {
						event = bytes.TrimSpace(event)
					}
					answer = append(answer, event...)
				}
				for _, size := range []int{1 + random.IntN(20), 1 + random.IntN(2_000), len(answer)} {
					g.Expect(inParts(t, mediaType, answer, size)).To(Equal(asClientGo(mediaType, answer)))
				}
			}
		})
	}
}

// However an answer is split, the decoder returns what client-go's returns.
func TestDecodesAsClientGo(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		events := [][]byte{
			encode(t, mediaType, watch.Added, configMap("a", 10)),
			encode(t, mediaType, watch.Modified, configMap("a", 5_000)), // more than the decoder's first buffer
			encode(t, mediaType, watch.Bookmark, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}}),
			encode(t, mediaType, watch.Deleted, configMap("b", 0)),
			encode(t, mediaType, watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone}),
		}
		whole := bytes.Join(events, nil)
		answers := map[string][]byte{"whole": whole, "cut off": whole[:len(whole)-3], "one byte": whole[:1],
			"two bytes": whole[:2], "a length": whole[:4],
			"empty": nil, "unknown event": encode(t, mediaType, "OTHER", configMap("a", 1)),
			"garbage": append(bytes.Clone(events[0]), "\x00\x00\x00\x03abc"...)}
		if mediaType == runtime.ContentTypeJSON {
			answers["no space between"] = bytes.ReplaceAll(whole, []byte("\n"), nil)
			answers["much space between"] = bytes.ReplaceAll(whole, []byte("\n"), []byte(" \r\n\t\n"))
		}
		for name, answer := range answers {
			t.Run(mediaType+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				want := asClientGo(mediaType, answer)
				for _, size := range []int{1, 2, 3, 5, 100, 4096, len(answer) + 1} {
					g.Expect(inParts(t, mediaType, answer, size)).To(Equal(want), "in parts of %d bytes", size)
				}
			})
		}
	}
}

// The decoder returns each event as soon as it is there, and waits for the next one in a small
// frame, without a buffer.
func TestWaitsInASmallFrame(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(mediaType, func(t *testing.T) {
			g := NewWithT(t)
			event := encode(t, mediaType, watch.Added, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
			sent := &body{parts: [][]byte{append(bytes.TrimSpace(event), event...), []byte("\n")}}
			if mediaType == runtime.ContentTypeProtobuf {
				sent.parts = [][]byte{append(bytes.Clone(event), event...)}
			}
			sent.end = errors.New("nothing more is there")
			created, err := newDecoder(sent, mediaType, typed)
			g.Expect(err).NotTo(HaveOccurred())
			d := created.(*closableDecoder).Decoder.(*eventDecoder)
			for range 2 {
				_, object, err := d.Decode()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(object.(*corev1.ConfigMap).Name).To(Equal("a"))
			}
			g.Expect(d.values).To(BeNil(), "no buffer")
			_, _, err = d.Decode()
			g.Expect(err).To(MatchError("nothing more is there"))
			for _, waits := range []string{sent.stacks[0], sent.stacks[len(sent.stacks)-1]} {
				g.Expect(waits).NotTo(Or(ContainSubstring("deepcall"), ContainSubstring("json"), ContainSubstring("framer")))
			}
			d.Close()
			g.Expect(sent.closed).To(BeTrue())
		})
	}
}

// An encoding that the decoder does not know is decoded by client-go alone. An answer that does not
// name its encoding has the first one.
func TestOtherEncodings(t *testing.T) {
	g := NewWithT(t)
	info, _ := runtime.SerializerInfoForMediaType(typed.SupportedMediaTypes(), runtime.ContentTypeJSON)
	event := encode(t, runtime.ContentTypeJSON, watch.Added, configMap("a", 1))
	decode := func(contentType string) []decoded {
		d, err := newDecoder(&body{parts: [][]byte{append(bytes.Clone(event), event...)}, end: io.EOF}, contentType,
			others{typed, info})
		g.Expect(err).NotTo(HaveOccurred(), contentType)
		return decodeAll(d)
	}
	want := decode(runtime.ContentTypeJSON)
	g.Expect(want).To(HaveLen(3))
	for _, contentType := range []string{"", ";", "application/json; a"} {
		g.Expect(decode(contentType)).To(Equal(want), contentType)
	}
	info.MediaType = "application/other"
	g.Expect(decode("application/other")).To(Equal(want))
	info.MediaType = runtime.ContentTypeCBOR
	g.Expect(decode(runtime.ContentTypeCBORSequence)).To(Equal(want))
	_, err := newDecoder(nil, "text/html", typed)
	g.Expect(err).To(MatchError(ContainSubstring("text/html")))
}

// An event that is too large is an error, before its memory is used.
func TestEventThatIsTooLarge(t *testing.T) {
	g := NewWithT(t)
	d, err := newDecoder(&body{parts: [][]byte{{0xff, 0xff, 0xff, 0xff}}, end: io.EOF}, runtime.ContentTypeProtobuf, typed)
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = d.Decode()
	g.Expect(err).To(Equal(streaming.ErrObjectTooLarge))
	d, err = newDecoder(&body{parts: [][]byte{[]byte(`"`), bytes.Repeat([]byte("x"), 17<<20), []byte(`"`)}, end: io.EOF},
		runtime.ContentTypeJSON, typed)
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = d.Decode()
	g.Expect(err).To(Equal(streaming.ErrObjectTooLarge))
}

// endless is a body whose event never ends.
type endless struct {
	t    *testing.T
	read int
	text byte
}

func (e *endless) Read(p []byte) (int, error) {
	if e.read += len(p); e.read > 2*maxEvent {
		e.t.Error("more than an event may have was read")
		return 0, io.EOF
	}
	for i := range p {
		p[i] = e.text
	}
	if e.read == len(p) && e.text == 'x' {
		p[0] = '"'
	}
	return len(p), nil
}

func (e *endless) Close() error { return nil }

// An event that never ends is refused when it is too large, and not read to its end.
func TestEventWithoutAnEnd(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []byte{'x', ' '} {
		d, err := newDecoder(&endless{t: t, text: text}, runtime.ContentTypeJSON, typed)
		g.Expect(err).NotTo(HaveOccurred())
		_, _, err = d.Decode()
		g.Expect(err).To(Equal(streaming.ErrObjectTooLarge))
	}
}

// others supports one media type.
type others struct {
	runtime.NegotiatedSerializer
	info runtime.SerializerInfo
}

func (o others) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{o.info}
}

// Watches of each representation send the options, are not limited, and return the API server's
// errors.
func TestWatchOf(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a limited watch fails, because it would wait longer
	defer cancel()
	var requests []*http.Request
	var answer func(w http.ResponseWriter)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests = append(requests, req)
		answer(w)
	}))
	defer server.Close()
	clients := NewClients(&rest.Config{Host: server.URL, QPS: 1e-9, Burst: 1}, server.Client(), scheme)
	watches := func(example client.Object) (watch.Interface, error) {
		objects, err := clients.For(Resource{
			Example:   example,
			Namespace: "n",
			Labels:    "a=b",
			Fields:    "metadata.name=a",
			Bookmarks: true,
			Mapping: &meta.RESTMapping{
				Resource:         corev1.SchemeGroupVersion.WithResource("configmaps"),
				GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
				Scope:            meta.RESTScopeNamespace,
			},
		})
		g.Expect(err).NotTo(HaveOccurred())
		return objects.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "5"})
	}
	partial := &metav1.PartialObjectMetadata{}
	for _, example := range []client.Object{&corev1.ConfigMap{}, &unstructured.Unstructured{}, partial} {
		answer = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			if example == partial {
				_, _ = io.WriteString(w, `{"type":"ADDED","object":{"kind":"PartialObjectMetadata",`+
					`"apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}}`)
				return
			}
			_, _ = w.Write(encode(t, runtime.ContentTypeJSON, watch.Added, configMap("a", 1)))
		}
		stream, err := watches(example)
		g.Expect(err).NotTo(HaveOccurred())
		event := <-stream.ResultChan()
		g.Expect(event.Type).To(Equal(watch.Added))
		g.Expect(event.Object).To(BeAssignableToTypeOf(example))
		g.Expect(event.Object.(client.Object).GetName()).To(Equal("a"))
		_, open := <-stream.ResultChan()
		g.Expect(open).To(BeFalse())
		sent := requests[len(requests)-1]
		g.Expect(sent.URL.Path).To(Equal("/api/v1/namespaces/n/configmaps"))
		g.Expect(sent.URL.RawQuery).To(Equal(
			"allowWatchBookmarks=true&fieldSelector=metadata.name%3Da&labelSelector=a%3Db&resourceVersion=5&watch=true"))
		g.Expect(strings.Contains(sent.Header.Get("Accept"), "as=PartialObjectMetadata;")).To(Equal(example == partial))
		g.Expect(sent.Header.Get("Accept-Encoding")).To(Equal("identity"), "what decompresses would stay with the watch")

		answer = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		}
		_, err = watches(example)
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue())

		answer = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<p>Hello.")
		}
		_, err = watches(example)
		g.Expect(err).To(MatchError(ContainSubstring("text/html")))

		answer = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			w.WriteHeader(http.StatusAccepted) // which is no watch, as in client-go
		}
		_, err = watches(example)
		g.Expect(err).To(MatchError(ContainSubstring("202")))
	}
}

// A watch that nobody can decode, or that cannot be sent, is closed and returns its error.
func TestWatchThatFails(t *testing.T) {
	g := NewWithT(t)
	sent := &body{end: io.EOF}
	broken := error(nil)
	httpClient := &http.Client{Transport: testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		if broken != nil {
			return nil, broken
		}
		return &http.Response{
			StatusCode: http.StatusOK,
			Body:       sent,
			Request:    req,
			Header:     http.Header{"Content-Type": {"text/html"}},
		}, nil
	})}
	objects := typedCollection{kind{
		clients: NewClients(&rest.Config{}, httpClient, scheme),
		config:  &rest.Config{},
		mapping: &meta.RESTMapping{
			Resource:         corev1.SchemeGroupVersion.WithResource("configmaps"),
			GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		},
	}}
	_, err := watchOf(context.Background(), objects, metav1.ListOptions{}, nil)
	g.Expect(err).To(MatchError(ContainSubstring("text/html")))
	g.Expect(sent.closed).To(BeTrue())
	broken = io.EOF
	_, err = watchOf(context.Background(), objects, metav1.ListOptions{}, nil)
	g.Expect(err).To(MatchError(io.EOF))
}

// A watch that is stopped ends, whatever its reader waits for, and closes its body.
func TestStop(t *testing.T) {
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		event := encode(t, mediaType, watch.Added, configMap("a", 10))
		for name, sent := range map[string][]byte{"while idle": nil, "in an event": event[:len(event)/2],
			"before the event is taken": event} {
			t.Run(mediaType+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { // which also waits until all goroutines have ended
					g := NewWithT(t)
					reader, writer := io.Pipe()
					d, err := newDecoder(reader, mediaType, typed)
					g.Expect(err).NotTo(HaveOccurred())
					stream := watch.NewStreamWatcherWithLogger(klog.Background(), d,
						apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, ""))
					_, err = writer.Write(sent)
					g.Expect(err).NotTo(HaveOccurred())
					synctest.Wait()
					stream.Stop()
					synctest.Wait()
					_, open := <-stream.ResultChan()
					g.Expect(open).To(BeFalse(), "without an error event")
					_, err = writer.Write([]byte("x"))
					g.Expect(err).To(MatchError(io.ErrClosedPipe))
				})
			})
		}
	}
}

// A watch that is stopped ends without an error event while its receiver waits for one, in each
// encoding: a Reflector would list again.
func TestStopWithReceiver(t *testing.T) {
	json, _ := runtime.SerializerInfoForMediaType(typed.SupportedMediaTypes(), runtime.ContentTypeJSON)
	json.MediaType = "application/other"
	for mediaType, decoders := range map[string]runtime.NegotiatedSerializer{
		runtime.ContentTypeJSON: typed, runtime.ContentTypeProtobuf: typed, json.MediaType: others{typed, json},
	} {
		t.Run(mediaType, func(t *testing.T) {
			for range 50 { // a StreamWatcher chooses at random
				synctest.Test(t, func(t *testing.T) {
					g := NewWithT(t)
					reader, _ := io.Pipe() // whose Close ends a Read with io.ErrClosedPipe
					d, err := newDecoder(reader, mediaType, decoders)
					g.Expect(err).NotTo(HaveOccurred())
					stream := watch.NewStreamWatcherWithLogger(klog.Background(), d,
						apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, ""))
					events := make(chan watch.Event)
					go func() {
						defer close(events)
						for event := range stream.ResultChan() {
							events <- event
						}
					}()
					synctest.Wait()
					stream.Stop()
					g.Expect(<-events).To(BeZero(), "no event")
				})
			}
		})
	}
}

// An error that comes with the first byte of an event is not lost.
func TestErrorWithFirstByte(t *testing.T) {
	for mediaType, first := range map[string]string{runtime.ContentTypeJSON: "{", runtime.ContentTypeProtobuf: "\x00"} {
		g := NewWithT(t)
		broken := errors.New("broken")
		d, err := newDecoder(io.NopCloser(iotest.DataErrReader(io.MultiReader(strings.NewReader(first),
			iotest.ErrReader(broken)))), mediaType, typed)
		g.Expect(err).NotTo(HaveOccurred())
		_, _, err = d.Decode()
		g.Expect(err).To(MatchError(broken), mediaType)
	}
}

// The length of an event alone, and an error that wraps io.EOF, are neither memory nor an end.
func TestLengthWithoutEvent(t *testing.T) {
	g := NewWithT(t)
	wrapped := fmt.Errorf("refused: %w", io.EOF)
	lengths := map[string]body{
		"16 MiB":        {parts: [][]byte{{0x01, 0x00, 0x00, 0x00}, make([]byte, 70_000)}, end: wrapped},
		"half a length": {parts: [][]byte{{0x01, 0x00}}, end: wrapped},
	}
	for name, sent := range lengths {
		d, err := newDecoder(&sent, runtime.ContentTypeProtobuf, typed)
		g.Expect(err).NotTo(HaveOccurred())
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		_, _, err = d.Decode()
		goruntime.ReadMemStats(&after)
		g.Expect(err).To(BeIdenticalTo(wrapped), name)
		g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", 1<<20), name)
	}
}

// Attempts after the first one are limited.
func TestRetriesAreLimited(t *testing.T) {
	g := NewWithT(t)
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	clients := NewClients(&rest.Config{Host: server.URL, QPS: 1e-9, Burst: 1}, server.Client(), scheme)
	objects, err := clients.For(Resource{
		Example: &corev1.ConfigMap{},
		Mapping: &meta.RESTMapping{
			Resource:         corev1.SchemeGroupVersion.WithResource("configmaps"),
			GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
			Scope:            meta.RESTScopeNamespace,
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = objects.WatchWithContext(ctx, metav1.ListOptions{})
	g.Expect(err).To(HaveOccurred())
	g.Expect(requests.Load()).To(BeEquivalentTo(2), "one at once, and one from the burst")
}

// Paths of watches and lists, also of a group and of cluster-scoped kinds.
func TestPaths(t *testing.T) {
	g := NewWithT(t)
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		paths = append(paths, req.URL.Path)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	mapping := &meta.RESTMapping{
		Resource:         gvk.GroupVersion().WithResource("widgets"),
		GroupVersionKind: gvk,
		Scope:            meta.RESTScopeRoot,
	}
	for _, example := range []client.Object{&unstructured.Unstructured{}, &metav1.PartialObjectMetadata{}} {
		objects, err := NewClients(&rest.Config{Host: server.URL + "/prefix"}, server.Client(), scheme).
			For(Resource{Example: example, Mapping: mapping})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = objects.WatchWithContext(t.Context(), metav1.ListOptions{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
		_, err = objects.ListWithContext(t.Context(), metav1.ListOptions{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
	}
	g.Expect(paths).To(Equal(slices.Repeat([]string{"/prefix/apis/example.com/v1/widgets"}, 4)))
}
