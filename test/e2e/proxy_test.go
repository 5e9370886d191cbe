package e2e

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
)

// proxy forwards TCP connections to the API server and counts them. setCut cuts and restores it.
type proxy struct {
	server   string // the API server's address
	listener net.Listener
	running  sync.WaitGroup

	mu          sync.Mutex
	cut         bool                  // guarded by mu
	conns       map[net.Conn]struct{} // guarded by mu; the connections of both sides
	open        int                   // guarded by mu
	most, total int                   // guarded by mu
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	address, err := url.Parse(cp.Config().Host)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	p := &proxy{server: address.Host, conns: map[net.Conn]struct{}{}}
	p.listener, err = net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	p.running.Go(func() {
		for {
			conn, err := p.listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.setCut(true)
		p.running.Wait()
	})
	return p
}

func (p *proxy) url() string { return "https://" + p.listener.Addr().String() }

// setCut with true closes all connections. New connections are then closed as soon as they are
// accepted, until a call with false.
func (p *proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	if cut {
		for conn := range p.conns {
			_ = conn.Close()
		}
	}
}

// counts returns numbers of TCP connections since the last call: the most that were open at the
// same time, and the total.
func (p *proxy) counts() (most, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most, total = p.most, p.total
	p.most, p.total = p.open, 0
	return most, total
}

// add records a connection and returns true, unless the proxy is cut.
func (p *proxy) add(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.conns[conn] = struct{}{}
	}
	return !p.cut
}

func (p *proxy) pass(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	p.open++
	p.total++
	p.most = max(p.most, p.open)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open--
		delete(p.conns, client)
	}()
	if !p.add(client) {
		return
	}
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return // the API server is down
	}
	defer server.Close()
	if !p.add(server) {
		return
	}
	var copying sync.WaitGroup
	copying.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	copying.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, server)
}
