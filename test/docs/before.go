// Package docs has the programs of docs/migrating-from-clustercache.md: those with Cluster API's
// clustercache here, and those with latchkey's in after.go. A test of package
// test/support/architecture compares the page with these files.
package docs

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

type before struct {
	cc         clustercache.ClusterCache
	controller controller.Controller
}

func setupBefore(ctx context.Context, mgr manager.Manager, secretClient client.Reader) (clustercache.ClusterCache, error) {
	cc, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient: secretClient,
		Client:       clustercache.ClientOptions{UserAgent: "my-operator"},
	}, controller.Options{MaxConcurrentReconciles: 50})
	return cc, err
}

func (r *before) reconcile(ctx context.Context, clusterKey client.ObjectKey, nodesToRequests handler.EventHandler) (ctrl.Result, error) {
	cc := r.cc
	c, err := cc.GetClient(ctx, clusterKey)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	err = cc.Watch(ctx, clusterKey, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "my-controller/nodes",
		Watcher:      r.controller,
		Kind:         &corev1.Node{},
		EventHandler: nodesToRequests,
	}))
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, c.List(ctx, &corev1.NodeList{})
}

func sourceBefore(b *builder.Builder, cc clustercache.ClusterCache, clusterToRequests handler.MapFunc) {
	b.WatchesRawSource(cc.GetClusterSource("my-controller", clusterToRequests,
		clustercache.WatchForProbeFailure(5*time.Minute)))
}

func testBefore(fakeClient client.Client, clusterKey client.ObjectKey) clustercache.ClusterCache {
	cc := clustercache.NewFakeClusterCache(fakeClient, clusterKey, "my-controller/nodes")
	return cc
}
