package main

import (
	"context"
	"flag"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

func main() {
	probes := flag.String("health-probe-bind-address", "localhost:8081", "address of /readyz")
	flag.Parse() // controller-runtime registers --kubeconfig at init
	ctrl.SetLogger(zap.New())
	config, err := ctrl.GetConfig()
	if err == nil {
		err = run(ctrl.SetupSignalHandler(), config, manager.Options{HealthProbeBindAddress: *probes}, controller.Options{},
			func(ctx context.Context, namespace, kind string, n int) {
				log.FromContext(ctx).Info("Counted", "namespace", namespace, "kind", kind, "objects", n)
			})
	}
	if err != nil {
		ctrl.Log.Error(err, "The operator failed")
		os.Exit(1)
	}
}

// run runs the operator until ctx is done. It calls report with each count.
func run(ctx context.Context, config *rest.Config, options manager.Options, controllers controller.Options,
	report func(ctx context.Context, namespace, kind string, n int)) error {
	options.NewCache = scopedcache.New
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	err = mgr.AddReadyzCheck("permissions",
		scopedcache.ReadyCheck(mgr.GetCache(), mgr.GetScheme(), &corev1.ConfigMap{}, &corev1.Secret{}))
	if err != nil {
		return err
	}
	count := func(kind client.Object, numberOf func(context.Context, ...client.ListOption) (int, error),
		name string) error {
		return ctrl.NewControllerManagedBy(mgr).Named("count-" + name).WithOptions(controllers).For(kind).
			Complete(reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
				n, err := numberOf(ctx, client.InNamespace(req.Namespace))
				if err == nil {
					report(ctx, req.Namespace, name, n)
				}
				return ctrl.Result{}, err
			}))
	}
	c := mgr.GetClient()
	err = count(&corev1.ConfigMap{}, func(ctx context.Context, options ...client.ListOption) (int, error) {
		var list corev1.ConfigMapList
		err := c.List(ctx, &list, options...)
		return len(list.Items), err
	}, "configmaps")
	if err != nil {
		return err
	}
	err = count(&corev1.Secret{}, func(ctx context.Context, options ...client.ListOption) (int, error) {
		var list corev1.SecretList
		err := c.List(ctx, &list, options...)
		return len(list.Items), err
	}, "secrets")
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
