package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Authority is a certificate authority. Its methods may be called from any goroutine.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// lifetime is how long the certificate of NewAuthority is valid: ten years.
const lifetime = 10 * 365 * 24 * time.Hour

// NewAuthority creates an authority, whose certificate is valid for ten years.
func NewAuthority(name string) (*Authority, error) { return NewAuthorityFor(name, lifetime) }

// NewAuthorityFor creates an authority, whose certificate is valid for that long.
func NewAuthorityFor(name string, valid time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-ClockSkew),
		NotAfter:              now.Add(valid),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, errors.Wrap(err, "creating the certificate of an authority")
	}
	certificate, err := x509.ParseCertificate(der)
	return &Authority{certificate: certificate, key: key}, errors.WithStack(err)
}

// Parse returns the authority of a certificate and its key, both in PEM.
func Parse(certificate, key []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, errors.Wrap(err, "reading an authority")
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, errors.Wrap(err, "reading the certificate of an authority")
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !leaf.IsCA || leaf.KeyUsage != 0 && leaf.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("the certificate is not that of an authority")
	}
	return &Authority{certificate: leaf, key: signer}, nil
}

// Certificate returns the certificate of the authority. Do not change it.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate }

// KeyPEM returns the key of the authority.
func (a *Authority) KeyPEM() ([]byte, error) {
	key, err := keyutil.MarshalPrivateKeyToPEM(a.key)
	return key, errors.Wrap(err, "encoding the key of an authority")
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return serial, errors.WithStack(err)
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte { return encode(a.certificate.Raw) }

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}

// Request describes a certificate.
type Request struct {
	CommonName string
	Hosts      []string // names and addresses; a certificate without hosts is that of a client
	ValidFor   time.Duration
	// Peer: the certificate is that of a server, and of a client of others of its kind.
	Peer bool
}

// ClockSkew is how much earlier than now a certificate is valid, for clocks that are late.
const ClockSkew = 5 * time.Minute

// Issue issues a certificate with a new key.
func (a *Authority) Issue(request Request) (certificate, key []byte, err error) {
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, errors.WithStack(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: request.CommonName},
		NotBefore:    now.Add(-ClockSkew),
		NotAfter:     now.Add(request.ValidFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range request.Hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if request.Peer {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, errors.Wrap(err, "signing a certificate")
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	return encode(der), key, errors.Wrap(err, "encoding a key")
}
