package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// managerFlags are what "latchkey manager" can be told.
type managerFlags struct {
	context                 string
	kind                    string
	credentials             string
	namespacePath, namePath string
	secretNamespace         string
	secretPath, secretKey   string
	guarded                 bool
	metricsAddress          string
	probeAddress            string
	leaderElect             bool
	leaderElectionNamespace string
	userAgent               string
	health                  healthprobe.Options
	zap                     zap.Options
}

func (m *managerFlags) bind(flags *flag.FlagSet) {
	config.RegisterFlags(flags) // --kubeconfig
	flags.StringVar(&m.context, "context", "", "context of the kubeconfig to use")
	flags.StringVar(&m.kind, "kind", "ClusterExtension.v1alpha1.latchkey.dev",
		"kind of the extensions, as Kind.version.group; core kinds end in a dot, as ConfigMap.v1.")
	flags.StringVar(&m.credentials, "credentials", "tokens",
		"how extensions prove whom they act as: tokens (of the ServiceAccount they name), impersonation (of it), "+
			"kubeconfigs (in a Secret)")
	flags.StringVar(&m.namespacePath, "namespace-path", "",
		"dotted path of the field with the ServiceAccount's namespace; empty: spec.namespace for cluster-scoped kinds, "+
			"metadata.namespace for namespaced ones (one that has spec.namespace too needs this flag)")
	flags.StringVar(&m.namePath, "service-account-path", "spec.serviceAccount.name",
		"dotted path of the field with the ServiceAccount's name")
	flags.StringVar(&m.secretNamespace, "secret-namespace", "",
		"with --credentials=kubeconfigs: namespace of the Secrets; empty for the extension's own")
	flags.StringVar(&m.secretPath, "secret-name-path", "",
		"with --credentials=kubeconfigs: dotted path of the field with the Secret's name; empty for the extension's "+
			"name and -kubeconfig")
	flags.StringVar(&m.secretKey, "secret-key", "value", "with --credentials=kubeconfigs: key of the Secret")
	flags.BoolVar(&m.guarded, "guarded-by-admission", false,
		"state that an admission policy (see config/admission*) lets nobody name a ServiceAccount that they may not "+
			"act as, or a Secret that they may not read; required for cluster-scoped kinds and for --secret-namespace")
	flags.StringVar(&m.metricsAddress, "metrics-bind-address", "127.0.0.1:8080",
		"address that serves /metrics; 0 for none")
	flags.StringVar(&m.probeAddress, "health-probe-bind-address", "127.0.0.1:8081",
		"address that serves /healthz and /readyz; 0 for none")
	flags.BoolVar(&m.leaderElect, "leader-elect", false, "connect only while holding the lease latchkey-manager")
	flags.StringVar(&m.leaderElectionNamespace, "leader-election-namespace", "",
		"namespace of the lease; needed outside of a cluster")
	flags.StringVar(&m.userAgent, "user-agent", "latchkey", "how requests name this program to API servers")
	flags.DurationVar(&m.health.Interval, "probe-interval", 10*time.Second,
		"how long an API server may be silent before it is asked whether it is up")
	flags.DurationVar(&m.health.IdentityInterval, "identity-interval", 60*time.Second,
		"how long an identity may go without a request before it is asked who it is")
	flags.DurationVar(&m.health.Timeout, "probe-timeout", 5*time.Second, "how long a probe may take")
	flags.IntVar(&m.health.FailureThreshold, "probe-failures", 5, "how many probes in a row must fail to disconnect")
	m.zap.BindFlags(flags)
}

// options turns the flags into those of SetupWithManager.
func (m *managerFlags) options() (clustercache.Options, error) {
	gvk, _ := schema.ParseKindArg(m.kind)
	if gvk == nil {
		return clustercache.Options{}, errors.Errorf("--kind: %q is not of the form Kind.version.group", m.kind)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(*gvk)
	options := clustercache.Options{
		Object:      object,
		Client:      clustercache.ClientOptions{UserAgent: m.userAgent},
		HealthProbe: m.health,
		Cache:       clustercache.CacheOptions{WatchRBAC: true}, // if it may; it is no error if not
	}
	switch m.credentials {
	case "tokens":
		options.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			NamespacePath: m.namespacePath, NamePath: m.namePath,
		})
	case "impersonation":
		options.Credentials = credential.Impersonation(credential.ImpersonationOptions{
			NamespacePath: m.namespacePath, NamePath: m.namePath,
		})
	case "kubeconfigs":
		secrets := credential.KubeconfigOptions{Namespace: m.secretNamespace, NamePath: m.secretPath, Key: m.secretKey}
		if m.guarded {
			secrets.Allow = credential.SecretsGuardedByAdmission
		}
		options.Credentials = credential.KubeconfigSecrets(secrets)
	default:
		return clustercache.Options{},
			errors.Errorf("--credentials: %q is none of tokens, impersonation and kubeconfigs", m.credentials)
	}
	if m.guarded && m.credentials != "kubeconfigs" {
		options.AllowIdentity = clustercache.GuardedByAdmission
	}
	return options, nil
}

func runManager(ctx context.Context, args []string) error {
	var m managerFlags
	flags := flag.NewFlagSet("latchkey manager", flag.ContinueOnError)
	m.bind(flags)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		os.Exit(2) // flag said why
	}
	if flags.NArg() > 0 {
		return errors.Errorf("manager takes no arguments, but got %q", flags.Args())
	}
	if strings.ContainsFunc(m.userAgent, unicode.IsControl) {
		return errors.Errorf("--user-agent %q must be one line without control characters", m.userAgent)
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&m.zap)))
	restConfig, err := config.GetConfigWithContext(m.context)
	if err != nil {
		return errors.Wrap(err, "finding a cluster (--kubeconfig, $KUBECONFIG, in-cluster, ~/.kube/config)")
	}
	options, err := m.options()
	if err != nil {
		return err
	}
	if m.leaderElect && m.leaderElectionNamespace == "" && !inCluster() {
		return errors.New("--leader-elect outside of a cluster needs --leader-election-namespace: it is where the lease is")
	}
	ended := make(chan error, 1)
	go func() { ended <- m.run(ctx, restConfig, options) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(shutdownPatience): // what has no context, such as discovery, waits for an API server that hangs
		return errors.Errorf("something did not end within %s of the signal; ending without it", shutdownPatience)
	}
}

const (
	// gracefulShutdown is how long the manager waits for its controllers to end.
	gracefulShutdown = 5 * time.Second
	// shutdownPatience is how long all of it may take.
	shutdownPatience = 9 * time.Second
	// permissionInterval is how often the API server is asked what this program itself may read.
	permissionInterval = 10 * time.Second
)

// inCluster reports whether this program runs as a ServiceAccount of a cluster, and so in a
// namespace of it.
func inCluster() bool {
	_, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	return err == nil
}

// mayRead is a readiness check that fails while the cache may not read a kind. It says what is
// missing.
func mayRead(mgr manager.Manager, kind schema.GroupKind) healthz.Checker {
	return func(*http.Request) error {
		for _, scope := range mgr.GetCache().(scopedcache.Cache).States() {
			switch {
			case scope.GVK.GroupKind() != kind:
			case scope.State == scopedcache.Syncing:
				return errors.Errorf("%s is being read for the first time", kind)
			case scope.State == scopedcache.NotServed:
				return errors.Wrapf(scope.LastError, "%s is not served; install its CustomResourceDefinition", kind)
			case apierrors.IsForbidden(scope.LastError):
				return errors.Wrapf(scope.LastError,
					"this program needs list and watch on %s (ClusterRole latchkey-operator in config/rbac, or the like for "+
						"another kind)", kind)
			}
		}
		return nil
	}
}

func (m *managerFlags) run(ctx context.Context, restConfig *rest.Config, options clustercache.Options) error {
	mgr, err := ctrl.NewManager(restConfig, manager.Options{
		Metrics:                       metricsserver.Options{BindAddress: m.metricsAddress},
		HealthProbeBindAddress:        m.probeAddress,
		LeaderElection:                m.leaderElect,
		LeaderElectionID:              "latchkey-manager",
		LeaderElectionNamespace:       m.leaderElectionNamespace,
		LeaderElectionReleaseOnCancel: true, // main ends when this returns
		GracefulShutdownTimeout:       new(gracefulShutdown),
		// Without a permission it stays up, says so, and goes on when that is granted.
		NewCache: scopedcache.NewWithOptions(scopedcache.Options{AccessReviewInterval: permissionInterval}),
	})
	if err != nil {
		return errors.Wrap(err, "making the manager")
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	needed := []schema.GroupKind{options.Object.GetObjectKind().GroupVersionKind().GroupKind()}
	if m.credentials != "kubeconfigs" {
		needed = append(needed, schema.GroupKind{Kind: "ServiceAccount"})
	}
	for _, kind := range needed {
		// The name says it too, for the answer to /readyz withholds what the check says.
		// /readyz/<name> does not.
		if err := mgr.AddReadyzCheck("may-list-and-watch-"+kind.String(), mayRead(mgr, kind)); err != nil {
			return err
		}
	}
	if _, err := clustercache.SetupWithManager(ctx, mgr, options, controller.Options{}); err != nil {
		switch text := err.Error(); {
		case !m.guarded && strings.Contains(text, "Allow"):
			return errors.WithMessage(err, "say --guarded-by-admission once a policy guards the extensions")
		case strings.Contains(text, "OLMClusterExtension"):
			return errors.WithMessage(err,
				"say --kind=ClusterExtension.v1.olm.operatorframework.io for Operator Lifecycle Manager's kind")
		case strings.Contains(text, "NamespacePath"):
			return errors.WithMessage(err, "--namespace-path")
		case strings.Contains(text, "NamePath"):
			return errors.WithMessage(err, "--service-account-path (or --secret-name-path)")
		}
		return err
	}
	return mgr.Start(ctx)
}
