package h2

import (
	"crypto/tls"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTransport returns a transport for a server of the test, which ends with the test.
func newTransport(t *testing.T, address string) *Transport {
	t.Helper()
	server, err := url.Parse(address)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var config *tls.Config
	if server.Scheme == "https" {
		config = &tls.Config{InsecureSkipVerify: true}
	}
	transport := New(server, config)
	t.Cleanup(transport.Close)
	return transport
}
