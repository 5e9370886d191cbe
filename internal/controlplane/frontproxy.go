package controlplane

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/certs"
)

// FrontProxyName is the name in the certificate with which the API server authenticates to
// aggregated API servers.
const FrontProxyName = "front-proxy"

// frontProxyFiles are the certificate authority, and the API server's certificate and key.
func (c *ControlPlane) frontProxyFiles() (authority, certificate, key string) {
	return filepath.Join(c.dir, "front-proxy-ca.crt"), filepath.Join(c.dir, "front-proxy.crt"),
		filepath.Join(c.dir, "front-proxy.key")
}

// enableAggregation lets the API server authenticate to aggregated API servers.
func (c *ControlPlane) enableAggregation() error {
	if err := c.RotateFrontProxy(); err != nil {
		return err
	}
	authority, certificate, key := c.frontProxyFiles()
	c.env.ControlPlane.GetAPIServer().Configure().
		Set("requestheader-client-ca-file", authority).
		Set("requestheader-allowed-names", FrontProxyName).
		Set("requestheader-username-headers", "X-Remote-User").
		Set("requestheader-uid-headers", "X-Remote-Uid").
		Set("requestheader-group-headers", "X-Remote-Group").
		Set("requestheader-extra-headers-prefix", "X-Remote-Extra-").
		Set("proxy-client-cert-file", certificate).
		Set("proxy-client-key-file", key)
	return nil
}

// RotateFrontProxy gives the API server another certificate for aggregated API servers, of another
// certificate authority. The API server reads the files again within a minute, or when it is
// restarted.
func (c *ControlPlane) RotateFrontProxy() error {
	authority, err := certs.NewAuthority("front-proxy-ca")
	if err != nil {
		return err
	}
	certificate, key, err := authority.Issue(certs.Request{CommonName: FrontProxyName, ValidFor: 24 * time.Hour})
	if err != nil {
		return err
	}
	c.frontProxy = authority
	caFile, certificateFile, keyFile := c.frontProxyFiles()
	for _, file := range []struct {
		name string
		data []byte
	}{{caFile, authority.PEM()}, {certificateFile, certificate}, {keyFile, key}} {
		if err := os.WriteFile(file.name, file.data, 0o600); err != nil {
			return errors.Wrap(err, "replacing the certificate of the front proxy")
		}
	}
	return nil
}

// FrontProxyCertificate returns a client certificate of the current authority of the front proxy.
// With FrontProxyName it authenticates as the API server does.
func (c *ControlPlane) FrontProxyCertificate(commonName string) (tls.Certificate, error) {
	certificate, key, err := c.frontProxy.Issue(certs.Request{CommonName: commonName, ValidFor: time.Hour})
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	return pair, errors.Wrap(err, "reading a certificate")
}
