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
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// Target is one API server, with the state that its members share. Its methods may be called from
// any goroutine.
type Target struct {
	set       *Set
	key       Key
	users     int // guarded by set.mu
	config    *rest.Config
	address   *url.URL    // of the server
	proxy     *url.URL    // by which requests go; nil for that of the environment
	tls       *tls.Config // contains no client certificate
	transport *Transport  // all members share the transport
	kinds     discovered
	objects   *scopedcache.ObjectPool
	// unstreamed are the kinds whose streamed lists the server does not finish.
	unstreamed scopedcache.UnstreamedKinds
	lists      scopedcache.ListLimit

	lastAnswer atomic.Pointer[time.Time] // time of the last response to any member
	silent     atomic.Bool               // a member got no answer, and no member has reported an answer since

	memberCount atomic.Int64 // of memberships, to be read without mu
	mu          sync.Mutex
	views       map[*Policy]*view // guarded by mu; of the members' policies
	memberships []*Membership     // guarded by mu
}

// view is a target as the members with one policy see it: answers are everybody's, failed probes
// are their own. So no policy disconnects the members of another, or takes their turn. The target's
// mu guards all fields.
type view struct {
	members  int
	health   connstate.Health
	lastTurn time.Time // when a member was last selected to probe on behalf of all
}

func newTarget(set *Set, key Key, config *rest.Config) (*Target, error) {
	anonymous := &rest.Config{
		Host:    config.Host,
		APIPath: config.APIPath,
		Proxy:   config.Proxy,
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
	t := &Target{
		set:     set,
		key:     key,
		users:   1,
		config:  anonymous,
		address: address,
		proxy:   identity.ProxyOf(anonymous),
		tls:     tlsConfig,
		objects: scopedcache.NewObjectPool(),
	}
	t.transport = newTransport(t, tlsConfig)
	return t, nil
}

// Certified returns a transport whose TCP connections present the certificate in the handshake. The
// transport does not end with the target: the caller must close it.
func (t *Target) Certified(certificate *tls.Certificate) *Transport {
	config := t.tls.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	return newTransport(t, config)
}

// Host returns the URL of the server, for messages.
func (t *Target) Host() string { return t.key.Host }

// PathOf returns the path of a request as the server sees it: without the path of the server's own
// URL.
func (t *Target) PathOf(req *http.Request) string {
	return strings.TrimPrefix(req.URL.Path, strings.TrimSuffix(t.address.Path, "/"))
}

// Config returns a copy of the config that reaches the server. The config holds no credential but
// that of its proxy, which only the function Proxy returns. All copies share the certificate
// authorities in CAData, which must not be changed.
func (t *Target) Config() *rest.Config { return rest.CopyConfig(t.config) }

// RoundTripper returns a RoundTripper that sends requests to the server over the TCP connections
// that all members share. The target records the time of each answer.
func (t *Target) RoundTripper() http.RoundTripper { return t.transport.RoundTripper() }

// Members returns the number of members.
func (t *Target) Members() int { return int(t.memberCount.Load()) }

// Objects returns the pool of the objects that members have in their caches.
func (t *Target) Objects() *scopedcache.ObjectPool { return t.objects }

// UnstreamedKinds returns the kinds whose streamed lists the server does not finish, as far as
// members have found.
func (t *Target) UnstreamedKinds() *scopedcache.UnstreamedKinds { return &t.unstreamed }

// ListLimit returns the limit of the lists of all members' informers.
func (t *Target) ListLimit() *scopedcache.ListLimit { return &t.lists }

// Observe wraps next. The result refuses requests to other servers, and reports the answers to the
// target.
func (t *Target) Observe(next http.RoundTripper) http.RoundTripper {
	return observer{target: t, next: next}
}

// Accepts returns nil if a request is for this server, and otherwise the reason. A request may go
// to another address, for example after a redirect. A request may also name another virtual host,
// with Host or with a whole URL in place of a path. Another server must not receive the credentials
// of this one.
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

// LastAnswer returns when the server last answered any member, with any status. LastAnswer is zero
// if the server never answered.
func (t *Target) LastAnswer() time.Time {
	if last := t.lastAnswer.Load(); last != nil {
		return *last
	}
	return time.Time{}
}

// Health returns the result of the probes of the member's policy that check whether the server is
// up. ConsecutiveFailures is zero as soon as the server answers any member.
func (m *Membership) Health() connstate.Health {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.viewLocked().health
}

// viewLocked returns the target as the member's policy sees it, with the last answer.
func (m *Membership) viewLocked() *view {
	v := m.views[m.policy]
	if v == nil { // a late call, after Leave
		v = &view{}
	}
	if last := m.LastAnswer(); last.After(v.health.LastProbeTime) {
		v.health = v.health.After(last, nil)
	}
	return v
}

// probeFailed records that a probe on behalf of all, sent at sentAt, got no answer until now. The
// failure counts only if no member got an answer meanwhile. probeFailed returns the new health.
func (m *Membership) probeFailed(sentAt, now time.Time, err error) connstate.Health {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.viewLocked()
	if !m.LastAnswer().After(sentAt) {
		v.health = v.health.After(now, err)
	}
	return v.health
}

// observer is a RoundTripper that sends requests to its server only, and records the time of each
// answer. observer marks the discovered kinds as stale if the server answers that a path does not
// exist.
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
		return nil, untrusted.Error(err) // TLS errors quote the names in the server's certificate
	}
	now := time.Now()
	o.target.lastAnswer.Store(&now)
	// The API server answers with a Status if the object does not exist, and with plain text if the
	// resource does not exist.
	if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") &&
		req.Context().Value(namesMayNotExist{}) == nil {
		o.target.kinds.forget()
	}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (o observer) WrappedRoundTripper() http.RoundTripper { return o.next }
