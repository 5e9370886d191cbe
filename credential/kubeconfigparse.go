package credential

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// kubeconfig has the parts of a kubeconfig that are used.
type kubeconfig struct {
	reach          *rest.Config // the server, without a credential
	proxy          *url.URL     // of reach; nil for none
	secretMaterial secretMaterial
}

// kubeconfigLimits determines which kubeconfigs are accepted.
type kubeconfigLimits struct {
	allowInsecure bool
	allowProxy    bool // if KubeconfigOptions.AllowProxy allows the proxy
	maxSize       int  // in bytes
}

// parse reads a kubeconfig as data: no program runs and no file is opened. The error is an
// ErrInvalidCredential, which names the part to change and contains no secret. Memory is
// proportional to the size.
func (l kubeconfigLimits) parse(content []byte) (kubeconfig, error) {
	if len(content) > l.maxSize {
		return kubeconfig{},
			invalid(nil,
				fmt.Sprintf(
					"the size is %d bytes, more than the %d allowed; keep only the current context, its cluster and its "+
						"user, or "+"raise KubeconfigOptions.MaxSize", len(content), l.maxSize))
	}
	plain, err := plainJSON(content)
	if err != nil {
		return kubeconfig{}, invalid(nil, err.Error())
	}
	config, err := clientcmd.Load(plain)
	if err != nil {
		return kubeconfig{}, invalid(nil, "the content cannot be parsed as a kubeconfig") // the cause quotes the content
	}
	current, ok := config.Contexts[config.CurrentContext]
	if !ok || current == nil {
		return kubeconfig{}, invalid(nil, "the current-context names a context that does not exist")
	}
	server, ok := config.Clusters[current.Cluster]
	if !ok || server == nil {
		return kubeconfig{}, invalid(nil, "the current context names a cluster that does not exist")
	}
	user, ok := config.AuthInfos[current.AuthInfo]
	if !ok || user == nil {
		return kubeconfig{}, invalid(nil, "the current context names a user that does not exist")
	}
	if server.Server == "" {
		return kubeconfig{}, invalid(nil, "the cluster has no server")
	}
	if fields := l.refusedFields(server, user); len(fields) > 0 {
		return kubeconfig{},
			invalid(nil, "refused fields: "+strings.Join(fields, ", ")+
				"; allowed are server, certificate-authority-data, tls-server-name, and token, or "+
				"client-certificate-data with client-key-data")
	}
	if authorities := server.CertificateAuthorityData; len(authorities) > 0 {
		if err := checkAuthorities(authorities); err != nil {
			return kubeconfig{}, invalid(nil, "certificate-authority-data "+err.Error())
		}
	}
	reach, err := identity.Anonymous(&rest.Config{
		Host: server.Server,
		TLSClientConfig: rest.TLSClientConfig{
			Insecure:   server.InsecureSkipTLSVerify,
			ServerName: server.TLSServerName,
			CAData:     server.CertificateAuthorityData,
		},
	})
	if err != nil || !strings.HasPrefix(reach.Host, "https://") {
		return kubeconfig{}, invalid(nil, "server must be an https:// address without user and password")
	}
	if reach.Insecure && len(reach.CAData) > 0 {
		return kubeconfig{},
			invalid(nil, "insecure-skip-tls-verify and certificate-authority-data are both set; remove one of them")
	}
	proxy, err := proxyOf(server)
	if err != nil {
		return kubeconfig{}, invalid(nil, err.Error())
	}
	if proxy != nil {
		reach.Proxy = http.ProxyURL(proxy)
	}
	p, err := newSecretMaterial(user.Token, user.ClientCertificateData, user.ClientKeyData)
	if err != nil {
		return kubeconfig{}, err
	}
	return kubeconfig{reach: reach, proxy: proxy, secretMaterial: p}, nil
}

// proxyOf returns the proxy of a cluster, nil if it names none. The errors do not quote it: it may
// have a password.
func proxyOf(server *clientcmdapi.Cluster) (*url.URL, error) {
	if server.ProxyURL == "" {
		return nil, nil
	}
	proxy, err := url.Parse(server.ProxyURL)
	switch {
	case err != nil || proxy.Hostname() == "" || proxy.Path != "" && proxy.Path != "/" || proxy.RawQuery != "" ||
		proxy.Fragment != "" || !slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme):
		return nil, errors.New("proxy-url must be http://, https:// or socks5:// with a host, and maybe a user and a port")
	case server.InsecureSkipTLSVerify:
		return nil, errors.New("proxy-url and insecure-skip-tls-verify are both set: the proxy could read the credential; " +
			"set certificate-authority-data in place of insecure-skip-tls-verify")
	}
	return proxy, nil
}

// refusedFields returns the names of the fields that are set but refused.
func (l kubeconfigLimits) refusedFields(server *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) (fields []string) {
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"exec", user.Exec != nil},
		{"auth-provider", user.AuthProvider != nil},
		{"tokenFile", user.TokenFile != ""},
		{"client-certificate", user.ClientCertificate != ""},
		{"client-key", user.ClientKey != ""},
		{"username", user.Username != ""},
		{"password", user.Password != ""},
		{"as", user.Impersonate != ""},
		{"as-uid", user.ImpersonateUID != ""},
		{"as-groups", len(user.ImpersonateGroups) > 0},
		{"as-user-extra", len(user.ImpersonateUserExtra) > 0},
		{"certificate-authority", server.CertificateAuthority != ""},
		{"insecure-skip-tls-verify", server.InsecureSkipTLSVerify && !l.allowInsecure},
		{"proxy-url", server.ProxyURL != "" && !l.allowProxy},
	} {
		if field.set {
			fields = append(fields, field.name)
		}
	}
	return fields
}
