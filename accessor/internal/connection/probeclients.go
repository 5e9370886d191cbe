package connection

import (
	"net/http"
	"time"
)

// ProbeClients send the requests of a probe.
type ProbeClients struct {
	Identity *http.Client
	// Own sends requests as the credential's own user; nil unless other requests impersonate.
	Own *http.Client
}

// ProbeClients returns clients whose requests use the connection's credential. shared carries the
// requests of Own unless the credential brings its own transport.
func (c *Connection) ProbeClients(shared http.RoundTripper, timeout time.Duration) ProbeClients {
	identity := *c.httpClient
	identity.Transport = c.roundTripper(c.shared, true)
	clients := ProbeClients{Identity: &identity}
	if now := c.credential.Load(); now != nil { // otherwise the connection has ended, and so its client refuses
		clients.Own = c.probeClient(now.ownRoundTripper(shared), timeout)
	}
	return clients
}

// ProbeClientsOf returns clients whose requests use another credential than the connection's.
// shared carries the requests unless the credential brings its own transport.
func (c *Connection) ProbeClientsOf(other *Credential, shared http.RoundTripper, timeout time.Duration) ProbeClients {
	return ProbeClients{
		Identity: c.probeClient(other.RoundTripper(shared), timeout),
		Own:      c.probeClient(other.ownRoundTripper(shared), timeout),
	}
}

func (c *Connection) probeClient(transport http.RoundTripper, timeout time.Duration) *http.Client {
	if transport == nil {
		return nil
	}
	if c.term != nil {
		transport = c.term.RoundTripper(transport)
	}
	if c.requests != nil {
		transport = requestsRoundTripper{c.requests, transport}
	}
	return &http.Client{
		Transport:     userAgentRoundTripper{wrapper{transport}, c.userAgent},
		Timeout:       timeout,
		CheckRedirect: neverRedirect,
	}
}
