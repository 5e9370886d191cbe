package trust

import (
	"crypto/tls"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

const (
	// validFor is how long a certificate is valid. It is renewed when a third is left.
	validFor = 24 * time.Hour
	renewAt  = validFor / 3
)

// Leaf is a certificate that is renewed. Its methods may be called from any goroutine.
type Leaf struct {
	name    string
	request certs.Request
	signer  func() *certs.Authority // nil for none yet

	mu        sync.Mutex
	issuer    *certs.Authority               // guarded by mu
	cert, key []byte                         // guarded by mu
	expires   time.Time                      // guarded by mu
	err       error                          // guarded by mu; of the last renewal
	listeners []dynamiccertificates.Listener // guarded by mu
	next      chan struct{}                  // guarded by mu; see Renewed; nil if none waits
}

var (
	_ dynamiccertificates.CertKeyContentProvider = (*Leaf)(nil)
	_ dynamiccertificates.Notifier               = (*Leaf)(nil)
)

// NewLeaf returns a certificate of an authority. RenewIfDue renews it.
func NewLeaf(name string, authority *certs.Authority, hosts ...string) (*Leaf, error) {
	l := &Leaf{
		name:    name,
		request: certs.Request{CommonName: hosts[0], Hosts: hosts, ValidFor: validFor},
		signer:  func() *certs.Authority { return authority },
	}
	return l, l.RenewIfDue(time.Now())
}

// NewLeaf returns a certificate of the fleet's authority for a name. While the Secret was not read
// yet, it is empty. It is renewed by Run. peer: it is that of a client, too.
func (a *Authority) NewLeaf(name string, peer bool, host string) *Leaf {
	l := &Leaf{
		name:    name,
		request: certs.Request{CommonName: host, Hosts: []string{host}, ValidFor: validFor, Peer: peer},
		signer:  a.signer,
	}
	a.mu.Lock()
	a.leaves = append(a.leaves, l)
	a.mu.Unlock()
	l.renewIfDue(time.Now())
	return l
}

// renewIfDue is RenewIfDue; Certificate has the error.
func (l *Leaf) renewIfDue(now time.Time) {
	err := l.RenewIfDue(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// RenewIfDue issues another certificate if the time of the current one is nearly over, or if it is
// of an earlier authority.
func (l *Leaf) RenewIfDue(now time.Time) error {
	renewed, err := l.renewed(now)
	for _, listener := range renewed {
		listener.Enqueue()
	}
	return err
}

// renewed renews the certificate if that is due, and returns the listeners that must know.
func (l *Leaf) renewed(now time.Time) ([]dynamiccertificates.Listener, error) {
	signer := l.signer()
	if signer == nil {
		return nil, errors.New("there is no authority yet")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expires.Sub(now) > renewAt && l.issuer == signer {
		return nil, nil
	}
	if l.expires.Sub(now) > renewAt && l.issuer != nil && l.issuer.Certificate().Equal(signer.Certificate()) {
		l.issuer = signer // the same, read again
		return nil, nil
	}
	if expired := signer.Certificate().NotAfter; now.After(expired) {
		return nil, errors.Errorf("the authority has expired at %s", expired.UTC().Format(time.RFC3339))
	}
	cert, key, err := signer.Issue(l.request)
	if err != nil {
		return nil, err
	}
	l.cert, l.key, l.expires, l.issuer = cert, key, now.Add(validFor), signer
	if l.next != nil {
		close(l.next)
		l.next = nil
	}
	return slices.Clone(l.listeners), nil
}

// Renewed returns a channel that is closed when there is another certificate.
func (l *Leaf) Renewed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = make(chan struct{})
	}
	return l.next
}

// Certificate returns the certificate for crypto/tls.
func (l *Leaf) Certificate() (*tls.Certificate, error) {
	l.mu.Lock()
	certificate, key, err := l.cert, l.key, l.err
	l.mu.Unlock()
	if len(certificate) == 0 {
		return nil, errors.WithMessage(err, "no certificate")
	}
	pair, err := tls.X509KeyPair(certificate, key)
	return &pair, errors.Wrap(err, "reading a certificate")
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (l *Leaf) Name() string { return l.name }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (l *Leaf) CurrentCertKeyContent() (cert, key []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cert, l.key
}

// AddListener implements dynamiccertificates.Notifier.
func (l *Leaf) AddListener(listener dynamiccertificates.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = append(l.listeners, listener)
}
