package trust

import (
	"bytes"
	"context"
	"crypto/x509"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

// readInterval is how often the Secret is read.
const readInterval = 10 * time.Second

// readOverlap is how long a replica issues certificates by the authority of before, when another
// program has replaced it: by then all replicas have read the Secret, and trust the next one.
const readOverlap = 3 * readInterval

// Options configure an Authority.
type Options struct {
	// Namespace and Name of the Secret, which must exist.
	Namespace, Name string
	// ReadOnly: another program keeps the Secret. Only tls.crt is trusted: in ca.crt, cert-manager has
	// who issued that, who may issue certificates for others, too.
	ReadOnly bool
	// Clock, if set, has seen the answers of the API server. A replica with a wrong clock changes
	// nothing in the Secret.
	Clock *Clock
	Times
}

// Authority is the authority of a fleet, as the Secret has it. Its methods may be called from any
// goroutine.
type Authority struct {
	secrets corev1client.SecretsGetter
	options Options

	mu        sync.Mutex
	ring      keyring                        // guarded by mu
	issuer    *certs.Authority               // guarded by mu; issues certificates; nil if there is none
	last      *certs.Authority               // guarded by mu; the last issuer that was not nil
	next      *certs.Authority               // guarded by mu; that of ring, if it does not issue them yet
	nextSince time.Time                      // guarded by mu
	roots     []root                         // guarded by mu; those of ring, and of what was read before
	bundle    []byte                         // guarded by mu; roots
	listeners []dynamiccertificates.Listener // guarded by mu
	leaves    []*Leaf                        // guarded by mu
	changed   chan struct{}                  // guarded by mu; closed when the roots change
}

// root is an authority that is trusted.
type root struct {
	certificate *x509.Certificate
	gone        time.Time // when the Secret was first read without it; zero if it has it
}

// New returns an Authority. New sends no request.
func New(secrets corev1client.SecretsGetter, options Options) *Authority {
	return &Authority{secrets: secrets, options: options, changed: make(chan struct{})}
}

// Run follows the Secret until ctx is done. What it cannot do is logged, and tried again.
func (a *Authority) Run(ctx context.Context) {
	tick := time.NewTicker(readInterval)
	defer tick.Stop()
	logged := ""
	for {
		text := ""
		if err := a.refresh(ctx, time.Now()); err != nil {
			text = err.Error()
			a.renewLeaves(time.Now()) // the authority in memory is good until it expires
		}
		if text != logged && ctx.Err() == nil {
			logger := log.FromContext(ctx).WithValues("secret", a.options.Namespace+"/"+a.options.Name)
			if logged = text; text != "" {
				logger.Info("The replicas of the fleet cannot trust each other", "reason", text)
			} else {
				logger.Info("The replicas of the fleet trust each other")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// conflicts is how often the Secret is read again at once, after another replica has written it.
const conflicts = 5

// refresh reads the Secret, and changes it if that is due. A request that hangs ends, so that what
// does not need the API server goes on.
func (a *Authority) refresh(ctx context.Context, now time.Time) (err error) {
	ctx, cancel := context.WithTimeout(ctx, readInterval)
	defer cancel()
	for range conflicts {
		if err = a.refreshOnce(ctx, now); !apierrors.IsConflict(err) {
			break
		}
	}
	a.forget(now)
	return err
}

func (a *Authority) refreshOnce(ctx context.Context, now time.Time) error {
	secrets := a.secrets.Secrets(a.options.Namespace)
	secret, err := secrets.Get(ctx, a.options.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		a.take(keyring{}, now)
		return errors.New("the Secret does not exist: create it without data, as the manifests of the state API have it")
	}
	if err != nil {
		return errors.Wrap(err, "reading the Secret")
	}
	data := secret.Data
	if a.options.ReadOnly {
		data = map[string][]byte{signerCert: data[signerCert], signerKey: data[signerKey]}
	}
	ring, err := readKeyring(data)
	if err != nil {
		a.take(a.remaining(certificatesIn(data)), now)
		return err
	}
	if a.options.ReadOnly {
		switch {
		case ring.signer == nil:
			a.take(ring, now)
			return errors.Errorf("the Secret has no %s yet", signerCert)
		case now.After(ring.signer.Certificate().NotAfter):
			a.take(ring, now)
			return errors.Errorf("%s has expired at %s, and the program that keeps the Secret has not replaced it", signerCert,
				ring.signer.Certificate().NotAfter.UTC().Format(time.RFC3339))
		}
	} else if next, err := a.step(ctx, secret, ring, now); err == nil {
		ring = next
	} else {
		if !apierrors.IsConflict(err) {
			a.take(ring, now) // what was removed is not trusted, although nothing can be added
		}
		return err
	}
	a.take(ring, now)
	return nil
}

// step changes the Secret if that is due.
func (a *Authority) step(ctx context.Context, secret *corev1.Secret, ring keyring, now time.Time) (keyring, error) {
	next, changed, err := a.options.step(ring, now, func() (*certs.Authority, error) {
		return certs.NewAuthorityFor("latchkey-fleet", a.options.Lifetime)
	})
	if err != nil || !changed {
		return next, err
	}
	if err := a.options.Clock.check(); err != nil {
		return keyring{}, err
	}
	secret = secret.DeepCopy()
	if secret.Data, err = next.data(); err != nil {
		return keyring{}, err
	}
	// The resourceVersion goes along: of two replicas, one is first.
	if _, err := a.secrets.Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return keyring{}, errors.Wrap(err, "writing the Secret")
	}
	return next, nil
}

// take makes the keyring the current one. What the Secret does not have any more is trusted for
// Overlap: other replicas may not have read the Secret yet.
func (a *Authority) take(ring keyring, now time.Time) {
	listeners := a.replace(ring, now)
	a.renewLeaves(now)
	for _, listener := range listeners {
		listener.Enqueue()
	}
}

// remaining returns what is left of the keyring when the Secret has these certificates, and the
// rest of it cannot be read: what was removed is not trusted.
func (a *Authority) remaining(has []*x509.Certificate) (ring keyring) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := func(authority *certs.Authority) *certs.Authority {
		if authority == nil || !slices.ContainsFunc(has, authority.Certificate().Equal) {
			return nil
		}
		return authority
	}
	ring.signer, ring.successor = kept(a.ring.signer), kept(a.ring.successor)
	for _, r := range a.roots {
		if slices.ContainsFunc(has, r.certificate.Equal) {
			ring.trusted = append(ring.trusted, r.certificate)
		}
	}
	return ring
}

// renewLeaves renews the certificates that are due.
func (a *Authority) renewLeaves(now time.Time) {
	a.mu.Lock()
	leaves := slices.Clone(a.leaves)
	a.mu.Unlock()
	for _, leaf := range leaves {
		leaf.renewIfDue(now)
	}
}

// forget forgets what the Secret does not have any more, when it is time, also while the Secret
// cannot be read.
func (a *Authority) forget(now time.Time) {
	a.mu.Lock()
	var has []*x509.Certificate
	for _, r := range a.roots {
		if r.gone.IsZero() && now.Before(r.certificate.NotAfter) {
			has = append(has, r.certificate)
		}
	}
	listeners := a.trustLocked(has, now)
	a.mu.Unlock()
	for _, listener := range listeners {
		listener.Enqueue()
	}
}

// replace returns the listeners that must know that others are trusted.
func (a *Authority) replace(ring keyring, now time.Time) (listeners []dynamiccertificates.Listener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ring = ring
	a.issueLocked(ring.signer, now)
	return a.trustLocked(ring.roots(now), now)
}

// issueLocked makes signer the one that issues certificates: at once, unless other replicas may not
// trust it yet.
func (a *Authority) issueLocked(signer *certs.Authority, now time.Time) {
	same := func(other *certs.Authority) bool {
		return other != nil && signer != nil && other.Certificate().Equal(signer.Certificate())
	}
	wait := a.options.ReadOnly && signer != nil && a.last != nil && !same(a.last) &&
		now.Before(a.last.Certificate().NotAfter)
	switch {
	case wait && !same(a.next): // maybe after a time without any
		a.issuer, a.next, a.nextSince = a.last, signer, now
	case !wait || now.Sub(a.nextSince) >= readOverlap:
		a.issuer, a.next = signer, nil
	}
	if a.issuer != nil {
		a.last = a.issuer
	}
}

// trustLocked trusts what the Secret has, and for a time what it had before.
func (a *Authority) trustLocked(has []*x509.Certificate, now time.Time) (listeners []dynamiccertificates.Listener) {
	a.roots = a.options.follow(a.roots, has, now)
	slices.SortFunc(a.roots, func(x, y root) int { // the same ones are the same bundle
		return bytes.Compare(x.certificate.Raw, y.certificate.Raw)
	})
	if bundle := encode(certificatesOf(a.roots)); !bytes.Equal(bundle, a.bundle) {
		a.bundle, listeners = bundle, slices.Clone(a.listeners)
		close(a.changed)
		a.changed = make(chan struct{})
	}
	return listeners
}

// signer returns the authority that issues certificates, nil if there is none.
func (a *Authority) signer() *certs.Authority {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.issuer
}

// Bundle returns the certificates of the authorities that are trusted, in PEM, and a channel that
// is closed when they change.
func (a *Authority) Bundle() (bundle []byte, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bundle, a.changed
}

// Pool returns the authorities that are trusted, and a channel that is closed when they change.
func (a *Authority) Pool() (pool *x509.CertPool, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool = x509.NewCertPool()
	for _, root := range a.roots {
		pool.AddCert(root.certificate)
	}
	return pool, a.changed
}

// Authority implements dynamiccertificates.CAContentProvider.
var _ dynamiccertificates.CAContentProvider = (*Authority)(nil)

// Name implements dynamiccertificates.CAContentProvider.
func (*Authority) Name() string { return "fleet" }

// CurrentCABundleContent implements dynamiccertificates.CAContentProvider.
func (a *Authority) CurrentCABundleContent() []byte {
	bundle, _ := a.Bundle()
	return bundle
}

// VerifyOptions implements dynamiccertificates.CAContentProvider.
func (a *Authority) VerifyOptions() (x509.VerifyOptions, bool) {
	pool, _ := a.Pool()
	return x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		len(a.CurrentCABundleContent()) > 0
}

// AddListener implements dynamiccertificates.CAContentProvider.
func (a *Authority) AddListener(listener dynamiccertificates.Listener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners = append(a.listeners, listener)
}

func certificatesOf(roots []root) (list []*x509.Certificate) {
	for _, r := range roots {
		list = append(list, r.certificate)
	}
	return list
}
