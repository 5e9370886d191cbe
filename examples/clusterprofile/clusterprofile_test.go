package clusterprofile

import (
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var spoke = client.ObjectKey{Namespace: "fleet", Name: "spoke"}

// profileOf returns a ClusterProfile with these access providers.
func profileOf(providers ...AccessProvider) *ClusterProfile {
	return &ClusterProfile{
		ObjectMeta: metav1.ObjectMeta{Namespace: spoke.Namespace, Name: spoke.Name},
		Status:     Status{AccessProviders: providers},
	}
}

// The access providers of the status decide which credential is used, and for which server.
func TestAccess(t *testing.T) {
	options := Options{
		Allow: func(credential.Target) error { return nil },
		Secrets: func(profile client.ObjectKey) (credential.SecretReference, bool) {
			return credential.SecretReference{Namespace: "fleet-system", Name: "spoke"}, profile == spoke
		},
	}
	NewWithT(t).Expect(options.setDefaults()).To(Succeed())
	NewWithT(t).Expect((&Options{}).setDefaults()).To(MatchError(ContainSubstring("set Options.Allow")))
	provider := func(name string, change func(*Cluster)) AccessProvider {
		cluster := Cluster{Server: "https://192.0.2.1", TLSServerName: "spoke", CertificateAuthorityData: []byte("PEM")}
		if change != nil {
			change(&cluster)
		}
		return AccessProvider{Name: name, Cluster: cluster}
	}
	byToken, bySecret := provider("serviceaccount-token", nil), provider("secret", nil)
	plugin := provider("cloud", nil)
	for name, tc := range map[string]struct {
		providers []AccessProvider
		kind      string
		fails     error
		text      string
	}{
		"none yet":            {nil, "", credential.ErrPending, "no accessProviders yet"},
		"a token":             {[]AccessProvider{byToken}, tokens, nil, ""},
		"a Secret":            {[]AccessProvider{bySecret}, kubeconfigs, nil, ""},
		"the first counts":    {[]AccessProvider{plugin, bySecret, byToken}, kubeconfigs, nil, ""},
		"the first counts, 2": {[]AccessProvider{byToken, bySecret}, tokens, nil, ""},
		"a plugin":            {[]AccessProvider{plugin}, "", nil, `the access providers are "cloud"`},
		"without an authority": {[]AccessProvider{provider("serviceaccount-token", func(c *Cluster) {
			c.CertificateAuthorityData = nil
		})}, tokens, credential.ErrNotAllowed, "certificate-authority-data"},
		"without verification": {[]AccessProvider{provider("serviceaccount-token", func(c *Cluster) {
			c.InsecureSkipTLSVerify = true
		})}, tokens, credential.ErrNotAllowed, "insecure-skip-tls-verify"},
		"by a proxy": {[]AccessProvider{provider("serviceaccount-token", func(c *Cluster) {
			c.ProxyURL = "http://192.0.2.2"
		})}, tokens, credential.ErrNotAllowed, "proxy-url"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			profile := profileOf(tc.providers...)
			kind, err := options.choose(profile)
			g.Expect(kind).To(Equal(tc.kind))
			if kind == tokens {
				var target credential.Target
				if target, err = options.target(profile); err == nil {
					g.Expect(target.Server).To(Equal("https://192.0.2.1"))
					g.Expect(target.ServerName).To(Equal("spoke"))
					g.Expect(target.CAData).To(BeEquivalentTo("PEM"))
					g.Expect(target.StatesUID).To(BeTrue())
					account, _ := options.serviceAccount(profile)
					g.Expect(target.Username(account)).To(Equal("hub:system:serviceaccount:fleet:fleet"))
				}
			}
			if tc.text == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tc.text)))
			if tc.fails != nil {
				g.Expect(err).To(MatchError(tc.fails))
			}
		})
	}
	g := NewWithT(t)
	secret, err := options.secret(profileOf())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(secret.Name).To(Equal("spoke"))
	other := profileOf()
	other.Name = "other"
	_, err = options.secret(other)
	g.Expect(err).To(MatchError(credential.ErrNotAllowed))
}

// The ConfigMap is written while there is a connection, and the conditions say how it went.
func TestReconcile(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(AddToScheme(scheme)).To(Succeed())
	host := fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(profileOf()).
		WithStatusSubresource(profileOf()).Build()
	cluster := fakeclient.NewClientBuilder().Build() // the spoke
	connections := fake.NewFakeCache(cluster, spoke)
	t.Cleanup(connections.Close)
	r := &reconciler{client: host, connections: connections}
	reconciled := func() (written, connected metav1.Condition, err error) {
		_, err = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: spoke})
		profile := &ClusterProfile{}
		g.Expect(host.Get(t.Context(), spoke, profile)).To(Succeed())
		for kind, into := range map[string]*metav1.Condition{
			conditionWritten:                    &written,
			clustercache.Condition(nil, 0).Type: &connected,
		} {
			found := meta.FindStatusCondition(profile.Status.Conditions, kind)
			g.Expect(found).NotTo(BeNil(), kind)
			*into = *found
		}
		return written, connected, err
	}
	written, connected, err := reconciled()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(written.Status).To(Equal(metav1.ConditionTrue))
	g.Expect(connected.Status).To(Equal(metav1.ConditionTrue))
	config := &corev1.ConfigMap{}
	g.Expect(cluster.Get(t.Context(), ConfigMapOf(spoke), config)).To(Succeed())
	g.Expect(config.Data).To(Equal(map[string]string{"profile": "fleet/spoke"}))

	connections.ForbidWrites(spoke, corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespace)
	written, connected, err = reconciled()
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "tried again with a backoff")
	g.Expect(written.Reason).To(Equal("Forbidden"))
	g.Expect(connected.Status).To(Equal(metav1.ConditionTrue))

	connections.Disconnect(spoke, clustercache.ReasonUnauthorized)
	written, connected, err = reconciled()
	g.Expect(err).NotTo(HaveOccurred(), "the extension source requests the next reconcile")
	g.Expect(written.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(connected.Status).To(Equal(metav1.ConditionFalse))
}
