package aggregation

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

const (
	// validFor is how long a certificate is valid. It is renewed when a third is left.
	validFor = 24 * time.Hour
	renewAt  = validFor / 3
)

// certificate is a serving certificate that is renewed. Its methods may be called from any
// goroutine.
type certificate struct {
	authority *certs.Authority
	hosts     []string

	mu        sync.Mutex
	cert, key []byte                         // guarded by mu
	expires   time.Time                      // guarded by mu
	listeners []dynamiccertificates.Listener // guarded by mu
}

var (
	_ dynamiccertificates.CertKeyContentProvider = (*certificate)(nil)
	_ dynamiccertificates.Notifier               = (*certificate)(nil)
)

func newCertificate(hosts ...string) (*certificate, error) {
	authority, err := certs.NewAuthority("latchkey-state-api")
	if err != nil {
		return nil, err
	}
	c := &certificate{authority: authority, hosts: hosts}
	return c, c.renewIfDue(time.Now())
}

// renewIfDue issues another certificate if the time of the current one is nearly over.
func (c *certificate) renewIfDue(now time.Time) error {
	renewed, err := c.renewed(now)
	for _, listener := range renewed {
		listener.Enqueue()
	}
	return err
}

// renewed renews the certificate if that is due, and returns the listeners that must know.
func (c *certificate) renewed(now time.Time) ([]dynamiccertificates.Listener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expires.Sub(now) > renewAt {
		return nil, nil
	}
	cert, key, err := c.authority.Issue(certs.Request{CommonName: c.hosts[0], Hosts: c.hosts, ValidFor: validFor})
	if err != nil {
		return nil, err
	}
	c.cert, c.key, c.expires = cert, key, now.Add(validFor)
	return slices.Clone(c.listeners), nil
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (c *certificate) Name() string { return "state-api" }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (c *certificate) CurrentCertKeyContent() (cert, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cert, c.key
}

// AddListener implements dynamiccertificates.Notifier.
func (c *certificate) AddListener(listener dynamiccertificates.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, listener)
}
