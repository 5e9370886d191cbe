// Command fluxlike runs the example operator on the cluster of your kubeconfig (--kubeconfig,
// $KUBECONFIG, in-cluster, ~/.kube/config).
package main

import (
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/examples/fluxlike"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

func main() {
	flag.Parse() // controller-runtime registers --kubeconfig at init
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "The operator failed")
		os.Exit(1)
	}
}

func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := fluxlike.AddToScheme(scheme); err != nil {
		return err
	}
	// Without a permission this cache stays up and reports the missing permission.
	mgr, err := ctrl.NewManager(config, manager.Options{Scheme: scheme, NewCache: scopedcache.New})
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := fluxlike.SetupWithManager(ctx, mgr, controller.Options{}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
