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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// managerFlags are the flags of "latchkey manager".
type managerFlags struct {
	context                 string
	kind                    string
	credentials             string
	namespacePath, namePath string
	secretNamespace         string
	secretPath, secretKey   string
	guarded                 bool
	onlyLooks               bool // the command changes nothing on behalf of an extension
	serviceAccounts         namespaceList
	metrics                 metricsFlags
	probeAddress            string
	leaderElect             bool
	leaderElectionNamespace string
	sharing                 sharingFlags
	leaderElectionID        string
	userAgent               string
	health                  healthprobe.Options
	recordPermissions       bool
	mute                    string
	state                   stateFlags
	status                  statusFlags
	zap                     zap.Options
}

func (m *managerFlags) bind(flags *flag.FlagSet) {
	config.RegisterFlags(flags) // --kubeconfig
	flags.StringVar(&m.context, "context", "", "context of the kubeconfig to use")
	flags.StringVar(&m.kind, "kind", "ClusterExtension.v1alpha1.latchkey.dev",
		"kind of the extensions, as Kind.version.group; core kinds end in a dot, for example ConfigMap.v1.")
	flags.StringVar(&m.credentials, "credentials", "tokens",
		"how connections authenticate: tokens (of the ServiceAccount that the extension names), impersonation (of that "+
			"ServiceAccount), kubeconfigs (in a Secret)")
	flags.StringVar(&m.namespacePath, "namespace-path", "",
		"dotted path of the field with the ServiceAccount's namespace; empty means spec.namespace for cluster-scoped "+
			"kinds and metadata.namespace for namespaced ones (required for namespaced kinds that have spec.namespace)")
	flags.StringVar(&m.namePath, "service-account-path", "spec.serviceAccount.name",
		"dotted path of the field with the ServiceAccount's name")
	flags.Var(&m.serviceAccounts, "service-account-namespaces",
		"comma-separated namespaces in which this program may read ServiceAccounts; extensions that name another "+
			"namespace are not connected. Empty means all namespaces, which needs a ClusterRole")
	flags.StringVar(&m.secretNamespace, "secret-namespace", "",
		"with --credentials=kubeconfigs: namespace of the Secrets; empty means the extension's namespace")
	flags.StringVar(&m.secretPath, "secret-name-path", "",
		"with --credentials=kubeconfigs: dotted path of the field with the Secret's name; empty means the "+
			"extension's name with the suffix -kubeconfig")
	flags.StringVar(&m.secretKey, "secret-key", "value",
		"with --credentials=kubeconfigs: key of the kubeconfig in the Secret")
	flags.BoolVar(&m.guarded, "guarded-by-admission", false,
		"declare that an admission policy (see config/admission*) lets users name only ServiceAccounts that they may "+
			"impersonate, or Secrets that they may read; the manager requires it for cluster-scoped kinds and for "+
			"--secret-namespace")
	flags.StringVar(&m.userAgent, "user-agent", "latchkey", "name of this program in the User-Agent of its requests")
	flags.DurationVar(&m.health.Interval, "probe-interval", 10*time.Second,
		"how long an API server may be silent before a probe checks it")
	flags.DurationVar(&m.health.IdentityInterval, "identity-interval", 60*time.Second,
		"how long an identity may go without a successful request before a probe checks it")
	flags.DurationVar(&m.health.Timeout, "probe-timeout", 5*time.Second, "timeout of a probe")
	flags.IntVar(&m.health.FailureThreshold, "probe-failures", 5,
		"how many consecutive probes must fail before latchkey disconnects")
}

// bindServing binds the flags of a program that stays.
func (m *managerFlags) bindServing(flags *flag.FlagSet) {
	m.metrics.bind(flags)
	flags.StringVar(&m.probeAddress, "health-probe-bind-address", "127.0.0.1:8081",
		"address that serves /healthz and /readyz; 0 disables it")
	flags.BoolVar(&m.leaderElect, "leader-elect", false, "connect only while holding the lease --leader-election-id; "+
		"after the lease has ended, no request is sent as a tenant")
	flags.StringVar(&m.leaderElectionID, "leader-election-id", "latchkey-manager",
		"name of the lease; with --buckets and --ring, all replicas hold it together, so that none leads, and the names "+
			"of the buckets' leases begin with it")
	flags.StringVar(&m.leaderElectionNamespace, "leader-election-namespace", "",
		"namespace of the leases; required outside of a cluster")
	flags.StringVar(&m.mute, "mute", "", "reasons for which extensions do not count as degraded, with commas between: "+
		"CredentialNotUsed, ScopesForbidden, RequestsRefused or KindsNotServed")
	flags.BoolVar(&m.recordPermissions, "record-permissions", false, "keep a record of what each identity used and was "+
		"refused, up to 4 KiB each, for \"kubectl latchkey role\"; those who may read states see it")
	m.sharing.bind(flags)
	m.state.bind(flags)
	m.status.bind(flags)
	m.zap.BindFlags(flags)
}

// options converts the flags to the options of SetupWithManager. The error names the flag with the
// invalid value.
func (m *managerFlags) options() (clustercache.Options, error) {
	gvk, _ := schema.ParseKindArg(m.kind)
	if gvk == nil {
		return clustercache.Options{}, errors.Errorf("--kind: %q is not of the form Kind.version.group", m.kind)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(*gvk)
	options := clustercache.Options{
		Object:      object,
		Metrics:     clustercache.MetricsOptions{PerExtension: m.metrics.perExtension},
		Client:      clustercache.ClientOptions{UserAgent: m.userAgent},
		HealthProbe: m.health,
		Permissions: clustercache.PermissionOptions{Record: m.recordPermissions},
		Problems:    clustercache.ProblemOptions{Mute: mutedReasons(m.mute)},
		Cache:       clustercache.CacheOptions{WatchRBAC: true}, // no error without the permission
	}
	switch m.credentials {
	case "tokens":
		options.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			NamespacePath: m.namespacePath,
			NamePath:      m.namePath,
		})
	case "impersonation":
		options.Credentials = credential.Impersonation(credential.ImpersonationOptions{
			NamespacePath: m.namespacePath,
			NamePath:      m.namePath,
		})
	case "kubeconfigs":
		secrets := credential.KubeconfigOptions{Namespace: m.secretNamespace, NamePath: m.secretPath, Key: m.secretKey}
		if m.guarded || m.onlyLooks && m.secretNamespace != "" {
			secrets.Allow = credential.SecretsGuardedByAdmission
		}
		options.Credentials = credential.KubeconfigSecrets(secrets)
	default:
		return clustercache.Options{},
			errors.Errorf("--credentials: unknown value %q; use tokens, impersonation or kubeconfigs", m.credentials)
	}
	switch {
	case m.credentials == "kubeconfigs":
	case m.guarded:
		options.AllowIdentity = clustercache.GuardedByAdmission
	case m.onlyLooks:
		options.AllowIdentity = asTheManager
	}
	return options, nil
}

// asTheManager is the AllowIdentity of commands that only look. Cluster-scoped extensions may name
// any ServiceAccount, as with a manager that starts at all, because a policy must guard them there.
// Others may name one of their own namespace, which is the manager's default.
func asTheManager(_ context.Context, object client.Object, serviceAccount types.NamespacedName) error {
	if object.GetNamespace() == "" || object.GetNamespace() == serviceAccount.Namespace {
		return nil
	}
	return errors.Errorf("the extension may only name a ServiceAccount of its own namespace %q, not %s, without "+
		"--guarded-by-admission", object.GetNamespace(), serviceAccount)
}

// parse parses the flags. The config is nil if the command is to end: with the error, or without
// one after -h.
func (m *managerFlags) parse(flags *flag.FlagSet, args []string) (*rest.Config, clustercache.Options, error) {
	none := clustercache.Options{}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, none, nil
		}
		os.Exit(2) // the FlagSet has printed the error
	}
	if flags.NArg() > 0 {
		return nil, none, errors.Errorf("%s takes no arguments, but got %q", flags.Name(), flags.Args())
	}
	if strings.ContainsFunc(m.userAgent, unicode.IsControl) {
		return nil, none, errors.Errorf("--user-agent %q must be one line without control characters", m.userAgent)
	}
	restConfig, err := config.GetConfigWithContext(m.context)
	if err != nil {
		return nil, none, errors.Wrap(err, "finding a cluster (--kubeconfig, $KUBECONFIG, in-cluster, ~/.kube/config)")
	}
	options, err := m.options()
	if err != nil {
		return nil, none, err
	}
	return restConfig, options, nil
}

func runManager(ctx context.Context, args []string) error {
	var m managerFlags
	flags := flag.NewFlagSet("latchkey manager", flag.ContinueOnError)
	m.bind(flags)
	m.bindServing(flags)
	restConfig, options, err := m.parse(flags, args)
	if restConfig == nil {
		return err
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&m.zap)))
	klog.SetLogger(ctrl.Log) // of the libraries
	if err := m.validateSharing(); err != nil {
		return err
	}
	return endsWithin(ctx, m.shutdownTimeout(), func(ctx context.Context) error {
		return m.run(ctx, restConfig, options)
	})
}

// endsWithin calls run and returns its error, or an error once run has not returned for patience
// after the end of ctx. run then goes on: a call without a context, such as discovery, waits for an
// API server that hangs.
func endsWithin(ctx context.Context, patience time.Duration, run func(context.Context) error) error {
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		return errors.Errorf("shutdown did not complete within %s of the signal; exiting anyway", patience)
	}
}

const (
	// gracefulShutdown is how long the manager waits until its controllers return.
	gracefulShutdown = 5 * time.Second
	// stateHandOver is how long one view of all replicas is served until another replica serves it.
	stateHandOver = 8 * time.Second
	// shutdownTimeout is how long the shutdown may take, without the time to hand buckets over.
	shutdownTimeout = 9 * time.Second
	// permissionInterval is how often the cache reviews this program's own read permissions.
	permissionInterval = 10 * time.Second
)

// inCluster reports whether this program runs in a Pod with a ServiceAccount, and so in a namespace
// of the cluster.
func inCluster() bool {
	_, err := os.Stat(namespaceFile)
	return err == nil
}

// mayRead returns a readiness check for the kind of object. The check fails while the cache cannot
// read the kind, and its error names the missing permission or definition.
func mayRead(mgr manager.Manager, object client.Object) healthz.Checker {
	check := scopedcache.ReadyCheck(mgr.GetCache(), mgr.GetScheme(), object)
	return func(req *http.Request) error {
		err := check(req)
		if apierrors.IsForbidden(err) {
			return errors.WithMessage(err, grantTo(mgr, object))
		}
		return err
	}
}

// grantTo returns how this program is granted to read the kind of object, and nothing else.
func grantTo(mgr manager.Manager, object client.Object) string {
	how := "grant this program list and watch on it"
	if gvk, err := apiutil.GVKForObject(object, mgr.GetScheme()); err == nil {
		if mapping, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); err == nil {
			how += ", by a rule " + identity.Rule(mapping.Resource.GroupResource(), nil, "list", "watch")
		}
		if gvk.Group == "" && gvk.Kind == "ServiceAccount" {
			how = "with the chart, list the namespace in tenants and upgrade; else " + how
		}
	}
	return how
}

func (m *managerFlags) run(ctx context.Context, restConfig *rest.Config, options clustercache.Options) error {
	metrics, err := m.metrics.options()
	if err != nil {
		return err
	}
	if err := m.status.validate(); err != nil {
		return err
	}
	managerOptions := manager.Options{
		Metrics:                 metrics,
		HealthProbeBindAddress:  "0", // serveProbes listens, after all options were checked
		GracefulShutdownTimeout: new(m.gracefulShutdown()),
		// Without a permission the manager stays up and logs the missing permission. Once the
		// permission is granted, the manager continues.
		NewCache: scopedcache.NewWithOptions(scopedcache.Options{AccessReviewInterval: permissionInterval}),
		Cache:    cache.Options{ByObject: m.serviceAccounts.byObject()},
	}
	fenced, endElection, err := m.elect(restConfig, &managerOptions)
	if err != nil {
		return err
	}
	defer endElection()
	if fenced != nil {
		options.Ownership = ownership.Leader(fenced)
	}
	managerCtx, err := m.share(ctx, restConfig, &managerOptions, &options)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(restConfig, managerOptions)
	if err != nil {
		return errors.Wrap(err, "creating the manager")
	}
	ready := map[string]healthz.Checker{"ping": healthz.Ping}
	read := []client.Object{options.Object}
	if m.credentials != "kubeconfigs" {
		read = append(read, serviceAccountMetadata())
	}
	for _, object := range read {
		kind := object.GetObjectKind().GroupVersionKind().GroupKind()
		// The name of the check describes the permission, because the answer to /readyz withholds
		// the check's error. The answer to /readyz/<name> contains the error.
		ready["may-list-and-watch-"+kind.String()] = mayRead(mgr, object)
	}
	connections, err := m.setUp(ctx, mgr, options)
	if err != nil {
		return err
	}
	api, err := m.setUpStateAPI(mgr, connections, options.Object.GetObjectKind().GroupVersionKind())
	if err != nil {
		return err
	}
	if err := m.status.setUp(ctx, mgr, connections, api); err != nil {
		return err
	}
	if err := m.serveProbes(ctx, mgr, ready); err != nil {
		return err
	}
	return mgr.Start(managerCtx)
}

// setUp adds a ClusterCache to the manager. Its errors name the flag to change.
func (m *managerFlags) setUp(ctx context.Context, mgr manager.Manager,
	options clustercache.Options) (clustercache.ClusterCache, error) {
	connections, err := clustercache.SetupWithManager(ctx, mgr, options, controller.Options{})
	if err != nil {
		switch text := err.Error(); {
		case !m.guarded && strings.Contains(text, "Allow"):
			return nil, errors.WithMessage(err, "set --guarded-by-admission once an admission policy guards the extensions")
		case strings.Contains(text, "OLMClusterExtension"):
			return nil, errors.WithMessage(err,
				"set --kind=ClusterExtension.v1.olm.operatorframework.io for Operator Lifecycle Manager's kind")
		case strings.Contains(text, "NamespacePath"):
			return nil, errors.WithMessage(err, "--namespace-path")
		case strings.Contains(text, "NamePath"):
			return nil, errors.WithMessage(err, "--service-account-path (or --secret-name-path)")
		}
		return nil, err
	}
	return connections, nil
}

// mutedReasons returns the reasons in the value of --mute. SetupWithManager checks them.
func mutedReasons(value string) (reasons []clustercache.ProblemReason) {
	for _, reason := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		reasons = append(reasons, clustercache.ProblemReason(reason))
	}
	return reasons
}
