package e2e

import (
	"context"
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// A kubeconfig reaches its API server by the proxy that it names, if the operator allows that one.
// The proxy sees no token, no name and no object, and its password is in no state.
func TestKubeconfigProxies(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	server, err := url.Parse(cp.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	create(t, serviceAccount(ns, "one"))
	grant(t, ns, "one", everythingInCore)
	secret := token(t, ns, "one")
	grantTo(t, ns, "User", "certified")
	user := url.UserPassword("tenant", "pass-word")
	connects := testutil.NewForwardProxy(t, "http", nil, user)
	socks := testutil.NewForwardProxy(t, "socks5", nil, user)
	other := testutil.NewForwardProxy(t, "http", nil, user)
	by := func(who clientcmdapi.AuthInfo, proxy *testutil.ForwardProxy) []byte {
		return kubeconfigOf(t, who, func(c *clientcmdapi.Cluster) { c.ProxyURL = proxy.URL().String() })
	}
	names := []string{"connects", "socks", "certified", "other"}
	grantOperatorSecrets(t, ns, names...)
	remote(t, ns, "connects", by(clientcmdapi.AuthInfo{Token: secret}, connects))
	remote(t, ns, "socks", by(clientcmdapi.AuthInfo{Token: secret}, socks))
	remote(t, ns, "certified", by(certificateOf(t, "certified"), connects))
	remote(t, ns, "other", by(clientcmdapi.AuthInfo{Token: secret}, other))
	o := startOperator(t, clustercache.Options{
		Credentials: credential.KubeconfigSecrets(credential.KubeconfigOptions{
			Namespace: ns,
			Allow:     credential.SecretsGuardedByAdmission,
			AllowProxy: func(_ context.Context, object client.Object, proxy *url.URL) error {
				if proxy.User != nil {
					return errors.New("it has a user")
				}
				if proxy.Host == other.URL().Host {
					return errors.Errorf("not for %s", object.GetName())
				}
				return nil
			},
		}),
	})
	texts := func() (all string) {
		for _, name := range names {
			state := o.state(name)
			all += state.Message + state.Target + state.Source
		}
		return all
	}
	for _, name := range names[:3] {
		o.waitConnected(t, name)
		g.Expect(o.state(name).Target).To(HavePrefix(cp.Config().Host))
		h := handlesOf(t, o, name)
		for action, use := range h.uses(t, ns) {
			g.Eventually(use).WithTimeout(patience).Should(Succeed(), "%s by %s", action, name)
		}
	}
	g.Expect(o.state("certified").Identity.Username).To(Equal("certified"))
	for _, proxy := range []*testutil.ForwardProxy{connects, socks} {
		g.Expect(proxy.Asked()).NotTo(BeEmpty())
		for _, target := range proxy.Asked() {
			g.Expect(target).To(Equal(server.Host))
		}
		for _, text := range []string{secret, "Bearer", "kind", "ConfigMap", ns} {
			g.Expect(strings.Contains(proxy.Passed(), text)).To(BeFalse(), text)
			g.Expect(strings.Contains(proxy.Heads(), text)).To(BeFalse(), text)
		}
	}

	state := o.waitReason(t, "other", clustercache.ReasonNotAllowed)
	g.Expect(state.Message).To(And(ContainSubstring("by proxy http://"+other.URL().Host),
		ContainSubstring("not for other")))
	g.Expect(other.Asked()).To(BeEmpty())
	g.Expect(texts()).NotTo(Or(ContainSubstring("pass-word"), ContainSubstring("tenant:")))

	// Another proxy is another connection.
	another := testutil.NewForwardProxy(t, "http", nil, nil)
	epoch := o.state("socks").Epoch
	setKubeconfig(t, ns, "socks", by(clientcmdapi.AuthInfo{Token: secret}, another))
	o.waitFor(t, "socks", func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseConnected && s.Epoch > epoch
	})
	g.Expect(another.Asked()).NotTo(BeEmpty())
	setKubeconfig(t, ns, "socks", by(clientcmdapi.AuthInfo{Token: secret}, other))
	state = o.waitReason(t, "socks", clustercache.ReasonNotAllowed)
	g.Expect(other.Asked()).To(BeEmpty())
	g.Expect(texts()).NotTo(ContainSubstring("pass-word"))
}
