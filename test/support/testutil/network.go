package testutil

import (
	"context"
	"net"
	"sync"
)

// Network connects HTTP clients with a server in this process, without sockets, so that both can run
// in a bubble of testing/synctest: reading from a socket does not count as waiting there. A Network is
// the listener of one server. A Network is safe for concurrent use.
type Network struct {
	conns     chan net.Conn
	closed    chan struct{}
	closeOnce sync.Once
}

// NewNetwork returns a network for one server.
func NewNetwork() *Network {
	return &Network{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// DialContext connects with the server, whatever the address is.
func (n *Network) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case n.conns <- server:
		return client, nil
	case <-n.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case conn := <-n.conns:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *Network) Close() error {
	n.closeOnce.Do(func() { close(n.closed) })
	return nil
}

// Addr implements net.Listener.
func (n *Network) Addr() net.Addr { return networkAddr{} }

type networkAddr struct{}

func (networkAddr) Network() string { return "pipe" }
func (networkAddr) String() string  { return "in-this-process" }
