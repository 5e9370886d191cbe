package credential

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// SecretReference names a key of a Secret.
type SecretReference struct{ Namespace, Name, Key string }

// String is "namespace/name, key".
func (r SecretReference) String() string { return r.Namespace + "/" + r.Name + ", key " + r.Key }

// KubeconfigOptions configure KubeconfigSecrets. The zero value is Cluster API's convention: key
// "value" of the Secret "<name>-kubeconfig" beside the extension.
type KubeconfigOptions struct {
	// Namespace of the Secrets; empty is the extension's own. Extensions of a cluster-scoped kind
	// need one. With it Allow must be set.
	Namespace string
	// NamePath is a dotted path to the field of an extension that names its Secret, such as
	// "spec.kubeconfig.name". Empty is the extension's name and "-kubeconfig".
	NamePath string
	// Key of the Secret; empty is "value".
	Key string
	// Reference, if set, says which Secret an extension means, instead of the fields above.
	// Namespace, Name and Key must all be set in what it returns. Its error is shown to people; one
	// that wraps ErrNotAllowed says so. It must not do I/O. It decides who acts as whom: return no
	// Secret that the author of the extension must not use, or set Allow too.
	Reference func(client.Object) (SecretReference, error)
	// Allow says whether an extension may use that Secret; an error means no and is shown to
	// people. Whoever may write an extension acts as the user of the kubeconfig that it names, so
	// without Allow only Secrets of the extension's own namespace are used, and Namespace is
	// refused. What Reference returns is used without Allow in any namespace: it is the author's
	// own guard. SecretsGuardedByAdmission states that an admission policy, such as that in
	// config/admission-kubeconfigs, guards them. It must not do I/O; if it panics, the answer is
	// no.
	Allow func(ctx context.Context, object client.Object, secret SecretReference) error
	// AllowInsecure accepts insecure-skip-tls-verify: whoever is between the operator and the API
	// server can then take the credential and answer what they like.
	AllowInsecure bool
	// MaxSize is how many bytes a kubeconfig may have. Defaults to 128 KiB; no Secret holds more
	// than 1 MiB. Parsing allocates at most about 100 times the size, or 1 MiB for a short one, and
	// one is parsed at a time. MaxSize does not raise the other limits: 4096 YAML indicators, and
	// from 256 on no more than one for 12 bytes (the bytes -?:,[]{}#&*!|>'"%@ and the backtick,
	// wherever they stand; a cluster, its context and its user have about 30 together), 32 levels,
	// no anchors and no aliases.
	MaxSize int
}

// defaultMaxSize is the default of KubeconfigOptions.MaxSize.
const defaultMaxSize = 128 << 10

// SecretsGuardedByAdmission is an Allow that allows everything. It states that the API server lets
// nobody name a Secret that they may not read.
func SecretsGuardedByAdmission(context.Context, client.Object, SecretReference) error { return nil }

// KubeconfigSecrets is the provider for remote API servers, Kubernetes 1.28 and later: every
// extension has a kubeconfig in a Secret of the cluster it lives in, with a token or client
// certificate as data. The current-context is used. What would run programs, open files, or name
// yet another user is refused by name: exec, auth-provider, tokenFile and every other file
// reference, username and password, impersonation, proxy-url, and insecure-skip-tls-verify unless
// allowed. A kubeconfig that is large, deeply nested, or has YAML anchors or aliases is refused
// too: see KubeconfigOptions.MaxSize.
//
// Only the Secrets that extensions refer to are watched, each by its name, so the host operator's
// list and watch on secrets can be narrowed by resourceNames. A token or certificate that changes
// is taken up in place once the API server has stated that it is the same user's; watches go on.
// Another server, certificate authority or user is another connection. A kubeconfig that cannot be
// used leaves the connection as it is while it works, and the state's Message says so. To cut an
// extension off, delete the Secret, or its key: that ends the connection.
//
// With a client certificate, clients that dial by themselves, as client-go's exec and port-forward
// do, are refused.
//
// The operator connects to whatever server a kubeconfig names, from where it runs: who may write
// those Secrets can make it send requests there.
func KubeconfigSecrets(options KubeconfigOptions) Provider { return kubeconfigSecrets(options) }

type kubeconfigSecrets KubeconfigOptions

func (kubeconfigSecrets) sealed() {}

func (o kubeconfigSecrets) Bind(host cluster.Cluster, kind Kind) (Resolver, error) {
	r := &kubeconfigResolver{options: o}
	if o.NamePath != "" {
		var err error
		if r.namePath, err = kind.path("NamePath", o.NamePath); err != nil {
			return nil, err
		}
	}
	if o.Reference != nil && (o.Namespace != "" || o.NamePath != "" || o.Key != "") {
		return nil, errors.New("Reference says which Secret is meant, so Namespace, NamePath and Key must be empty")
	}
	if o.Namespace != "" && o.Allow == nil {
		return nil,
			errors.New("with Namespace, whoever may write an extension could act as the user of any kubeconfig there: " +
				"decide in Allow, or " +
				"guard the extensions by admission and set SecretsGuardedByAdmission")
	}
	if o.Reference == nil && o.Namespace == "" && !kind.Namespaced {
		return nil,
			errors.Errorf("%s is cluster-scoped, so Namespace must say where its Secrets are, or Reference which they are",
				kind.name())
	}
	if o.MaxSize < 0 {
		return nil, errors.New("MaxSize must not be negative")
	}
	reader, err := newSecretReader(host)
	if err != nil {
		return nil, err
	}
	limits := kubeconfigLimits{allowInsecure: o.AllowInsecure, maxSize: cmp.Or(o.MaxSize, defaultMaxSize)}
	r.secrets = newSecrets(reader, limits.parse)
	return r, nil
}

// kubeconfigResolver resolves extensions that have a kubeconfig.
type kubeconfigResolver struct {
	options  kubeconfigSecrets
	namePath []string
	secrets  *secrets
}

func (*kubeconfigResolver) sealed() {}

func (*kubeconfigResolver) UsesServiceAccounts() bool { return false }

func (*kubeconfigResolver) ServiceAccount(client.Object) (types.NamespacedName, error) {
	return types.NamespacedName{}, nil
}

func (r *kubeconfigResolver) Forget(extension client.ObjectKey) { r.secrets.forget(extension) }

func (r *kubeconfigResolver) Run(ctx context.Context, wake func(client.ObjectKey)) {
	r.secrets.run(ctx, wake)
}

func (r *kubeconfigResolver) Resolve(ctx context.Context, object client.Object) (Resolution, error) {
	extension := client.ObjectKeyFromObject(object)
	ref, err := r.reference(object)
	if err == nil {
		err = r.allow(ctx, object, ref)
	}
	if err != nil {
		r.secrets.forget(extension)
		return Resolution{Source: sourceOf(ref)}, err
	}
	resolved := Resolution{Source: sourceOf(ref)}
	found, err := r.secrets.get(extension, ref)
	if err != nil {
		return resolved, errors.WithMessage(err, resolved.Source)
	}
	if found.err != nil {
		resolved.KeepCurrent = true
		return resolved, errors.WithMessagef(found.err, "the kubeconfig in %s", resolved.Source)
	}
	resolved.Key = strings.Join([]string{"kubeconfig", ref.Namespace, ref.Name, ref.Key,
		targetKey(found.kubeconfig.reach)}, "\x00")
	resolved.Version = found.kubeconfig.proof.version
	resolved.Target = found.kubeconfig.reach
	resolved.UntrustedServer = true
	resolved.open = found.kubeconfig.proof.open
	return resolved, nil
}

// sourceOf names a Secret for people, empty if none is named.
func sourceOf(ref SecretReference) string {
	if ref == (SecretReference{}) {
		return ""
	}
	return "secret " + ref.String()
}

// allow asks whether the object may use the Secret.
func (r *kubeconfigResolver) allow(ctx context.Context, object client.Object, ref SecretReference) error {
	switch {
	case r.options.Allow != nil:
		if err := r.options.Allow(ctx, object, ref); err != nil {
			return errors.Wrapf(&joined{kind: ErrNotAllowed, cause: err}, "using secret %s", ref)
		}
	case ref.Namespace != object.GetNamespace() && r.options.Reference == nil:
		return errors.Wrapf(ErrNotAllowed, "using secret %s of another namespace", ref)
	}
	return nil
}

// reference says which Secret the object means.
func (r *kubeconfigResolver) reference(object client.Object) (ref SecretReference, err error) {
	if r.options.Reference != nil {
		if ref, err = r.options.Reference(object); err != nil {
			if errors.Is(err, ErrNotAllowed) {
				return SecretReference{}, err
			}
			return SecretReference{}, errors.Wrap(&joined{kind: ErrInvalidReference, cause: err}, "which Secret it means")
		}
	} else if ref, err = r.referenceByConvention(object); err != nil {
		return SecretReference{}, err
	}
	switch {
	case len(validation.IsDNS1123Label(ref.Namespace)) > 0:
		return SecretReference{}, errors.Wrapf(ErrInvalidReference, "%s is no namespace", untrusted.Quote(ref.Namespace))
	case len(validation.IsDNS1123Subdomain(ref.Name)) > 0:
		return SecretReference{}, errors.Wrapf(ErrInvalidReference, "%s is no name of a Secret", untrusted.Quote(ref.Name))
	case len(validation.IsConfigMapKey(ref.Key)) > 0:
		return SecretReference{}, errors.Wrapf(ErrInvalidReference, "%s is no key of a Secret", untrusted.Quote(ref.Key))
	}
	return ref, nil
}

func (r *kubeconfigResolver) referenceByConvention(object client.Object) (SecretReference, error) {
	ref := SecretReference{Namespace: r.options.Namespace, Name: object.GetName() + "-kubeconfig", Key: r.options.Key}
	if ref.Namespace == "" {
		ref.Namespace = object.GetNamespace()
	}
	if ref.Key == "" {
		ref.Key = "value"
	}
	if r.namePath == nil {
		return ref, nil
	}
	content, err := contentOf(object)
	if err != nil {
		return ref, err
	}
	ref.Name, err = stringAt(content, r.namePath)
	return ref, err
}

// kubeconfig is what is used of a kubeconfig.
type kubeconfig struct {
	reach *rest.Config // the server, without a credential
	proof proof
}

// kubeconfigLimits say which kubeconfigs are accepted.
type kubeconfigLimits struct {
	allowInsecure bool
	maxSize       int // in bytes
}

// parse reads a kubeconfig as data: it runs nothing and opens nothing, and takes memory in
// proportion to the size. The error, ErrInvalidCredential, says what to change and holds nothing
// secret.
func (l kubeconfigLimits) parse(content []byte) (kubeconfig, error) {
	if len(content) > l.maxSize {
		return kubeconfig{},
			invalid(nil,
				fmt.Sprintf(
					"it has %d bytes, more than the %d allowed; keep the current context, its cluster and its user only, or "+
						"raise KubeconfigOptions.MaxSize", len(content), l.maxSize))
	}
	plain, err := plainJSON(content)
	if err != nil {
		return kubeconfig{}, invalid(nil, err.Error())
	}
	config, err := clientcmd.Load(plain)
	if err != nil {
		return kubeconfig{}, invalid(nil, "it cannot be parsed as a kubeconfig") // the cause quotes what it read
	}
	current, ok := config.Contexts[config.CurrentContext]
	if !ok || current == nil {
		return kubeconfig{}, invalid(nil, "its current-context names no context of it")
	}
	server, ok := config.Clusters[current.Cluster]
	if !ok || server == nil {
		return kubeconfig{}, invalid(nil, "its current context names no cluster of it")
	}
	user, ok := config.AuthInfos[current.AuthInfo]
	if !ok || user == nil {
		return kubeconfig{}, invalid(nil, "its current context names no user of it")
	}
	if server.Server == "" {
		return kubeconfig{}, invalid(nil, "its cluster has no server")
	}
	if fields := refused(server, user, l.allowInsecure); len(fields) > 0 {
		return kubeconfig{},
			invalid(nil, "it uses "+strings.Join(fields, ", ")+
				", which is refused; it may have server, certificate-authority-data, tls-server-name, and token, or "+
				"client-certificate-data with client-key-data")
	}
	if authorities := server.CertificateAuthorityData; len(authorities) > 0 {
		if err := checkAuthorities(authorities); err != nil {
			return kubeconfig{}, invalid(nil, "its certificate-authority-data "+err.Error())
		}
	}
	reach, err := Anonymous(&rest.Config{Host: server.Server, TLSClientConfig: rest.TLSClientConfig{
		Insecure: server.InsecureSkipTLSVerify, ServerName: server.TLSServerName, CAData: server.CertificateAuthorityData,
	}})
	if err != nil || !strings.HasPrefix(reach.Host, "https://") {
		return kubeconfig{}, invalid(nil, "its server must be an https:// address without user and password")
	}
	if reach.Insecure && len(reach.CAData) > 0 {
		return kubeconfig{},
			invalid(nil, "it has insecure-skip-tls-verify and a certificate authority; leave one of them out")
	}
	made, err := newProof(user.Token, user.ClientCertificateData, user.ClientKeyData)
	if err != nil {
		return kubeconfig{}, err
	}
	return kubeconfig{reach: reach, proof: made}, nil
}

// refused names the fields that a kubeconfig must not have.
func refused(server *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo, allowInsecure bool) (fields []string) {
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
		{"insecure-skip-tls-verify", server.InsecureSkipTLSVerify && !allowInsecure},
		{"proxy-url", server.ProxyURL != ""},
	} {
		if field.set {
			fields = append(fields, field.name)
		}
	}
	return fields
}
