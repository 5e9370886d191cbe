// Command mailbox runs the example provider. The onboarding cluster is that of --kubeconfig
// ($KUBECONFIG, in-cluster, ~/.kube/config), and the platform cluster that of
// --platform-kubeconfig.
package main

import (
	"errors"
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/mailbox"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

func main() {
	platform := flag.String("platform-kubeconfig", "", "the kubeconfig of the platform cluster")
	namespace := flag.String("namespace", "mailbox-provider", "the namespace on the platform cluster that has the "+
		"lease: one process works at a time")
	flag.Parse() // controller-runtime registers --kubeconfig at init
	ctrl.SetLogger(zap.New())
	if err := run(*platform, *namespace); err != nil {
		ctrl.Log.Error(err, "The provider failed")
		os.Exit(1)
	}
}

func run(platformKubeconfig, namespace string) error {
	if platformKubeconfig == "" {
		return errors.New("--platform-kubeconfig is missing")
	}
	onboardingConfig, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	platformConfig, err := clientcmd.BuildConfigFromFlags("", platformKubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	// Without a permission these caches stay up and report the missing permission.
	mgr, err := ctrl.NewManager(onboardingConfig, manager.Options{
		Scheme:                  scheme,
		NewCache:                scopedcache.New,
		LeaderElection:          true,
		LeaderElectionID:        mailbox.ProviderName,
		LeaderElectionNamespace: namespace,
		LeaderElectionConfig:    platformConfig,
	})
	if err != nil {
		return err
	}
	platform, err := cluster.New(platformConfig, func(o *cluster.Options) {
		o.Scheme, o.NewCache = scheme, scopedcache.New
	})
	if err != nil {
		return err
	}
	if err := mgr.Add(platform); err != nil {
		return err
	}
	if err := mailbox.SetupWithManager(mgr, mgr, platform); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
