package serviceprovider

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/platformactor"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	sp "github.com/latchkey-dev/latchkey/serviceprovider"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// observe returns a CreateOrUpdate that sends the clusters that it gets.
func observe(contexts chan<- sp.ClusterContext) func(context.Context, *v1alpha1.Mailbox, *v1alpha1.ProviderConfig,
	sp.ClusterContext) (ctrl.Result, error) {
	return func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		contexts <- clusters
		return keep(ctx, m, c, clusters.MCPCluster)
	}
}

// watchAndKeep is the CreateOrUpdate of a service that repairs drift.
func watchAndKeep(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
	clusters sp.ClusterContext) (ctrl.Result, error) {
	if err := clusters.MCPCluster.Watch(ctx, &corev1.ConfigMap{}, nil,
		sp.InScope(clustercache.Scope{Namespace: domainNamespace})); err != nil {
		return ctrl.Result{}, err
	}
	return keep(ctx, m, c, clusters.MCPCluster)
}

// The provider acts as the ServiceAccount whose token is in the Secret, and may do what it may.
func TestRealToken(t *testing.T) {
	g := NewWithT(t)
	p := start(t, &service[*v1alpha1.Mailbox]{})
	m := order(t, "token")
	isReady(t, m)
	c := p.mcp(t, m)
	account := platformactor.ServiceAccountOf(p.accessRequest(t, m, "mcp"))
	username := "system:serviceaccount:" + account.Namespace + ":" + account.Name
	g.Expect(c.State(t.Context()).Identity.Username).To(Equal(username))
	g.Expect(c.UncachedClient().Get(t.Context(), client.ObjectKeyFromObject(content("token")), content(""))).To(Succeed())
	for name, err := range map[string]error{
		"get live": c.UncachedClient().Get(t.Context(), client.ObjectKey{Namespace: domainNamespace, Name: "x"},
			&corev1.Secret{}),
		"get cached": c.Client().Get(t.Context(), client.ObjectKey{Namespace: domainNamespace, Name: "x"},
			&corev1.Secret{}),
		"elsewhere":   c.Client().Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "x"}, &corev1.ConfigMap{}),
		"create":      c.Client().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}),
		"impersonate": impersonate(t, c),
	} {
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", name, err)
	}
	g.Expect(c.RESTConfig().BearerToken).To(BeEmpty(), "the config has no secret")
	g.Expect(sent(t, remote, username, "", "configmaps", "token")).NotTo(BeEmpty())
	for _, e := range sent(t, remote, username, "", "configmaps", "token") {
		g.Expect(e.UserAgent).To(HavePrefix(p.name))
	}
}

// impersonate tries to act as an administrator.
func impersonate(t *testing.T, c *sp.Cluster) error {
	t.Helper()
	config := c.RESTConfig()
	config.Impersonate.UserName, config.Impersonate.Groups = "admin", []string{"system:masters"}
	own, err := rest.HTTPClientFor(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(own.Transport) })
	admin, err := client.New(config, client.Options{HTTPClient: own})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return admin.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})
}

// The token in the Secret is replaced, and the one before is revoked: calls work, and no informer
// lists again.
func TestRotation(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{createOrUpdate: watchAndKeep}
	p := start(t, s)
	m := order(t, "rotation")
	isReady(t, m)
	c, request := p.mcp(t, m), p.accessRequest(t, m, "mcp")
	username := c.State(t.Context()).Identity.Username
	eventually(t, func() string { return string(scopeState(c)) }).Should(Equal("Synced"))
	lists := func() (n int) {
		for _, e := range sent(t, remote, username, "", "configmaps", "") {
			if e.Verb == "list" || e.Verb == "watch" && strings.Contains(e.RequestURI, "sendInitialEvents=true") {
				n++
			}
		}
		return n
	}
	before, epoch := lists(), c.State(t.Context()).Epoch
	g.Expect(before).To(BeNumerically(">", 0))

	old := &corev1.Secret{}
	key := client.ObjectKey{Namespace: request.Namespace, Name: request.Status.SecretRef.Name}
	g.Expect(platform.Get(t.Context(), key, old)).To(Succeed())
	g.Expect(actor.Rotate(t.Context(), request)).To(Succeed())
	g.Expect(actor.RevokeOldTokens(t.Context(), request)).To(Succeed())
	config, err := clientcmd.RESTConfigFromKubeConfig(old.Data[clustersv1alpha1.SecretKeyKubeconfig])
	g.Expect(err).NotTo(HaveOccurred())
	revoked, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	eventually(t, func() bool { // the API server caches tokens for 10 s
		return apierrors.IsUnauthorized(revoked.Get(t.Context(), client.ObjectKeyFromObject(content("rotation")),
			content("")))
	}).Should(BeTrue())

	g.Expect(c.UncachedClient().Get(t.Context(), client.ObjectKeyFromObject(content("rotation")), content(""))).
		To(Succeed())
	g.Expect(remote.Delete(t.Context(), content("rotation"))).To(Succeed())
	eventually(t, domain(t, m)).Should(Equal("example.com"), "the watch goes on")
	g.Expect(lists()).To(Equal(before), "no informer lists again")
	state := c.State(t.Context())
	g.Expect(state.Epoch).To(Equal(epoch))
	g.Expect(state.Phase).To(Equal(clustercache.PhaseConnected))
}

// scopeState returns the state of the only scope of a connection.
func scopeState(c *sp.Cluster) string {
	for _, scope := range c.State(context.Background()).Scopes {
		return string(scope.State)
	}
	return ""
}

// A hundred reconciles use one connection, discover once, and read nothing from the platform.
func TestHundredReconciles(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s, func(o *options) { o.config.PollInterval.Duration = time.Millisecond })
	m := order(t, "hundred")
	isReady(t, m)
	c := p.mcp(t, m)
	begin := len(sent(t, platform, p.name, "", "", ""))
	before := s.count("createOrUpdate", m)
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(BeNumerically(">=", before+100))
	state := c.State(t.Context())
	g.Expect(state.Epoch).To(Equal(int64(1)))
	discoveries := map[string]int{}
	for _, e := range sent(t, remote, state.Identity.Username, "", "", "") {
		if e.ObjectRef.Resource == "" {
			discoveries[e.RequestURI]++
		}
	}
	for uri, n := range discoveries {
		g.Expect(n).To(Equal(1), uri)
	}
	g.Expect(len(discoveries)).To(And(BeNumerically(">=", 1), BeNumerically("<=", 3)))
	g.Expect(len(sent(t, onboarding, p.name, "get", "mailboxes", m.Name))).To(BeNumerically(">=", 100), "read live")
	g.Expect(sent(t, platform, p.name, "", "", "")).To(HaveLen(begin), "no request to the platform cluster")

}

// A tenant whose server accepts connections and never answers delays no other tenant, and says why
// it waits.
func TestBlackHole(t *testing.T) {
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	actor.Kubeconfig(func(request *clustersv1alpha1.AccessRequest, kubeconfig []byte) []byte {
		if request.Annotations["openmcp.cloud/onboarding-name"] != "black-hole" {
			return kubeconfig
		}
		return changed(t, kubeconfig, func(c *clientcmdapi.Config) {
			c.Clusters["access"].Server = "https://" + listener.Addr().String()
		})
	})
	t.Cleanup(func() { actor.Kubeconfig(nil) })
	m := order(t, "black-hole")
	for _, name := range []string{"light-1", "light-2", "light-3"} {
		isReady(t, order(t, name))
	}
	eventually(t, status(m)).Should(HavePrefix("Progressing Unreachable"))
	g.Expect(s.count("createOrUpdate", m)).To(BeZero())
	errors := reconcileErrors(t, p.name)
	barrier(t, "black-hole")
	g.Expect(reconcileErrors(t, p.name)).To(Equal(errors), "no error loop")

	actor.Kubeconfig(nil)
	g.Expect(actor.Rotate(t.Context(), p.accessRequest(t, m, "mcp"))).To(Succeed())
	isReady(t, m)
}

// A CreateOrUpdate that hangs, such as one whose tenant stopped to answer in mid-request, delays no
// other tenant.
func TestHangingReconcile(t *testing.T) {
	hang := make(chan struct{})
	s := &service[*v1alpha1.Mailbox]{}
	s.createOrUpdate = func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		if m.Name == "hanging" {
			<-hang
		}
		return keep(ctx, m, c, clusters.MCPCluster)
	}
	start(t, s)
	m := order(t, "hanging")
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(Equal(1))
	for _, name := range []string{"swift-1", "swift-2", "swift-3"} {
		isReady(t, order(t, name))
	}
	close(hang)
	isReady(t, m)
}

// changed returns a changed kubeconfig.
func changed(t *testing.T, kubeconfig []byte, change func(*clientcmdapi.Config)) []byte {
	config, err := clientcmd.Load(kubeconfig)
	if err == nil {
		change(config)
		kubeconfig, err = clientcmd.Write(*config)
	}
	if err != nil {
		t.Error(err)
	}
	return kubeconfig
}

// Without polling, a change on the tenant's cluster reconciles the object.
func TestRemoteWatch(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{createOrUpdate: watchAndKeep}
	p := start(t, s)
	m := order(t, "watch")
	isReady(t, m)
	g.Expect(p.mcp(t, m).State(t.Context()).Watches).To(HaveLen(1))
	for range 3 {
		eventually(t, func() string { return scopeState(p.mcp(t, m)) }).Should(Equal("Synced"))
		found := content(m.Name)
		edit(t, remote, found, func(c *corev1.ConfigMap) { c.Data["domain"] = "drifted" })
		eventually(t, domain(t, m)).Should(Equal("example.com"))
		g.Expect(remote.Delete(t.Context(), found)).To(Succeed())
		eventually(t, domain(t, m)).Should(Equal("example.com"))
	}
	g.Expect(p.mcp(t, m).State(t.Context()).Watches).To(HaveLen(1))
}

// The map function of a watch says which objects to reconcile, and the first one stays.
func TestMapFunction(t *testing.T) {
	s := &service[*v1alpha1.Mailbox]{}
	var calls atomic.Int32
	s.createOrUpdate = func(ctx context.Context, m *v1alpha1.Mailbox, c *v1alpha1.ProviderConfig,
		clusters sp.ClusterContext) (ctrl.Result, error) {
		if m.Name == "map-from" {
			to := client.ObjectKey{Namespace: m.Namespace, Name: "map-to"}
			if calls.Add(1) > 1 {
				to.Name = "map-never"
			}
			if err := clusters.MCPCluster.Watch(ctx, &corev1.ConfigMap{},
				func(_ context.Context, o client.Object) []ctrl.Request {
					if o.GetName() != "map-trigger" {
						return nil
					}
					return []ctrl.Request{{NamespacedName: to}}
				}, sp.InScope(clustercache.Scope{Namespace: domainNamespace})); err != nil {
				return ctrl.Result{}, err
			}
		}
		return keep(ctx, m, c, clusters.MCPCluster)
	}
	start(t, s)
	from, to := order(t, "map-from"), order(t, "map-to")
	isReady(t, from)
	isReady(t, to)
	annotate(t, from, sp.OperationAnnotation, sp.OperationReconcile)
	eventually(t, func() int { return s.count("createOrUpdate", from) }).Should(BeNumerically(">", 1))
	beforeFrom, before := s.settled(t, "createOrUpdate", from), s.settled(t, "createOrUpdate", to)
	trigger := content("map-trigger")
	g := NewWithT(t)
	g.Expect(remote.Create(t.Context(), trigger)).To(Succeed())
	t.Cleanup(func() { g.Expect(remote.Delete(context.Background(), trigger)).To(Succeed()) })
	eventually(t, func() int { return s.count("createOrUpdate", to) }).Should(BeNumerically(">", before))
	g.Expect(s.settled(t, "createOrUpdate", from)).To(Equal(beforeFrom))
}

// A kubeconfig that would run a program is refused; the program does not run.
func TestExecKubeconfigRefused(t *testing.T) {
	g := NewWithT(t)
	trap := t.TempDir() + "/ran"
	actor.Kubeconfig(func(_ *clustersv1alpha1.AccessRequest, kubeconfig []byte) []byte {
		return changed(t, kubeconfig, func(c *clientcmdapi.Config) {
			c.AuthInfos["access"].Token = ""
			c.AuthInfos["access"].Exec = &clientcmdapi.ExecConfig{
				Command:         "touch",
				Args:            []string{trap},
				APIVersion:      "client.authentication.k8s.io/v1",
				InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}
		})
	})
	t.Cleanup(func() { actor.Kubeconfig(nil) })
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := order(t, "exec")
	eventually(t, status(m)).Should(And(HavePrefix("Progressing InvalidCredential"), ContainSubstring("exec")))
	g.Expect(trap).NotTo(BeAnExistingFile())
	g.Expect(s.count("createOrUpdate", m)).To(BeZero())
	actor.Kubeconfig(nil)
	g.Expect(actor.Rotate(t.Context(), p.accessRequest(t, m, "mcp"))).To(Succeed())
	isReady(t, m)
}
