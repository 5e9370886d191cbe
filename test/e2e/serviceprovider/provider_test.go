package serviceprovider

import (
	"context"
	"crypto/sha3"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/healthprobe"
	sp "github.com/latchkey-dev/latchkey/serviceprovider"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// domainNamespace is where the tests' services are, on the remote cluster.
const domainNamespace = "mailboxes"

// everything is access to ConfigMaps in domainNamespace.
func everything() sp.Access {
	return sp.Access{Permissions: []clustersv1alpha1.PermissionsRequest{{
		Namespace: domainNamespace,
		Rules:     []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}}},
	}}}
}

// service is the author's part of a provider under test. The zero value keeps a ConfigMap per
// object.
type service[T sp.API] struct {
	createOrUpdate func(context.Context, T, *v1alpha1.ProviderConfig, sp.ClusterContext) (ctrl.Result, error)
	delete         func(context.Context, T, *v1alpha1.ProviderConfig, sp.ClusterContext) (ctrl.Result, error)

	mu    sync.Mutex
	calls []string // guarded by mu
}

func (s *service[T]) record(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

// count returns how often a method was called for an object.
func (s *service[T]) count(method string, obj client.Object) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.calls {
		if call == method+" "+obj.GetName() {
			n++
		}
	}
	return n
}

func (s *service[T]) CreateOrUpdate(ctx context.Context, obj T, config *v1alpha1.ProviderConfig,
	clusters sp.ClusterContext) (ctrl.Result, error) {
	s.record("createOrUpdate " + obj.GetName())
	if s.createOrUpdate != nil {
		return s.createOrUpdate(ctx, obj, config, clusters)
	}
	return keep(ctx, obj, config, clusters.MCPCluster)
}

func (s *service[T]) Delete(ctx context.Context, obj T, config *v1alpha1.ProviderConfig,
	clusters sp.ClusterContext) (ctrl.Result, error) {
	s.record("delete " + obj.GetName())
	if s.delete != nil {
		return s.delete(ctx, obj, config, clusters)
	}
	return ctrl.Result{}, client.IgnoreNotFound(clusters.MCPCluster.Client().Delete(ctx, content(obj.GetName())))
}

// keep makes the ConfigMap of an object, and says that it is ready.
func keep(ctx context.Context, obj sp.API, config *v1alpha1.ProviderConfig, c *sp.Cluster) (ctrl.Result, error) {
	err := c.Client().Apply(ctx, corev1apply.ConfigMap(obj.GetName(), domainNamespace).
		WithData(map[string]string{"domain": config.Spec.Domain}), client.FieldOwner("provider"), client.ForceOwnership)
	if err == nil {
		sp.StatusReady(obj)
	}
	return ctrl.Result{}, err
}

func content(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: domainNamespace, Name: name}}
}

// options of a provider under test.
type options struct {
	access                sp.AccessOptions             // MCP defaults to everything
	config                *v1alpha1.ProviderConfigSpec // nil for none; written before the provider starts
	wrap                  func(sp.ClusterAccessProvider) sp.ClusterAccessProvider
	secretNamespace       string
	isReferenced          func(*corev1.Secret, *v1alpha1.ProviderConfig) bool // nil without a secretNamespace
	configMapNamespace    string
	isReferencedConfigMap func(*corev1.ConfigMap, *v1alpha1.ProviderConfig) bool // nil without a configMapNamespace
	checkNames            bool                                                   // names must be unique in the process
}

// process is a running provider.
type process struct {
	name     string
	access   sp.ClusterAccessProvider
	mgr      manager.Manager // on the onboarding cluster
	platform cluster.Cluster
	stop     func()
	before   []goleak.Option
}

// watchingService is a service that also depends on Secrets or ConfigMaps.
type watchingService[T sp.API] struct {
	*service[T]
	isReferenced          func(*corev1.Secret, *v1alpha1.ProviderConfig) bool
	isReferencedConfigMap func(*corev1.ConfigMap, *v1alpha1.ProviderConfig) bool
}

func (s *watchingService[T]) IsReferencedSecret(_ context.Context, secret *corev1.Secret,
	config *v1alpha1.ProviderConfig) bool {
	return s.isReferenced(secret, config)
}

func (s *watchingService[T]) IsReferencedConfigMap(_ context.Context, configMap *corev1.ConfigMap,
	config *v1alpha1.ProviderConfig) bool {
	return s.isReferencedConfigMap(configMap, config)
}

// providers counts the providers of this run, so that each has a name of its own.
var providers int

// newName returns a name for a provider, with its users and permissions.
func newName(t *testing.T) string {
	t.Helper()
	providers++
	name := fmt.Sprintf("provider%d", providers)
	g := NewWithT(t)
	for _, role := range []string{"mailbox-provider-onboarding", "calendar-provider"} {
		g.Expect(grantUser(t.Context(), onboarding, role, name)).To(Succeed())
	}
	g.Expect(grantUser(t.Context(), platform, "mailbox-provider-platform", name)).To(Succeed())
	return name
}

// defaultConfig is the config of providers whose test does not care.
var defaultConfig = v1alpha1.ProviderConfigSpec{Domain: "example.com"}

// start starts a provider of Mailboxes with a new name and a config.
func start(t *testing.T, s *service[*v1alpha1.Mailbox], more ...func(*options)) *process {
	t.Helper()
	return startAs(t, newName(t), s, more...)
}

// startAs starts a provider of Mailboxes, also a second time under the same name.
func startAs(t *testing.T, name string, s *service[*v1alpha1.Mailbox], more ...func(*options)) *process {
	t.Helper()
	return startOf(t, name, func() *v1alpha1.Mailbox { return &v1alpha1.Mailbox{} }, s, more...)
}

// startOf starts a provider of any kind, in a process of its own.
func startOf[T sp.API](t *testing.T, name string, empty func() T, s *service[T], more ...func(*options)) *process {
	t.Helper()
	p := newProcess(t, name)
	add(t, p, name, empty, s, more...)
	p.run(t)
	return p
}

// newProcess returns a process with that user, which does nothing yet.
func newProcess(t *testing.T, name string) *process {
	t.Helper()
	g := NewWithT(t)
	p := &process{name: name, before: testenv.NewGoroutines()}
	onboardingConfig, err := onboarding.cp.UserConfig(name)
	g.Expect(err).NotTo(HaveOccurred())
	platformConfig, err := platform.cp.UserConfig(name)
	g.Expect(err).NotTo(HaveOccurred())
	onboardingConfig.QPS, platformConfig.QPS = -1, -1 // no test waits for a rate limit
	p.mgr, err = ctrl.NewManager(onboardingConfig, manager.Options{
		Scheme:  newScheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	g.Expect(err).NotTo(HaveOccurred())
	p.platform, err = cluster.New(platformConfig, func(o *cluster.Options) { o.Scheme = newScheme() })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.mgr.Add(p.platform)).To(Succeed())
	return p
}

// add adds a provider to a process.
func add[T sp.API](t *testing.T, p *process, name string, empty func() T, s *service[T], more ...func(*options)) {
	t.Helper()
	g := NewWithT(t)
	config := defaultConfig
	o := options{config: &config}
	for _, f := range more {
		f(&o)
	}
	if o.config != nil {
		setConfig(t, name, *o.config)
	}
	if len(o.access.MCP.Permissions)+len(o.access.MCP.RoleRefs) == 0 {
		o.access.MCP = everything()
	}
	unnamed := controller.Options{SkipNameValidation: new(!o.checkNames)}
	o.access.ControllerOptions = unnamed
	if o.access.RetryInterval == 0 {
		o.access.RetryInterval = time.Hour // events must do
	}
	o.access.Connections.HealthProbe = healthprobe.Options{
		Interval:         time.Second,
		IdentityInterval: 2 * time.Second,
		Timeout:          time.Second,
		FailureThreshold: 2,
	}
	o.access.Connections.ConnectBackoff = wait.Backoff{
		Duration: time.Second,
		Factor:   1.5,
		Jitter:   0.2,
		Steps:    5,
		Cap:      5 * time.Second,
	}
	var err error
	p.access, err = sp.NewClusterAccess(p.mgr, p.platform, name, o.access)
	g.Expect(err).NotTo(HaveOccurred())
	access := p.access
	if o.wrap != nil {
		access = o.wrap(access)
	}
	updates := make(chan event.GenericEvent)
	g.Expect(sp.NewConfigReconcilerBuilder[*v1alpha1.ProviderConfig]().
		EmptyObjectProvider(func() *v1alpha1.ProviderConfig { return &v1alpha1.ProviderConfig{} }).
		PlatformCluster(p.platform).ProviderName(name).UpdateChannel(updates).ControllerOptions(unnamed).
		MustBuild().SetupWithManager(p.mgr)).To(Succeed())
	var reconciler sp.Reconciler[T, *v1alpha1.ProviderConfig] = s
	if o.isReferenced != nil || o.isReferencedConfigMap != nil {
		reconciler = &watchingService[T]{
			service:               s,
			isReferenced:          o.isReferenced,
			isReferencedConfigMap: o.isReferencedConfigMap,
		}
	}
	g.Expect(sp.NewAPIReconcilerBuilder[T, *v1alpha1.ProviderConfig]().
		EmptyObjectProvider(empty).OnboardingCluster(p.mgr).PlatformCluster(p.platform).
		ClusterAccessReconciler(access).WorkloadCluster(!isZero(o.access.Workload)).SecretNamespace(o.secretNamespace).
		ConfigMapNamespace(o.configMapNamespace).Reconciler(reconciler).ControllerOptions(unnamed).
		MustBuild().SetupWithManager(p.mgr, name, updates)).To(Succeed())
}

func isZero(a sp.Access) bool { return len(a.Permissions)+len(a.RoleRefs) == 0 }

// run starts the process. The end of the test stops it, if the test has not.
func (p *process) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.mgr.Start(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the manager ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the manager did not end")
		}
	})
	endOf(t).processes = append(endOf(t).processes, p)
}

// ending is what to clean up at the end of a test.
type ending struct {
	objects   []client.Object
	processes []*process
}

var endings = map[*testing.T]*ending{}

// endOf returns what to clean up at the end of a test: first the objects, whose deletion needs a
// process, then the processes, which must leave nothing behind.
func endOf(t *testing.T) *ending {
	t.Helper()
	if e, ok := endings[t]; ok {
		return e
	}
	e := &ending{}
	endings[t] = e
	t.Cleanup(func() {
		delete(endings, t)
		g := NewGomega(func(message string, _ ...int) { t.Error(message) }) // and go on
		ctx := context.Background()
		for _, object := range e.objects {
			g.Expect(client.IgnoreNotFound(onboarding.Delete(ctx, object))).To(Succeed())
		}
		for _, object := range e.objects {
			g.Eventually(func() error {
				return onboarding.Get(ctx, client.ObjectKeyFromObject(object), object)
			}).WithTimeout(patience).Should(MatchError(apierrors.IsNotFound, "gone"), "the object's deletion ends")
		}
		for _, p := range e.processes {
			p.stop()
		}
		g.Eventually(e.leaks).WithTimeout(patience).Should(Succeed(), "the providers left goroutines behind")
	})
	return e
}

// leaks returns an error that lists the goroutines that started after the first process.
func (e *ending) leaks() error {
	if len(e.processes) == 0 {
		return nil
	}
	clients := []*http.Client{onboarding.http, platform.http, remote.http}
	for _, p := range e.processes {
		clients = append(clients, p.mgr.GetHTTPClient(), p.platform.GetHTTPClient())
	}
	for _, c := range clients {
		utilnet.CloseIdleConnectionsFor(c.Transport)
	}
	actor.CloseIdleConnections()
	return goleak.Find(e.processes[0].before...)
}

// setConfig creates or replaces the config of a provider.
func setConfig(t *testing.T, name string, spec v1alpha1.ProviderConfigSpec) {
	t.Helper()
	config := &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := controllerutil.CreateOrUpdate(t.Context(), platform, config, func() error {
		config.Spec = spec
		return nil
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// order creates a Mailbox and the tenant's control plane of the same name. The end of the test
// deletes both.
func order(t *testing.T, name string) *v1alpha1.Mailbox {
	t.Helper()
	mailbox := &v1alpha1.Mailbox{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	orderObject(t, mailbox)
	return mailbox
}

// orderObject is order for any kind.
func orderObject(t *testing.T, object client.Object) {
	t.Helper()
	controlPlane(t, object)
	NewWithT(t).Expect(onboarding.Create(t.Context(), object)).To(Succeed())
	endOf(t).objects = append(endOf(t).objects, object)
}

// controlPlane creates the ClusterRequest of a tenant's control plane.
func controlPlane(t *testing.T, object client.Object) {
	t.Helper()
	namespace := tenantNamespace(object)
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&clustersv1alpha1.ClusterRequest{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: object.GetName()},
			Spec:       clustersv1alpha1.ClusterRequestSpec{Purpose: "mcp"},
		},
	} {
		NewWithT(t).Expect(client.IgnoreAlreadyExists(platform.Create(t.Context(), o))).To(Succeed())
	}
}

// tenantNamespace returns the namespace of an object's requests, as openMCP documents it.
func tenantNamespace(object client.Object) string {
	sum := sha3.SumSHAKE128([]byte(object.GetNamespace()+"/"+object.GetName()), 16)
	digits := []byte(fmt.Sprintf("%032x", sum))
	digits[12] = '8'
	digits[16] = "89ab"[sum[8]>>4&3]
	d := string(digits)
	return "mcp--" + strings.Join([]string{d[:8], d[8:12], d[12:16], d[16:20], d[20:]}, "-")
}

// settled returns how often a method was called for an object, once that does not change any more:
// the events of a connect may follow its first use.
func (s *service[T]) settled(t *testing.T, method string, obj client.Object) int {
	t.Helper()
	last, since := s.count(method, obj), time.Now()
	eventually(t, func() bool {
		if now := s.count(method, obj); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 300*time.Millisecond
	}).Should(BeTrue())
	return last
}

// barrier returns after the provider has handled what happened before, and more: another order.
func barrier(t *testing.T, name string) {
	t.Helper()
	isReady(t, order(t, name+"-barrier"))
}

// status returns phase, reason and message of an object.
func status(object *v1alpha1.Mailbox) func() string {
	return func() string {
		found := &v1alpha1.Mailbox{}
		if err := onboarding.Get(context.Background(), client.ObjectKeyFromObject(object), found); err != nil {
			return string(apierrors.ReasonForError(err))
		}
		ready := meta.FindStatusCondition(found.Status.Conditions, sp.ServiceProviderConditionReady)
		if ready == nil {
			return found.Status.Phase
		}
		return found.Status.Phase + " " + ready.Reason + ": " + ready.Message
	}
}

func eventually(t *testing.T, actual any) AsyncAssertion {
	t.Helper()
	return NewWithT(t).Eventually(actual).WithTimeout(patience).WithPolling(20 * time.Millisecond)
}

// isReady waits until an object is ready.
func isReady(t *testing.T, object *v1alpha1.Mailbox) {
	t.Helper()
	eventually(t, status(object)).Should(HavePrefix("Ready Ready"))
}

// accessRequest returns the AccessRequest of a provider for an object.
func (p *process) accessRequest(t *testing.T, object client.Object, suffix string) *clustersv1alpha1.AccessRequest {
	t.Helper()
	found := &clustersv1alpha1.AccessRequest{}
	key := client.ObjectKey{Namespace: tenantNamespace(object), Name: p.name + "--" + object.GetName() + "--" + suffix}
	eventually(t, func() error { return platform.Get(t.Context(), key, found) }).Should(Succeed())
	return found
}

// mcp returns the tenant's control plane as the provider sees it.
func (p *process) mcp(t *testing.T, object client.Object) *sp.Cluster {
	t.Helper()
	c, err := p.access.MCPCluster(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

// edit changes an object of a cluster.
func edit[T client.Object](t *testing.T, p place, object T, change func(T)) {
	t.Helper()
	eventually(t, func() error {
		if err := p.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change(object)
		return p.Update(t.Context(), object)
	}).Should(Succeed())
}

// annotate sets an annotation of an object, or removes it if the value is empty.
func annotate(t *testing.T, object *v1alpha1.Mailbox, key, value string) {
	t.Helper()
	edit(t, onboarding, object, func(m *v1alpha1.Mailbox) {
		annotations := m.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		if annotations[key] = value; value == "" {
			delete(annotations, key)
		}
		m.SetAnnotations(annotations)
	})
}
