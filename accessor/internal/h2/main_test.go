package h2

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

// system is an authority of the system in these tests.
var system *certs.Authority

func TestMain(m *testing.M) {
	var err error
	if system, err = certs.NewAuthority("system"); err != nil {
		panic(err)
	}
	file := filepath.Join(os.TempDir(), fmt.Sprintf("latchkey-h2-%d.pem", os.Getpid()))
	if err := os.WriteFile(file, system.PEM(), 0o600); err != nil {
		panic(err)
	}
	if err := os.Setenv("SSL_CERT_FILE", file); err != nil { // which crypto/x509 reads once
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.Remove(file)
		os.Exit(code)
	}))
}

// proxyCertificate returns a certificate for 127.0.0.1 of an authority of the system.
func proxyCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	g := NewWithT(t)
	certificate, key, err := system.Issue(certs.Request{
		Hosts:    []string{"127.0.0.1"},
		Peer:     true,
		ValidFor: time.Hour,
	})
	g.Expect(err).NotTo(HaveOccurred())
	pair, err := tls.X509KeyPair(certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	return pair
}

// newTransport returns a transport for a server of the test, which ends with the test.
func newTransport(t *testing.T, address string) *Transport {
	t.Helper()
	server, err := url.Parse(address)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var config *tls.Config
	if server.Scheme == "https" {
		config = &tls.Config{InsecureSkipVerify: true}
	}
	transport := New(server, config, nil)
	t.Cleanup(transport.Close)
	return transport
}
