package testutil

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
)

// ForwardProxy is a proxy that forwards TCP connections: by CONNECT, or as SOCKS5. It notes what it
// is asked, and what passes. Its methods may be called from any goroutine.
type ForwardProxy struct {
	listener net.Listener
	scheme   string
	user     *url.Userinfo // that it asks for; nil for none
	running  sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool // guarded by mu; that are open
	asked  []string          // guarded by mu; targets
	heads  bytes.Buffer      // guarded by mu; what clients say to the proxy itself
	passed bytes.Buffer      // guarded by mu; what passes, both ways
}

// NewForwardProxy starts a proxy on loopback, which ends with the test. The scheme is http, https
// (with the certificate), or socks5. user is the user that it asks for; nil for none.
func NewForwardProxy(t testing.TB, scheme string, certificate *tls.Certificate, user *url.Userinfo) *ForwardProxy {
	t.Helper()
	p := &ForwardProxy{
		scheme: scheme,
		user:   user,
		conns:  map[net.Conn]bool{},
	}
	var err error
	p.listener, err = net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	if certificate != nil {
		p.listener = tls.NewListener(p.listener, &tls.Config{
			Certificates: []tls.Certificate{*certificate},
			ClientAuth:   tls.RequestClientCert,
			MinVersion:   tls.VersionTLS12,
		})
	}
	p.running.Go(func() {
		for {
			conn, err := p.listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.mu.Lock()
		for conn := range p.conns {
			_ = conn.Close()
		}
		p.conns = nil
		p.mu.Unlock()
		p.running.Wait()
	})
	return p
}

// URL returns the URL of the proxy, with its user.
func (p *ForwardProxy) URL() *url.URL {
	return &url.URL{Scheme: p.scheme, Host: p.listener.Addr().String(), User: p.user}
}

// Asked returns the targets that clients asked for, in order.
func (p *ForwardProxy) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

// Heads returns what clients said to the proxy itself.
func (p *ForwardProxy) Heads() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heads.String()
}

// Passed returns what has passed, both ways.
func (p *ForwardProxy) Passed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed.String()
}

// keep notes a connection, which is closed with the proxy; false if it has ended.
func (p *ForwardProxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *ForwardProxy) drop(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

func (p *ForwardProxy) serve(front net.Conn) {
	defer p.drop(front)
	if !p.keep(front) {
		return
	}
	reader := bufio.NewReader(io.TeeReader(front, locked{&p.mu, &p.heads}))
	var target string
	var ok bool
	if p.scheme == "socks5" {
		target, ok = p.socks(reader, front)
	} else {
		target, ok = p.connect(reader, front)
	}
	if !ok {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, target)
	p.mu.Unlock()
	back, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer p.drop(back)
	if !p.keep(back) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{front, back}, {back, front}} {
		both.Go(func() {
			_, _ = io.Copy(io.MultiWriter(way[1], locked{&p.mu, &p.passed}), way[0])
			_, _ = front.Close(), back.Close()
		})
	}
	both.Wait()
}

// connect answers a CONNECT.
func (p *ForwardProxy) connect(from *bufio.Reader, to io.Writer) (target string, ok bool) {
	req, err := http.ReadRequest(from)
	if err != nil || req.Method != http.MethodConnect {
		return "", false
	}
	if p.user != nil {
		want := "Basic " + base64.StdEncoding.EncodeToString([]byte(p.user.String()))
		if req.Header.Get("Proxy-Authorization") != want {
			_, _ = io.WriteString(to, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
			return "", false
		}
	}
	_, err = io.WriteString(to, "HTTP/1.1 200 OK\r\n\r\n")
	return req.Host, err == nil
}

// socks answers as SOCKS5 (RFC 1928, and RFC 1929 for a user).
func (p *ForwardProxy) socks(from *bufio.Reader, to io.Writer) (target string, ok bool) {
	read := func(n int) []byte {
		part := make([]byte, n)
		if _, err := io.ReadFull(from, part); err != nil {
			return make([]byte, n)
		}
		return part
	}
	read(int(read(2)[1])) // version, methods
	if p.user == nil {
		_, _ = to.Write([]byte{5, 0})
	} else {
		_, _ = to.Write([]byte{5, 2})
		name := string(read(int(read(2)[1])))
		password := string(read(int(read(1)[0])))
		if want, _ := p.user.Password(); name != p.user.Username() || password != want {
			_, _ = to.Write([]byte{1, 1})
			return "", false
		}
		_, _ = to.Write([]byte{1, 0})
	}
	var host string
	switch head := read(4); head[3] {
	case 1:
		host = net.IP(read(net.IPv4len)).String()
	case 3:
		host = string(read(int(read(1)[0])))
	case 4:
		host = net.IP(read(net.IPv6len)).String()
	default:
		return "", false
	}
	port := binary.BigEndian.Uint16(read(2))
	_, err := to.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	return net.JoinHostPort(host, strconv.Itoa(int(port))), err == nil
}

// locked is a writer that others read.
type locked struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}
