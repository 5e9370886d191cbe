package demo

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/examples/contentoperator"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

// operatorUser is who the content operator is to the API server.
const operatorUser = "contentoperator"

// Options of the demo.
type Options struct {
	// Once ends after the tour; else the demo stays up until ctx is done.
	Once bool
	// Break names the step whose cause is left out.
	Break string
	// Patience is how long a step may wait for what it expects.
	Patience time.Duration
	// Out is where the tour is told.
	Out io.Writer
}

// Run runs the demo. The error names the step that did not see what it expected.
func Run(ctx context.Context, options Options) (err error) {
	say := &narrator{out: options.Out, patience: options.Patience}
	log, err := os.CreateTemp("", "latchkey-demo-*.log")
	if err != nil {
		return errors.Wrap(err, "creating the log file")
	}
	defer log.Close()
	defer func() {
		if err == nil {
			_ = os.Remove(log.Name())
		} else {
			say.line("The content operator's log: %s", log.Name())
		}
	}()
	logger := zap.New(zap.WriteTo(log))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	say.line("latchkey demo: five extensions, five identities, one real API server")
	say.line("")
	start := time.Now()
	cp, err := controlplane.Start(ctx, controlplane.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := cp.Stop(); err == nil {
			err = stopErr
		}
	}()
	if err := install(ctx, cp); err != nil {
		return err
	}
	say.line("kube-apiserver and etcd are up, CRD, RBAC and admission policy are installed (%s)", since(start))

	ctx, cancel := context.WithCancel(ctx)
	admin, err := client.New(cp.Config(), client.Options{})
	if err != nil {
		cancel()
		return errors.WithStack(err)
	}
	t := &tour{narrator: say, cp: cp, admin: admin, broken: options.Break}
	stopped := make(chan error, 1)
	if t.connections, err = startOperator(ctx, cp, stopped); err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		if stopErr := <-stopped; err == nil {
			err = stopErr
		}
	}()
	say.line("The content operator runs as user %q, with the rights of config/rbac and none on any content", operatorUser)

	if err := t.walk(ctx); err != nil {
		return err
	}
	if !options.Once {
		t.showAround(log.Name())
		<-ctx.Done()
	}
	return nil
}

// install applies the YAML of config/ and gives the content operator its role, by kubectl as a
// person would.
func install(ctx context.Context, cp *controlplane.ControlPlane) error {
	if _, err := cp.KubectlInput(ctx, config.Manifests(), "apply", "-f", "-"); err != nil {
		return err
	}
	if _,
		err := cp.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s",
		"crd/clusterextensions.latchkey.dev"); err != nil {
		return err
	}
	_, err := cp.Kubectl(ctx, "create", "clusterrolebinding", "latchkey-operator", "--clusterrole=latchkey-operator",
		"--user="+operatorUser)
	return err
}

// startOperator starts a manager with a ClusterCache and the content operator. What ends it is sent
// to stopped.
func startOperator(ctx context.Context, cp *controlplane.ControlPlane,
	stopped chan<- error) (clustercache.ClusterCache, error) {
	restConfig, err := cp.UserConfig(operatorUser)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(restConfig, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return nil, errors.Wrap(err, "making the manager")
	}
	connections, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Client:        clustercache.ClientOptions{UserAgent: operatorUser},
		AllowIdentity: clustercache.GuardedByAdmission,
		HealthProbe: healthprobe.Options{Interval: time.Second, IdentityInterval: 10 * time.Second,
			Timeout: time.Second, FailureThreshold: 3},
		ConnectBackoff: wait.Backoff{Duration: 2 * time.Second, Factor: 1.5, Jitter: 0.2, Steps: 10, Cap: 10 * time.Second},
	}, controller.Options{})
	if err != nil {
		return nil, err
	}
	if err := contentoperator.SetupWithManager(mgr, connections, controller.Options{
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](500*time.Millisecond,
			4*time.Second),
	}); err != nil {
		return nil, err
	}
	go func() { stopped <- mgr.Start(ctx) }()
	return connections, nil
}

// showAround prints how to play with what stays up.
func (t *tour) showAround(log string) {
	t.line("")
	t.line("Everything stays up until you press Ctrl-C. To play with it:")
	t.line("")
	t.line("  export KUBECONFIG=%s", t.cp.Kubeconfig())
	t.line("  export PATH=%s:$PATH                      # kubectl, should you have none", t.cp.Programs())
	t.line("  kubectl get clusterextensions.latchkey.dev -w")
	t.line("  kubectl -n team-red delete configmap greeting           # comes back, repaired as red")
	t.line("  kubectl -n team-blue delete serviceaccount blue         # blue is disconnected within a second")
	t.line("  kubectl -n team-blue create serviceaccount blue         # and back, as a new identity")
	t.line("  kubectl -n team-green delete rolebinding content        # green loses its rights")
	t.line("  grep extension/red %s | tail -3                         # what red asked for, as the API server saw it",
		t.cp.AuditLog())
	t.line("  tail -f %s", log)
}
