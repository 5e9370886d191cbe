package clusterprofile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/credential"
)

// Options configure the operator.
type Options struct {
	// TokenProvider is the name of the access providers of API servers that trust the issuer of this
	// cluster's ServiceAccounts. Defaults to "serviceaccount-token".
	TokenProvider string
	// SecretProvider is the name of the access providers of clusters for which there is a kubeconfig.
	// Defaults to "secret".
	SecretProvider string
	// ServiceAccount is who acts at the clusters, of the namespace of the ClusterProfile. Defaults to
	// "fleet".
	ServiceAccount string
	// UsernamePrefix is what the API servers put before the names of this cluster's
	// ServiceAccounts, by claimMappings of their authentication configuration. Defaults to "hub:".
	// They must also map the UID.
	UsernamePrefix string
	// Allow returns nil if tokens may be sent to the API server that a ClusterProfile names. Compare
	// the whole address with a table of your own: another port or path may be another server.
	Allow func(credential.Target) error
	// Secrets returns the Secret with the kubeconfig of a ClusterProfile, false if there is none. It
	// is the operator's own table.
	Secrets func(profile client.ObjectKey) (credential.SecretReference, bool)
}

func (o *Options) setDefaults() error {
	o.TokenProvider = cmp.Or(o.TokenProvider, "serviceaccount-token")
	o.SecretProvider = cmp.Or(o.SecretProvider, "secret")
	o.ServiceAccount = cmp.Or(o.ServiceAccount, "fleet")
	o.UsernamePrefix = cmp.Or(o.UsernamePrefix, "hub:")
	if o.Allow == nil {
		return errors.New("set Options.Allow: without it, the writer of a ClusterProfile could make the operator connect " +
			"to any server")
	}
	if o.Secrets == nil {
		o.Secrets = func(client.ObjectKey) (credential.SecretReference, bool) { return credential.SecretReference{}, false }
	}
	return nil
}

// The names of the kinds of credentials.
const tokens, kubeconfigs = "tokens", "kubeconfigs"

// credentials returns the provider of credentials for ClusterProfiles.
func (o *Options) credentials() credential.Provider {
	return credential.Choose(o.choose, map[string]credential.Provider{
		tokens: credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			Reference:   o.serviceAccount,
			Target:      o.target,
			AllowTarget: o.allowTarget,
		}),
		kubeconfigs: credential.KubeconfigSecrets(credential.KubeconfigOptions{Reference: o.secret}),
	})
}

// choose returns the kind of credential of the first access provider that is known.
func (o *Options) choose(object client.Object) (string, error) {
	profile := object.(*ClusterProfile)
	var unknown []string
	for _, provider := range profile.Status.AccessProviders {
		switch provider.Name {
		case o.TokenProvider:
			return tokens, nil
		case o.SecretProvider:
			return kubeconfigs, nil
		}
		unknown = append(unknown, fmt.Sprintf("%.63q", provider.Name))
	}
	if len(unknown) == 0 {
		return "", fmt.Errorf("%w: the status has no accessProviders yet", credential.ErrPending)
	}
	return "", fmt.Errorf("the access providers are %s, which may be plugins, and no plugin is run: let the API server "+
		"trust this cluster's issuer and add the access provider %q, or put a kubeconfig into a Secret of the operator's "+
		"table and add %q", strings.Join(unknown[:min(len(unknown), 5)], ", "), o.TokenProvider, o.SecretProvider)
}

func (o *Options) serviceAccount(object client.Object) (types.NamespacedName, error) {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: o.ServiceAccount}, nil
}

// target returns the API server that the status names.
func (o *Options) target(object client.Object) (credential.Target, error) {
	for _, provider := range object.(*ClusterProfile).Status.AccessProviders {
		if provider.Name != o.TokenProvider {
			continue
		}
		cluster := provider.Cluster
		if len(cluster.CertificateAuthorityData) == 0 {
			return credential.Target{}, fmt.Errorf("%w: the access provider %q has no certificate-authority-data",
				credential.ErrNotAllowed, provider.Name)
		}
		if cluster.InsecureSkipTLSVerify || cluster.ProxyURL != "" {
			return credential.Target{}, fmt.Errorf("%w: the access provider %q has insecure-skip-tls-verify or proxy-url, with "+
				"which no token is sent", credential.ErrNotAllowed, provider.Name)
		}
		return credential.Target{
			Server:     cluster.Server,
			ServerName: cluster.TLSServerName,
			CAData:     cluster.CertificateAuthorityData,
			Username:   o.username,
			StatesUID:  true,
		}, nil
	}
	return credential.Target{}, credential.ErrPending
}

func (o *Options) username(account types.NamespacedName) string {
	return o.UsernamePrefix + "system:serviceaccount:" + account.Namespace + ":" + account.Name
}

func (o *Options) allowTarget(_ context.Context, _ client.Object, _ types.NamespacedName,
	target credential.Target) error {
	return o.Allow(target)
}

// secret returns the Secret that the operator's table has for the ClusterProfile.
func (o *Options) secret(object client.Object) (credential.SecretReference, error) {
	secret, ok := o.Secrets(client.ObjectKeyFromObject(object))
	if !ok {
		return secret, fmt.Errorf("%w: the operator's table has no Secret for this ClusterProfile", credential.ErrNotAllowed)
	}
	return secret, nil
}
