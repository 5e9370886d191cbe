package apiserver

import (
	"context"
	"net"
	"sync"

	"github.com/pkg/errors"
)

// steadyListener is a listener whose failures end the server in order. The library panics when
// Accept fails while the server runs.
type steadyListener struct {
	net.Listener
	lost   context.CancelCauseFunc
	once   sync.Once
	closed chan struct{} // closed by Close
}

func newSteadyListener(listener net.Listener, lost context.CancelCauseFunc) *steadyListener {
	return &steadyListener{Listener: listener, lost: lost, closed: make(chan struct{})}
}

// Accept implements net.Listener. After a failure it reports the failure, and returns when the
// server has ended.
func (l *steadyListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		return conn, nil
	}
	// Of too many open files, for example: the library's caller waits and tries again.
	if known, ok := err.(net.Error); ok && known.Temporary() { //nolint:errorlint,staticcheck // as net/http asks
		return nil, err
	}
	l.lost(errors.Wrap(err, "the listener failed"))
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *steadyListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}
