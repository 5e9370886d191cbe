package targets

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// Target is one API server and what its members share. Its methods may be called from any
// goroutine.
type Target struct {
	set       *Set
	key       Key
	users     int // guarded by set.mu
	config    *rest.Config
	address   *url.URL    // of the server
	tls       *tls.Config // without a client certificate
	transport *Transport  // that all members share
	kinds     discovered

	lastAnswer atomic.Pointer[time.Time] // of the last response to any member
	silent     atomic.Bool               // a member met silence and nobody took note of an answer since

	mu     sync.Mutex
	health connstate.Health // guarded by mu
	asked  time.Time        // guarded by mu; when a member was last made to ask for all
	joined []*Membership    // guarded by mu
}

func newTarget(set *Set, key Key, config *rest.Config) (*Target, error) {
	anonymous := &rest.Config{
		Host:    config.Host,
		APIPath: config.APIPath,
		TLSClientConfig: rest.TLSClientConfig{
			Insecure:   config.Insecure,
			ServerName: config.ServerName,
			CAData:     config.CAData,
		},
	}
	if len(config.CertData)+len(config.KeyData)+len(config.CertFile)+len(config.KeyFile) > 0 {
		return nil, errors.New("a target has no identity, but its config carries a client certificate")
	}
	address, _, err := rest.DefaultServerUrlFor(anonymous)
	if err != nil {
		return nil, errors.Wrapf(err, "address of %s", config.Host)
	}
	tlsConfig, err := rest.TLSConfigFor(anonymous)
	if err != nil {
		return nil, errors.Wrapf(err, "TLS settings of %s", config.Host)
	}
	t := &Target{set: set, key: key, users: 1, config: anonymous, address: address, tls: tlsConfig}
	t.transport = newTransport(t, tlsConfig)
	return t, nil
}

// Certified returns a transport of TCP connections in whose handshakes the certificate is shown. It
// ends with Close, and not with the target: whoever asked for it closes it.
func (t *Target) Certified(certificate *tls.Certificate) *Transport {
	config := t.tls.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	return newTransport(t, config)
}

// Host names the server, for people.
func (t *Target) Host() string { return t.key.Host }

// Config returns a copy of the config that reaches the server. It holds no credential.
func (t *Target) Config() *rest.Config {
	config := rest.CopyConfig(t.config)
	config.CAData = append([]byte(nil), t.config.CAData...)
	return config
}

// RoundTripper sends requests to the server over the TCP connections that all members share, and
// learns from the answers.
func (t *Target) RoundTripper() http.RoundTripper { return t.transport.RoundTripper() }

// Observe returns next, made to refuse requests to other servers and to tell the target what it can
// learn from the answers.
func (t *Target) Observe(next http.RoundTripper) http.RoundTripper {
	return observer{target: t, next: next}
}

// Accepts returns why a request is not for this server, nil if it is: it goes to another address,
// say after a redirect, or it names another virtual host, by Host or by a whole URL in place of a
// path. What authenticates at one server is not for another.
func (t *Target) Accepts(req *http.Request) error {
	switch {
	case req.URL.Scheme != t.address.Scheme || req.URL.Host != t.address.Host:
		return errors.Errorf("a request to %s://%s is not sent: this connection is for %s", req.URL.Scheme, req.URL.Host,
			t.Host())
	case req.URL.Opaque != "" || !strings.HasPrefix(req.URL.RequestURI(), "/") || req.Method == http.MethodConnect:
		return errors.Errorf("a request for %s is not sent: this connection is for paths of %s",
			untrusted.Quote(req.URL.RequestURI()), t.Host())
	case req.Host != "" && req.Host != t.address.Host:
		return errors.Errorf("a request with Host %s is not sent: this connection is for %s; leave Host empty",
			untrusted.Quote(req.Host), t.Host())
	}
	return nil
}

// LastAnswer is when the server last answered any member, with whatever status. Zero if never.
func (t *Target) LastAnswer() time.Time {
	if last := t.lastAnswer.Load(); last != nil {
		return *last
	}
	return time.Time{}
}

// Health is what the probes that asked "is the server up" found. ConsecutiveFailures is zero as
// soon as it answers anybody.
func (t *Target) Health() connstate.Health {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.healthLocked()
}

// healthLocked takes note of the last answer.
func (t *Target) healthLocked() connstate.Health {
	if last := t.LastAnswer(); last.After(t.health.LastProbeTime) {
		t.health = t.health.After(last, nil)
	}
	return t.health
}

// probeFailed records that a probe on behalf of all, sent at asked, got no answer until now. It
// counts only if no member got one meanwhile. It returns the new health.
func (t *Target) probeFailed(asked, now time.Time, err error) connstate.Health {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.healthLocked(); !t.LastAnswer().After(asked) {
		t.health = t.health.After(now, err)
	}
	return t.health
}

// observer is a RoundTripper that sends requests to its server only, notes that it answered, and
// forgets discovery when it says that a path does not exist.
type observer struct {
	target *Target
	next   http.RoundTripper
}

func (o observer) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := o.target.Accepts(req); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper closes the body, also on errors
		}
		return nil, err
	}
	resp, err := o.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	o.target.lastAnswer.Store(&now)
	// The API server says "no such object" with a Status, "no such resource" in plain text.
	if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		o.target.kinds.forget()
	}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (o observer) WrappedRoundTripper() http.RoundTripper { return o.next }
