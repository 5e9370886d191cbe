package aggregation

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var state = client.ObjectKey{Namespace: "system", Name: "state"}

// The authority is written where it is missing, and only into an APIService of ours.
func TestAuthorityPatch(t *testing.T) {
	apiService := func(namespace, name string, more map[string]any) map[string]any {
		spec := map[string]any{"service": map[string]any{"namespace": namespace, "name": name}}
		for field, value := range more {
			spec[field] = value
		}
		return map[string]any{"spec": spec}
	}
	bundle := func(text string) map[string]any {
		return map[string]any{"caBundle": base64.StdEncoding.EncodeToString([]byte(text))}
	}
	for name, tc := range map[string]struct {
		apiService map[string]any
		patch, err string
	}{
		"none yet":       {apiService("system", "state", nil), `{"spec":{"caBundle":"bmV3"}}`, ""},
		"that of before": {apiService("system", "state", bundle("old")), `{"spec":{"caBundle":"bmV3"}}`, ""},
		"up to date":     {apiService("system", "state", bundle("new")), "", ""},
		"another service": {apiService("system", "other", nil), "",
			"the APIService leads to Service system/other, not to system/state"},
		"another namespace": {apiService("other", "state", bundle("old")), "", "leads to Service other/state"},
		"no service":        {map[string]any{"spec": map[string]any{}}, "", "leads to Service /, not"},
		"not verified": {apiService("system", "state", map[string]any{"insecureSkipTLSVerify": true}), "",
			"remove it"},
	} {
		t.Run(name, func(t *testing.T) {
			patch, err := authorityPatch(tc.apiService, state, []byte("new"))
			NewWithT(t).Expect(string(patch)).To(Equal(tc.patch))
			if tc.err != "" {
				NewWithT(t).Expect(err).To(MatchError(ContainSubstring(tc.err)))
			} else {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

func TestEndpointSlice(t *testing.T) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "state", UID: "uid"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}
	for address, kind := range map[string]discoveryv1.AddressType{
		"10.1.2.3": discoveryv1.AddressTypeIPv4, "::ffff:10.1.2.3": discoveryv1.AddressTypeIPv4,
		"fd00::1": discoveryv1.AddressTypeIPv6,
	} {
		g := NewWithT(t)
		slice := endpointSlice(service, netip.MustParseAddr(address), 6443)
		g.Expect(slice.AddressType).To(Equal(kind))
		g.Expect(slice.Labels).To(HaveKeyWithValue(discoveryv1.LabelServiceName, "state"))
		g.Expect(slice.Labels).To(HaveKey(discoveryv1.LabelManagedBy), "so that Kubernetes leaves it alone")
		g.Expect(slice.OwnerReferences).To(ConsistOf(And(HaveField("Kind", "Service"), HaveField("UID", service.UID))))
		g.Expect(slice.Ports).To(ConsistOf(And(HaveField("Name", HaveValue(Equal("https"))),
			HaveField("Port", HaveValue(BeEquivalentTo(6443))))))
		g.Expect(slice.Endpoints).To(HaveLen(1))
		g.Expect(leadsTo(slice, netip.MustParseAddr(address), 6443)).To(BeTrue())
		g.Expect(leadsTo(slice, netip.MustParseAddr(address), 6444)).To(BeFalse(), "another replica on the same node")
		g.Expect(leadsTo(slice, netip.MustParseAddr("10.1.2.4"), 6443)).To(BeFalse())
	}
}

type listener struct{ calls int }

func (l *listener) Enqueue() { l.calls++ }

// The certificate is for the Service, and is renewed by the same authority while a third of its
// time is left.
func TestCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		p, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, Options{Service: state})
		g.Expect(err).NotTo(HaveOccurred())
		changed := &listener{}
		p.certificate.AddListener(changed)
		parse := func() *x509.Certificate {
			pair, err := tls.X509KeyPair(p.Certificate().CurrentCertKeyContent())
			g.Expect(err).NotTo(HaveOccurred())
			return pair.Leaf
		}
		roots := x509.NewCertPool()
		g.Expect(roots.AppendCertsFromPEM(p.authority())).To(BeTrue())
		verify := func() error {
			_, err := parse().Verify(x509.VerifyOptions{Roots: roots, DNSName: "state.system.svc", CurrentTime: time.Now()})
			return err
		}
		g.Expect(verify()).To(Succeed())
		first := parse().SerialNumber
		time.Sleep(24*time.Hour - 8*time.Hour - time.Minute)
		g.Expect(p.certificate.RenewIfDue(time.Now())).To(Succeed())
		g.Expect(parse().SerialNumber).To(Equal(first))
		time.Sleep(2 * time.Minute)
		g.Expect(p.certificate.RenewIfDue(time.Now())).To(Succeed())
		g.Expect(parse().SerialNumber).NotTo(Equal(first))
		g.Expect(changed.calls).To(Equal(1))
		g.Expect(verify()).To(Succeed())
		for range 100 { // months
			time.Sleep(24*time.Hour - 8*time.Hour)
			g.Expect(p.certificate.RenewIfDue(time.Now())).To(Succeed())
			g.Expect(verify()).To(Succeed())
		}
	})
}
