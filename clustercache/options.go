package clustercache

import (
	"context"
	"strings"
	"time"
	"unicode"

	"github.com/pkg/errors"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/ownership"
)

// ClusterExtensionGVK is the default kind of extensions: our own, as config/crd defines it.
var ClusterExtensionGVK = schema.GroupVersionKind{Group: "latchkey.dev", Version: "v1alpha1", Kind: "ClusterExtension"}

// OLMClusterExtension returns an object of Operator Lifecycle Manager's kind of the same name, for
// Options.Object. OLM v1.0 to v1.10 require spec.serviceAccount and give it the same meaning as
// latchkey. From v1.11 on, OLM ignores the field, which is then optional and deprecated. An
// extension without the field is not connected (InvalidReference). Guard the field with
// config/admission-olm.
func OLMClusterExtension() client.Object {
	return newUnstructured(schema.GroupVersionKind{
		Group:   "olm.operatorframework.io",
		Version: "v1",
		Kind:    "ClusterExtension",
	})
}

func newUnstructured(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	return object
}

// Options configure SetupWithManager. Client.UserAgent is required, and for cluster-scoped kinds
// AllowIdentity too.
type Options struct {
	// Name distinguishes the ClusterCaches of a manager. Name is the controller's name, in logs and
	// metrics too, and the value of the label cache of latchkey's own series. It consists of
	// lower-case letters, digits and dashes. Defaults to "clustercache". Give each ClusterCache its
	// own Client.UserAgent too, if audit logs are to tell them apart.
	Name string
	// Object is an example of the kind whose objects get one connection each. Defaults to an
	// unstructured ClusterExtension of latchkey.dev/v1alpha1 (ClusterExtensionGVK). For Operator
	// Lifecycle Manager's kind see OLMClusterExtension.
	Object client.Object
	// Cluster is the cluster that holds those objects and their ServiceAccounts. Defaults to the
	// manager. Any other cluster must be added to the manager first.
	Cluster cluster.Cluster
	// Scheme of the connections. Defaults to Cluster's.
	Scheme *runtime.Scheme
	// Credentials sets the identity that an object acts as. Defaults to
	// credential.ServiceAccountTokens.
	Credentials credential.Provider
	// AllowIdentity returns nil if the object may act as the ServiceAccount. An error refuses, and
	// its text becomes the Message of the state. A panic refuses too. The controller's workers call
	// AllowIdentity concurrently, on every reconcile. AllowIdentity must not do I/O: all extensions
	// wait for it.
	//
	// For namespaced kinds the default allows the ServiceAccounts of the object's own namespace.
	// Cluster-scoped kinds have no default, and nil is refused: without a guard, anyone who may
	// write an extension could act as any ServiceAccount. GuardedByAdmission states that an
	// admission policy guards the extensions. AllowIdentity must be nil with credentials that name
	// no ServiceAccount.
	AllowIdentity func(ctx context.Context, object client.Object, serviceAccount types.NamespacedName) error
	// WatchFilterValue, if set, restricts this ClusterCache to extensions whose label WatchLabel
	// has that value. Several operators can so share the work; give each operator another value. An
	// extension that loses the label is disconnected (Filtered) and forgotten. WatchFilterValue
	// divides work and guards nothing: anyone who writes an extension chooses the label, and with
	// the label the operator. All these operators therefore need the same AllowIdentity.
	WatchFilterValue string
	// Filter, if set, further restricts this ClusterCache to extensions for which Filter returns
	// true. Filter must depend only on the object, which is a copy. Filter must not do I/O: all
	// extensions wait for it. If Filter panics, the object does not match.
	Filter func(object client.Object) bool
	// Cache configures the cache of every connection.
	Cache CacheOptions
	// Client configures the clients of every connection.
	Client ClientOptions
	// HealthProbe sets how often to probe and after how many failures to disconnect.
	HealthProbe healthprobe.Options
	// ConnectBackoff is the wait between connects that fail. Defaults to 30 s, doubled up to 5 min,
	// plus up to a fifth of jitter. The wait ends early when the missing ServiceAccount, Secret or
	// target is back.
	ConnectBackoff wait.Backoff
	// Ownership, if set, says which extensions are this replica's; see package ownership. With
	// ownership.Leader the replica with the lease of the leader election has all of them. With other
	// engines each replica has a share of them: the reconciler then runs on every replica, whether or
	// not the manager has a leader, and so must your controllers that use the ClusterCache. An
	// extension that is another replica's is not connected (NotLeading, NotOwned).
	Ownership ownership.Engine
	// EventRecorder, if set, records an Event on an extension when the extension connects, and when
	// it is not connected for another reason than before. Each extension may have a burst of a few
	// Events, and then one a minute. Use the manager's GetEventRecorder. EventRecorder must not
	// block, and needs config/rbac/events.yaml. The text of an Event is the Message of the state,
	// or the identity and the API server. Anyone who may read Events in the extension's namespace
	// ("default" for cluster-scoped extensions) can therefore read AllowIdentity's errors and the
	// addresses of API servers.
	EventRecorder events.EventRecorder
	// Permissions configures what is known of the permissions that identities use.
	Permissions PermissionOptions
	// Problems configures which extensions count as degraded although they are connected.
	Problems ProblemOptions
	// Metrics enables Prometheus series in addition to the sums, on controller-runtime's registry;
	// see docs/operations.md.
	Metrics MetricsOptions
	// TracerProvider, if set, receives OpenTelemetry spans of connects, probes, rotations and their
	// requests; docs/operations.md lists them. No span contains a secret or the text of an error. The
	// provider must not block.
	TracerProvider trace.TracerProvider
}

// WatchLabel is the label whose value is compared with WatchFilterValue. Cluster API uses the same
// label, so that one label divides the work of both.
const WatchLabel = "cluster.x-k8s.io/watch-filter"

// hasWatchLabel reports whether the label of an object selects it for this ClusterCache.
func (o *Options) hasWatchLabel(object client.Object) bool {
	return o.WatchFilterValue == "" || object.GetLabels()[WatchLabel] == o.WatchFilterValue
}

// matches reports whether an object gets a connection.
func (o *Options) matches(object client.Object) bool {
	return o.hasWatchLabel(object) && (o.Filter == nil || o.Filter(object))
}

// GuardedByAdmission is an AllowIdentity that allows every ServiceAccount. Use it only if the API
// server refuses an extension whose author may not act as the named ServiceAccount. An admission
// policy for that very kind does this: config/admission for clusterextensions.latchkey.dev,
// config/admission-olm for Operator Lifecycle Manager's kind, or a similar one. For a namespaced
// kind GuardedByAdmission replaces the rule that the ServiceAccount is in the extension's own
// namespace; leave AllowIdentity nil to keep that rule.
func GuardedByAdmission(context.Context, client.Object, types.NamespacedName) error { return nil }

// ownNamespaceOnly is the default AllowIdentity of namespaced kinds.
func ownNamespaceOnly(_ context.Context, object client.Object, serviceAccount types.NamespacedName) error {
	if object.GetNamespace() == serviceAccount.Namespace {
		return nil
	}
	return errors.Errorf("the extension may only name a ServiceAccount of its own namespace %q, not %s",
		object.GetNamespace(),
		serviceAccount)
}

func (o *Options) setDefaults(mgr manager.Manager) {
	if o.Name == "" {
		o.Name = "clustercache"
	}
	if o.Object == nil {
		o.Object = newUnstructured(ClusterExtensionGVK)
	}
	if o.Cluster == nil {
		o.Cluster = mgr
	}
	if o.Scheme == nil {
		o.Scheme = o.Cluster.GetScheme()
	}
	if o.Credentials == nil {
		o.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{})
	}
	if o.Client.Timeout == 0 {
		o.Client.Timeout = 10 * time.Second
	}
	if o.Client.QPS == 0 {
		o.Client.QPS = 20
	}
	if o.Client.Burst == 0 {
		o.Client.Burst = 30
	}
	o.HealthProbe = healthprobe.Options(connstate.ProbeOptions(o.HealthProbe).WithDefaults())
	if o.ConnectBackoff == (wait.Backoff{}) {
		o.ConnectBackoff = wait.Backoff{Duration: 30 * time.Second, Factor: 2, Jitter: 0.2, Steps: 20, Cap: 5 * time.Minute}
	}
}

// validate returns an error for options that would fail at every connection.
func (o *Options) validate() error {
	if err := rejectAllNamespaces("Options.Cache.ByObject", o.Cache.ByObject); err != nil {
		return err
	}
	if err := rejectDuplicates("Options.Cache.ByObject", o.Cache.ByObject, o.Scheme); err != nil {
		return err
	}
	if err := o.validateCacheOptions(); err != nil {
		return errors.WithMessage(err, "Options.Cache")
	}
	for _, object := range o.Client.Cache.DisableFor {
		if _, err := apiutil.GVKForObject(object, o.Scheme); err != nil {
			return errors.Wrapf(err, "Options.Client.Cache.DisableFor, %T", object)
		}
	}
	if o.Name != "" && len(validation.IsDNS1123Label(o.Name)) > 0 {
		return errors.Errorf("Options.Name %q must consist of at most 63 lower-case letters, digits and dashes, with no "+
			"dash at the ends", o.Name)
	}
	if err := o.Problems.check(); err != nil {
		return err
	}
	switch {
	case o.Client.UserAgent == "":
		return errors.New("Options.Client.UserAgent must be set: the logs of API servers show it for the host operator")
	case strings.ContainsFunc(o.Client.UserAgent, unicode.IsControl):
		return errors.Errorf("Options.Client.UserAgent %q must be one line without control characters", o.Client.UserAgent)
	case o.Client.Timeout < 0 || o.Client.QPS < 0 || o.Client.Burst < 0 || o.Client.MaxDiscoveryBytes < 0:
		return errors.New("Options.Client: Timeout, QPS, Burst and MaxDiscoveryBytes must not be negative")
	case o.Client.MaxDiscoveryBytes > 0 && o.Client.MaxDiscoveryBytes < 1<<20:
		return errors.Errorf("Options.Client.MaxDiscoveryBytes is %d bytes: the least is 1 MiB, because a group of kinds "+
			"must fit", o.Client.MaxDiscoveryBytes)
	case o.Cache.AccessReviewInterval < 0 || o.Cache.IdleTimeout < 0:
		return errors.New("Options.Cache: AccessReviewInterval and IdleTimeout must not be negative")
	case o.ConnectBackoff.Duration <= 0:
		return errors.New("Options.ConnectBackoff.Duration must be positive")
	case o.HealthProbe.Interval < 0 || o.HealthProbe.IdentityInterval < 0 || o.HealthProbe.Timeout < 0 ||
		o.HealthProbe.FailureThreshold < 0 || o.HealthProbe.ThrottleTimeout < 0:
		return errors.New("Options.HealthProbe: no field may be negative")
	}
	return nil
}

// validateCacheOptions creates a cache with the options of the connections. Creating it sends no
// request.
func (o *Options) validateCacheOptions() error {
	trial, err := trialCache(o.Cache.ByObject, o.Scheme)
	if err != nil {
		return err
	}
	for _, index := range o.Cache.Indexes {
		if err := trial.IndexField(context.Background(), index.Object, index.Field, index.ExtractValue); err != nil {
			return errors.Wrapf(err, "Indexes, field %q", index.Field)
		}
	}
	return nil
}

// kind requests the kind of the extensions from the API server.
func (o *Options) kind(ctx context.Context) (identity.Kind, error) {
	kind, err := identity.KindOf(ctx, o.Cluster, o.Object)
	if !meta.IsNoMatchError(err) {
		return kind, errors.WithMessage(err, "discovering the kind of the extensions")
	}
	gvk, _ := apiutil.GVKForObject(o.Object, o.Cluster.GetScheme()) // KindOf determined it already
	if gvk != ClusterExtensionGVK {
		return kind, errors.Errorf("the API server does not serve %s: install its CustomResourceDefinition first", gvk)
	}
	olm := OLMClusterExtension().GetObjectKind().GroupVersionKind()
	if _, err := o.Cluster.GetRESTMapper().RESTMapping(olm.GroupKind(), olm.Version); err == nil {
		return kind,
			errors.Errorf("the API server does not serve clusterextensions.%s, but clusterextensions.%s of "+
				"Operator Lifecycle Manager: "+
				"install the missing kind (kubectl apply -f config/crd), or set Options.Object to "+
				"clustercache.OLMClusterExtension() "+
				"and apply config/admission-olm",
				gvk.Group, olm.Group)
	}
	return kind,
		errors.Errorf(
			"the API server does not serve clusterextensions.%s: install it with kubectl apply -f config/crd, or set "+
				"Options.Object", gvk.Group)
}

// checkGuard returns the AllowIdentity to use.
func (o *Options) checkGuard(resolver identity.Resolver,
	kind identity.Kind) (func(context.Context, client.Object, types.NamespacedName) error, error) {
	if !resolver.UsesServiceAccounts() {
		if o.AllowIdentity != nil {
			return nil,
				errors.New(
					"Options.AllowIdentity would never be called: these credentials name no ServiceAccount; leave it nil and " +
						"guard in credential.KubeconfigOptions.Allow, or in the function that provides the credentials")
		}
		return nil, nil
	}
	if o.AllowIdentity != nil {
		return o.AllowIdentity, nil
	}
	if !kind.Namespaced {
		return nil,
			errors.Errorf("Options.AllowIdentity must be set for a cluster-scoped kind: anyone who may write an extension "+
				"could act as any ServiceAccount. "+
				"Install a policy for %s (config/admission guards clusterextensions.latchkey.dev only, "+
				"config/admission-olm Operator Lifecycle Manager's kind) "+
				"and set GuardedByAdmission, or decide in AllowIdentity", kind.GroupKind())
	}
	return ownNamespaceOnly, nil
}
