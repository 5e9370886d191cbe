package credential

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

const (
	maxRSABits = 8192
	maxKeyPEM  = 16 << 10
	maxToken   = 32 << 10 // more than the headers that an API server accepts
)

// secretMaterial is a secret as it was provided: a token or a client certificate. A secret never
// changes.
type secretMaterial struct {
	token       secret
	certificate func() *tls.Certificate
	version     string // differs for different secrets, and reveals nothing about them
}

// newSecretMaterial returns the secret of a token or a client certificate, of which exactly one
// must be set. The error contains no part of the secret.
func newSecretMaterial(token string, certPEM, keyPEM []byte) (secretMaterial, error) {
	hasCertificate := len(certPEM)+len(keyPEM) > 0
	switch {
	case token == "" && !hasCertificate:
		return secretMaterial{}, invalid(nil, "neither a token nor a client certificate is set")
	case token != "" && hasCertificate:
		return secretMaterial{},
			invalid(nil,
				"a token and a client certificate are both set, and the API server would use the certificate; remove one of "+
					"them")
	case token != "":
		if len(token) > maxToken {
			return secretMaterial{}, invalid(nil, fmt.Sprintf("the token has more than %d bytes", maxToken))
		}
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return secretMaterial{}, invalid(nil, "the token contains invalid characters; check for a line break at its end")
		}
		return secretMaterial{token: newSecret(token), version: digest([]byte("token"), []byte(token))}, nil
	}
	if len(keyPEM) > maxKeyPEM {
		return secretMaterial{}, invalid(nil, fmt.Sprintf("the client key has more than %d bytes", maxKeyPEM))
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return secretMaterial{}, invalid(err, "the client certificate")
	}
	if certificate.Leaf == nil {
		if certificate.Leaf, err = x509.ParseCertificate(certificate.Certificate[0]); err != nil {
			return secretMaterial{}, invalid(err, "the client certificate")
		}
	}
	// The time for a signature grows with the cube of the key size, and nothing can interrupt a
	// signature.
	if public, ok := certificate.Leaf.PublicKey.(*rsa.PublicKey); ok && public.N.BitLen() > maxRSABits {
		return secretMaterial{}, invalid(nil, fmt.Sprintf("the client key has more than %d bits", maxRSABits))
	}
	return secretMaterial{
		certificate: func() *tls.Certificate {
			return &certificate
		},
		version: digest([]byte("certificate"), certPEM, keyPEM),
	}, nil
}

// maxAuthorities is the maximum number of certificates in a bundle of authorities. Mozilla's bundle
// has fewer.
const maxAuthorities = 500

// checkAuthorities returns an error for a bundle of certificate authorities with too many
// certificates, or with a large RSA key. Verification with a large RSA key takes long, and nothing
// can interrupt it. crypto/tls limits the size of the keys that a server sends, but not of the keys
// in the bundle.
func checkAuthorities(bundle []byte) error {
	_, err := authorityKeys(bundle)
	return err
}

// authorityKeys is checkAuthorities, and returns the public keys of the certificates.
func authorityKeys(bundle []byte) (keys [][]byte, err error) {
	blocks := 0
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if blocks++; blocks > maxAuthorities {
			return nil, errors.Errorf("has more than %d certificates", maxAuthorities)
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			continue // crypto/x509 also skips it
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue // crypto/x509 also skips the certificate
		}
		if public, ok := certificate.PublicKey.(*rsa.PublicKey); ok && public.N.BitLen() > maxRSABits {
			return nil, errors.Errorf("has a key of more than %d bits", maxRSABits)
		}
		keys = append(keys, certificate.RawSubjectPublicKeyInfo)
	}
	if len(keys) == 0 {
		return nil, errors.New("holds no certificate")
	}
	return keys, nil
}

// digest returns a hash that differs for different contents.
func digest(contents ...[]byte) string {
	all := sha256.New()
	for _, content := range contents {
		_, _ = all.Write([]byte(strconv.Itoa(len(content)) + "\x00")) // a hash never returns an error
		_, _ = all.Write(content)
	}
	return hex.EncodeToString(all.Sum(nil))
}

// open returns a credential that uses the secret.
func (p secretMaterial) open() identity.Credential { return newStaticCredential(p) }

func newStaticCredential(p secretMaterial) *staticCredential {
	f := &staticCredential{}
	f.secretMaterial.Store(&p)
	if p.certificate != nil {
		f.expires = p.certificate().Leaf.NotAfter
	} else {
		f.expires = expiryOf(p.token())
	}
	return f
}

// targetKey identifies a target, as part of a Resolution.Key.
func targetKey(reach *rest.Config) string {
	proxy := ""
	if by := identity.ProxyOf(reach); by != nil {
		proxy = digest([]byte("proxy"), []byte(by.String())) // it may have a password
	}
	return strings.Join([]string{reach.Host, reach.APIPath, reach.ServerName, string(reach.CAData),
		strconv.FormatBool(reach.Insecure), proxy}, "\x00")
}

// staticCredential is a credential that this process cannot renew.
type staticCredential struct {
	secretMaterial atomic.Pointer[secretMaterial] // nil after Close
	expires        time.Time
}

var _ identity.Credential = (*staticCredential)(nil)

func (*staticCredential) Discard(time.Time) {}
func (f *staticCredential) Close()          { f.secretMaterial.Store(nil) }
func (f *staticCredential) TransportRequirement() identity.TransportRequirement {
	if p := f.secretMaterial.Load(); p != nil {
		return identity.TransportRequirement{Certificate: p.certificate}
	}
	return identity.TransportRequirement{}
}

func (f *staticCredential) Prepare(context.Context) error {
	if f.secretMaterial.Load() == nil {
		return errClosed
	}
	return nil
}

// Expires returns the end of validity of a client certificate, or the exp claim of a token that is
// a JWT.
func (f *staticCredential) Expires() time.Time { return f.expires }

// get implements tokenSource.
func (f *staticCredential) get(context.Context) (*issuedToken, error) {
	p := f.secretMaterial.Load()
	if p == nil {
		return nil, errClosed
	}
	return &issuedToken{value: p.token}, nil
}

// replacement implements tokenSource.
func (*staticCredential) replacement(context.Context, *issuedToken) *issuedToken { return nil }

// answered implements tokenSource.
func (*staticCredential) answered(*issuedToken, int) {}

func (f *staticCredential) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if p := f.secretMaterial.Load(); p != nil && p.certificate != nil {
		return &certificateTransport{credential: f, next: next}
	}
	return &bearer{tokens: f, next: next}
}

// certificateTransport is a RoundTripper that removes every header that names a user. The TLS
// handshake already authenticated the user.
type certificateTransport struct {
	credential *staticCredential
	next       http.RoundTripper
}

func (c *certificateTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := c.credential.Prepare(req.Context()); err != nil {
		closeBody(req)
		return nil, err
	}
	plain := cloneForIdentity(req)
	resp, err := c.next.RoundTrip(plain)
	if err != nil {
		return nil, err
	}
	resp.Request = req
	return resp, nil
}

// WrappedRoundTripper lets client-go find the TLS settings of the wrapped transport.
func (c *certificateTransport) WrappedRoundTripper() http.RoundTripper { return c.next }

// expiryOf returns the exp claim of a token, zero if the token is not a JWT or has no such claim.
// The value is only for display, because the token's signature is not verified.
func expiryOf(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	content, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if json.Unmarshal(content, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}
