package listwatch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/latchkey-dev/latchkey/internal/term"
)

// reports are the calls of an Observer, as text.
type reports struct {
	mu   sync.Mutex
	list []string
}

func (r *reports) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, fmt.Sprintf(format, args...))
}

func (r *reports) WatchBegan(lists bool) { r.add("began, lists %t", lists) }
func (r *reports) WatchListed()          { r.add("listed") }
func (r *reports) WatchEnded(lasted time.Duration, early, stopped bool, err error) {
	r.add("ended after %s, early %t, stopped %t, %v", lasted, early, stopped, err)
}

// An Observer learns once how a watch has ended: an error of the API server, an error of the
// stream, an end that client-go takes for no error, or a receiver that stops.
func TestObserver(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old").Status()
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		added := encode(t, mediaType, watch.Added, configMap("a", 10))
		bookmark := encode(t, mediaType, watch.Bookmark, configMap("a", 10))
		for name, test := range map[string]struct {
			sent [][]byte
			end  error // of the stream; nil for none
			do   func(stream watch.Interface, cancel context.CancelFunc)
			want []string
		}{
			"ends at once": {end: io.EOF, want: []string{"ended after 1s, early true, stopped false, <nil>"}},
			"ends after an event": {
				sent: [][]byte{added, bookmark},
				end:  io.EOF,
				want: []string{"ended after 3s, early false, stopped false, <nil>"},
			},
			"ends within an event": {
				sent: [][]byte{added[:len(added)-2]},
				end:  io.ErrUnexpectedEOF,
				want: []string{"ended after 2s, early true, stopped false, <nil>"},
			},
			"handed over": {
				end:  term.ErrHandedOver,
				want: []string{"ended after 1s, early false, stopped true, <nil>"},
			},
			"handed over within an event": {
				sent: [][]byte{added[:len(added)-2]},
				end:  errors.WithStack(term.ErrHandedOver),
				want: []string{"ended after 2s, early false, stopped true, <nil>"},
			},
			"fails": {
				end: io.ErrNoProgress,
				want: []string{"ended after 1s, early true, stopped false, reading a watch: multiple Read calls return no data " +
					"or error"},
			},
			"list ends": {
				sent: [][]byte{added, bookmark, encode(t, mediaType, watch.Bookmark, listEnd())},
				end:  io.EOF,
				want: []string{"listed", "ended after 4s, early false, stopped false, <nil>"},
			},
			"an error of the API server": {
				sent: [][]byte{encode(t, mediaType, watch.Error, &expired)},
				end:  io.EOF,
				want: []string{"ended after 1s, early true, stopped false, too old"},
			},
			"stops": {
				do:   func(stream watch.Interface, _ context.CancelFunc) { stream.Stop() },
				want: []string{"ended after 10s, early false, stopped true, <nil>"},
			},
			"is cancelled": {
				end:  context.Canceled,
				do:   func(_ watch.Interface, cancel context.CancelFunc) { cancel() },
				want: []string{"ended after 1s, early false, stopped true, <nil>"},
			},
		} {
			t.Run(mediaType+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := NewWithT(t)
					reader, writer := io.Pipe()
					d, err := newDecoder(reader, mediaType, typed)
					g.Expect(err).NotTo(HaveOccurred())
					observed := &reports{}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					stream := watch.NewStreamWatcherWithLogger(klog.Background(), observe(ctx, d, observed,
						&metav1.ListOptions{SendInitialEvents: new(true), TimeoutSeconds: new(int64(4))}),
						apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, ""))
					done := make(chan struct{})
					go func() {
						defer close(done)
						for event := range stream.ResultChan() {
							if event.Type == watch.Error {
								stream.Stop() // as a Reflector does
							}
						}
					}()
					if test.end == context.Canceled { //nolint:errorlint // of the table
						test.do(stream, cancel)
					}
					for _, event := range test.sent {
						time.Sleep(time.Second)
						_, err := writer.Write(event)
						g.Expect(err).NotTo(HaveOccurred())
						synctest.Wait()
					}
					if test.end == nil {
						time.Sleep(10 * time.Second)
						test.do(stream, cancel)
					} else {
						time.Sleep(time.Second)
						_ = writer.CloseWithError(test.end)
					}
					<-done
					stream.Stop()
					synctest.Wait()
					g.Expect(observed.list).To(Equal(append([]string{"began, lists true"}, test.want...)))
				})
			})
		}
	}
}

// listEnd returns the object of a bookmark that ends a list.
func listEnd() *corev1.ConfigMap {
	end := configMap("a", 10)
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return end
}

// A watch that another sender goes on with ends without an error, and not before client-go takes it
// for one that is worth going on with. One that its receiver stops meanwhile ends at once.
func TestHandOver(t *testing.T) {
	for name, test := range map[string]struct {
		events, lists, stop bool
		after, want         time.Duration
	}{
		"right after a list": {lists: true, after: time.Minute, want: time.Minute + leastAfterList},
		"at once":            {want: leastWatch},
		"after a while":      {after: time.Minute, want: time.Minute},
		"after an event":     {events: true},
		"at once, stopped":   {stop: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				reader, writer := io.Pipe()
				d, err := newDecoder(reader, runtime.ContentTypeJSON, typed)
				g.Expect(err).NotTo(HaveOccurred())
				began := time.Now()
				stream := watch.NewStreamWatcherWithLogger(klog.Background(), observe(t.Context(), d, &reports{},
					&metav1.ListOptions{}), apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, ""))
				if test.events {
					_, err := writer.Write(encode(t, runtime.ContentTypeJSON, watch.Added, configMap("a", 10)))
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect((<-stream.ResultChan()).Type).To(Equal(watch.Added))
				}
				time.Sleep(test.after)
				if test.lists {
					for _, event := range []struct {
						kind   watch.EventType
						object *corev1.ConfigMap
					}{{watch.Added, configMap("a", 10)}, {watch.Bookmark, listEnd()}} {
						_, err := writer.Write(encode(t, runtime.ContentTypeJSON, event.kind, event.object))
						g.Expect(err).NotTo(HaveOccurred())
						g.Expect((<-stream.ResultChan()).Type).To(Equal(event.kind))
					}
				}
				_ = writer.CloseWithError(term.ErrHandedOver)
				if test.stop {
					synctest.Wait()
					stream.Stop()
				}
				_, open := <-stream.ResultChan()
				g.Expect(open).To(BeFalse(), "no error")
				g.Expect(time.Since(began)).To(Equal(test.want))
			})
		})
	}
}

// Without an Observer a decoder stays as it is.
func TestNoObserver(t *testing.T) {
	g := NewWithT(t)
	d, err := newDecoder(io.NopCloser(&body{end: io.EOF}), runtime.ContentTypeJSON, typed)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(observe(t.Context(), d, nil, &metav1.ListOptions{})).To(BeIdenticalTo(d))
	g.Expect(endsList(&corev1.ConfigMap{})).To(BeFalse())
	g.Expect(endsList(&metav1.Status{})).To(BeFalse(), "an object without metadata")
}
