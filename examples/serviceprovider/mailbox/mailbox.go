package mailbox

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

const (
	// ProviderName is the name of the provider and of its ProviderConfig.
	ProviderName = "mailbox"
	// Namespace is where the mailboxes are, on the control plane of each tenant.
	Namespace = "mailboxes"
)

// access is what the provider may do on the control plane of a tenant. The cached reads and the
// watch need list and watch.
var access = serviceprovider.Access{
	Permissions: []clustersv1alpha1.PermissionsRequest{{
		Namespace: Namespace, // the platform creates it
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""},
			Resources: []string{"configmaps"},
			Verbs:     []string{"get", "list", "watch", "create", "patch", "delete"},
		}},
	}},
}

// deletePoll is how often to look whether a ConfigMap is gone.
const deletePoll = 2 * time.Second

// reconciler makes Mailboxes.
type reconciler struct{}

// CreateOrUpdate makes the ConfigMap that stands for the mailbox.
func (reconciler) CreateOrUpdate(ctx context.Context, mailbox *v1alpha1.Mailbox, config *v1alpha1.ProviderConfig,
	clusters serviceprovider.ClusterContext) (ctrl.Result, error) {
	// A change of the ConfigMaps on the tenant's control plane reconciles this Mailbox.
	err := clusters.MCPCluster.Watch(ctx, &corev1.ConfigMap{}, nil,
		serviceprovider.InScope(clustercache.Scope{Namespace: Namespace}))
	if err != nil {
		return ctrl.Result{}, err
	}
	wanted := map[string]string{"address": mailbox.Spec.Address + "@" + config.Spec.Domain}
	err = clusters.MCPCluster.Client().Apply(ctx, corev1apply.ConfigMap(mailbox.Name, Namespace).WithData(wanted),
		client.FieldOwner(ProviderName), client.ForceOwnership)
	if err != nil {
		return ctrl.Result{}, err
	}
	serviceprovider.StatusReady(mailbox)
	return ctrl.Result{}, nil
}

// Delete deletes the ConfigMap. It is done when the ConfigMap is gone.
func (reconciler) Delete(ctx context.Context, mailbox *v1alpha1.Mailbox, _ *v1alpha1.ProviderConfig,
	clusters serviceprovider.ClusterContext) (ctrl.Result, error) {
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: mailbox.Name}}
	if err := clusters.MCPCluster.Client().Delete(ctx, made); !apierrors.IsNotFound(err) {
		return ctrl.Result{RequeueAfter: deletePoll}, err
	}
	return ctrl.Result{}, nil
}

// SetupWithManager adds the provider to a manager, which must run both clusters. Their schemes have
// the kinds of v1alpha1.
func SetupWithManager(mgr ctrl.Manager, onboarding, platform cluster.Cluster) error {
	clusterAccess, err := serviceprovider.NewClusterAccess(mgr, platform, ProviderName,
		serviceprovider.AccessOptions{MCP: access})
	if err != nil {
		return err
	}
	updates := make(chan event.GenericEvent)
	configs, err := serviceprovider.NewConfigReconcilerBuilder[*v1alpha1.ProviderConfig]().
		EmptyObjectProvider(func() *v1alpha1.ProviderConfig { return &v1alpha1.ProviderConfig{} }).
		PlatformCluster(platform).ProviderName(ProviderName).UpdateChannel(updates).
		Build()
	if err != nil {
		return err
	}
	if err := configs.SetupWithManager(mgr); err != nil {
		return err
	}
	mailboxes, err := serviceprovider.NewAPIReconcilerBuilder[*v1alpha1.Mailbox, *v1alpha1.ProviderConfig]().
		EmptyObjectProvider(func() *v1alpha1.Mailbox { return &v1alpha1.Mailbox{} }).
		OnboardingCluster(onboarding).PlatformCluster(platform).ClusterAccessReconciler(clusterAccess).
		Reconciler(reconciler{}).
		Build()
	if err != nil {
		return err
	}
	return mailboxes.SetupWithManager(mgr, ProviderName, updates)
}
