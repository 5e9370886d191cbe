package clusterapi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

var (
	cp     *testenv.Env
	scheme = runtime.NewScheme()
)

func TestMain(m *testing.M) {
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	// The CustomResourceDefinition is a file in Cluster API's module.
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		panic(err)
	}
	cp = &testenv.Env{}
	os.Exit(testenv.Run(m, controlplane.Options{CRDs: []string{
		filepath.Join(strings.TrimSpace(string(dir)), "core/config/crd/bases/cluster.x-k8s.io_clusters.yaml"),
	}}, cp, nil))
}

// admin returns a client of the administrator.
func admin(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(cp.Config(), client.Options{Scheme: scheme})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

// newNamespace returns the name of a new namespace.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "clusterapi-"}}
	NewWithT(t).Expect(admin(t).Create(t.Context(), namespace)).To(Succeed())
	return namespace.Name
}

// start runs a manager with the adapter until the test ends. It watches only the namespace.
func start(t *testing.T, namespace string, options Options) ClusterCache {
	t.Helper()
	g := NewWithT(t)
	mgr, err := ctrl.NewManager(cp.Config(), ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	options.SecretClient = mgr.GetClient()
	options.Client.UserAgent = "test"
	ctx, cancel := context.WithCancel(context.Background())
	clusters, err := SetupWithManager(ctx, mgr, options, controller.Options{SkipNameValidation: ptr.To(true)})
	g.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
	return clusters
}

// kubeconfig returns a kubeconfig with a new certificate of a user.
func kubeconfig(t *testing.T, user string) []byte {
	t.Helper()
	return kubeconfigAt(t, user, cp.Config().Host)
}

// kubeconfigAt is kubeconfig for an address of the API server.
func kubeconfigAt(t *testing.T, user, server string) []byte {
	t.Helper()
	g := NewWithT(t)
	config, err := cp.UserConfig(user)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters: map[string]*clientcmdapi.Cluster{
			"it": {Server: server, CertificateAuthorityData: cp.Config().CAData},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"it": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData},
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	return content
}

// newUser returns the name of a user who may read and write ConfigMaps in the namespace's cluster.
func newUser(t *testing.T, namespace string) string {
	t.Helper()
	g := NewWithT(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: namespace},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "user-" + namespace}},
	}
	g.Expect(admin(t).Create(t.Context(), role)).To(Succeed())
	g.Expect(admin(t).Create(t.Context(), binding)).To(Succeed())
	return binding.Subjects[0].Name
}

func kubeconfigSecret(cluster client.ObjectKey, content []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig"},
		Data:       map[string][]byte{"value": content},
	}
}

// newCluster creates a Cluster whose infrastructure is not provisioned yet.
func newCluster(t *testing.T, namespace, name string, labels map[string]string) client.ObjectKey {
	t.Helper()
	NewWithT(t).Expect(admin(t).Create(t.Context(), &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: "infrastructure.example.com",
			Kind:     "Cluster",
			Name:     name,
		}},
	})).To(Succeed())
	return client.ObjectKey{Namespace: namespace, Name: name}
}

func provision(t *testing.T, key client.ObjectKey) {
	t.Helper()
	g := NewWithT(t)
	cluster := &clusterv1.Cluster{}
	g.Expect(admin(t).Get(t.Context(), key, cluster)).To(Succeed())
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	g.Expect(admin(t).Status().Update(t.Context(), cluster)).To(Succeed())
}

// provisioned creates a Cluster with a kubeconfig, and waits until it is connected.
func provisioned(t *testing.T, clusters ClusterCache, namespace, name, user string) client.ObjectKey {
	t.Helper()
	key := newCluster(t, namespace, name, nil)
	NewWithT(t).Expect(admin(t).Create(t.Context(), kubeconfigSecret(key, kubeconfig(t, user)))).To(Succeed())
	provision(t, key)
	connected(t, clusters, key)
	return key
}

func connected(t *testing.T, clusters ClusterCache, key client.ObjectKey) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		_, err := clusters.GetClient(t.Context(), key)
		return err
	}).WithTimeout(testenv.Patience).Should(Succeed())
}

// notConnected waits until a cluster is not connected for that reason.
func notConnected(t *testing.T, clusters ClusterCache, key client.ObjectKey, reason latchkey.Reason) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		_, err := clusters.GetClient(t.Context(), key)
		g.Expect(err).To(MatchError(ErrClusterNotConnected))
		var not *latchkey.NotConnectedError
		g.Expect(errors.As(err, &not)).To(BeTrue())
		g.Expect(not.Reason).To(Equal(reason))
	}).WithTimeout(testenv.Patience).WithPolling(20 * time.Millisecond).Should(Succeed())
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Data:       map[string]string{"key": "value"},
	}
}

// Every option is passed on.
func TestTranslate(t *testing.T) {
	g := NewWithT(t)
	period := time.Hour
	got := translate(Options{
		WatchFilterValue: "ours",
		Cache: CacheOptions{
			SyncPeriod:       &period,
			DefaultTransform: func(object any) (any, error) { return object, nil },
			ByObject:         map[client.Object]cache.ByObject{&corev1.Node{}: {}},
			Indexes:          []CacheOptionsIndex{NodeProviderIDIndex},
		},
		Client: ClientOptions{
			Timeout:   time.Minute,
			QPS:       3,
			Burst:     4,
			UserAgent: "ours",
			Cache:     ClientCacheOptions{DisableFor: []client.Object{&corev1.Secret{}}},
		},
	})
	g.Expect(got.WatchFilterValue).To(Equal("ours"))
	g.Expect(got.Cache.SyncPeriod).To(Equal(&period))
	g.Expect(got.Cache.DefaultTransform(t)).To(BeIdenticalTo(t))
	g.Expect(got.Cache.ByObject).To(HaveLen(1))
	g.Expect(got.Cache.Indexes).To(HaveExactElements(HaveField("Field", NodeProviderIDIndex.Field)))
	g.Expect(got.Client).To(Equal(latchkey.ClientOptions{
		Timeout:   time.Minute,
		QPS:       3,
		Burst:     4,
		UserAgent: "ours",
		Cache:     latchkey.ClientCacheOptions{DisableFor: []client.Object{&corev1.Secret{}}},
	}))
	g.Expect(got.HealthProbe.IdentityInterval).To(Equal(10*time.Second), "as often as Cluster API")
	g.Expect(got.Filter(&clusterv1.Cluster{})).To(BeFalse(), "its infrastructure is not provisioned")
}

func TestOptions(t *testing.T) {
	g := NewWithT(t)
	set := func(options Options) error {
		_, err := SetupWithManager(t.Context(), nil, options, controller.Options{})
		return err
	}
	g.Expect(set(Options{})).To(MatchError("options.SecretClient must be set"))
	g.Expect(set(Options{SecretClient: client.NewDryRunClient(nil)})).
		To(MatchError("options.Client.UserAgent must be set"))
}
