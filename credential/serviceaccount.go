package credential

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/informed"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// minLifetime is the shortest token lifetime that the TokenRequest API accepts.
const minLifetime = 10 * time.Minute

// ServiceAccountOptions configures ServiceAccountTokens. The zero value is for ClusterExtensions.
type ServiceAccountOptions struct {
	// NamespacePath and NamePath are dotted paths to the fields of an extension that name its
	// ServiceAccount, such as "spec.serviceAccountName". NamePath defaults to
	// "spec.serviceAccount.name". NamespacePath defaults to "spec.namespace" for a cluster-scoped
	// kind, and to "metadata.namespace" for a namespaced one. NamespacePath must be set if a
	// namespaced kind also has a field spec.namespace, or if the schema of the kind is not
	// available or accepts any field. SetupWithManager returns an error for a path that the kind's
	// known schema does not have.
	NamespacePath, NamePath string
	// Reference, if set, returns the ServiceAccount of an extension, and replaces the paths above.
	// Use it for a default where the extension names none, or for a namespace that is not a field.
	// The text of an error is shown to users; an error that wraps ErrNotAllowed means that the
	// extension may not act as any ServiceAccount. Options.AllowIdentity of clustercache still
	// decides about the result. Reference must not change the object, and must not do I/O.
	//
	// Reference must depend on the object only. The policies in config/admission* check fields, not
	// the result of Reference, and config/admission-olm passes objects that name no ServiceAccount.
	// Use GuardedByAdmission only with a policy that covers everything that Reference reads, its
	// default included. Otherwise decide in AllowIdentity.
	Reference func(client.Object) (types.NamespacedName, error)
	// Audiences of the tokens. Empty means the API server's default audiences. Must be empty with
	// Target.
	Audiences []string
	// Lifetime is the requested lifetime of tokens; the API server decides. Defaults to 1 h, and with
	// Target to 10 min, which is the minimum.
	Lifetime time.Duration

	// Target, if set, returns the remote API server that an extension acts at, as a ServiceAccount of
	// the host operator's cluster. That API server must trust the issuer of these ServiceAccounts, by
	// a structured authentication configuration: no Secret is needed. Tokens are for one audience
	// only, which the host operator's own API server must refuse before a token is sent. A renewed
	// token is used after the remote API server has stated the same identity for it.
	//
	// The result must depend on the object, and on caches that do not change between reconciles
	// without one. Target must not change the object, and must not do I/O. The text of an error is
	// shown to users. An error that wraps ErrNotAllowed means that the extension may not act there,
	// and one that wraps ErrPending that it does not say yet where. The remote API server is not
	// trusted: of its errors, users see the HTTP status only.
	Target func(client.Object) (Target, error)
	// AllowTarget returns nil if an extension may act as the ServiceAccount at that Target, whose
	// Audience is set. An error means no, and the error's text is shown to users. A panic means no,
	// too. AllowTarget is required with Target: the host operator connects from its own network, and
	// the server learns the names of ServiceAccounts. AllowIdentity of clustercache decides about the
	// ServiceAccount. AllowTarget must not do I/O.
	AllowTarget func(ctx context.Context, object client.Object, serviceAccount types.NamespacedName, target Target) error
	// AudienceOwner returns the API server that an audience belongs to. It is asked about each
	// Audience that is not the one of TargetAudience, and must have a table that authors of
	// extensions cannot change: a server that has an audience can use its tokens wherever that
	// audience is accepted. An error means that the audience belongs to none. An audience that is
	// given to another server is used there once the last connection of this provider to the one
	// before has ended; tokens that the one before got are valid until they expire. AudienceOwner
	// must not do I/O.
	AudienceOwner func(audience string) (AudienceOwner, error)
}

// ServiceAccountTokens is the default provider. Every extension names a ServiceAccount of the
// cluster that contains the extension. The extension acts as this ServiceAccount, with tokens from
// the TokenRequest API.
//
// The host operator needs "create" on serviceaccounts/token, and list and watch on serviceaccounts.
// Of ServiceAccounts only the metadata is read.
//
// With ServiceAccountOptions.Target, extensions act at another API server that trusts the issuer of
// these ServiceAccounts.
func ServiceAccountTokens(options ServiceAccountOptions) Provider {
	return serviceAccountTokens(options)
}

type serviceAccountTokens ServiceAccountOptions

func (serviceAccountTokens) sealed() {}

func (o serviceAccountTokens) Bind(host cluster.Cluster, kind identity.Kind,
	counts *metrics.Cache, tracer *tracing.Tracer) (identity.Resolver, error) {
	if o.Lifetime == 0 {
		if o.Lifetime = time.Hour; o.Target != nil {
			o.Lifetime = minLifetime
		}
	}
	switch {
	case o.Lifetime < minLifetime:
		return nil, errors.Errorf("Lifetime is %s, less than the TokenRequest API's minimum of %s", o.Lifetime, minLifetime)
	case o.Target != nil && o.AllowTarget == nil:
		return nil, errors.New("with Target, the author of an extension could make the host operator connect to any " +
			"server, and send it a token that names the ServiceAccount: set AllowTarget, and allow for example only the API " +
			"servers of a table of your own")
	case o.Target == nil && (o.AllowTarget != nil || o.AudienceOwner != nil):
		return nil, errors.New("AllowTarget and AudienceOwner would never be called: set Target, or leave both nil")
	case o.Target != nil && len(o.Audiences) > 0:
		return nil, errors.New("Audiences must be empty with Target: a token for a remote API server has one audience, " +
			"that of the Target")
	}
	resolver, err := newServiceAccountResolver(host, kind,
		serviceAccountReference{o.NamespacePath, o.NamePath, o.Reference})
	if err != nil {
		return nil, err
	}
	issuer, err := newTokenIssuer(host, o.Audiences, o.Lifetime)
	if err != nil {
		return nil, err
	}
	all := &tokens{issue: issuer.issue, counts: counts, tracer: tracer, turns: semaphore.NewWeighted(requestsAtOnce)}
	if o.Target != nil {
		if issuer.host, err = newHostReview(host.GetConfig()); err != nil {
			return nil, err
		}
		return &targetResolver{
			serviceAccountResolver: resolver,
			targets:                &targets{of: o.Target, allow: o.AllowTarget, owner: o.AudienceOwner, host: resolver.target},
			tokens:                 newTokenTargets(all),
			review:                 issuer.host,
		}, nil
	}
	resolver.credential = func(id tokenID, resolved *identity.Resolution) {
		resolved.Expected.UID = id.uid
		resolved.OpenFunc = func() identity.Credential { return all.open(id) }
	}
	return resolver, nil
}

// serviceAccountReference has the options that say which ServiceAccount an extension names.
type serviceAccountReference struct {
	namespacePath, namePath string
	function                func(client.Object) (types.NamespacedName, error)
}

// serviceAccountResolver resolves extensions that name a ServiceAccount of the host cluster.
type serviceAccountResolver struct {
	reference               func(client.Object) (types.NamespacedName, error) // nil: the fields at the paths
	namespacePath, namePath []string
	serviceAccounts         client.Reader // cached metadata
	target                  *rest.Config
	credential              func(tokenID, *identity.Resolution) // adds the credential to the Resolution
}

func newServiceAccountResolver(host cluster.Cluster, kind identity.Kind,
	options serviceAccountReference) (*serviceAccountResolver, error) {
	r := &serviceAccountResolver{reference: options.function}
	var err error
	switch {
	case options.function == nil:
		err = r.setPaths(kind, options.namespacePath, options.namePath)
	case options.namespacePath != "" || options.namePath != "":
		err = errors.New("Reference returns the ServiceAccount, so NamespacePath and NamePath must be empty")
	}
	if err != nil {
		return nil, err
	}
	if r.target, err = identity.Anonymous(host.GetConfig()); err != nil {
		return nil, err
	}
	r.serviceAccounts = informed.NewReader(host.GetCache())
	return r, nil
}

// setPaths sets the paths to the fields that name the ServiceAccount, or their defaults.
func (r *serviceAccountResolver) setPaths(kind identity.Kind, namespacePath, namePath string) error {
	if namespacePath == "" {
		namespacePath = "spec.namespace"
		if kind.Namespaced {
			const choose = "set NamespacePath to the field with the ServiceAccount's namespace: metadata.namespace or " +
				"spec.namespace"
			if spec, ok := kind.Field("spec"); ok && spec == (identity.Anything{}) {
				return errors.Errorf("NamespacePath: %s is namespaced, and its schema does not say whether it has a field "+
					"spec.namespace too; %s", kind.Name(), choose)
			}
			if kind.Declares("spec", "namespace") {
				return errors.Errorf("NamespacePath: %s is namespaced and has a field spec.namespace too; %s", kind.Name(),
					choose)
			}
			namespacePath = "metadata.namespace"
		}
	}
	var err error
	if r.namespacePath, err = kind.Path("NamespacePath", namespacePath); err != nil {
		return err
	}
	r.namePath, err = kind.Path("NamePath", cmp.Or(namePath, "spec.serviceAccount.name"))
	return err
}

func (*serviceAccountResolver) UsesServiceAccounts() bool { return true }

// Forget implements Resolver. A token is kept until its credentials are closed.
func (*serviceAccountResolver) Forget(client.ObjectKey) {}

// Run implements Resolver. The caller of Resolve watches ServiceAccounts itself.
func (*serviceAccountResolver) Run(context.Context, func(client.ObjectKey)) {}

func (r *serviceAccountResolver) ServiceAccount(object client.Object) (types.NamespacedName, error) {
	key, namespaceField, nameField := types.NamespacedName{}, "the ServiceAccount's namespace",
		"the ServiceAccount's name"
	if r.reference != nil {
		var err error
		if key, err = r.reference(object); err != nil {
			return key, referenceError(err, "determining the ServiceAccount")
		}
	} else {
		content, err := contentOf(object)
		if err != nil {
			return types.NamespacedName{}, err
		}
		namespaceField, nameField = strings.Join(r.namespacePath, "."), strings.Join(r.namePath, ".")
		if key.Namespace, err = stringAt(content, r.namespacePath); err != nil {
			return types.NamespacedName{}, err
		}
		if key.Name, err = stringAt(content, r.namePath); err != nil {
			return types.NamespacedName{}, err
		}
	}
	return key, validServiceAccount(key, namespaceField, nameField)
}

// validServiceAccount returns an ErrInvalidReference unless a ServiceAccount can have that name and
// namespace, which are never empty. The fields are their origins, for the message.
func validServiceAccount(key types.NamespacedName, namespaceField, nameField string) error {
	if problems := validation.IsDNS1123Label(key.Namespace); len(problems) > 0 {
		return errors.Wrapf(ErrInvalidReference, "%s: %s is not a valid namespace: %s", namespaceField,
			untrusted.Quote(key.Namespace), problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(key.Name); len(problems) > 0 {
		return errors.Wrapf(ErrInvalidReference, "%s: %s is not a valid name: %s", nameField, untrusted.Quote(key.Name),
			problems[0])
	}
	return nil
}

// referenceError returns the error of a function of the options that determines a reference.
func referenceError(err error, action string) error {
	if errors.Is(err, ErrNotAllowed) || errors.Is(err, ErrPending) {
		return err
	}
	return errors.Wrap(&classifiedError{kind: ErrInvalidReference, cause: err}, action)
}

func (r *serviceAccountResolver) Reference(object client.Object) (identity.Reference, error) {
	key, err := r.ServiceAccount(object)
	return identity.Reference{Name: serviceAccountSource(key)}, err
}

// usernameOf returns the name by which API servers know a ServiceAccount.
func usernameOf(key types.NamespacedName) string {
	return "system:serviceaccount:" + key.Namespace + ":" + key.Name
}

// serviceAccountSource returns the Resolution.Source for a ServiceAccount.
func serviceAccountSource(key types.NamespacedName) string {
	return "serviceaccount " + key.Namespace + "/" + key.Name
}

func (r *serviceAccountResolver) Resolve(ctx context.Context, object client.Object) (identity.Resolution, error) {
	resolved, uid, err := r.account(ctx, object)
	if err != nil {
		return resolved, err
	}
	r.credential(tokenID{serviceAccount: resolved.ServiceAccount, uid: uid}, &resolved)
	return resolved, nil
}

// account returns the Resolution without its credential, and the UID of the ServiceAccount.
func (r *serviceAccountResolver) account(ctx context.Context, object client.Object) (resolved identity.Resolution,
	uid types.UID, err error) {
	key, err := r.ServiceAccount(object)
	if err != nil {
		return resolved, "", err
	}
	resolved = identity.Resolution{
		ServiceAccount: key,
		Source:         serviceAccountSource(key),
		Reference:      identity.Reference{Name: serviceAccountSource(key)},
	}
	serviceAccount := &metav1.PartialObjectMetadata{}
	serviceAccount.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	if err := r.serviceAccounts.Get(ctx, key, serviceAccount); err != nil {
		if apierrors.IsNotFound(err) {
			return resolved, "", errors.Wrapf(identity.ErrServiceAccountNotFound, "serviceaccount %s", key)
		}
		switch {
		case apierrors.IsForbidden(err):
			err = operatorForbidden(err, "list and watch on serviceaccounts",
				"tenants of the chart, or a rule "+identity.Rule(schema.GroupResource{Resource: "serviceaccounts"}, nil,
					"list", "watch")+" in namespace "+key.Namespace)
		case strings.Contains(err.Error(), unknownNamespace):
			err = operatorForbidden(err, "ServiceAccounts of namespace "+key.Namespace+" in its cache",
				"cache.Options.ByObject, --service-account-namespaces of latchkey manager, tenants of the chart")
		}
		return resolved, "", errors.WithMessagef(err, "reading serviceaccount %s", key)
	}
	if serviceAccount.UID == "" {
		return resolved, "", errors.Wrapf(identity.ErrServiceAccountNotFound, "serviceaccount %s has no UID", key)
	}
	resolved.Key = strings.Join([]string{"serviceaccount", key.Namespace, key.Name, string(serviceAccount.UID)}, "\x00")
	resolved.Target = r.target
	resolved.Expected = connstate.Identity{Username: usernameOf(key)}
	resolved.UID = serviceAccount.UID
	resolved.Sharable = true // Key has the UID
	return resolved, serviceAccount.UID, nil
}

// unknownNamespace is in the errors of a cache whose options name other namespaces only: in those
// of controller-runtime, which have no type, and of scopedcache.
const unknownNamespace = "unknown namespace for the cache"

func contentOf(object client.Object) (map[string]any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		return u.Object, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil,
			errors.Wrapf(&classifiedError{kind: ErrInvalidReference, cause: err}, "reading the fields of a %T", object)
	}
	return content, nil
}

// stringAt returns the string at path. An absent or empty string is an error.
func stringAt(content map[string]any, path []string) (string, error) {
	for i, field := range path[:len(path)-1] {
		next, ok := content[field].(map[string]any)
		if !ok && content[field] != nil {
			return "",
				errors.Wrapf(ErrInvalidReference, "%s: %s has no fields", strings.Join(path, "."),
					strings.Join(path[:i+1], "."))
		}
		content = next
	}
	value, ok := content[path[len(path)-1]].(string)
	switch {
	case !ok && content[path[len(path)-1]] != nil:
		// not quoted, because the value may be long
		return "", errors.Wrapf(ErrInvalidReference, "%s is not a string", strings.Join(path, "."))
	case value == "":
		return "", errors.Wrapf(ErrInvalidReference, "%s is not set", strings.Join(path, "."))
	}
	return value, nil
}
