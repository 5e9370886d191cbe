package docs

import (
	"context"
	"errors"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	capi "sigs.k8s.io/cluster-api/controllers/clustercache"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
)

// The programs of docs/which-one.md. Each writes a ConfigMap as a tenant.

func impersonation(ctx context.Context, mgr ctrl.Manager, account client.ObjectKey, object *corev1.ConfigMap) error {
	config := rest.CopyConfig(mgr.GetConfig())
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + account.Namespace + ":" + account.Name,
	}
	c, err := client.New(config, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return err
	}
	return c.Create(ctx, object)
}

func clientPerReconcile(ctx context.Context, mgr ctrl.Manager, account client.ObjectKey, object *corev1.ConfigMap) error {
	serviceAccount := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name}}
	token := &authenticationv1.TokenRequest{}
	if err := mgr.GetClient().SubResource("token").Create(ctx, serviceAccount, token); err != nil {
		return err
	}
	config := rest.AnonymousClientConfig(mgr.GetConfig())
	config.BearerToken = token.Status.Token
	c, err := client.New(config, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return err
	}
	return c.Create(ctx, object)
}

func clusterAPI(ctx context.Context, clusters capi.ClusterCache, cluster client.ObjectKey, object *corev1.ConfigMap) error {
	c, err := clusters.GetClient(ctx, cluster)
	if errors.Is(err, capi.ErrClusterNotConnected) {
		return nil // the cluster source calls again
	} else if err != nil {
		return err
	}
	return c.Create(ctx, object)
}

func withLatchkey(ctx context.Context, cc latchkey.ClusterCache, extension client.Object, object *corev1.ConfigMap) error {
	c, err := cc.For(ctx, extension).GetClient(ctx)
	if errors.Is(err, latchkey.ErrNotConnected) {
		return nil // the extension source calls again
	} else if err != nil {
		return err
	}
	return c.Create(ctx, object)
}

var _, _, _, _ = impersonation, clientPerReconcile, clusterAPI, withLatchkey
