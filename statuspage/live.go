package statuspage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// maxViewers is how many streams there are at most.
	maxViewers = 32
	// liveInterval is how long a stream waits after one view until the next, in which all changes
	// meanwhile are.
	liveInterval = 500 * time.Millisecond
	// keepAlive is how long a stream is silent at most. The page takes what it has for old after three
	// times that.
	keepAlive = 5 * time.Second
	// streamTime is how long a stream lasts. The page then opens another one, whose permission is
	// checked again.
	streamTime = 5 * time.Minute
	// writeTimeout is how long a browser may take to receive a view of a stream.
	writeTimeout = 10 * time.Second
	// retryAfter is how many seconds a browser waits before it asks for another stream.
	retryAfter = "10"
)

// serveLive sends the view, and again after each change, as server-sent events. The permission was
// checked when the request began.
func (p *Page) serveLive(w http.ResponseWriter, r *http.Request) {
	q, err := queryOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-p.ended:
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, "this process is about to end", http.StatusServiceUnavailable)
		return
	default:
	}
	select {
	case p.viewers <- struct{}{}:
		defer func() { <-p.viewers }()
	default:
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, fmt.Sprintf("%d browsers follow this page already; close some", maxViewers),
			http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx passes each view on at once, and not when a buffer is full
	s := stream{w: w, response: http.NewResponseController(w)}
	if r.Method == http.MethodHead {
		return
	}
	end := time.NewTimer(streamTime)
	defer end.Stop()
	for {
		v, changed := p.view(q)
		if s.send(v) != nil {
			return // the browser is gone
		}
		pause := time.NewTimer(liveInterval)
		select {
		case <-pause.C:
		case <-end.C:
			pause.Stop()
			return
		case <-r.Context().Done():
			pause.Stop()
			return
		case <-p.ended:
			pause.Stop()
			return
		}
		if !s.wait(r, changed, end.C, p.ended) {
			return
		}
	}
}

// stream is the answer to a request for server-sent events.
type stream struct {
	w        http.ResponseWriter
	response *http.ResponseController
	last     []byte // the view that was sent last, without its time
}

// wait waits for a change, and says so to the browser from time to time. It returns false if the
// stream is to end.
func (s *stream) wait(r *http.Request, changed <-chan struct{}, end <-chan time.Time, ended <-chan struct{}) bool {
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		select {
		case <-changed:
			return true
		case <-alive.C:
			if s.write([]byte(": nothing new\n\n")) != nil {
				return false
			}
		case <-end:
			return false
		case <-ended:
			return false
		case <-r.Context().Done():
			return false
		}
	}
}

// send sends the view, unless it is the one that was sent last.
func (s *stream) send(v view) error {
	at := v.Time
	v.Time = time.Time{}
	content, err := json.Marshal(v)
	if err != nil || bytes.Equal(content, s.last) {
		return err
	}
	s.last = content
	v.Time = at
	if content, err = json.Marshal(v); err != nil {
		return err
	}
	return s.write(fmt.Appendf(nil, "event: view\ndata: %s\n\n", content))
}

func (s *stream) write(content []byte) error {
	return within(s.response, writeTimeout, func() error {
		_, err := s.w.Write(content)
		return err
	})
}

// within calls write, and sends what it wrote, within timeout. Afterwards the response has no
// deadline: with HTTP/2 a deadline that passes ends the stream, although nothing is being written.
func within(response *http.ResponseController, timeout time.Duration, write func() error) error {
	// A server without deadlines, such as a recorder of a test, is none that can hang.
	_ = response.SetWriteDeadline(time.Now().Add(timeout))
	if err := write(); err != nil {
		return err
	}
	if err := response.Flush(); err != nil {
		return err
	}
	_ = response.SetWriteDeadline(time.Time{})
	return nil
}
