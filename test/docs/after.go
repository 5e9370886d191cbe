package docs

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fake"
)

type after struct {
	cc         clustercache.ClusterCache
	controller controller.Controller
}

func setupForTenants(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Client:        clustercache.ClientOptions{UserAgent: "my-operator"},
		AllowIdentity: clustercache.GuardedByAdmission, // kubectl apply -f config/admission
	}, controller.Options{})
	return cc, err
}

func setupForClusters(ctx context.Context, mgr manager.Manager) (clustercache.ClusterCache, error) {
	infrastructureIsProvisioned := func(cluster client.Object) bool { // Cluster API checks this by itself
		return ptr.Deref(cluster.(*clusterv1.Cluster).Status.Initialization.InfrastructureProvisioned, false)
	}
	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Object:         &clusterv1.Cluster{},
		Credentials:    credential.KubeconfigSecrets(credential.KubeconfigOptions{}),
		Filter:         infrastructureIsProvisioned,
		Cache:          clustercache.CacheOptions{Indexes: []clustercache.CacheOptionsIndex{clustercache.NodeProviderIDIndex}},
		Client:         clustercache.ClientOptions{UserAgent: "my-operator"},
		ConnectBackoff: wait.Backoff{Duration: 30 * time.Second, Jitter: 0.2}, // every 30 s, as before
	}, controller.Options{})
	return cc, err
}

func (r *after) reconcile(ctx context.Context, extension client.Object, conditions []metav1.Condition,
	secretsToRequests handler.EventHandler) (ctrl.Result, error) {
	cc, extensionKey := r.cc, client.ObjectKeyFromObject(extension)
	c, err := cc.GetClient(ctx, extensionKey)
	var notConnected *clustercache.NotConnectedError
	if clustercache.ReportedElsewhere(err) {
		return ctrl.Result{}, nil // another Reconcile, or another replica, writes the status
	} else if errors.As(err, &notConnected) {
		meta.SetStatusCondition(&conditions, clustercache.Condition(err, extension.GetGeneration()))
		return ctrl.Result{}, nil // the source calls again
	} else if err != nil {
		return ctrl.Result{}, err
	}
	err = cc.Watch(ctx, extensionKey, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "my-controller/secrets",
		Watcher:      r.controller,
		Kind:         &corev1.Secret{},
		EventHandler: secretsToRequests,
		Scope:        clustercache.Scope{Namespace: "team-red"}, // a Role in team-red suffices
	}))
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, c.List(ctx, &corev1.SecretList{})
}

func sourceAfter(b *builder.Builder, cc clustercache.ClusterCache, extensionToRequests handler.MapFunc) {
	b.WatchesRawSource(cc.GetExtensionSource("my-controller", extensionToRequests,
		clustercache.WatchForProbeFailure(5*time.Minute)))
}

func testAfter(fakeClient client.Client, extensionKey client.ObjectKey) {
	cc := fake.NewFakeCache(fakeClient, extensionKey, "my-controller/secrets")
	cc.Disconnect(extensionKey, clustercache.ReasonUnreachable) // now test what your Reconcile does
	cc.Connect(extensionKey, fakeClient)
}
