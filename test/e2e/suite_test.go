package e2e

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"os"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

const (
	// operatorUser is the user name of host operators at the API server.
	operatorUser = "host-operator"
	// adminUser is the user name of the tests themselves.
	adminUser = "admin"
	// userAgent is the first part of the User-Agent of connections; the extension's key follows.
	userAgent = "latchkey-e2e"
	patience  = testenv.Patience
)

var (
	env       testenv.Env
	cp        *controlplane.ControlPlane
	admin     client.Client
	adminHTTP *http.Client
)

func TestMain(m *testing.M) {
	verbose := flag.Bool("operator-log", false, "print the logs of the host operators")
	flag.Parse()
	log := logr.New(&tap{funcr.New(captured.write, funcr.Options{Verbosity: 10}).GetSink()})
	if *verbose {
		log = zap.New(zap.UseDevMode(true))
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	os.Exit(testenv.Run(m, controlplane.Options{ControllerManager: true}, &env, prepare))
}

func prepare(ctx context.Context) error {
	cp, admin, adminHTTP = env.ControlPlane, env.Admin, env.AdminHTTP
	if _, err := cp.KubectlInput(ctx, config.Manifests(config.CRD, config.RBAC), "apply", "-f", "-"); err != nil {
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

// quick returns options with short times, so that tests do not wait for the defaults' tens of
// seconds.
func quick(options clustercache.Options) clustercache.Options {
	if options.Client.UserAgent == "" {
		options.Client.UserAgent = userAgent
	}
	if options.HealthProbe == (healthprobe.Options{}) {
		options.HealthProbe = healthprobe.Options{
			Interval:         time.Second,
			IdentityInterval: 5 * time.Second,
			Timeout:          2 * time.Second,
			FailureThreshold: 2,
		}
	}
	if options.ConnectBackoff == (wait.Backoff{}) {
		options.ConnectBackoff = wait.Backoff{
			Duration: time.Second,
			Factor:   1.5,
			Jitter:   0.2,
			Steps:    5,
			Cap:      5 * time.Second,
		}
	}
	return options
}

// operator is a host operator under test.
type operator struct {
	clustercache.ClusterCache
	mgr     manager.Manager
	stop    context.CancelFunc
	ended   chan error
	before  []goleak.Option
	filters int      // number of watch.Filter goroutines before
	also    []func() // each closes connections that are not the operator's
}

// newOperator creates a host operator that is not started. The tests themselves control which
// ServiceAccounts extensions name, so the default of AllowIdentity is GuardedByAdmission.
func newOperator(t testing.TB, options clustercache.Options, more ...func(*operator, *clustercache.Options)) *operator {
	t.Helper()
	if options.AllowIdentity == nil && options.Credentials == nil {
		options.AllowIdentity = clustercache.GuardedByAdmission
	}
	return newOperatorWithoutGuard(t, options, more...)
}

// newOperatorWithoutGuard is newOperator without a default for AllowIdentity. The functions in more
// receive the operator after its manager is created, and before its ClusterCache is set up.
func newOperatorWithoutGuard(t testing.TB, options clustercache.Options,
	more ...func(*operator, *clustercache.Options)) *operator {
	t.Helper()
	restConfig, err := cp.UserConfig(operatorUser)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return newOperatorAt(t, restConfig, options, more...)
}

// newOperatorAt creates a host operator whose manager uses restConfig.
func newOperatorAt(t testing.TB, restConfig *rest.Config, options clustercache.Options,
	more ...func(*operator, *clustercache.Options)) *operator {
	t.Helper()
	return newOperatorWith(t, restConfig, manager.Options{}, options, more...)
}

// newOperatorWith creates a host operator whose manager uses restConfig and managerOptions.
func newOperatorWith(t testing.TB, restConfig *rest.Config, managerOptions manager.Options,
	options clustercache.Options, more ...func(*operator, *clustercache.Options)) *operator {
	t.Helper()
	g := NewWithT(t)
	o := &operator{before: leaks(), filters: count(watchFilter)}
	var err error
	managerOptions.Metrics, managerOptions.LeaderElectionID = metricsserver.Options{BindAddress: "0"}, "none"
	o.mgr, err = ctrl.NewManager(restConfig, managerOptions)
	g.Expect(err).NotTo(HaveOccurred())
	for _, f := range more {
		f(o, &options)
	}
	o.ClusterCache, err = clustercache.SetupWithManager(t.Context(), o.mgr, quick(options), unnamed())
	g.Expect(err).NotTo(HaveOccurred())
	return o
}

// leaks returns the options that find the goroutines that start from now on.
func leaks() []goleak.Option {
	return testenv.NewGoroutines(goleak.IgnoreTopFunction(watchFilter))
}

// unnamed returns options that allow several controllers of one name, one after the other, in a
// process.
func unnamed() controller.Options {
	skip := true
	return controller.Options{SkipNameValidation: &skip}
}

// start starts the manager. The end of the test stops the manager, which must leave nothing behind.
func (o *operator) start(t testing.TB) *operator {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o.stop, o.ended = cancel, make(chan error, 1)
	go func() { o.ended <- o.mgr.Start(ctx) }()
	t.Cleanup(func() { o.end(t) })
	return o
}

// end stops the manager, once, and checks for leaks.
func (o *operator) end(t testing.TB) {
	t.Helper()
	if o.stop == nil {
		return
	}
	o.stopManager(t)
	o.leftNothing(t)
}

// stopManager stops the manager and waits until it has ended.
func (o *operator) stopManager(t testing.TB) {
	t.Helper()
	o.stop()
	o.stop = nil
	select {
	case err := <-o.ended:
		if err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the manager did not end")
	}
}

// leftNothing checks that an operator that has stopped leaves no goroutines behind.
func (o *operator) leftNothing(t testing.TB) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		// The operator does not close the manager's own connections, which live as long as the
		// process, nor those of the tests. A connection is not idle until its cancelled streams
		// have ended, so each attempt closes idle connections again.
		utilnet.CloseIdleConnectionsFor(o.mgr.GetHTTPClient().Transport)
		utilnet.CloseIdleConnectionsFor(adminHTTP.Transport)
		for _, f := range o.also {
			f()
		}
		return goleak.Find(o.before...)
	}).WithTimeout(patience).Should(Succeed(), "the host operator left goroutines behind")
	NewWithT(t).Eventually(func() int { return count(watchFilter) }).WithTimeout(patience).
		Should(BeNumerically("<=", o.filters+1),
			"watch.Filter goroutines: controller-runtime leaves one behind when it stops, for the manager's own watch of "+
				"ServiceAccounts; connections must leave none")
}

// watchFilter is the function of a goroutine that controller-runtime's metadata informers leave
// behind when they stop.
const watchFilter = "k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"

// count returns the number of goroutines that are in function.
func count(function string) int {
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2) // a write to a buffer does not fail
	return strings.Count(stacks.String(), "\n"+function+"(")
}

func startOperatorWithoutGuard(t *testing.T, options clustercache.Options) *operator {
	t.Helper()
	return newOperatorWithoutGuard(t, options).start(t)
}

func startOperator(t *testing.T, options clustercache.Options) *operator {
	t.Helper()
	return newOperator(t, options).start(t)
}

// state returns the connection state of the extension of that name.
func (o *operator) state(name string) clustercache.ConnectionState {
	state, _ := o.GetConnectionState(context.Background(), client.ObjectKey{Name: name})
	return state
}

// waitFor waits until the extension's state satisfies wanted, and returns the state.
func (o *operator) waitFor(t *testing.T, name string,
	wanted func(clustercache.ConnectionState) bool) clustercache.ConnectionState {
	t.Helper()
	var state clustercache.ConnectionState
	NewWithT(t).Eventually(func() clustercache.ConnectionState {
		state = o.state(name)
		return state
	}).WithTimeout(patience).WithPolling(10 * time.Millisecond).Should(Satisfy(wanted))
	return state
}

func (o *operator) waitConnected(t *testing.T, name string) clustercache.ConnectionState {
	t.Helper()
	return o.waitFor(t, name, func(s clustercache.ConnectionState) bool { return s.Phase == clustercache.PhaseConnected })
}

func (o *operator) waitReason(t *testing.T, name string, reason clustercache.Reason) clustercache.ConnectionState {
	t.Helper()
	return o.waitFor(t, name, func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseDisconnected && s.Reason == reason
	})
}

// namespace creates a namespace, and deletes it after the test.
func namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	create(t, ns)
	return ns.Name
}

// create creates an object, and deletes it after the test.
func create(t *testing.T, object client.Object) {
	t.Helper()
	NewWithT(t).Expect(admin.Create(t.Context(), object)).To(Succeed())
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(context.Background(), object)); err != nil {
			t.Errorf("deleting %T %s: %v", object, object.GetName(), err)
		}
	})
}

func serviceAccount(namespace, name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// extension returns an extension that names a ServiceAccount of the same name.
func extension(namespace, name string) *unstructured.Unstructured {
	e := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"namespace":      namespace,
		"serviceAccount": map[string]any{"name": name},
	}}}
	e.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	e.SetName(name)
	return e
}

// tenant creates an extension with a ServiceAccount of the same name. The ServiceAccount has every
// verb on core resources in its namespace.
func tenant(t *testing.T, namespace, name string) {
	t.Helper()
	create(t, serviceAccount(namespace, name))
	grant(t, namespace, name, everythingInCore)
	create(t, extension(namespace, name))
}

// everythingInCore allows every verb on core resources.
var everythingInCore = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"*"}, Verbs: []string{"*"}}

// grant grants a ServiceAccount permissions in its namespace.
func grant(t *testing.T, namespace, name string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	create(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: rules})
	create(t, roleBinding(namespace, name, rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: name}))
}

// roleBinding returns a RoleBinding to the Role of the same name.
func roleBinding(namespace, name string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   subjects,
	}
}

// grantTo grants a user or group every verb on core resources in a namespace.
func grantTo(t *testing.T, namespace, kind, name string) {
	t.Helper()
	role := strings.ReplaceAll(name, ":", "-")
	create(t,
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role},
			Rules:      []rbacv1.PolicyRule{everythingInCore},
		})
	create(t, roleBinding(namespace, role, rbacv1.Subject{Kind: kind, Name: name}))
}

// closeIdle closes the idle TCP connections of a client that was created from a config.
func closeIdle(c rest.Interface) {
	utilnet.CloseIdleConnectionsFor(c.(*rest.RESTClient).Client.Transport)
}

// token requests a token of a ServiceAccount, as the administrator.
func token(t *testing.T, namespace, name string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	NewWithT(t).Expect(admin.SubResource("token").Create(t.Context(), serviceAccount(namespace, name), request)).
		To(Succeed())
	return request.Status.Token
}

func uidOf(t *testing.T, namespace, name string) types.UID {
	t.Helper()
	sa := &corev1.ServiceAccount{}
	NewWithT(t).Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, sa)).To(Succeed())
	return sa.UID
}

func key(name string) client.ObjectKey { return client.ObjectKey{Name: name} }
