package serviceprovider

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// Access says what a provider may do on a cluster. Reads through Cluster.Client, and Cluster.Watch,
// need list and watch.
type Access struct {
	// Permissions become Roles and ClusterRoles for the provider.
	Permissions []clustersv1alpha1.PermissionsRequest
	// RoleRefs are existing Roles and ClusterRoles.
	RoleRefs []clustersv1alpha1.RoleRef
}

// isZero reports whether nothing is requested.
func (a Access) isZero() bool { return len(a.Permissions) == 0 && len(a.RoleRefs) == 0 }

// AccessOptions configure NewClusterAccess.
type AccessOptions struct {
	// MCP is what to request on the control plane of each tenant. If MCP is empty, the identity
	// there has no permissions.
	MCP Access
	// Workload is what to request on a workload cluster. If Workload is empty, no workload cluster
	// is requested.
	Workload Access
	// Scheme of the clients for these clusters. Defaults to that of client-go.
	Scheme *runtime.Scheme
	// RetryInterval is how often to look at requests that are not granted, or not gone, in case an
	// event is lost. Defaults to 30 s.
	RetryInterval time.Duration
	// UserAgent names the provider to API servers. Defaults to the controllerName. Each connection
	// appends the key of its AccessRequest.
	UserAgent string
	// Connections are further options of the connections, such as HealthProbe and Client.Timeout.
	// Name, Object, Cluster, Scheme, Credentials, AllowIdentity, WatchFilterValue, Filter and
	// Client.UserAgent must not be set: NewClusterAccess sets them.
	Connections clustercache.Options
	// ControllerOptions are the options of the controller that keeps the connections.
	ControllerOptions controller.Options
}

// clusterAccess is the built-in ClusterAccessProvider.
type clusterAccess struct {
	controllerName string
	kinds          []clusterKind // that are requested
	tokens         map[clusterKind]*clustersv1alpha1.TokenConfig
	retryInterval  time.Duration
	// requests caches the requests of this controller, and reads and writes others live.
	requests    cluster.Cluster
	connections clustercache.ClusterCache
	controller  clustercache.SourceWatcher[ctrl.Request] // set by bind, before the manager starts; nil without
}

var _ ClusterAccessProvider = (*clusterAccess)(nil)

// NewClusterAccess returns the ClusterAccessProvider that requests access with ClusterRequests and
// AccessRequests on the platform cluster, and keeps a connection for each AccessRequest.
//
// controllerName distinguishes the requests from those of other controllers, so it must never
// change. The name is part of the requests' names, and consists of letters, digits, dashes and
// dots.
//
// A ClusterAccessProvider serves one APIReconciler. A provider with two kinds of API objects calls
// NewClusterAccess for each, with different controller names.
//
// NewClusterAccess adds a cache and a ClusterCache to the manager. Both read only requests that
// have the label openmcp.cloud/managed-by of this controller, and only the Secrets to which these
// requests refer. The host of platform, and its credential, are used; platform's own cache is not.
// NewClusterAccess sends requests to the platform cluster, to discover the kinds, and fails if they
// are not served.
func NewClusterAccess(mgr ctrl.Manager, platform cluster.Cluster, controllerName string,
	options AccessOptions) (ClusterAccessProvider, error) {
	if err := options.complete(controllerName); err != nil {
		return nil, err
	}
	if platform == nil {
		return nil, errors.New("the platform cluster is missing")
	}
	requests, err := requestsOf(platform, managedBy(controllerName))
	if err != nil {
		return nil, errors.Wrap(err, "preparing the cache of requests")
	}
	if err := mgr.Add(requests); err != nil {
		return nil, errors.Wrap(err, "adding the cache of requests to the manager")
	}
	a := &clusterAccess{
		controllerName: controllerName,
		kinds:          []clusterKind{mcpCluster},
		retryInterval:  options.RetryInterval,
		requests:       requests,
		tokens: map[clusterKind]*clustersv1alpha1.TokenConfig{
			mcpCluster:      {Permissions: options.MCP.Permissions, RoleRefs: options.MCP.RoleRefs},
			workloadCluster: {Permissions: options.Workload.Permissions, RoleRefs: options.Workload.RoleRefs},
		},
	}
	if !options.Workload.isZero() {
		a.kinds = append(a.kinds, workloadCluster)
	}
	connections := options.Connections
	connections.Name = connectionsName(controllerName)
	connections.Object = &clustersv1alpha1.AccessRequest{}
	connections.Cluster, connections.Scheme = requests, options.Scheme
	connections.Credentials = credential.KubeconfigSecrets(credential.KubeconfigOptions{Reference: secretReference})
	connections.Client.UserAgent = options.UserAgent
	connections.Filter = func(request client.Object) bool {
		return request.GetLabels()[labelManagedBy] == managedBy(controllerName)
	}
	a.connections, err = clustercache.SetupWithManager(context.Background(), mgr, connections, options.ControllerOptions)
	return a, errors.WithMessage(err, "setting up the connections")
}

// complete sets the defaults, and returns an error for options that cannot work.
func (o *AccessOptions) complete(controllerName string) error {
	lower := strings.ToLower(controllerName)
	if len(validation.IsDNS1123Subdomain(lower)) > 0 {
		return errors.Errorf("the controller name %q must consist of letters, digits, dashes and dots", controllerName)
	}
	c := &o.Connections
	if c.Name != "" || c.Object != nil || c.Cluster != nil || c.Scheme != nil || c.Credentials != nil ||
		c.AllowIdentity != nil || c.Filter != nil || c.WatchFilterValue != "" || c.Client.UserAgent != "" {
		return errors.New("AccessOptions.Connections: Name, Object, Cluster, Scheme, Credentials, AllowIdentity, " +
			"WatchFilterValue, Filter and Client.UserAgent must not be set")
	}
	if o.RetryInterval < 0 {
		return errors.New("AccessOptions.RetryInterval must not be negative")
	}
	if o.RetryInterval == 0 {
		o.RetryInterval = 30 * time.Second
	}
	if o.UserAgent == "" {
		o.UserAgent = controllerName
	}
	if o.Scheme == nil {
		o.Scheme = clientgoscheme.Scheme
	}
	return nil
}

// connectionsName returns the name of a controller's ClusterCache, which has no dots.
func connectionsName(controllerName string) string {
	name := strings.ReplaceAll(strings.ToLower(controllerName), ".", "-")
	return shorten(name, maxName-len("-access")) + "-access"
}

// requestsOf returns the platform cluster with a cache of the requests that have this label only.
func requestsOf(platform cluster.Cluster, managedBy string) (cluster.Cluster, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clustersv1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{labelManagedBy: managedBy})}
	return cluster.New(platform.GetConfig(), func(o *cluster.Options) {
		o.Scheme, o.HTTPClient, o.NewCache = scheme, platform.GetHTTPClient(), scopedcache.New
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return platform.GetRESTMapper(), nil
		}
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&clustersv1alpha1.AccessRequest{}: ours, &clustersv1alpha1.ClusterRequest{}: ours,
		}
	})
}

// token returns what to request for a cluster.
func (a *clusterAccess) token(kind clusterKind) *clustersv1alpha1.TokenConfig {
	return a.tokens[kind].DeepCopy()
}

// bind sets the controller whose queue receives what Cluster.Watch registers.
func (a *clusterAccess) bind(controller clustercache.SourceWatcher[ctrl.Request]) error {
	if a.controller != nil {
		return errors.New("a ClusterAccessProvider serves one APIReconciler: call NewClusterAccess, with another " +
			"controller " +
			"name, for each")
	}
	a.controller = controller
	return nil
}

// sources returns the sources of events about requests and connections.
func (a *clusterAccess) sources() []source.Source {
	toObject := func(_ context.Context, request client.Object) []ctrl.Request {
		if object, ok := objectOf(request); ok {
			return []ctrl.Request{{NamespacedName: object}}
		}
		return nil
	}
	enqueue := handler.EnqueueRequestsFromMapFunc(toObject)
	return []source.Source{
		a.connections.GetExtensionSource(a.controllerName, toObject),
		source.Kind(a.requests.GetCache(), client.Object(&clustersv1alpha1.AccessRequest{}), enqueue),
		source.Kind(a.requests.GetCache(), client.Object(&clustersv1alpha1.ClusterRequest{}), enqueue),
	}
}

// MCPCluster implements ClusterAccessProvider.
func (a *clusterAccess) MCPCluster(ctx context.Context, request reconcile.Request) (*Cluster, error) {
	return a.cluster(ctx, request, mcpCluster)
}

// WorkloadCluster implements ClusterAccessProvider.
func (a *clusterAccess) WorkloadCluster(ctx context.Context, request reconcile.Request) (*Cluster, error) {
	return a.cluster(ctx, request, workloadCluster)
}

// MCPAccessRequest implements ClusterAccessProvider.
func (a *clusterAccess) MCPAccessRequest(ctx context.Context,
	request reconcile.Request) (*clustersv1alpha1.AccessRequest, error) {
	return a.accessRequest(ctx, request, mcpCluster)
}

// WorkloadAccessRequest implements ClusterAccessProvider.
func (a *clusterAccess) WorkloadAccessRequest(ctx context.Context,
	request reconcile.Request) (*clustersv1alpha1.AccessRequest, error) {
	return a.accessRequest(ctx, request, workloadCluster)
}

// accessRequest returns an object's AccessRequest if it is this controller's, or a NotFound error.
// The cache answers if it has a grant: what it does not have yet may be there.
func (a *clusterAccess) accessRequest(ctx context.Context, request reconcile.Request,
	kind clusterKind) (*clustersv1alpha1.AccessRequest, error) {
	id := identify(a.controllerName, request.NamespacedName, kind)
	found, err := a.read(ctx, id, &clustersv1alpha1.AccessRequest{}, func(cached client.Object) bool {
		return describeProgress(cached) == ""
	})
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, apierrors.NewNotFound(schema.GroupResource{
			Group:    clustersv1alpha1.GroupVersion.Group,
			Resource: "accessrequests",
		}, id.key.String())
	}
	return found.(*clustersv1alpha1.AccessRequest), nil
}

// errNotGranted is the error of MCPCluster and WorkloadCluster without access.
var errNotGranted = errors.New("access is not granted")

// cluster returns the Cluster of an object that has access.
func (a *clusterAccess) cluster(ctx context.Context, request reconcile.Request, kind clusterKind) (*Cluster, error) {
	accessRequest, err := a.accessRequest(ctx, request, kind)
	if err != nil {
		return nil, errors.Wrapf(err, "reading the AccessRequest for the %s cluster", kind.id)
	}
	if !isUsable(accessRequest) {
		return nil, errors.Wrap(errNotGranted, describeProgress(accessRequest))
	}
	return a.clusterOf(ctx, request, kind, accessRequest)
}

// clusterOf returns the Cluster of an AccessRequest, whether or not access is granted as the
// request says now.
func (a *clusterAccess) clusterOf(ctx context.Context, request reconcile.Request, kind clusterKind,
	accessRequest *clustersv1alpha1.AccessRequest) (*Cluster, error) {
	return NewCluster(ctx, a.connections, ClusterOptions{
		ID:             kind.id,
		Extension:      accessRequest,
		Request:        request,
		Controller:     a.controller,
		ControllerName: a.controllerName,
	})
}
