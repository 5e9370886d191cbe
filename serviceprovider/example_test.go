package serviceprovider_test

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/serviceprovider"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// namespace on each tenant's control plane is where the service is. The platform creates it.
const namespace = "mail"

// access is what the provider may do on each tenant's control plane.
var access = serviceprovider.Access{
	Permissions: []clustersv1alpha1.PermissionsRequest{{
		Namespace: namespace,
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""},
			Resources: []string{"configmaps"},
			Verbs:     []string{"get", "list", "watch", "create", "patch", "delete"},
		}},
	}},
}

// mailService is what the author of a provider writes. It also reconciles all orders when the
// provider's defaults on the platform cluster change.
type mailService struct {
	defaults client.Reader // of the platform cluster: GetAPIReader
}

var (
	_ serviceprovider.Reconciler[*v1alpha1.Mailbox, *v1alpha1.ProviderConfig] = (*mailService)(nil)
	_ serviceprovider.ConfigMapWatcher[*v1alpha1.ProviderConfig]              = (*mailService)(nil)
)

// CreateOrUpdate implements serviceprovider.Reconciler.
func (s *mailService) CreateOrUpdate(ctx context.Context, order *v1alpha1.Mailbox, _ *v1alpha1.ProviderConfig,
	clusters serviceprovider.ClusterContext) (ctrl.Result, error) {
	defaults := &corev1.ConfigMap{}
	if err := s.defaults.Get(ctx, defaultsKey, defaults); err != nil {
		return ctrl.Result{}, err
	}
	// A change on the tenant's side reconciles the order.
	tenant := clusters.MCPCluster
	if err := tenant.Watch(ctx, &corev1.ConfigMap{}, nil,
		serviceprovider.InScope(clustercache.Scope{Namespace: namespace})); err != nil {
		return ctrl.Result{}, err
	}
	err := tenant.Client().Apply(ctx, corev1apply.ConfigMap(order.Name, namespace).WithData(defaults.Data),
		client.FieldOwner("mail-provider"), client.ForceOwnership)
	if err != nil {
		return ctrl.Result{}, err
	}
	serviceprovider.StatusReady(order)
	return ctrl.Result{}, nil
}

// Delete implements serviceprovider.Reconciler.
func (s *mailService) Delete(ctx context.Context, order *v1alpha1.Mailbox, _ *v1alpha1.ProviderConfig,
	clusters serviceprovider.ClusterContext) (ctrl.Result, error) {
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: order.Name}}
	err := clusters.MCPCluster.Client().Delete(ctx, made)
	switch {
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil // the service is gone
	case err != nil:
		return ctrl.Result{}, err
	}
	serviceprovider.StatusTerminatingWithReason(order, "Deleting", "the ConfigMap is being deleted")
	return ctrl.Result{RequeueAfter: time.Second}, nil
}

// defaultsKey is the ConfigMap on the platform cluster on which all orders depend.
var defaultsKey = types.NamespacedName{Namespace: "mail-provider", Name: "defaults"}

// IsReferencedConfigMap implements serviceprovider.ConfigMapWatcher.
func (s *mailService) IsReferencedConfigMap(_ context.Context, configMap *corev1.ConfigMap,
	_ *v1alpha1.ProviderConfig) bool {
	return configMap.Name == defaultsKey.Name
}

// A provider of mailboxes. mgr is the manager of the onboarding cluster, and runs platform, too.
func Example() {
	setUp := func(mgr ctrl.Manager, platform cluster.Cluster) error {
		clusterAccess, err := serviceprovider.NewClusterAccess(mgr, platform, "mail-provider",
			serviceprovider.AccessOptions{MCP: access})
		if err != nil {
			return err
		}
		updates := make(chan event.GenericEvent)
		configs, err := serviceprovider.NewConfigReconcilerBuilder[*v1alpha1.ProviderConfig]().
			EmptyObjectProvider(func() *v1alpha1.ProviderConfig { return &v1alpha1.ProviderConfig{} }).
			PlatformCluster(platform).ProviderName("mail-provider").UpdateChannel(updates).
			Build()
		if err != nil {
			return err
		}
		if err := configs.SetupWithManager(mgr); err != nil {
			return err
		}
		orders, err := serviceprovider.NewAPIReconcilerBuilder[*v1alpha1.Mailbox, *v1alpha1.ProviderConfig]().
			EmptyObjectProvider(func() *v1alpha1.Mailbox { return &v1alpha1.Mailbox{} }).
			OnboardingCluster(mgr).PlatformCluster(platform).ClusterAccessReconciler(clusterAccess).
			ConfigMapNamespace(defaultsKey.Namespace).
			Reconciler(&mailService{defaults: platform.GetAPIReader()}).
			Build()
		if err != nil {
			return err
		}
		return orders.SetupWithManager(mgr, "mail-provider", updates)
	}
	_ = setUp
}

// A reconcile of an order reads which clusters are connected, and as whom.
func ExampleCluster_State() {
	explain := func(ctx context.Context, clusters serviceprovider.ClusterContext) string {
		state := clusters.MCPCluster.State(ctx)
		if state.Phase != clustercache.PhaseConnected {
			return string(state.Reason)
		}
		return "connected as " + state.Identity.Username
	}
	_ = explain
}

// A change of a ConfigMap reconciles the order that a label of the ConfigMap names. The function
// captures no object of one reconcile.
func ExampleCluster_Watch() {
	watch := func(ctx context.Context, order *v1alpha1.Mailbox, tenant *serviceprovider.Cluster) error {
		orders := order.Namespace
		return tenant.Watch(ctx, &corev1.ConfigMap{}, func(_ context.Context, object client.Object) []ctrl.Request {
			name, found := object.GetLabels()["mail.example.com/order"]
			if !found {
				return nil
			}
			return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: orders, Name: name}}}
		}, serviceprovider.InScope(clustercache.Scope{Namespace: namespace}))
	}
	_ = watch
}
