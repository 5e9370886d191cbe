package main

import (
	"context"
	"flag"
	"os"
	"strings"
	"time"

	"github.com/pkg/errors"
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

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
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
	flags.StringVar(&m.kind, "kind", "ClusterExtension.v1.olm.operatorframework.io", "kind of the extensions, as Kind.version.group; core kinds end in a dot, as ConfigMap.v1.")
	flags.StringVar(&m.credentials, "credentials", "tokens", "how extensions prove whom they act as: tokens (of the ServiceAccount they name), impersonation (of it), kubeconfigs (in a Secret)")
	flags.StringVar(&m.namespacePath, "namespace-path", "spec.namespace", "dotted path of the field with the ServiceAccount's namespace; metadata.namespace for the extension's own")
	flags.StringVar(&m.namePath, "service-account-path", "spec.serviceAccount.name", "dotted path of the field with the ServiceAccount's name")
	flags.StringVar(&m.secretNamespace, "secret-namespace", "", "with --credentials=kubeconfigs: namespace of the Secrets; empty for the extension's own")
	flags.StringVar(&m.secretPath, "secret-name-path", "", "with --credentials=kubeconfigs: dotted path of the field with the Secret's name; empty for the extension's name and -kubeconfig")
	flags.StringVar(&m.secretKey, "secret-key", "value", "with --credentials=kubeconfigs: key of the Secret")
	flags.BoolVar(&m.guarded, "guarded-by-admission", false, "state that an admission policy (see config/admission*) lets nobody name a ServiceAccount that they may not act as, or a Secret that they may not read; required for cluster-scoped kinds and for --secret-namespace")
	flags.StringVar(&m.metricsAddress, "metrics-bind-address", "127.0.0.1:8080", "address that serves /metrics; 0 for none")
	flags.StringVar(&m.probeAddress, "health-probe-bind-address", "127.0.0.1:8081", "address that serves /healthz and /readyz; 0 for none")
	flags.BoolVar(&m.leaderElect, "leader-elect", false, "connect only while holding the lease latchkey-manager")
	flags.StringVar(&m.leaderElectionNamespace, "leader-election-namespace", "", "namespace of the lease; needed outside of a cluster")
	flags.StringVar(&m.userAgent, "user-agent", "latchkey", "how requests name this program to API servers")
	flags.DurationVar(&m.health.Interval, "probe-interval", 10*time.Second, "how long an API server may be silent before it is asked whether it is up")
	flags.DurationVar(&m.health.IdentityInterval, "identity-interval", 60*time.Second, "how long an identity may go without a request before it is asked who it is")
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
		options.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{NamespacePath: m.namespacePath, NamePath: m.namePath})
	case "impersonation":
		options.Credentials = credential.Impersonation(credential.ImpersonationOptions{NamespacePath: m.namespacePath, NamePath: m.namePath})
	case "kubeconfigs":
		secrets := credential.KubeconfigOptions{Namespace: m.secretNamespace, NamePath: m.secretPath, Key: m.secretKey}
		if m.guarded {
			secrets.Allow = credential.SecretsGuardedByAdmission
		}
		options.Credentials = credential.KubeconfigSecrets(secrets)
	default:
		return clustercache.Options{}, errors.Errorf("--credentials: %q is none of tokens, impersonation and kubeconfigs", m.credentials)
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
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&m.zap)))
	restConfig, err := config.GetConfigWithContext(m.context)
	if err != nil {
		return errors.Wrap(err, "finding a cluster (--kubeconfig, $KUBECONFIG, in-cluster, ~/.kube/config)")
	}
	options, err := m.options()
	if err != nil {
		return err
	}
	return m.run(ctx, restConfig, options)
}

func (m *managerFlags) run(ctx context.Context, restConfig *rest.Config, options clustercache.Options) error {
	mgr, err := ctrl.NewManager(restConfig, manager.Options{
		Metrics:                       metricsserver.Options{BindAddress: m.metricsAddress},
		HealthProbeBindAddress:        m.probeAddress,
		LeaderElection:                m.leaderElect,
		LeaderElectionID:              "latchkey-manager",
		LeaderElectionNamespace:       m.leaderElectionNamespace,
		LeaderElectionReleaseOnCancel: true, // main ends when this returns
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
	if _, err := clustercache.SetupWithManager(ctx, mgr, options, controller.Options{}); err != nil {
		if !m.guarded && strings.Contains(err.Error(), "Allow") {
			err = errors.WithMessage(err, "say --guarded-by-admission once a policy guards the extensions")
		}
		return err
	}
	return mgr.Start(ctx)
}
