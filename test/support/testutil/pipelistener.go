package testutil

import (
	"context"
	"net"

	"github.com/latchkey-dev/latchkey/internal/latch"
)

// PipeListener accepts connections of this process that are no sockets, whose reads a bubble of
// synctest does not take for waiting.
//
// It is not grpc's bufconn: there, a read deadline that has been taken back can still fire, so that
// net/http now and then takes a client's connection for closed.
type PipeListener struct {
	conns  chan net.Conn
	closed latch.Latch
}

// NewPipeListener returns an open listener.
func NewPipeListener() *PipeListener { return &PipeListener{conns: make(chan net.Conn)} }

// DialContext connects when Accept is called. It has the signature of http.Transport.DialContext,
// and ignores the address.
func (l *PipeListener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	var err error
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed.Done():
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	_, _ = client.Close(), server.Close()
	return nil, err
}

// Accept implements net.Listener.
func (l *PipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *PipeListener) Close() error {
	l.closed.Open()
	return nil
}

// Addr implements net.Listener.
func (l *PipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
