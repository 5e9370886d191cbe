package docs

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// The program of docs/guide-testing.md.

// greeter writes a greeting for each ConfigMap with the label
// cluster.x-k8s.io/watch-filter=greeter, as the ServiceAccount that the ConfigMap names.
type greeter struct{ cc clustercache.ClusterCache }

func setup(ctx context.Context, mgr ctrl.Manager) (clustercache.ClusterCache, error) {
	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Object:           &corev1.ConfigMap{},
		WatchFilterValue: "greeter",
		Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			NamePath: "data.serviceAccount",
		}),
		Client:      clustercache.ClientOptions{UserAgent: "greeter"},
		Permissions: clustercache.PermissionOptions{Record: true},
	}, controller.Options{})
	if err != nil {
		return nil, err
	}
	return cc, ctrl.NewControllerManagedBy(mgr).Named("greeter").
		WatchesRawSource(cc.GetExtensionSource("greeter", clustercache.EnqueueExtension)).
		Complete(&greeter{cc})
}

func (r *greeter) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	c, err := r.cc.GetClient(ctx, req.NamespacedName)
	if errors.Is(err, clustercache.ErrNotConnected) {
		return ctrl.Result{}, nil // the source calls again
	} else if err != nil {
		return ctrl.Result{}, err
	}
	greeting := corev1apply.ConfigMap(req.Name+"-greeting", req.Namespace).
		WithData(map[string]string{"hello": "world"})
	err = c.Apply(ctx, greeting, client.FieldOwner("greeter"), client.ForceOwnership)
	if apierrors.IsForbidden(err) {
		// The source calls when a permission is granted; but it may be a quota, of which no event comes.
		return ctrl.Result{RequeueAfter: time.Minute}, nil
	}
	return ctrl.Result{}, err
}
