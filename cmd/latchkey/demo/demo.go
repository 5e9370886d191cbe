package demo

import (
	"context"
	"io"
	"net"
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

// operatorUser is the user name as which the content operator authenticates to the API server.
const operatorUser = "contentoperator"

// Options of the demo.
type Options struct {
	// Once makes Run return after the tour. Otherwise the demo stays up until ctx is done.
	Once bool
	// Break names the step whose action is skipped. That step must then fail.
	Break string
	// Patience is how long a step waits for its expected result before it fails.
	Patience time.Duration
	// Out receives the output of the tour.
	Out io.Writer
}

// Run starts a control plane and the content operator, walks through the steps, and stops both.
// Unless options.Once is set, Run keeps them up after the tour until ctx is done. If a step does
// not see its expected result, the error names that step. After an error the content operator's log
// file remains, and Run prints its path.
func Run(ctx context.Context, options Options) (err error) {
	output := &narrator{out: options.Out, patience: options.Patience}
	log, err := os.CreateTemp("", "latchkey-demo-*.log")
	if err != nil {
		return errors.Wrap(err, "creating the log file")
	}
	defer log.Close()
	defer func() {
		if err == nil {
			_ = os.Remove(log.Name())
		} else {
			output.line("The content operator's log: %s", log.Name())
		}
	}()
	logger := zap.New(zap.WriteTo(log))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	output.line("latchkey demo: five extensions, five identities, one real API server")
	output.line("")
	start := time.Now()
	cp, err := controlplane.Start(ctx, controlplane.Options{Aggregation: true})
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := cp.Stop(); err == nil {
			err = stopErr
		}
	}()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Wrap(err, "listening for the state API")
	}
	defer listener.Close()
	status, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Wrap(err, "listening for the status page")
	}
	defer status.Close()
	if err := install(ctx, cp, listener.Addr()); err != nil {
		return err
	}
	output.line("kube-apiserver and etcd are up; CRD, RBAC, admission policy and state API are installed (%s)",
		since(start))

	ctx, cancel := context.WithCancel(ctx)
	admin, err := client.New(cp.Config(), client.Options{})
	if err != nil {
		cancel()
		return errors.WithStack(err)
	}
	t := &tour{narrator: output, cp: cp, admin: admin, broken: options.Break}
	managerErr := make(chan error, 1)
	if t.connections, err = startOperator(ctx, cp, listener, status, managerErr); err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		if stopErr := <-managerErr; err == nil {
			err = stopErr
		}
	}()
	output.line(
		"The content operator runs as user %q, with the permissions of config/rbac and config/stateapi, and none for content",
		operatorUser)

	if err := t.walk(ctx); err != nil {
		return err
	}
	if !options.Once {
		t.showAround(log.Name(), status.Addr())
		<-ctx.Done()
	}
	return nil
}

// install applies the YAML of config/ and binds the content operator's role. install uses kubectl,
// as a person would.
func install(ctx context.Context, cp *controlplane.ControlPlane, stateAPI net.Addr) error {
	if _, err := cp.KubectlInput(ctx, config.Manifests(), "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := cp.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s",
		"crd/clusterextensions.latchkey.dev"); err != nil {
		return err
	}
	for _, role := range []string{"latchkey-operator", "latchkey-rbac-events"} {
		if _, err := cp.Kubectl(ctx, "create", "clusterrolebinding", role, "--clusterrole="+role,
			"--user="+operatorUser); err != nil {
			return err
		}
	}
	return installStateAPI(ctx, cp, stateAPI)
}

// startOperator starts a manager with a ClusterCache and the content operator. When the manager
// returns, startOperator's goroutine sends the manager's error, or nil, to managerErr.
func startOperator(ctx context.Context, cp *controlplane.ControlPlane, listener, status net.Listener,
	managerErr chan<- error) (clustercache.ClusterCache, error) {
	restConfig, err := cp.UserConfig(operatorUser)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(restConfig, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return nil, errors.Wrap(err, "creating the manager")
	}
	connections, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		Client:        clustercache.ClientOptions{UserAgent: operatorUser},
		AllowIdentity: clustercache.GuardedByAdmission,
		Permissions:   clustercache.PermissionOptions{Record: true},
		Cache:         clustercache.CacheOptions{WatchRBAC: true},
		HealthProbe: healthprobe.Options{
			Interval:         time.Second,
			IdentityInterval: 10 * time.Second,
			Timeout:          time.Second,
			FailureThreshold: 3,
		},
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
	if err := addStateAPI(mgr, connections, listener); err != nil {
		return nil, err
	}
	if err := addStatusPage(mgr, connections, status); err != nil {
		return nil, err
	}
	go func() { managerErr <- mgr.Start(ctx) }()
	return connections, nil
}

// showAround prints commands to try while the demo stays up.
func (t *tour) showAround(log string, status net.Addr) {
	t.line("")
	t.line("The demo stays up until you press Ctrl-C. The operator's status page, live:")
	t.line("")
	t.line("  http://%s/status/", status)
	t.line("")
	t.line("Commands to try:")
	t.line("")
	t.line("  export KUBECONFIG=%s", t.cp.Kubeconfig())
	t.line("  export PATH=%s:$PATH                      # has a kubectl, if you have none", t.cp.Programs())
	t.line("  kubectl get connections.state.latchkey.dev -w           # every change, live from the operator's memory")
	t.line("  kubectl get scopes.state.latchkey.dev                   # what the operator reads as whom")
	t.line("  kubectl wait --for=condition=Connected connections.state.latchkey.dev/blue")
	t.line("  go build -o %s/kubectl-latchkey ./cmd/kubectl-latchkey && kubectl latchkey why green",
		t.cp.Programs())
	t.line("  kubectl latchkey role green                             # the least Role for what green does")
	t.line("  kubectl -n team-red delete configmap greeting           # the operator creates it again, as red")
	t.line("  kubectl -n team-blue delete serviceaccount blue         # blue is disconnected within a second")
	t.line("  kubectl -n team-blue create serviceaccount blue         # blue connects again, as a new identity")
	t.line("  kubectl -n team-green delete rolebinding content        # revokes green's access")
	t.line("  grep extension/red %s | tail -3                         # red's requests in the API server's audit log",
		t.cp.AuditLog())
	t.line("  tail -f %s", log)
	t.line("")
	t.line("This kubeconfig is the administrator's: bind your own operator's roles to a ServiceAccount, and run it with")
	t.line("a token of that one (kubectl create token), to see what it lacks. There is no controller manager here, so")
	t.line("deleted namespaces stay Terminating, and the built-in roles admin, edit and view grant nothing.")
}
