package monitor

import (
	"time"

	"github.com/pkg/errors"
)

var (
	// ErrStreams is the reason why an informer has not synced if the API server streams objects and
	// has not marked the end of the list.
	ErrStreams = errors.New(
		"the API server has begun to stream objects, and no bookmark has said yet that these are all; check whether a " +
			"proxy drops bookmarks")
	// ErrEndsAtOnce is the reason why a scope is failing if the API server ends each watch without an
	// error.
	ErrEndsAtOnce = errors.New(
		"the API server answers watches, and ends them at once; check whether a proxy ends or buffers long requests")
)

// stream is the running watch.
type stream struct {
	began time.Time // zero while no watch runs
	lists bool      // has begun with a list whose end is not marked so far
}

// shortEnds are the watches that ended too soon since one lasted.
type shortEnds struct {
	count     int
	first     time.Time
	err       error // of the latest
	confirmed bool  // there were so many over such a time that watches fail
}

// streamDue returns when judgeStream decides; zero for never.
func (l *life) streamDue(t *Timing) time.Time {
	switch {
	case l.stream.began.IsZero():
	case l.stream.lists:
		return l.stream.began.Add(t.StreamedList)
	case l.shortEnds.count > 0:
		return l.stream.began.Add(t.Lasts)
	}
	return time.Time{}
}

// earlier returns the earlier one of two times, of which b may be zero for never.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

func (s informerStep) watchBegan(e WatchBegan) {
	if s.isCurrent(e.Life) {
		s.life.stream = stream{began: s.now, lists: e.Lists}
	}
}

func (s informerStep) watchListed(e WatchListed) {
	if s.isCurrent(e.Life) {
		s.life.stream.lists = false
	}
}

// watchEnded judges watches by how long they last: an API server, or a proxy before it, can answer
// each of them with 200 and end it, and a list between two of them hides nothing but the age of the
// objects.
func (s informerStep) watchEnded(e WatchEnded) {
	if !s.isCurrent(e.Life) {
		return
	}
	was := s.life.stream
	s.life.stream = stream{}
	timing := &s.config.Timing
	if !e.Stopped && e.Early {
		s.endedEarly()
	}
	switch {
	case e.Stopped:
		return
	case was.lists: // it has not listed all, however long it took
	case e.Lasted >= timing.Lasts, e.Err == nil && e.Lasted >= timing.AtOnce:
		s.watchLasted()
		return
	}
	ends := &s.life.shortEnds
	if ends.count++; ends.count == 1 {
		ends.first = s.now
	}
	switch ends.err = e.Err; {
	case e.Err == nil && was.lists:
		ends.err = ErrStreams
	case e.Err == nil:
		ends.err = ErrEndsAtOnce
	}
	if ends.count < timing.Confirmations {
		return
	}
	if was.lists { // client-go would stream it again without a delay
		s.emit(ListInstead{Life: s.life.id})
	}
	if s.now.Sub(ends.first) >= timing.ConfirmAfter {
		ends.confirmed = true
		s.settle()
	}
}

// endedEarly has the kind looked up soon: its API server may have removed it.
func (s informerStep) endedEarly() {
	if !s.life.follow.IsZero() {
		s.life.endedAgain = true
		return
	}
	s.follow()
}

// requestFailed begins a row of watches anew that is no failure so far: an API server that goes and
// comes back ends some watches at once.
func (s informerStep) requestFailed() {
	if !s.life.shortEnds.confirmed {
		s.life.shortEnds = shortEnds{}
	}
}

// watchLasted ends a row of watches that ended too soon.
func (s informerStep) watchLasted() {
	failing := s.life.shortEnds.confirmed
	s.life.shortEnds = shortEnds{}
	if failing {
		s.settle()
	}
}

// judgeStream looks at a watch that runs for some time: whether it has lasted, or lists without
// end.
func (s informerStep) judgeStream() {
	due := s.life.streamDue(&s.config.Timing)
	if due.IsZero() || s.now.Before(due) {
		return
	}
	if !s.life.stream.lists {
		s.watchLasted()
		return
	}
	if !s.life.quiet {
		s.setState(Failing, ErrStreams)
	}
	s.life.stream = stream{} // it stops
	s.emit(ListInstead{Life: s.life.id})
}
