package credential

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// limits returns the default limits.
func limits(allowInsecure bool) kubeconfigLimits {
	return kubeconfigLimits{allowInsecure: allowInsecure, maxSize: defaultMaxSize}
}

// kubeconfigWith returns a valid kubeconfig, with the changes that change makes.
func kubeconfigWith(t testing.TB,
	change func(*clientcmdapi.Config, *clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	authorities, _ := clientCertificate(t, "authority")
	server := &clientcmdapi.Cluster{
		Server:                   "https://far.example:6443",
		CertificateAuthorityData: authorities,
		TLSServerName:            "name",
	}
	user := &clientcmdapi.AuthInfo{Token: "hunter2"}
	config := &clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": server},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": user},
	}
	if change != nil {
		change(config, server, user)
	}
	content, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// canary returns the name of a FIFO. A process that opens the FIFO hangs.
func canary(t testing.TB) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "canary")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestKubeconfigIsReadAsData(t *testing.T) {
	g := NewWithT(t)
	parsed, err := limits(false).parse(kubeconfigWith(t, nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(parsed.reach.Host).To(Equal("https://far.example:6443"))
	g.Expect(parsed.reach.ServerName).To(Equal("name"))
	g.Expect(parsed.reach.CAData).NotTo(BeEmpty())
	g.Expect(parsed.reach.BearerToken).To(BeEmpty())
	g.Expect(send(t, parsed.secretMaterial.open())).To(Equal("Bearer hunter2"))

	certPEM, keyPEM := clientCertificate(t, "red")
	parsed, err = limits(false).
		parse(kubeconfigWith(t, func(_ *clientcmdapi.Config, _ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
			user.Token, user.ClientCertificateData, user.ClientKeyData = "", certPEM, keyPEM
		}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(parsed.secretMaterial.open().TransportRequirement().Certificate().Leaf.Subject.CommonName).To(Equal("red"))
	g.Expect(parsed.reach.CertData).To(BeEmpty())

	insecure := kubeconfigWith(t, func(_ *clientcmdapi.Config, server *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
		server.CertificateAuthorityData, server.InsecureSkipTLSVerify = nil, true
	})
	_, err = limits(false).parse(insecure)
	g.Expect(err).To(MatchError(ContainSubstring("refused fields: insecure-skip-tls-verify")))
	parsed, err = limits(true).parse(insecure)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(parsed.reach.Insecure).To(BeTrue())
}

// The words that YAML 1.1 has for booleans mean the same as to kubectl, in fields that are
// booleans.
func TestBooleansOfYAML(t *testing.T) {
	g := NewWithT(t)
	kubeconfig := func(value, context string) []byte {
		return []byte("current-context: " + context + "\ncontexts: [{name: " + context +
			", context: {cluster: k, user: u}}]\nusers: [{name: u, user: {token: t}}]\n" +
			"clusters: [{name: k, cluster: {server: 'https://far.example', insecure-skip-tls-verify: " + value + "}}]\n")
	}
	words := map[bool][]string{
		true:  {"y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"},
		false: {"n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"},
	}
	for insecure, list := range words {
		for _, word := range list {
			loaded, err := clientcmd.Load(kubeconfig(word, "c"))
			g.Expect(err).NotTo(HaveOccurred(), word)
			g.Expect(loaded.Clusters["k"].InsecureSkipTLSVerify).To(Equal(insecure), "kubectl, %s", word)
			parsed, err := limits(true).parse(kubeconfig(word, "c"))
			g.Expect(err).NotTo(HaveOccurred(), word)
			g.Expect(parsed.reach.Insecure).To(Equal(insecure), word)
			if insecure {
				_, err = limits(false).parse(kubeconfig(word, "c"))
				g.Expect(err).To(MatchError(ContainSubstring("refused fields: insecure-skip-tls-verify")), word)
			}
		}
	}
	_, err := limits(true).parse(kubeconfig(`"no"`, "c"))
	g.Expect(err).To(HaveOccurred(), "a text is no boolean, to kubectl neither")
	_, err = limits(true).parse(kubeconfig("&a no", "c"))
	g.Expect(err).To(HaveOccurred(), "an anchor")
	_, err = limits(true).parse(kubeconfig("no", "on"))
	g.Expect(err).NotTo(HaveOccurred(), "a context of that name is no boolean")
}

func TestKubeconfigsThatAreRefused(t *testing.T) {
	trap := canary(t)
	certPEM, keyPEM := clientCertificate(t, "red")
	type (
		config  = *clientcmdapi.Config
		cluster = *clientcmdapi.Cluster
		user    = *clientcmdapi.AuthInfo
	)
	for name, tc := range map[string]struct {
		change  func(config, cluster, user)
		problem string
	}{
		"exec": {func(_ config, _ cluster, u user) {
			u.Exec = &clientcmdapi.ExecConfig{
				Command:         trap,
				APIVersion:      "client.authentication.k8s.io/v1",
				InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}
		}, "refused fields: exec"},
		"an auth provider": {func(_ config, _ cluster, u user) {
			u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "gcp"}
		}, "auth-provider"},
		"a token file":       {func(_ config, _ cluster, u user) { u.TokenFile = trap }, "tokenFile"},
		"a certificate file": {func(_ config, _ cluster, u user) { u.ClientCertificate = trap }, "client-certificate"},
		"a key file":         {func(_ config, _ cluster, u user) { u.ClientKey = trap }, "client-key"},
		"an authority file": {func(_ config, c cluster, _ user) {
			c.CertificateAuthority = trap
		}, "certificate-authority"},
		"a user name":            {func(_ config, _ cluster, u user) { u.Username = "u" }, "username"},
		"a password":             {func(_ config, _ cluster, u user) { u.Password = "p" }, "password"},
		"impersonation":          {func(_ config, _ cluster, u user) { u.Impersonate = "system:admin" }, "as"},
		"impersonation of a UID": {func(_ config, _ cluster, u user) { u.ImpersonateUID = "1" }, "as-uid"},
		"impersonation of groups": {func(_ config, _ cluster, u user) {
			u.ImpersonateGroups = []string{"system:masters"}
		}, "as-groups"},
		"impersonation of more": {func(_ config, _ cluster, u user) {
			u.ImpersonateUserExtra = map[string][]string{"a": {"b"}}
		}, "as-user-extra"},
		"a proxy": {func(_ config, c cluster, _ user) { c.ProxyURL = "http://proxy" }, "proxy-url"},
		"no verification": {func(_ config, c cluster, _ user) {
			c.InsecureSkipTLSVerify = true
		}, "insecure-skip-tls-verify"},
		"no credential": {func(_ config, _ cluster, u user) {
			u.Token = ""
		}, "neither a token nor a client certificate"},
		"two credentials": {func(_ config, _ cluster, u user) {
			u.ClientCertificateData, u.ClientKeyData = certPEM, keyPEM
		}, "remove one of them"},
		"half a certificate": {func(_ config, _ cluster, u user) {
			u.Token, u.ClientCertificateData = "", certPEM
		}, "the client certificate"},
		"a token with a newline": {func(_ config, _ cluster, u user) { u.Token = "hunter2\n" }, "check for a line break"},
		"no server":              {func(_ config, c cluster, _ user) { c.Server = "" }, "no server"},
		"clear text": {func(_ config, c cluster, _ user) {
			c.Server = "http://far.example"
		}, "must be an https:// address"},
		"clear text to loopback": {func(_ config, c cluster, _ user) {
			c.Server = "http://127.0.0.1:8001"
		}, "must be an https:// address"},
		"a token that is too long": {func(_ config, _ cluster, u user) {
			u.Token = strings.Repeat("x", maxToken+1)
		}, "more than 32768 bytes"},
		"a key that is too long": {func(_ config, _ cluster, u user) {
			u.Token, u.ClientCertificateData, u.ClientKeyData = "", certPEM, make([]byte, maxKeyPEM+1)
		}, "more than 16384 bytes"},
		"a key that is slow to sign with": {func(_ config, _ cluster, u user) {
			u.Token = ""
			u.ClientCertificateData, u.ClientKeyData = hugeRSA(t)
		}, "more than 8192 bits"},
		"an authority whose key is slow to verify with": {func(_ config, c cluster, _ user) {
			c.CertificateAuthorityData, _ = hugeRSA(t)
		}, "certificate-authority-data has a key of more than 8192 bits"},
		"a slow authority among others": {func(_ config, c cluster, _ user) {
			huge, _ := hugeRSA(t)
			c.CertificateAuthorityData = append(c.CertificateAuthorityData, huge...)
		}, "certificate-authority-data has a key of more than 8192 bits"},
		"too many authorities": {func(_ config, c cluster, _ user) {
			c.CertificateAuthorityData = bytes.Repeat(c.CertificateAuthorityData, maxAuthorities+1)
		}, "more than"},
		"a password in the URL": {func(_ config, c cluster, _ user) {
			c.Server = "https://u:hunter2@far.example"
		}, "must be an https:// address"},
		"no URL": {func(_ config, c cluster, _ user) {
			c.Server = "https://%zz"
		}, "must be an https:// address"},
		"no authorities": {func(_ config, c cluster, _ user) {
			c.CertificateAuthorityData = []byte("x")
		}, "holds no certificate"},
		"no context":      {func(k config, _ cluster, _ user) { k.CurrentContext = "" }, "current-context"},
		"another context": {func(k config, _ cluster, _ user) { k.CurrentContext = "other" }, "current-context"},
		"no such cluster": {func(k config, _ cluster, _ user) {
			k.Contexts["it"].Cluster = "other"
		}, "a cluster that does not exist"},
		"no such user": {func(k config, _ cluster, _ user) {
			k.Contexts["it"].AuthInfo = "other"
		}, "a user that does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := limits(false).parse(kubeconfigWith(t, tc.change))
			g.Expect(err).To(MatchError(ErrInvalidCredential))
			g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
			g.Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
		})
	}
	g := NewWithT(t)
	_, err := limits(false).parse([]byte("users:\n- name: it\n  user: {token: hunter2"))
	g.Expect(err).To(MatchError(ErrInvalidCredential))
	g.Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
}

// A proxy is parsed if it may be allowed, and refused where it could read what passes. No error has
// its password.
func TestProxiesOfKubeconfigs(t *testing.T) {
	for text, problem := range map[string]string{
		"http://proxy":                     "",
		"http://me:hunter2@proxy:3128/":    "",
		"https://proxy":                    "",
		"socks5://me:hunter2@[::1]:1080":   "",
		"ftp://me:hunter2@proxy":           "proxy-url must be http://, https:// or socks5://",
		"socks5h://me:hunter2@proxy":       "proxy-url must be",
		"http://me:hunter2@":               "proxy-url must be",
		"http://me:hunter2@proxy/path":     "proxy-url must be",
		"http://me:hunter2@proxy?a":        "proxy-url must be",
		"http://me:hunter2@proxy#a":        "proxy-url must be",
		"http://me:hunter2@%zz":            "proxy-url must be",
		"me:hunter2@proxy":                 "proxy-url must be",
		"http://me:hunter2@proxy:port":     "proxy-url must be",
		"http://me:hunter2@proxy insecure": "the proxy could read the credential",
	} {
		g := NewWithT(t)
		accepts := limits(true)
		accepts.allowProxy = true
		address, insecure := strings.CutSuffix(text, " insecure")
		content := kubeconfigWith(t, func(_ *clientcmdapi.Config, c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.ProxyURL = address
			if c.InsecureSkipTLSVerify = insecure; insecure {
				c.CertificateAuthorityData = nil
			}
		})
		parsed, err := accepts.parse(content)
		if problem != "" {
			g.Expect(err).To(And(MatchError(ErrInvalidCredential), MatchError(ContainSubstring(problem))), text)
			g.Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
			continue
		}
		g.Expect(err).NotTo(HaveOccurred(), text)
		g.Expect(parsed.proxy.String()).To(Equal(address))
		g.Expect(identity.ProxyOf(parsed.reach)).To(Equal(parsed.proxy))
		g.Expect(identity.ProxyText(parsed.proxy)).NotTo(ContainSubstring("me"))
		direct, err := accepts.parse(kubeconfigWith(t, func(*clientcmdapi.Config, *clientcmdapi.Cluster,
			*clientcmdapi.AuthInfo) {
		}))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(targetKey(parsed.reach)).NotTo(Or(Equal(targetKey(direct.reach)), ContainSubstring("hunter2")))
	}
}

func TestSecretReference(t *testing.T) {
	g := NewWithT(t)
	named := func(namespace, name string) client.Object {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Data:       map[string]string{"secret": "named"},
		}
	}
	reference := func(options KubeconfigOptions, object client.Object) (SecretReference, error) {
		resolver, err := KubeconfigSecrets(options).Bind(host{config: &rest.Config{Host: "https://server"}},
			identity.Kind{Namespaced: true}, nil, nil)
		g.Expect(err).NotTo(HaveOccurred())
		return resolver.(*kubeconfigResolver).reference(object)
	}
	g.Expect(reference(KubeconfigOptions{}, named("team", "red"))).
		To(Equal(SecretReference{"team", "red-kubeconfig", "value"}))
	g.Expect(
		reference(KubeconfigOptions{
			Namespace: "all",
			NamePath:  "data.secret",
			Key:       "config",
			Allow:     SecretsGuardedByAdmission,
		}, named("", "red"))).To(Equal(SecretReference{"all", "named", "config"}))
	g.Expect(reference(KubeconfigOptions{Reference: func(object client.Object) (SecretReference, error) {
		return SecretReference{"a", object.GetName(), "c"}, nil
	}}, named("", "red"))).To(Equal(SecretReference{"a", "red", "c"}))
	for problem, options := range map[string]KubeconfigOptions{
		"data.none is not set":           {Namespace: "all", NamePath: "data.none", Allow: SecretsGuardedByAdmission},
		"is not a valid key of a Secret": {Namespace: "all", Key: "a/b", Allow: SecretsGuardedByAdmission},
		"is not a valid namespace": {Reference: func(client.Object) (SecretReference, error) {
			return SecretReference{"a/b", "c", "d"}, nil
		}},
		"is not a valid name": {Reference: func(client.Object) (SecretReference, error) {
			return SecretReference{"a", "../c", "d"}, nil
		}},
		"resolving the Secret reference": {Reference: func(client.Object) (SecretReference, error) {
			return SecretReference{}, errors.New("no")
		}},
	} {
		_, err := reference(options, named("", "red"))
		g.Expect(err).To(MatchError(ErrInvalidReference))
		g.Expect(err).To(MatchError(ContainSubstring(problem)))
	}
	_, err := reference(KubeconfigOptions{Reference: func(client.Object) (SecretReference, error) {
		return SecretReference{}, errors.Wrap(ErrPending, "none yet")
	}}, named("", "red"))
	g.Expect(err).To(MatchError(ErrPending))
	g.Expect(err).NotTo(MatchError(ErrInvalidReference))
	for _, options := range []KubeconfigOptions{
		{NamePath: "a..b"},
		{Namespace: "all"}, // without Allow
		{Key: "k", Reference: func(client.Object) (SecretReference, error) { return SecretReference{}, nil }},
	} {
		_, err := KubeconfigSecrets(options).Bind(host{config: &rest.Config{Host: "https://server"}},
			identity.Kind{Namespaced: true}, nil, nil)
		g.Expect(err).To(HaveOccurred())
	}
}

// An extension acts as the user of the kubeconfig that it names, so the author must have allowed
// the Secret.
func TestWhoMayUseWhichKubeconfig(t *testing.T) {
	g := NewWithT(t)
	resolve := func(options KubeconfigOptions) error {
		resolver, err := KubeconfigSecrets(options).Bind(host{config: &rest.Config{Host: "https://server"}},
			identity.Kind{Namespaced: true}, nil, nil)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = resolver.Resolve(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "red"}})
		return err
	}
	elsewhere := func(client.Object) (SecretReference, error) { return SecretReference{"other", "s", "k"}, nil }
	no := func(_ context.Context, object client.Object, secret SecretReference) error {
		return errors.Errorf("%s is not for %s", secret, object.GetName())
	}
	g.Expect(resolve(KubeconfigOptions{})).To(MatchError(identity.ErrPending),
		"a Secret in the extension's namespace needs no Allow")
	g.Expect(resolve(KubeconfigOptions{Namespace: "other", Allow: SecretsGuardedByAdmission})).
		To(MatchError(identity.ErrPending))
	g.Expect(resolve(KubeconfigOptions{Reference: elsewhere})).
		To(MatchError(identity.ErrPending), "the author's Reference chose the Secret")
	for _, options := range []KubeconfigOptions{{Allow: no}, {Namespace: "other", Allow: no},
		{Reference: elsewhere, Allow: no},
		{Reference: func(client.Object) (SecretReference, error) {
			return SecretReference{}, errors.Wrap(ErrNotAllowed, "not for red")
		}}} {
		err := resolve(options)
		g.Expect(err).To(MatchError(ErrNotAllowed))
		g.Expect(err).To(MatchError(ContainSubstring("not for red")))
	}
}

// With Impersonate, a kubeconfig's credential names the ServiceAccount in every request, and no
// header of the caller does. The own user's requests name none.
func TestRemoteImpersonation(t *testing.T) {
	g := NewWithT(t)
	account := types.NamespacedName{Namespace: "team", Name: "deployer"}
	options := KubeconfigOptions{
		Impersonate: func(object client.Object) (types.NamespacedName, error) {
			if object.GetName() == "unnamed" {
				return types.NamespacedName{Namespace: "team"}, nil
			}
			return account, nil
		},
		AllowImpersonate: func(_ context.Context, object client.Object, account types.NamespacedName) error {
			if object.GetName() == "refused" {
				return errors.Errorf("%s is not for everyone", account)
			}
			return nil
		},
	}
	bind := func(options KubeconfigOptions) (identity.Resolver, error) {
		return KubeconfigSecrets(options).Bind(host{config: &rest.Config{Host: "https://server"}},
			identity.Kind{Namespaced: true}, nil, nil)
	}
	resolver, err := bind(options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resolver.UsesServiceAccounts()).To(BeFalse(), "the ServiceAccount is in another cluster")
	named := func(name string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	}
	g.Expect(resolver.Reference(named("red"))).To(Equal(identity.Reference{
		Name: "secret team/red-kubeconfig, key value as serviceaccount team/deployer"}))
	_, err = resolver.Resolve(t.Context(), named("red"))
	g.Expect(err).To(MatchError(identity.ErrPending))
	_, err = resolver.Resolve(t.Context(), named("refused"))
	g.Expect(err).To(MatchError(ErrNotAllowed))
	g.Expect(err).To(MatchError(ContainSubstring("team/deployer is not for everyone")))
	_, err = resolver.Resolve(t.Context(), named("unnamed"))
	g.Expect(err).To(MatchError(ErrInvalidReference), "never empty: the request would be the kubeconfig's own user's")

	noGuard, noUse := options, options
	noGuard.AllowImpersonate = nil
	_, err = bind(noGuard)
	g.Expect(err).To(MatchError(ContainSubstring("set AllowImpersonate")))
	noUse.Impersonate = nil
	_, err = bind(noUse)
	g.Expect(err).To(MatchError(ContainSubstring("AllowImpersonate would never be called")))

	var sent http.Header
	next := testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		sent = req.Header
		return nil, errors.New("enough")
	})
	material, err := newSecretMaterial("the-token", nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	request := func(headers ...string) *http.Request {
		sent = nil
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		for _, header := range headers {
			req.Header.Set(header, "system:masters")
		}
		return req
	}
	forged := []string{"Authorization", "Impersonate-User", "Impersonate-Uid", "Impersonate-Group",
		"Impersonate-Extra-Scopes",
		"Impersonate_User"}
	c := &remoteImpersonation{staticCredential: newStaticCredential(material), username: usernameOf(account)}
	_, err = c.RoundTripper(next).RoundTrip(request(forged...))
	g.Expect(err).To(MatchError("enough"))
	g.Expect(sent).To(Equal(http.Header{"Authorization": {"Bearer the-token"},
		"Impersonate-User": {"system:serviceaccount:team:deployer"}}))
	_, err = c.OwnRoundTripper(next).RoundTrip(request(forged...))
	g.Expect(err).To(MatchError("enough"))
	g.Expect(sent).To(Equal(http.Header{"Authorization": {"Bearer the-token"}}))
	_, err = c.RoundTripper(next).RoundTrip(request("Proxy-Something"))
	g.Expect(err).To(MatchError(ContainSubstring("is not sent under impersonation")))
	g.Expect(sent).To(BeNil())
	unnamed := &remoteImpersonation{staticCredential: newStaticCredential(material)}
	_, err = unnamed.RoundTripper(next).RoundTrip(request())
	g.Expect(err).To(MatchError(ErrInvalidCredential))
	g.Expect(sent).To(BeNil())
	through := c.RoundTripper(next)
	c.Close()
	_, err = through.RoundTrip(request())
	g.Expect(err).To(MatchError(ErrInvalidCredential))
	g.Expect(sent).To(BeNil())
}

// The document that is checked for anchors is also the document that is used. Text that only looks
// like an anchor is not refused.
func TestKubeconfigsInYAML(t *testing.T) {
	with := func(more, token string) []byte {
		return []byte("current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n" +
			"clusters: [{name: k, cluster: {server: 'https://far'}}]\nusers: [{name: u, user: {token: " + token + "}}]\n" +
			more)
	}
	for name, tc := range map[string]struct {
		content []byte
		want    string // the token, or the problem
	}{
		"plain":                     {with("", "t"), "Bearer t"},
		"an ampersand in a string":  {with("x: 'a &b *c'\ny: a &b *c\n", `"&t*"`), "Bearer &t*"},
		"indicators in a block":     {with("x: |\n  &a\n  *a\n", "t*&"), "Bearer t*&"},
		"indicators in a comment":   {with("# &a *a\n", "t"), "Bearer t"},
		"a token like a number":     {with("", "0123"), "Bearer 0123"},
		"a token like a date":       {with("", "2026-01-01"), "Bearer 2026-01-01"},
		"a token like a boolean":    {with("", "'true'"), "Bearer true"},
		"unknown fields":            {with("preferences: {colors: true, other: ~}\n", "t"), "Bearer t"},
		"an alias":                  {with("x: &a y\nz: *a\n", "t"), "anchor or alias"},
		"an anchor without aliases": {with("x: &a y\n", "t"), "anchor or alias"},
		"an anchor at a key":        {with("&a x: y\n", "t"), "anchor or alias"},
		"an alias as a key":         {with("x: &a y\n*a : z\n", "t"), "anchor or alias"},
		"a merge":                   {with("x: &a {b: c}\nz: {<<: *a}\n", "t"), "anchor or alias"},
		"an anchor at the top":      {append([]byte("&a\n"), with("", "t")...), "anchor or alias"},
		"a list as a key":           {with("? [a]\n: b\n", "t"), "a key is not a string"},
		"deep": {with("x: "+strings.Repeat("[", 40)+strings.Repeat("]", 40)+"\n", "t"),
			"nested deeper"},
		"many values":    {with("x: ["+strings.Repeat("a,", maxIndicators)+"]\n", "t"), "too many values"},
		"too long":       {with("# "+strings.Repeat("x", defaultMaxSize), "t"), "more than the 131072 allowed"},
		"not a map":      {[]byte("[]"), "cannot be parsed"},
		"empty":          {[]byte("---\n"), "current-context"},
		"a comment only": {[]byte("# x"), "the content is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			parsed, err := limits(false).parse(tc.content)
			if authorization, accepted := strings.CutPrefix(tc.want, "Bearer "); accepted {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(parsed.secretMaterial.token()).To(Equal(authorization))
				return
			}
			g.Expect(err).To(MatchError(ErrInvalidCredential))
			g.Expect(err).To(MatchError(ContainSubstring(tc.want)))
		})
	}
}

// A kubeconfig of many clusters, as kubectl writes it, is not refused for its other clusters.
func TestKubeconfigOfManyClusters(t *testing.T) {
	g := NewWithT(t)
	content := kubeconfigWith(t,
		func(config *clientcmdapi.Config, server *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
			for i := range 60 {
				name := fmt.Sprintf("cluster-%d", i)
				config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
				config.Clusters[name], config.AuthInfos[name] = server, user
			}
		})
	_, err := limits(false).parse(content)
	g.Expect(err).NotTo(HaveOccurred())
}

// hugeRSA returns a certificate with a key that needs seconds for a signature.
func hugeRSA(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	// Two Mersenne primes, so that the test does not have to search for primes.
	p := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 4423), big.NewInt(1))
	q := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 4253), big.NewInt(1))
	e := 65537
	phi := new(big.Int).Mul(new(big.Int).Sub(p, big.NewInt(1)), new(big.Int).Sub(q, big.NewInt(1)))
	key := &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{N: new(big.Int).Mul(p, q), E: e},
		D:         new(big.Int).ModInverse(big.NewInt(int64(e)), phi),
		Primes:    []*big.Int{p, q},
	}
	key.Precompute()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

// For any content of a kubeconfig, parse does not panic, run a program, or open a file. The result
// contains nothing that could run a program or open a file. An error quotes no content.
func FuzzKubeconfig(f *testing.F) {
	// The seeds are short: the fuzzer minimizes interesting inputs, and needs a minute for a long
	// one.
	kubeconfig := func(cluster, user string) string {
		return `{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],"clusters":[{"name":"k","cluster":{` + cluster + `}}],"users":[{"name":"u","user":{` + user + `}}]}`
	}
	trap, server, token := canary(f), `"server":"https://far"`, `"token":"t"`
	for _, content := range []string{
		kubeconfig(server, token),
		kubeconfig(server+`,"insecure-skip-tls-verify":true,"tls-server-name":"n"`, token),
		kubeconfig(server+`,"certificate-authority":"`+trap+`"`, token),
		kubeconfig(server, `"tokenFile":"`+trap+`"`),
		kubeconfig(server, `"client-certificate":"`+trap+`","client-key":"`+trap+`"`),
		kubeconfig(server, `"client-certificate-data":"YQ==","client-key-data":"YQ=="`),
		kubeconfig(server, `"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"`+trap+
			`","interactiveMode":"Never"}`),
		kubeconfig(server, `"auth-provider":{"name":"gcp"}`),
		kubeconfig(`"server":"http://127.0.0.1"`, token),
		"current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\nclusters: [{name: k, cluster: " +
			"{server: https://far}}]\nusers: [{name: u, user: {token: t}}]",
		"x: &a y\nusers: [*a, *a]", "a: &a [y]\nb: &b [*a, *a]\nc: {<<: *b}", "&a x: 1\n*a : 2",
		"%TAG !a! b\n---\n!a!c {}", "? - ? - ?", "x: |\n &a\n *a",
	} {
		f.Add([]byte(content), false)
		f.Add([]byte(content), true)
	}
	for i := range 23 { // the beginning of each kind of hostile kubeconfig
		_, content := hostileKubeconfig(i)
		f.Add(content[:min(len(content), 200)], false)
	}
	f.Fuzz(func(t *testing.T, content []byte, allowInsecure bool) {
		watchdog := time.AfterFunc(time.Minute, func() { panic("parsing hangs: did it open the canary?") })
		defer watchdog.Stop()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = limits(allowInsecure).parse(content)
		runtime.ReadMemStats(&after)
		// The difference includes the allocations of the fuzzer's other goroutines.
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(16<<20+1000*len(content)) {
			t.Errorf("parsing %d bytes allocated %d", len(content), allocated)
		}
		checkKubeconfig(t, content, allowInsecure)
	})
}

func checkKubeconfig(t *testing.T, content []byte, allowInsecure bool) {
	parsed, err := limits(allowInsecure).parse(content)
	if err != nil {
		if !errors.Is(err, ErrInvalidCredential) {
			t.Errorf("%v is not an ErrInvalidCredential", err)
		}
		return
	}
	plain, err := plainJSON(content)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.Load(plain)
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	server, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if user.Exec != nil || user.AuthProvider != nil || user.TokenFile != "" || user.ClientCertificate != "" ||
		user.ClientKey != "" || server.CertificateAuthority != "" {
		t.Errorf("accepted a field that runs a program or opens a file")
	}
	if user.Impersonate != "" || user.Username != "" || user.Password != "" {
		t.Errorf("accepted another user")
	}
	if fields := notAccepted(parsed.reach); len(fields) > 0 || parsed.reach.BearerToken != "" ||
		len(parsed.reach.CertData)+len(parsed.reach.KeyData) > 0 {
		t.Errorf("the target holds %v", fields)
	}
	if parsed.reach.Insecure && !allowInsecure {
		t.Errorf("accepted insecure-skip-tls-verify")
	}
	if !strings.HasPrefix(parsed.reach.Host, "https://") && !strings.HasPrefix(parsed.reach.Host, "http://") {
		t.Errorf("accepted the server %q", parsed.reach.Host)
	}
	if parsed.secretMaterial.version == "" ||
		(parsed.secretMaterial.token == nil) == (parsed.secretMaterial.certificate == nil) {
		t.Errorf("not exactly one credential")
	}
	c := parsed.secretMaterial.open()
	c.RoundTripper(nil)
	c.Expires()
	c.Close()
}

// For any content of an extension, Resolve does not panic, and the result names exactly one
// ServiceAccount.
func FuzzResolve(f *testing.F) {
	for _, content := range []string{
		`{"spec":{"namespace":"team","serviceAccount":{"name":"red"}}}`,
		`{"spec":{"namespace":"team","serviceAccount":"red"}}`,
		`{"spec":[{"namespace":"team"}]}`,
		`{"spec":{"namespace":"team/../kube-system","serviceAccount":{"name":"red/token"}}}`,
		`{"metadata":{"name":1,"namespace":[]},"spec":null}`,
		`[]`, `null`,
	} {
		f.Add([]byte(content))
	}
	seen := map[string]string{}
	f.Fuzz(func(t *testing.T, content []byte) {
		object := &unstructured.Unstructured{}
		if json.Unmarshal(content, &object.Object) != nil {
			return
		}
		r := &serviceAccountResolver{
			namespacePath:   []string{"spec", "namespace"},
			namePath:        []string{"spec", "serviceAccount", "name"},
			serviceAccounts: allServiceAccounts{},
			target: &rest.Config{
				Host: "https://server",
			},
			credential: func(tokenID, *identity.Resolution) {},
		}
		resolved, err := r.Resolve(t.Context(), object)
		if err != nil {
			if !errors.Is(err, ErrInvalidReference) {
				t.Errorf("%v is not an ErrInvalidReference", err)
			}
			return
		}
		named := resolved.ServiceAccount
		if len(validation.IsDNS1123Label(named.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(named.Name)) > 0 {
			t.Errorf("%q is not a valid ServiceAccount", named)
		}
		if resolved.Expected.Username != "system:serviceaccount:"+named.Namespace+":"+named.Name {
			t.Errorf("%q is expected to be %q", named, resolved.Expected.Username)
		}
		if before, ok := seen[resolved.Key]; ok && before != named.String() {
			t.Errorf("%q and %q have one key", before, named)
		}
		seen[resolved.Key] = named.String()
	})
}

// allServiceAccounts reads from a cluster in which every ServiceAccount exists.
type allServiceAccounts struct{ client.Reader }

func (allServiceAccounts) Get(_ context.Context, key client.ObjectKey, object client.Object,
	_ ...client.GetOption) error {
	object.SetUID(types.UID("uid-of-" + key.String()))
	return nil
}

// TestCanary checks that the fuzz test detects an opened file.
func TestCanary(t *testing.T) {
	opened := make(chan error, 1)
	name := canary(t)
	go func() {
		_, err := os.ReadFile(name)
		opened <- err
	}()
	select {
	case <-opened:
		t.Fatal("a canary does not hang its reader")
	case <-time.After(50 * time.Millisecond):
	}
	writer, err := os.OpenFile(name, os.O_WRONLY, 0)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(writer.Close()).To(Succeed())
	NewWithT(t).Expect(<-opened).To(Succeed())
}
