package credential

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// clientCertificate creates a self-signed certificate that is valid for an hour.
func clientCertificate(t testing.TB, user string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: user},
		NotAfter:     time.Now().Add(time.Hour).Truncate(time.Second),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func TestClientCertificate(t *testing.T) {
	g := NewWithT(t)
	certPEM, keyPEM := clientCertificate(t, "red")
	p, err := newSecretMaterial("", certPEM, keyPEM)
	g.Expect(err).NotTo(HaveOccurred())
	c := p.open()
	g.Expect(c.TransportRequirement().Shared()).To(BeFalse())
	g.Expect(c.TransportRequirement().Certificate().Leaf.Subject.CommonName).To(Equal("red"))
	g.Expect(c.Expires()).To(Equal(c.TransportRequirement().Certificate().Leaf.NotAfter))

	// The certificate identifies the user. No header may name another user.
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header.Set("Authorization", "Bearer other")
	req.Header.Set("Impersonate-User", "other")
	req.Header.Set("Accept", "a")
	var sent http.Header
	rt := c.RoundTripper(testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		sent = req.Header
		return nil, errors.New("enough")
	}))
	_, err = rt.RoundTrip(req)
	g.Expect(err).To(MatchError("enough"))
	g.Expect(sent).To(Equal(http.Header{"Accept": {"a"}}))
	c.Close()
	_, err = rt.RoundTrip(req)
	g.Expect(err).To(MatchError(ErrInvalidCredential))

	other, err := newSecretMaterial("", certPEM, keyPEM)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(other.version).To(Equal(p.version))
	certPEM, keyPEM = clientCertificate(t, "red")
	other, err = newSecretMaterial("", certPEM, keyPEM)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(other.version).NotTo(Equal(p.version))
}

func TestEndOfAToken(t *testing.T) {
	g := NewWithT(t)
	jwt := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
	}
	g.Expect(expiryOf(jwt(`{"exp":1893456000}`))).To(Equal(time.Unix(1893456000, 0)))
	for _, token := range []string{"", "opaque", "a.b.c", jwt(`{}`), jwt(`{"exp":"soon"}`), jwt(`{"exp":-1}`),
		jwt(`{"exp":1e300}`), jwt(`[]`)} {
		g.Expect(expiryOf(token)).To(BeZero(), token)
	}
}

// After Close a credential holds no secret.
func TestClosedCredentialForgets(t *testing.T) {
	g := NewWithT(t)
	p, err := newSecretMaterial("hunter2", nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	c := p.open().(*staticCredential)
	c.Close()
	g.Expect(c.secretMaterial.Load()).To(BeNil())
	g.Expect(c.TransportRequirement()).To(BeZero())
	_, err = send(t, c)
	g.Expect(err).To(MatchError(ErrInvalidCredential))
}
