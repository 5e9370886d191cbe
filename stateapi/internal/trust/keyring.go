package trust

import (
	"bytes"
	"crypto/x509"
	"slices"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/util/cert"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

// Keys of the Secret. The first three are those of cert-manager.
const (
	signerKey     = "tls.key"
	signerCert    = "tls.crt"
	trustedCerts  = "ca.crt"
	successorKey  = "next.key"
	successorCert = "next.crt"
)

// keyring is what the Secret has.
type keyring struct {
	signer    *certs.Authority    // issues certificates; nil if there is none yet
	successor *certs.Authority    // will issue them; nil if there is none
	trusted   []*x509.Certificate // are trusted, too
}

// readKeyring returns the keyring in the data of a Secret.
func readKeyring(data map[string][]byte) (k keyring, err error) {
	read := func(certificate, key string) *certs.Authority {
		if err != nil || len(data[certificate]) == 0 && len(data[key]) == 0 {
			return nil
		}
		authority, failed := certs.Parse(data[certificate], data[key])
		err = errors.WithMessagef(failed, "%s and %s", certificate, key)
		return authority
	}
	k.signer, k.successor = read(signerCert, signerKey), read(successorCert, successorKey)
	if len(data[trustedCerts]) > 0 && err == nil {
		k.trusted, err = cert.ParseCertsPEM(data[trustedCerts])
		for _, c := range k.trusted {
			if !c.IsCA {
				err = errors.Errorf("the certificate of %q is not that of an authority", c.Subject)
			}
		}
		err = errors.WithMessage(err, trustedCerts)
	}
	if err != nil {
		return keyring{}, err
	}
	return k, nil
}

// certificatesIn returns those certificates in the data of a Secret that can be read.
func certificatesIn(data map[string][]byte) (list []*x509.Certificate) {
	for _, key := range []string{signerCert, successorCert, trustedCerts} {
		if some, err := cert.ParseCertsPEM(data[key]); err == nil {
			list = append(list, some...)
		}
	}
	return list
}

// data returns the data of a Secret.
func (k keyring) data() (map[string][]byte, error) {
	data := map[string][]byte{}
	for _, part := range []struct {
		authority        *certs.Authority
		certificate, key string
	}{{k.signer, signerCert, signerKey}, {k.successor, successorCert, successorKey}} {
		if part.authority == nil {
			continue
		}
		key, err := part.authority.KeyPEM()
		if err != nil {
			return nil, err
		}
		data[part.certificate], data[part.key] = part.authority.PEM(), key
	}
	if len(k.trusted) > 0 {
		data[trustedCerts] = encode(k.trusted)
	}
	return data, nil
}

// roots returns all certificates that are trusted and valid.
func (k keyring) roots(now time.Time) (list []*x509.Certificate) {
	add := func(c *x509.Certificate) {
		if now.Before(c.NotAfter) && !slices.ContainsFunc(list, c.Equal) {
			list = append(list, c)
		}
	}
	for _, authority := range []*certs.Authority{k.signer, k.successor} {
		if authority != nil {
			add(authority.Certificate())
		}
	}
	for _, c := range k.trusted {
		add(c)
	}
	return list
}

func encode(list []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range list {
		encoded, err := cert.EncodeCertificates(c)
		if err != nil {
			panic(err) // a buffer
		}
		out.Write(encoded)
	}
	return out.Bytes()
}

// Times say when authorities follow each other.
type Times struct {
	// Lifetime of an authority. Its successor is made when a third is left.
	Lifetime time.Duration
	// Overlap is how long a successor is trusted before it issues certificates: more than a replica
	// takes to read the Secret again.
	Overlap time.Duration
}

// DefaultTimes are the times of a fleet.
func DefaultTimes() Times { return Times{Lifetime: 90 * 24 * time.Hour, Overlap: 10 * time.Minute} }

// follow returns what is trusted when the Secret has these certificates, and others were trusted
// before.
func (t Times) follow(before []root, has []*x509.Certificate, now time.Time) (next []root) {
	for _, c := range has {
		next = append(next, root{certificate: c})
	}
	for _, r := range before {
		if slices.ContainsFunc(has, r.certificate.Equal) || !now.Before(r.certificate.NotAfter) {
			continue
		}
		if r.gone.IsZero() {
			r.gone = now
		}
		if now.Sub(r.gone) < t.Overlap {
			next = append(next, r)
		}
	}
	return next
}

// step returns the keyring that the Secret should have. changed reports whether it is another one.
func (t Times) step(k keyring, now time.Time, create func() (*certs.Authority, error)) (next keyring, changed bool,
	err error) {
	next = k
	valid := func(a *certs.Authority) bool {
		return a != nil && now.Before(a.Certificate().NotAfter) && !now.Before(a.Certificate().NotBefore)
	}
	switch {
	case !valid(k.signer) && valid(k.successor): // all replicas were away for a long time
		next.signer, next.successor, changed = k.successor, nil, true
	case !valid(k.signer):
		next.signer, err = create()
		next.successor, changed = nil, true
		if k.signer != nil { // its time has not come: a replica with a wrong clock has made it, and may issue by it
			next.trusted = append(slices.Clone(k.trusted), k.signer.Certificate())
		}
	case k.successor == nil && k.signer.Certificate().NotAfter.Sub(now) < t.Lifetime/3:
		next.successor, err = create()
		changed = true
	case k.successor != nil && now.Sub(k.successor.Certificate().NotBefore) > t.Overlap+certs.ClockSkew:
		next.trusted = append(slices.Clone(k.trusted), k.signer.Certificate())
		next.signer, next.successor, changed = k.successor, nil, true
	}
	if err != nil {
		return keyring{}, false, err
	}
	expired := func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) }
	kept := slices.DeleteFunc(slices.Clone(next.trusted), expired)
	changed = changed || len(kept) < len(next.trusted)
	next.trusted = kept
	return next, changed, nil
}
