// Command contentoperator runs the content operator on the cluster of your kubeconfig
// (--kubeconfig, $KUBECONFIG, in-cluster, ~/.kube/config).
package main

import (
	"flag"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/examples/contentoperator"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

func main() {
	flag.Parse() // controller-runtime registers --kubeconfig at init
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "The content operator failed")
		os.Exit(1)
	}
}

func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	// Without a permission this cache stays up and reports the missing permission.
	mgr, err := ctrl.NewManager(config, manager.Options{NewCache: scopedcache.New})
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	connections, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Client:        clustercache.ClientOptions{UserAgent: "contentoperator"},
		AllowIdentity: clustercache.GuardedByAdmission, // install the policy: kubectl apply -f config/admission
		Permissions:   clustercache.PermissionOptions{Record: true},
	}, controller.Options{})
	if err != nil {
		return err
	}
	if err := contentoperator.SetupWithManager(mgr, connections, controller.Options{}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
