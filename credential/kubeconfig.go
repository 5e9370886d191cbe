package credential

import (
	"cmp"
	"context"
	"net/url"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// SecretReference identifies a key of a Secret.
type SecretReference struct {
	// Namespace and Name of the Secret, and the Key of the data in it.
	Namespace, Name, Key string
}

// String returns "<namespace>/<name>, key <key>".
func (r SecretReference) String() string { return r.Namespace + "/" + r.Name + ", key " + r.Key }

// KubeconfigOptions configures KubeconfigSecrets. The zero value follows Cluster API's convention:
// key "value" of the Secret "<name>-kubeconfig" in the extension's namespace.
type KubeconfigOptions struct {
	// Namespace of the Secrets. Empty means the extension's namespace. Extensions of a
	// cluster-scoped kind need a Namespace. If Namespace is set, Allow must be set too.
	Namespace string
	// NamePath is a dotted path to the field of an extension that names its Secret, such as
	// "spec.kubeconfig.name". Empty means the extension's name plus "-kubeconfig".
	NamePath string
	// Key of the Secret. Defaults to "value".
	Key string
	// Reference, if set, returns the Secret of an extension, and replaces the fields above. The
	// result must have Namespace, Name and Key. The text of an error is shown to users. An error
	// that wraps ErrNotAllowed means that the extension may not use the Secret, and one that wraps
	// ErrPending that the extension does not name it yet.
	//
	// Reference decides which identity an extension acts as. Return no Secret that the author of
	// the extension must not use, or set Allow too. Reference must not do I/O.
	Reference func(client.Object) (SecretReference, error)
	// Allow decides whether an extension may use a Secret. An error means no, and the error's text
	// is shown to users. A panic means no, too.
	//
	// Anyone who may write an extension acts as the user of the kubeconfig that the extension
	// names. Therefore, without Allow, only Secrets of the extension's own namespace are used, and
	// Namespace is refused. A Secret that Reference returns is used without Allow in any namespace,
	// because Reference is already the author's own guard.
	//
	// SecretsGuardedByAdmission is an Allow for operators whose extensions are guarded by an
	// admission policy, such as that in config/admission-kubeconfigs. Allow must not do I/O.
	Allow func(ctx context.Context, object client.Object, secret SecretReference) error
	// Impersonate, if set, returns the ServiceAccount of the kubeconfig's cluster that an extension
	// acts as. Requests carry the kubeconfig's credential and Impersonate-User. The API server must
	// first state who the kubeconfig's own user is, and a newer kubeconfig of another user is
	// another connection. The own user needs "impersonate" on serviceaccounts there; grant it with
	// a Role of the tenants' namespace and resourceNames, as in
	// config/rbac-examples/impersonation.yaml for the operator's own cluster. The ServiceAccount is
	// not watched, its UID is not known, and an API server does not check whether it exists.
	//
	// The result must depend on the object only, and must have Namespace and Name. For objects that
	// act as the kubeconfig's own user, use Choose with another KubeconfigSecrets. The text of an
	// error is shown to users. An error that wraps ErrNotAllowed means that the extension may not
	// act as that ServiceAccount. Impersonate must not do I/O.
	Impersonate func(client.Object) (types.NamespacedName, error)
	// AllowImpersonate returns nil if an extension may act as the ServiceAccount that Impersonate
	// returned. An error means no, and the error's text is shown to users. A panic means no, too.
	// AllowImpersonate is required with Impersonate: without it, anyone who may write an extension
	// could act as every ServiceAccount that the kubeconfig's user may impersonate. An admission
	// policy in the operator's cluster knows no permissions of the kubeconfig's cluster.
	// AllowImpersonate must not do I/O.
	AllowImpersonate func(ctx context.Context, object client.Object, serviceAccount types.NamespacedName) error
	// AllowInsecure accepts insecure-skip-tls-verify. Anyone on the network path between the
	// operator and the API server can then steal the credential and forge responses.
	AllowInsecure bool
	// AllowProxy, if set, decides whether an extension may reach its API server by the proxy-url of
	// its kubeconfig (http, https or socks5), which is without user and password here. An error
	// means no, and the error's text is shown to users. A panic means no, too. Without AllowProxy,
	// a kubeconfig with proxy-url is refused: who writes it makes the operator connect to a proxy
	// of their choice.
	//
	// The proxy sees which server is reached, how much and when, and TLS only: the server is
	// verified by its own authority, so insecure-skip-tls-verify is refused beside proxy-url. An
	// https proxy is verified by the authorities of the system, and gets no client certificate. The
	// proxy's user and password are in no message, and requests to the proxy have no other
	// credential. AllowProxy must not change the URL, and must not do I/O.
	AllowProxy func(ctx context.Context, object client.Object, proxy *url.URL) error
	// MaxSize is the maximum size of a kubeconfig in bytes. Defaults to 128 KiB. No Secret holds
	// more than 1 MiB. Parsing allocates at most about 100 times the size, or 1 MiB for a short
	// kubeconfig. Only one kubeconfig is parsed at a time.
	//
	// MaxSize does not change the other limits:
	//
	//   - At most 4096 YAML indicators: the bytes -?:,[]{}#&*!|>'"%@ and the backtick, in any
	//     position. From 256 indicators on, at most one per 12 bytes. A cluster, its context and
	//     its user have about 30 indicators together.
	//   - At most 32 levels.
	//   - No anchors and no aliases.
	MaxSize int
}

// defaultMaxSize is the default of KubeconfigOptions.MaxSize.
const defaultMaxSize = 128 << 10

// SecretsGuardedByAdmission is a KubeconfigOptions.Allow that allows every Secret. Use this
// function only if admission at the API server prevents users from naming a Secret that they may
// not read.
func SecretsGuardedByAdmission(context.Context, client.Object, SecretReference) error { return nil }

// KubeconfigSecrets is the provider for remote API servers, Kubernetes 1.28 and later. Every
// extension has a kubeconfig in a Secret of the cluster that contains the extension. The kubeconfig
// has a token or client certificate as data. KubeconfigSecrets uses the current-context.
//
// A kubeconfig that would run a program, open a file, or name yet another user is refused, and the
// error names the field: exec, auth-provider, tokenFile and every other file reference, username
// and password, impersonation, and, unless allowed, proxy-url and insecure-skip-tls-verify. A
// kubeconfig that is large, deeply nested, or has YAML anchors or aliases is refused too: see
// KubeconfigOptions.MaxSize.
//
// Only the Secrets that extensions refer to are watched, each by its name. The host operator's list
// and watch on secrets can therefore be limited by resourceNames.
//
// A changed token or certificate is used without a new connection, after the API server has stated
// that the same user owns it; watches continue. Another server, certificate authority or user needs
// another connection. If a new kubeconfig cannot be used, the connection continues as long as its
// credential works, and the state's Message has the reason. To disconnect an extension, delete the
// Secret or its key.
//
// With a client certificate, clients that open their own connections, as client-go's exec and
// port-forward do, are refused.
//
// The operator connects from its own network to every server that a kubeconfig names. Anyone who
// may write these Secrets can make the operator send requests to a server of their choice.
func KubeconfigSecrets(options KubeconfigOptions) Provider { return kubeconfigSecrets(options) }

type kubeconfigSecrets KubeconfigOptions

func (kubeconfigSecrets) sealed() {}

func (o kubeconfigSecrets) Bind(host cluster.Cluster, kind identity.Kind,
	counts *metrics.Cache, tracer *tracing.Tracer) (identity.Resolver,
	error) {
	r := &kubeconfigResolver{options: o}
	if o.NamePath != "" {
		var err error
		if r.namePath, err = kind.Path("NamePath", o.NamePath); err != nil {
			return nil, err
		}
	}
	if o.Reference != nil && (o.Namespace != "" || o.NamePath != "" || o.Key != "") {
		return nil, errors.New("Reference returns the Secret, so Namespace, NamePath and Key must be empty")
	}
	if o.Namespace != "" && o.Allow == nil {
		return nil,
			errors.New(
				"with Namespace, anyone who may write an extension could act as the user of any kubeconfig in that " +
					"namespace: set Allow, or guard the extensions by admission and set Allow to SecretsGuardedByAdmission")
	}
	if o.Reference == nil && o.Namespace == "" && !kind.Namespaced {
		return nil,
			errors.Errorf("%s is cluster-scoped: set Namespace to the namespace of its Secrets, or set Reference",
				kind.Name())
	}
	switch {
	case o.Impersonate != nil && o.AllowImpersonate == nil:
		return nil, errors.New("with Impersonate, anyone who may write an extension could act as any ServiceAccount that " +
			"the user of its kubeconfig may impersonate: set AllowImpersonate, and allow for example only ServiceAccounts " +
			"in a namespace of the extension's name")
	case o.Impersonate == nil && o.AllowImpersonate != nil:
		return nil, errors.New("AllowImpersonate would never be called: set Impersonate, or leave AllowImpersonate nil")
	}
	if o.MaxSize < 0 {
		return nil, errors.New("MaxSize must not be negative")
	}
	reader, err := newSecretReader(host)
	if err != nil {
		return nil, err
	}
	limits := kubeconfigLimits{
		allowInsecure: o.AllowInsecure,
		allowProxy:    o.AllowProxy != nil,
		maxSize:       cmp.Or(o.MaxSize, defaultMaxSize),
	}
	r.secrets = newSecrets(reader, limits.parse, counts)
	return r, nil
}

// kubeconfigResolver resolves extensions that have a kubeconfig.
type kubeconfigResolver struct {
	options  kubeconfigSecrets
	namePath []string
	secrets  *secrets
}

func (*kubeconfigResolver) UsesServiceAccounts() bool { return false }

func (*kubeconfigResolver) ServiceAccount(client.Object) (types.NamespacedName, error) {
	return types.NamespacedName{}, nil
}

func (r *kubeconfigResolver) Reference(object client.Object) (identity.Reference, error) {
	ref, err := r.reference(object)
	if err != nil {
		return identity.Reference{}, err
	}
	account, err := r.impersonated(object)
	return referenceTo(ref, account), err
}

// referenceTo returns the Reference to a Secret, and to the ServiceAccount that is impersonated
// with it, if any.
func referenceTo(ref SecretReference, account types.NamespacedName) identity.Reference {
	name := sourceOf(ref)
	if account != (types.NamespacedName{}) {
		name += " as " + serviceAccountSource(account)
	}
	return identity.Reference{Name: name}
}

// impersonated returns the ServiceAccount that the object acts as with its kubeconfig, zero if it
// acts as the kubeconfig's own user.
func (r *kubeconfigResolver) impersonated(object client.Object) (account types.NamespacedName, err error) {
	if r.options.Impersonate == nil {
		return account, nil
	}
	if account, err = r.options.Impersonate(object); err != nil {
		return types.NamespacedName{}, referenceError(err, "determining the ServiceAccount to impersonate")
	}
	if err := validServiceAccount(account, "the namespace of the ServiceAccount to impersonate",
		"the name of the ServiceAccount to impersonate"); err != nil {
		return types.NamespacedName{}, err
	}
	return account, nil
}

func (r *kubeconfigResolver) Forget(extension client.ObjectKey) { r.secrets.forget(extension) }

func (r *kubeconfigResolver) Run(ctx context.Context, wake func(client.ObjectKey)) {
	r.secrets.run(ctx, wake)
}

func (r *kubeconfigResolver) Resolve(ctx context.Context, object client.Object) (identity.Resolution, error) {
	extension := client.ObjectKeyFromObject(object)
	ref, err := r.reference(object)
	var account types.NamespacedName
	if err == nil {
		err = r.allow(ctx, object, ref)
	}
	if err == nil {
		account, err = r.impersonated(object)
	}
	if err == nil && r.options.Impersonate != nil {
		if refused := r.options.AllowImpersonate(ctx, object, account); refused != nil {
			err = errors.Wrapf(&classifiedError{kind: ErrNotAllowed, cause: refused},
				"acting as serviceaccount %s with the kubeconfig in secret %s", account, ref)
		}
	}
	if err != nil {
		r.secrets.forget(extension)
		return identity.Resolution{Source: sourceOf(ref)}, err
	}
	resolved := identity.Resolution{Source: sourceOf(ref), Reference: referenceTo(ref, account)}
	found, err := r.secrets.get(extension, ref)
	if err != nil {
		return resolved, errors.WithMessage(err, resolved.Source)
	}
	if found.err != nil {
		resolved.KeepCurrent = true
		return resolved, errors.WithMessagef(found.err, "the kubeconfig in %s", resolved.Source)
	}
	if proxy := found.kubeconfig.proxy; proxy != nil {
		if refused := r.options.AllowProxy(ctx, object, withoutUser(proxy)); refused != nil {
			return resolved, errors.Wrapf(&classifiedError{kind: ErrNotAllowed, cause: refused},
				"reaching the API server of %s by proxy %s", resolved.Source, identity.ProxyText(proxy))
		}
	}
	resolved.Key = strings.Join([]string{"kubeconfig", ref.Namespace, ref.Name, ref.Key,
		targetKey(found.kubeconfig.reach)}, "\x00")
	resolved.Version = found.kubeconfig.secretMaterial.version
	resolved.Target = found.kubeconfig.reach
	resolved.UntrustedServer = true
	resolved.OpenFunc = found.kubeconfig.secretMaterial.open
	if r.options.Impersonate != nil {
		resolved.Key += "\x00as\x00" + account.String()
		resolved.Impersonated = true
		resolved.Expected.Username = usernameOf(account)
		resolved.OpenFunc = func() identity.Credential {
			return &remoteImpersonation{
				staticCredential: newStaticCredential(found.kubeconfig.secretMaterial),
				username:         usernameOf(account),
			}
		}
	}
	return resolved, nil
}

func withoutUser(proxy *url.URL) *url.URL {
	public := *proxy
	public.User = nil
	return &public
}

// sourceOf returns the Resolution.Source for a Secret, empty if ref names none.
func sourceOf(ref SecretReference) string {
	if ref == (SecretReference{}) {
		return ""
	}
	return "secret " + ref.String()
}

// allow returns an ErrNotAllowed if the object may not use the Secret.
func (r *kubeconfigResolver) allow(ctx context.Context, object client.Object, ref SecretReference) error {
	switch {
	case r.options.Allow != nil:
		if err := r.options.Allow(ctx, object, ref); err != nil {
			return errors.Wrapf(&classifiedError{kind: ErrNotAllowed, cause: err}, "using secret %s", ref)
		}
	case ref.Namespace != object.GetNamespace() && r.options.Reference == nil:
		return errors.Wrapf(ErrNotAllowed, "using secret %s of another namespace", ref)
	}
	return nil
}

// reference returns the Secret that the object refers to.
func (r *kubeconfigResolver) reference(object client.Object) (ref SecretReference, err error) {
	if r.options.Reference != nil {
		if ref, err = r.options.Reference(object); err != nil {
			return SecretReference{}, referenceError(err, "resolving the Secret reference")
		}
	} else if ref, err = r.referenceByConvention(object); err != nil {
		return SecretReference{}, err
	}
	switch {
	case len(validation.IsDNS1123Label(ref.Namespace)) > 0:
		return SecretReference{},
			errors.Wrapf(ErrInvalidReference, "%s is not a valid namespace", untrusted.Quote(ref.Namespace))
	case len(validation.IsDNS1123Subdomain(ref.Name)) > 0:
		return SecretReference{},
			errors.Wrapf(ErrInvalidReference, "%s is not a valid name of a Secret", untrusted.Quote(ref.Name))
	case len(validation.IsConfigMapKey(ref.Key)) > 0:
		return SecretReference{},
			errors.Wrapf(ErrInvalidReference, "%s is not a valid key of a Secret", untrusted.Quote(ref.Key))
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
