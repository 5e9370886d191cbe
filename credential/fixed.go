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
)

const (
	maxRSABits = 8192
	maxKeyPEM  = 16 << 10
	maxToken   = 32 << 10 // as much as an API server takes of headers, and more
)

// proof is a secret as it was provided: a token or a client certificate. It never changes.
type proof struct {
	token       secret
	certificate func() *tls.Certificate
	version     string // differs for different secrets, and tells nothing of them
}

// newProof takes the one credential that there is. The error tells nothing of it.
func newProof(token string, certPEM, keyPEM []byte) (proof, error) {
	hasCertificate := len(certPEM)+len(keyPEM) > 0
	switch {
	case token == "" && !hasCertificate:
		return proof{}, invalid(nil, "it holds neither a token nor a client certificate")
	case token != "" && hasCertificate:
		return proof{},
			invalid(nil,
				"it holds a token and a client certificate, and the API server would believe the certificate; leave one of "+
					"them out")
	case token != "":
		if len(token) > maxToken {
			return proof{}, invalid(nil, fmt.Sprintf("the token has more than %d bytes", maxToken))
		}
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return proof{}, invalid(nil, "the token holds characters that no token has; is there a line break at its end?")
		}
		return proof{token: newSecret(token), version: digest([]byte("token"), []byte(token))}, nil
	}
	if len(keyPEM) > maxKeyPEM {
		return proof{}, invalid(nil, fmt.Sprintf("the client key has more than %d bytes", maxKeyPEM))
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return proof{}, invalid(err, "the client certificate")
	}
	if certificate.Leaf == nil {
		if certificate.Leaf, err = x509.ParseCertificate(certificate.Certificate[0]); err != nil {
			return proof{}, invalid(err, "the client certificate")
		}
	}
	// The time that a signature takes grows with the cube of the size, and nothing can interrupt
	// it.
	if public, ok := certificate.Leaf.PublicKey.(*rsa.PublicKey); ok && public.N.BitLen() > maxRSABits {
		return proof{}, invalid(nil, fmt.Sprintf("the client key has more than %d bits", maxRSABits))
	}
	return proof{certificate: func() *tls.Certificate {
		return &certificate
	}, version: digest([]byte("certificate"), certPEM, keyPEM)}, nil
}

// maxAuthorities is how many certificates a bundle of authorities may have: as many as Mozilla's,
// and more.
const maxAuthorities = 500

// checkAuthorities returns what is wrong with a bundle of certificate authorities: an RSA key that
// takes long to verify with, which nothing can interrupt, or too many of them. crypto/tls bounds
// the keys that a server sends and not those that it is verified by.
func checkAuthorities(bundle []byte) error {
	found := 0
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue // crypto/x509 passes over it too
		}
		if public, ok := certificate.PublicKey.(*rsa.PublicKey); ok && public.N.BitLen() > maxRSABits {
			return errors.Errorf("has a key of more than %d bits", maxRSABits)
		}
		if found++; found > maxAuthorities {
			return errors.Errorf("has more than %d certificates", maxAuthorities)
		}
	}
	if found == 0 {
		return errors.New("holds no certificate")
	}
	return nil
}

// digest tells contents apart.
func digest(contents ...[]byte) string {
	all := sha256.New()
	for _, content := range contents {
		_, _ = all.Write([]byte(strconv.Itoa(len(content)) + "\x00")) // a hash takes everything
		_, _ = all.Write(content)
	}
	return hex.EncodeToString(all.Sum(nil))
}

// open returns the credential.
func (p proof) open() Credential { return newFixed(p) }

func newFixed(p proof) *fixed {
	f := &fixed{}
	f.held.Store(&p)
	if p.certificate != nil {
		f.expires = p.certificate().Leaf.NotAfter
	} else {
		f.expires = endOf(p.token())
	}
	return f
}

// targetKey names a target, as part of a key.
func targetKey(reach *rest.Config) string {
	return strings.Join([]string{reach.Host, reach.APIPath, reach.ServerName, string(reach.CAData),
		strconv.FormatBool(reach.Insecure)}, "\x00")
}

// fixed is a credential that nobody here can renew.
type fixed struct {
	held    atomic.Pointer[proof] // nil once it was closed
	expires time.Time
}

var _ Credential = (*fixed)(nil)

func (*fixed) sealed()           {}
func (*fixed) Discard(time.Time) {}
func (f *fixed) Close()          { f.held.Store(nil) }
func (f *fixed) TransportRequirement() TransportRequirement {
	if held := f.held.Load(); held != nil {
		return TransportRequirement{Certificate: held.certificate}
	}
	return TransportRequirement{}
}

func (f *fixed) Prepare(context.Context) error {
	if f.held.Load() == nil {
		return errClosed
	}
	return nil
}

// Expires is the end of a client certificate, or what a token says of itself if it is a JWT.
func (f *fixed) Expires() time.Time { return f.expires }

// get implements tokenSource.
func (f *fixed) get(context.Context) (*issued, error) {
	held := f.held.Load()
	if held == nil {
		return nil, errClosed
	}
	return &issued{value: held.token}, nil
}

// refused implements tokenSource.
func (*fixed) refused(context.Context, *issued) *issued { return nil }

func (f *fixed) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if held := f.held.Load(); held != nil && held.certificate != nil {
		return &certified{credential: f, next: next}
	}
	return &bearer{tokens: f, next: next}
}

// certified is a RoundTripper that removes everything that names a user from requests; the
// handshake named one.
type certified struct {
	credential *fixed
	next       http.RoundTripper
}

func (c *certified) RoundTrip(req *http.Request) (*http.Response, error) {
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

// WrappedRoundTripper lets client-go find the TLS settings below.
func (c *certified) WrappedRoundTripper() http.RoundTripper { return c.next }

// endOf is when a token ends by its own account, zero if it is no JWT or does not say. It is for
// people; nobody verified it.
func endOf(token string) time.Time {
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
