package clustercache

import (
	"context"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// ClusterExtensionGVK is the default kind of extensions: our own, as config/crd defines it.
var ClusterExtensionGVK = schema.GroupVersionKind{Group: "latchkey.dev", Version: "v1alpha1", Kind: "ClusterExtension"}

// OLMClusterExtension returns an object of Operator Lifecycle Manager's kind of the same name, for
// Options.Object. OLM v1.0 to v1.10 require spec.serviceAccount and mean what we mean by it. From
// v1.11 on OLM ignores the field, which is then optional and deprecated: an extension without it is
// not connected (InvalidReference). Guard the field with config/admission-olm.
func OLMClusterExtension() client.Object {
	return newUnstructured(schema.GroupVersionKind{Group: "olm.operatorframework.io", Version: "v1",
		Kind: "ClusterExtension"})
}

func newUnstructured(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	return object
}

// Options configure SetupWithManager. Required are Client.UserAgent and, for cluster-scoped kinds,
// AllowIdentity.
type Options struct {
	// Object is of the kind whose objects get a connection each. Defaults to an unstructured
	// ClusterExtension of latchkey.dev/v1alpha1 (ClusterExtensionGVK). For Operator Lifecycle
	// Manager's kind see OLMClusterExtension.
	Object client.Object
	// Cluster is where those objects, and their ServiceAccounts, live. Defaults to the manager.
	// Another one must have been added to the manager.
	Cluster cluster.Cluster
	// Scheme of the connections. Defaults to Cluster's.
	Scheme *runtime.Scheme
	// Credentials says whom an object acts as. Defaults to credential.ServiceAccountTokens.
	Credentials credential.Provider
	// AllowIdentity says whether an object may act as that ServiceAccount; an error means no and
	// becomes the Message of the state. It is called on every reconcile, by as many goroutines as
	// the controller has workers, and must not do I/O: all extensions wait for it. If it panics,
	// the answer is no.
	//
	// Namespaced kinds default to "its own namespace". Cluster-scoped kinds have no such default:
	// without a guard, whoever may write an extension could act as any ServiceAccount, so nil is
	// refused. GuardedByAdmission states that an admission policy guards them. With credentials
	// that name no ServiceAccount it must be nil.
	AllowIdentity func(ctx context.Context, object client.Object, serviceAccount types.NamespacedName) error
	// WatchFilterValue, if set, restricts this ClusterCache to extensions whose label WatchLabel
	// has that value, so that several operators share the work; give each of them a value. An
	// extension that loses the label is disconnected (Filtered) and forgotten. It divides work and
	// guards nothing: whoever writes an extension chooses the label, and with it the operator, so
	// all of them need the same AllowIdentity.
	WatchFilterValue string
	// Filter, if set, does the same by a function, in addition. It must depend on nothing but the
	// object, which is a copy, and must not do I/O: all extensions wait for it. If it panics, the
	// object does not match.
	Filter func(object client.Object) bool
	// Cache configures the cache of every connection.
	Cache CacheOptions
	// Client configures the clients of every connection.
	Client ClientOptions
	// HealthProbe says how often to probe and when to give up.
	HealthProbe healthprobe.Options
	// ConnectBackoff is the wait between connects that fail. Defaults to 30 s, doubled up to 5 min,
	// plus up to a fifth of jitter. A ServiceAccount, Secret or target that is seen again ends the
	// wait.
	ConnectBackoff wait.Backoff
	// EventRecorder, if set, writes Events on extensions: when one connects, and when one is not
	// connected for another reason than before, a few in a row per extension and then one a minute.
	// Use the manager's GetEventRecorder; it must not block. Needs config/rbac/events.yaml. Their
	// text is the Message of the state, or identity and API server, so everybody who reads Events
	// in the extension's namespace ("default" for cluster-scoped ones) reads what AllowIdentity
	// says and where API servers are.
	EventRecorder events.EventRecorder
	// Metrics says what is told to Prometheus beside the sums, on controller-runtime's registry;
	// see docs/operations.md.
	Metrics MetricsOptions
}

// WatchLabel is the label that WatchFilterValue is compared with: Cluster API's, so that one label
// divides the work of both.
const WatchLabel = "cluster.x-k8s.io/watch-filter"

// hasWatchLabel reports whether an object is ours by its label.
func (o *Options) hasWatchLabel(object client.Object) bool {
	return o.WatchFilterValue == "" || object.GetLabels()[WatchLabel] == o.WatchFilterValue
}

// wants reports whether an object gets a connection.
func (o *Options) wants(object client.Object) bool {
	return o.hasWatchLabel(object) && (o.Filter == nil || o.Filter(object))
}

// GuardedByAdmission is an AllowIdentity that allows everything. On a namespaced kind it takes the
// place of the rule of its own namespace; leave AllowIdentity nil to keep that. It states that the
// API server lets nobody name a ServiceAccount that they may not act as, by a policy for that very
// kind: config/admission for clusterextensions.latchkey.dev, config/admission-olm for Operator
// Lifecycle Manager's, or the like.
func GuardedByAdmission(context.Context, client.Object, types.NamespacedName) error { return nil }

// ownNamespaceOnly is the AllowIdentity of namespaced kinds.
func ownNamespaceOnly(_ context.Context, object client.Object, serviceAccount types.NamespacedName) error {
	if object.GetNamespace() == serviceAccount.Namespace {
		return nil
	}
	return errors.Errorf("it may only name a ServiceAccount of its own namespace %q, not %s", object.GetNamespace(),
		serviceAccount)
}

func (o *Options) setDefaults(mgr manager.Manager) {
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
	o.HealthProbe = o.HealthProbe.WithDefaults()
	if o.ConnectBackoff == (wait.Backoff{}) {
		o.ConnectBackoff = wait.Backoff{Duration: 30 * time.Second, Factor: 2, Jitter: 0.2, Steps: 20, Cap: 5 * time.Minute}
	}
}

// validate refuses what would fail at every connection.
func (o *Options) validate() error {
	for object, settings := range o.Cache.ByObject {
		if len(settings.Namespaces) > 0 {
			return errors.Errorf(
				"Options.Cache.ByObject[%T]: Namespaces must not be set; what is cached follows from what is read", object)
		}
	}
	if err := o.tryCache(); err != nil {
		return errors.WithMessage(err, "Options.Cache")
	}
	for _, object := range o.Client.Cache.DisableFor {
		if _, err := apiutil.GVKForObject(object, o.Scheme); err != nil {
			return errors.Wrapf(err, "Options.Client.Cache.DisableFor, %T", object)
		}
	}
	switch {
	case o.Client.UserAgent == "":
		return errors.New("Options.Client.UserAgent must be set: it is how API servers' logs name the host operator")
	case strings.ContainsFunc(o.Client.UserAgent, unicode.IsControl):
		return errors.Errorf("Options.Client.UserAgent %q must be one line without control characters", o.Client.UserAgent)
	case o.Client.Timeout < 0 || o.Client.QPS < 0 || o.Client.Burst < 0:
		return errors.New("Options.Client: Timeout, QPS and Burst must not be negative")
	case o.Cache.AccessReviewInterval < 0 || o.Cache.IdleTimeout < 0:
		return errors.New("Options.Cache: AccessReviewInterval and IdleTimeout must not be negative")
	case o.ConnectBackoff.Duration <= 0:
		return errors.New("Options.ConnectBackoff.Duration must be positive")
	case o.HealthProbe.Interval < 0 || o.HealthProbe.IdentityInterval < 0 || o.HealthProbe.Timeout < 0 ||
		o.HealthProbe.FailureThreshold < 0:
		return errors.New("Options.HealthProbe: no field may be negative")
	}
	return nil
}

// tryCache makes a cache as connections will, which asks nobody.
func (o *Options) tryCache() error {
	tried, err := scopedcache.New(&rest.Config{},
		cache.Options{HTTPClient: http.DefaultClient, Scheme: o.Scheme, Mapper: meta.NewDefaultRESTMapper(nil),
			ByObject: o.Cache.ByObject})
	if err != nil {
		return err
	}
	for _, index := range o.Cache.Indexes {
		if err := tried.IndexField(context.Background(), index.Object, index.Field, index.ExtractValue); err != nil {
			return errors.Wrapf(err, "Indexes, field %q", index.Field)
		}
	}
	return nil
}

// kind asks the API server about the kind of the extensions.
func (o *Options) kind(ctx context.Context) (credential.Kind, error) {
	kind, err := credential.KindOf(ctx, o.Cluster, o.Object)
	if !meta.IsNoMatchError(err) {
		return kind, errors.WithMessage(err, "asking the API server about the kind of the extensions")
	}
	gvk, _ := apiutil.GVKForObject(o.Object, o.Cluster.GetScheme()) // it was found out before
	if gvk != ClusterExtensionGVK {
		return kind, errors.Errorf("the API server does not serve %s: install its CustomResourceDefinition first", gvk)
	}
	olm := OLMClusterExtension().GetObjectKind().GroupVersionKind()
	if _, err := o.Cluster.GetRESTMapper().RESTMapping(olm.GroupKind(), olm.Version); err == nil {
		return kind,
			errors.Errorf("the API server does not serve clusterextensions.%s, but clusterextensions.%s, which is "+
				"Operator Lifecycle Manager's: "+
				"install ours (kubectl apply -f config/crd), or set Options.Object to clustercache.OLMClusterExtension() "+
				"and apply config/admission-olm",
				gvk.Group, olm.Group)
	}
	return kind,
		errors.Errorf(
			"the API server does not serve clusterextensions.%s: install it with kubectl apply -f config/crd, or set "+
				"Options.Object", gvk.Group)
}

// guard returns the AllowIdentity to use.
func (o *Options) guard(resolver credential.Resolver,
	kind credential.Kind) (func(context.Context, client.Object, types.NamespacedName) error, error) {
	if !resolver.UsesServiceAccounts() {
		if o.AllowIdentity != nil {
			return nil,
				errors.New(
					"Options.AllowIdentity would never be asked: these credentials name no ServiceAccount; leave it nil and " +
						"guard in credential.KubeconfigOptions.Allow, or in the function that provides them")
		}
		return nil, nil
	}
	if o.AllowIdentity != nil {
		return o.AllowIdentity, nil
	}
	if !kind.Namespaced {
		return nil,
			errors.Errorf("Options.AllowIdentity must be set for a cluster-scoped kind: whoever may write an extension "+
				"could act as any ServiceAccount. "+
				"Install a policy for %s (config/admission guards clusterextensions.latchkey.dev only, "+
				"config/admission-olm Operator Lifecycle Manager's kind) "+
				"and set GuardedByAdmission, or decide in AllowIdentity", kind.GroupKind())
	}
	return ownNamespaceOnly, nil
}
