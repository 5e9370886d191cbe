package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	key         *ecdsa.PrivateKey
}

// NewAuthority creates an authority, whose certificate is valid for ten years.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		return nil, errors.Wrap(err, "creating the certificate of an authority")
	}
	return &Authority{certificate: certificate, key: key}, nil
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
}

// clockSkew is how much earlier than now a certificate is valid, for clocks that are late.
const clockSkew = 5 * time.Minute

// Issue issues a certificate with a new key.
func (a *Authority) Issue(request Request) (certificate, key []byte, err error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, errors.WithStack(err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, errors.WithStack(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: request.CommonName},
		NotBefore:    now.Add(-clockSkew),
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
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, errors.Wrap(err, "signing a certificate")
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(private)
	return encode(der), key, errors.Wrap(err, "encoding a key")
}
