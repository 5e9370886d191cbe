package certs

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestIssue(t *testing.T) {
	g := NewWithT(t)
	authority, err := NewAuthority("test")
	g.Expect(err).NotTo(HaveOccurred())
	roots := x509.NewCertPool()
	g.Expect(roots.AppendCertsFromPEM(authority.PEM())).To(BeTrue())
	issue := func(request Request) *x509.Certificate {
		certificate, key, err := authority.Issue(request)
		g.Expect(err).NotTo(HaveOccurred())
		pair, err := tls.X509KeyPair(certificate, key)
		g.Expect(err).NotTo(HaveOccurred(), "the key belongs to the certificate")
		return pair.Leaf
	}
	server := issue(Request{CommonName: "server", Hosts: []string{"127.0.0.1", "server.example"}, ValidFor: time.Hour})
	for _, host := range []string{"127.0.0.1", "server.example"} {
		_, err = server.Verify(x509.VerifyOptions{DNSName: host, Roots: roots})
		g.Expect(err).NotTo(HaveOccurred(), host)
	}
	_, err = server.Verify(x509.VerifyOptions{DNSName: "other.example", Roots: roots})
	g.Expect(err).To(HaveOccurred())
	_, err = server.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now().Add(2 * time.Hour)})
	g.Expect(err).To(HaveOccurred(), "expired")

	client := issue(Request{CommonName: "front-proxy", ValidFor: time.Hour})
	usages := func(usage x509.ExtKeyUsage) x509.VerifyOptions {
		return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}
	}
	_, err = client.Verify(usages(x509.ExtKeyUsageClientAuth))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = client.Verify(usages(x509.ExtKeyUsageServerAuth))
	g.Expect(err).To(HaveOccurred(), "no server")

	other, err := NewAuthority("test")
	g.Expect(err).NotTo(HaveOccurred())
	others := x509.NewCertPool()
	others.AppendCertsFromPEM(other.PEM())
	_, err = server.Verify(x509.VerifyOptions{DNSName: "127.0.0.1", Roots: others})
	g.Expect(err).To(HaveOccurred(), "another authority of the same name")
}
