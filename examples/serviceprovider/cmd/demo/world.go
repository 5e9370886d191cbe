package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/config"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/mailbox"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/platformactor"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// providerUser is the user of the provider on the onboarding and the platform cluster.
const providerUser = "mailbox-provider"

// place is a cluster and its administrator.
type place struct {
	client.Client
	cp *controlplane.ControlPlane
}

// world is everything that runs.
type world struct {
	onboarding, platform, tenant place
	dir                          string // of the definitions
	running                      sync.WaitGroup
	ended                        chan error // of the provider; nil before it started
}

// startWorld starts the clusters at the same time, the stand-in for the platform, and the provider.
// The caller must cancel ctx and then call stop, also after an error.
func startWorld(ctx context.Context) (w *world, err error) {
	w = &world{}
	if w.dir, err = os.MkdirTemp("", "latchkey-serviceprovider-"); err != nil {
		return w, err
	}
	requests, err := fs.Sub(clustersv1alpha1.CRDs, "crds")
	if err == nil {
		err = os.CopyFS(filepath.Join(w.dir, "requests"), requests)
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(w.dir, "config"), config.Files)
	}
	if err != nil {
		return w, fmt.Errorf("writing the definitions: %w", err)
	}
	crds := filepath.Join(w.dir, "config", "crds")
	starts := errgroup.Group{}
	starts.Go(func() error {
		return w.onboarding.start(ctx, "mailbox-provider-onboarding", "rbac-onboarding.yaml",
			filepath.Join(crds, "mail.example.com_mailboxes.yaml"))
	})
	starts.Go(func() error {
		return w.platform.start(ctx, "mailbox-provider-platform", "rbac-platform.yaml",
			filepath.Join(crds, "mail.example.com_providerconfigs.yaml"), filepath.Join(w.dir, "requests"))
	})
	starts.Go(func() error { return w.tenant.start(ctx, "", "") })
	if err := starts.Wait(); err != nil {
		return w, err
	}
	actor, err := platformactor.New(w.platform.cp.Config(), map[string]*rest.Config{"mcp": w.tenant.cp.Config()})
	if err != nil {
		return w, err
	}
	w.running.Go(func() { actor.Run(ctx, func(err error) { ctrl.Log.Error(err, "The platform failed") }) })
	return w, w.startProvider(ctx)
}

// start starts a cluster, and binds the provider to a role in a file of the config, unless the role
// is empty.
func (p *place) start(ctx context.Context, role, file string, crds ...string) (err error) {
	if p.cp, err = controlplane.Start(ctx, controlplane.Options{CRDs: crds}); err != nil {
		return err
	}
	if p.Client, err = client.New(p.cp.Config(), client.Options{Scheme: newScheme()}); err != nil || role == "" {
		return err
	}
	yaml, err := config.Files.ReadFile(file)
	if err != nil {
		return err
	}
	if _, err := p.cp.KubectlInput(ctx, string(yaml), "apply", "-f", "-"); err != nil {
		return err
	}
	_, err = p.cp.Kubectl(ctx, "create", "clusterrolebinding", role, "--clusterrole="+role, "--user="+providerUser)
	return err
}

// startProvider starts the provider as its own user.
func (w *world) startProvider(ctx context.Context) error {
	onboardingConfig, err := w.onboarding.cp.UserConfig(providerUser)
	if err != nil {
		return err
	}
	platformConfig, err := w.platform.cp.UserConfig(providerUser)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(onboardingConfig, manager.Options{
		Scheme:  newScheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	platform, err := cluster.New(platformConfig, func(o *cluster.Options) { o.Scheme = newScheme() })
	if err != nil {
		return err
	}
	if err := mgr.Add(platform); err != nil {
		return err
	}
	if err := mailbox.SetupWithManager(mgr, mgr, platform); err != nil {
		return err
	}
	w.ended = make(chan error, 1)
	go func() { w.ended <- mgr.Start(ctx) }()
	return nil
}

// stop ends everything, after ctx of startWorld is done.
func (w *world) stop() (err error) {
	if w.ended != nil {
		err = <-w.ended
	}
	w.running.Wait()
	for _, p := range []place{w.onboarding, w.platform, w.tenant} {
		if p.cp != nil {
			if stopErr := p.cp.Stop(); err == nil {
				err = stopErr
			}
		}
	}
	if removeErr := os.RemoveAll(w.dir); err == nil {
		err = removeErr
	}
	return err
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clustersv1alpha1.AddToScheme,
		v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // the kinds of two packages do not agree: a mistake in the program
		}
	}
	return scheme
}
