package credential

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
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
		return proof{}, invalid(nil, "it holds a token and a client certificate, and the API server would believe the certificate; leave one of them out")
	case token != "":
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return proof{}, invalid(nil, "the token holds characters that no token has; is there a line break at its end?")
		}
		return proof{token: newSecret(token), version: digest([]byte("token"), []byte(token))}, nil
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
	return proof{certificate: func() *tls.Certificate { return &certificate }, version: digest([]byte("certificate"), certPEM, keyPEM)}, nil
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
func (p proof) open() Credential { return &fixed{proof: p} }

// targetKey names a target, as part of a key.
func targetKey(reach *rest.Config) string {
	return strings.Join([]string{reach.Host, reach.APIPath, reach.ServerName, string(reach.CAData), strconv.FormatBool(reach.Insecure)}, "\x00")
}

// fixed is a credential that nobody here can renew.
type fixed struct {
	proof  proof
	closed atomic.Bool
}

var _ Credential = (*fixed)(nil)

func (*fixed) sealed()           {}
func (*fixed) Discard(time.Time) {}
func (f *fixed) Close()          { f.closed.Store(true) }
func (f *fixed) Carrier() Carrier {
	return Carrier{Certificate: f.proof.certificate}
}

func (f *fixed) Prepare(context.Context) error {
	if f.closed.Load() {
		return errClosed
	}
	return nil
}

// Expires is the end of a client certificate. A token does not say.
func (f *fixed) Expires() time.Time {
	if f.proof.certificate == nil {
		return time.Time{}
	}
	return f.proof.certificate().Leaf.NotAfter
}

// get implements tokenSource.
func (f *fixed) get(context.Context) (*issued, error) {
	if f.closed.Load() {
		return nil, errClosed
	}
	return &issued{value: f.proof.token}, nil
}

// refused implements tokenSource.
func (*fixed) refused(context.Context, *issued) *issued { return nil }

func (f *fixed) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if f.proof.certificate != nil {
		return &certified{credential: f, next: next}
	}
	return &bearer{tokens: f, next: next}
}

// certified is a RoundTripper that removes everything that names a user from requests; the handshake named one.
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
