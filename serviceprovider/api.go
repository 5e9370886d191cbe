package serviceprovider

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// Status gives access to the status of an API object.
type Status interface {
	// GetStatus returns the status. The runtime compares it before and after a reconcile.
	GetStatus() any
	// GetConditions returns a pointer to the conditions, which are at status.conditions.
	GetConditions() *[]metav1.Condition
	// SetPhase sets the phase in the status.
	SetPhase(string)
	// SetObservedGeneration sets the observed generation in the status.
	SetObservedGeneration(int64)
}

// API is an object with which a tenant orders a service.
type API interface {
	client.Object
	Status
	// Finalizer returns the finalizer that holds the object until the service is gone. All objects
	// of a kind have the same.
	Finalizer() string
}

// Config is the configuration of a service provider: a cluster-scoped object on the platform
// cluster, of the provider's name.
type Config interface {
	client.Object
	// PollInterval is the time between two reconciles of an API object, 0 for no polling. Polling
	// repairs what changed unnoticed.
	PollInterval() time.Duration
}

// Reconciler is what the author of a service provider writes. Several workers call its methods
// concurrently, for different objects. Neither method is called while there is no config.
//
// obj and config are copies. The methods may change the status of obj, with StatusReady and
// StatusProgressing or directly; the runtime writes it once afterwards. Other changes of obj are
// lost. An error retries with backoff, and is shown in the condition Ready unless the method
// reports another reason there. Return the errors of the clients unchanged or wrapped: the runtime
// recognizes a connection that ended.
type Reconciler[T API, C Config] interface {
	// CreateOrUpdate makes the service as obj orders it, and reports the status. Afterwards the
	// runtime calls CreateOrUpdate again after Result.RequeueAfter, or else after the config's
	// PollInterval, and whenever something that the runtime watches changes.
	CreateOrUpdate(ctx context.Context, obj T, config C, clusters ClusterContext) (ctrl.Result, error)
	// Delete removes the service. The runtime calls Delete again until the result has neither an
	// error nor RequeueAfter, and then withdraws the access to the clusters. Delete must be
	// idempotent: it may be called again after it succeeded. Delete is not called for an object for
	// which CreateOrUpdate was never called. A cluster that CreateOrUpdate never got may be nil.
	Delete(ctx context.Context, obj T, config C, clusters ClusterContext) (ctrl.Result, error)
}

// SecretWatcher is implemented by a Reconciler that depends on Secrets of the platform cluster; see
// APIReconcilerBuilder.SecretNamespace.
type SecretWatcher[C Config] interface {
	// IsReferencedSecret reports whether a change of the Secret concerns the API objects. All of
	// them are then reconciled. config is a copy, or the zero value (a nil pointer) while there is
	// none. After an update both versions of the Secret are asked about.
	// IsReferencedSecret must not change the Secret and must not do I/O. A panic counts as yes.
	IsReferencedSecret(ctx context.Context, secret *corev1.Secret, config C) bool
}

// ConfigMapWatcher is SecretWatcher for ConfigMaps; see APIReconcilerBuilder.ConfigMapNamespace. A
// Reconciler may implement both.
type ConfigMapWatcher[C Config] interface {
	// IsReferencedConfigMap is SecretWatcher.IsReferencedSecret for a ConfigMap.
	IsReferencedConfigMap(ctx context.Context, configMap *corev1.ConfigMap, config C) bool
}

// ClusterContext has the clusters of one API object.
type ClusterContext struct {
	// MCPCluster is the tenant's control plane.
	MCPCluster *Cluster
	// WorkloadCluster is where the service may run, nil unless the provider requests one.
	WorkloadCluster *Cluster
	// MCPAccessSecretKey and WorkloadAccessSecretKey are the Secrets with the kubeconfigs, on the
	// platform cluster. The Secrets are for software of the provider that runs elsewhere; the
	// provider itself uses the Clusters.
	MCPAccessSecretKey, WorkloadAccessSecretKey client.ObjectKey
}

// ClusterAccessProvider obtains access to the clusters of API objects. NewClusterAccess returns the
// built-in one. A request names an API object.
//
// A type that wraps the built-in provider needs a method Unwrap() ClusterAccessProvider. Otherwise
// Cluster.Watch fails, and changes of requests and connections are noticed only after RequeueAfter,
// PollInterval or 30 s. For an object that is being deleted, the runtime does not call the
// wrapper's Reconcile, because that could create a request.
type ClusterAccessProvider interface {
	// MCPCluster returns the tenant's control plane. MCPCluster fails unless access is granted and
	// Reconcile returned neither an error nor RequeueAfter. The error is a
	// *clustercache.NotConnectedError if access is granted but there is no connection.
	MCPCluster(ctx context.Context, request reconcile.Request) (*Cluster, error)
	// MCPAccessRequest returns the request for access to the tenant's control plane, or a NotFound
	// error.
	MCPAccessRequest(ctx context.Context, request reconcile.Request) (*clustersv1alpha1.AccessRequest, error)
	// WorkloadCluster is MCPCluster for the workload cluster.
	WorkloadCluster(ctx context.Context, request reconcile.Request) (*Cluster, error)
	// WorkloadAccessRequest is MCPAccessRequest for the workload cluster.
	WorkloadAccessRequest(ctx context.Context, request reconcile.Request) (*clustersv1alpha1.AccessRequest, error)
	// Reconcile requests access. Call Reconcile on every reconcile of the object. RequeueAfter
	// means that access is not granted yet. errors.Is reports ErrAccessDenied if the platform
	// denies access, and ErrAccessConflict if a request belongs to another controller.
	Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error)
	// ReconcileDelete withdraws the requests. RequeueAfter means that they are not gone yet.
	ReconcileDelete(ctx context.Context, request reconcile.Request) (reconcile.Result, error)
}
