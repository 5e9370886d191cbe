package targets

import (
	"crypto/tls"
	"net/http"

	"github.com/latchkey-dev/latchkey/accessor/internal/h2"
)

// Transport carries requests to a target over its own TCP connections: those that all members
// share, or those of a client certificate. Its methods may be called from any goroutine.
type Transport struct {
	target *Target
	sends  *h2.Transport
}

// newTransport returns a transport. newTransport does no I/O and starts no goroutine.
func newTransport(target *Target, config *tls.Config) *Transport {
	return &Transport{target: target, sends: h2.New(target.address, config, target.proxy)}
}

// RoundTripper returns a RoundTripper that sends requests to the server and reports the answers to
// the target.
func (t *Transport) RoundTripper() http.RoundTripper { return t.target.Observe(t.sends) }

// Close ends the open TCP connections and prevents new ones.
func (t *Transport) Close() { t.sends.Close() }
