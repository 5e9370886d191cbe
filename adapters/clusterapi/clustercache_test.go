package clusterapi

import (
	"context"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	latchkey "github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// A cluster is connected when its infrastructure is provisioned and its kubeconfig is there, and
// until it is deleted.
func TestConnects(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	namespace := newNamespace(t)
	clusters := start(t, namespace, Options{Cache: CacheOptions{DefaultTransform: cache.TransformStripManagedFields()}})
	key := newCluster(t, namespace, "red", nil)
	notConnected(t, clusters, key, latchkey.ReasonNotStarted)
	g.Expect(clusters.GetHealthCheckingState(t.Context(), key)).To(BeZero())
	provision(t, key)
	notConnected(t, clusters, key, latchkey.ReasonInvalidCredential)
	user := newUser(t, namespace)
	g.Expect(admin(t).Create(t.Context(), kubeconfigSecret(key, kubeconfig(t, user)))).To(Succeed())
	connected(t, clusters, key) // long before Cluster API's 30 s

	state := clusters.GetHealthCheckingState(t.Context(), key)
	g.Expect(state.LastProbeTime).To(BeTemporally("~", time.Now(), time.Minute))
	g.Expect(state.LastProbeSuccessTime).To(BeTemporally("~", time.Now(), time.Minute))
	g.Expect(state.ConsecutiveFailures).To(BeZero())
	cached, err := clusters.GetClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := clusters.GetReader(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	live, err := clusters.GetUncachedClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(live.Create(t.Context(), configMap(namespace))).To(Succeed())
	name := client.ObjectKeyFromObject(configMap(namespace))
	for _, from := range []client.Reader{cached, reader} {
		found := &corev1.ConfigMap{}
		g.Eventually(func() error { return from.Get(t.Context(), name, found) }).Should(Succeed())
		g.Expect(found.ManagedFields).To(BeEmpty())
	}
	found := &corev1.ConfigMap{}
	g.Expect(live.Get(t.Context(), name, found)).To(Succeed())
	g.Expect(found.ManagedFields).NotTo(BeEmpty())
	config, err := clusters.GetRESTConfig(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Host).To(Equal(cp.Config().Host))

	cluster := &clusterv1.Cluster{}
	g.Expect(admin(t).Get(t.Context(), key, cluster)).To(Succeed())
	g.Expect(admin(t).Delete(t.Context(), cluster)).To(Succeed())
	g.Eventually(func() error {
		_, err := clusters.GetUncachedClient(t.Context(), key)
		return err
	}).WithTimeout(testenv.Patience).Should(MatchError(ErrClusterNotConnected))
	g.Eventually(func() HealthCheckingState { return clusters.GetHealthCheckingState(t.Context(), key) }).
		WithTimeout(testenv.Patience).Should(BeZero())
}

// ClusterFilter and WatchFilterValue exclude clusters.
func TestFilters(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	namespace := newNamespace(t)
	clusters := start(t, namespace, Options{
		WatchFilterValue: "ours",
		ClusterFilter:    func(cluster *clusterv1.Cluster) bool { return cluster.Name != "excluded" },
	})
	user := newUser(t, namespace)
	for name, label := range map[string]string{"red": "ours", "excluded": "ours", "other": "theirs"} {
		key := newCluster(t, namespace, name, map[string]string{clusterv1.WatchLabel: label})
		g.Expect(admin(t).Create(t.Context(), kubeconfigSecret(key, kubeconfig(t, user)))).To(Succeed())
		provision(t, key)
	}
	red := client.ObjectKey{Namespace: namespace, Name: "red"}
	connected(t, clusters, red)
	var known []string
	connections := clusters.(*clusterCache).connections
	for _, state := range connections.ListConnectionStates(t.Context()) {
		known = append(known, state.Extension.Name)
	}
	g.Expect(known).To(Equal([]string{"red"}))
	cluster := &clusterv1.Cluster{}
	g.Expect(admin(t).Get(t.Context(), red, cluster)).To(Succeed())
	cluster.Labels[clusterv1.WatchLabel] = "theirs"
	g.Expect(admin(t).Update(t.Context(), cluster)).To(Succeed())
	g.Eventually(func() error {
		_, err := clusters.GetClient(t.Context(), red)
		return err
	}).WithTimeout(testenv.Patience).Should(MatchError(ErrClusterNotConnected))
}

// startConnected runs a manager with the adapter, and connects it to a Cluster as a user.
func startConnected(t *testing.T) (clusters ClusterCache, namespace, user string, key client.ObjectKey) {
	t.Helper()
	namespace = newNamespace(t)
	clusters = start(t, namespace, Options{})
	user = newUser(t, namespace)
	return clusters, namespace, user, provisioned(t, clusters, namespace, "red", user)
}

// A changed kubeconfig of the same user is taken up while handles, informers and watches go on.
func TestChangedKubeconfig(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	clusters, namespace, user, key := startConnected(t)
	before, err := clusters.GetClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	c := clusters.(*clusterCache).connections
	state, _ := c.GetConnectionState(t.Context(), key)
	s := newStarter(t)
	g.Expect(clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(s)))).To(Succeed())
	name := namespace + "-watched"
	g.Expect(before.Create(t.Context(), configMap(name))).To(Succeed())
	g.Eventually(s.seen("create " + name)).WithTimeout(testenv.Patience).Should(Equal(1))
	g.Expect(admin(t).Update(t.Context(), kubeconfigSecret(key, kubeconfig(t, user)))).To(Succeed())
	g.Eventually(func(g Gomega) {
		now, _ := c.GetConnectionState(t.Context(), key)
		g.Expect(now.CredentialSince).To(BeTemporally(">", state.CredentialSince))
	}).WithTimeout(testenv.Patience).Should(Succeed())
	g.Expect(clusters.GetClient(t.Context(), key)).To(BeIdenticalTo(before))
	g.Expect(before.Delete(t.Context(), configMap(name))).To(Succeed())
	g.Eventually(s.seen("delete " + name)).WithTimeout(testenv.Patience).Should(Equal(1))
	g.Expect(s.seen("create "+name)()).To(Equal(1), "the watch went on")
}

// A kubeconfig that names another address of the API server is followed at once: what was got
// before fails, and the source maps the cluster to its requests, whose Reconcile adds the watch
// again.
func TestChangedAddress(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	clusters, namespace, user, key := startConnected(t)
	before, err := clusters.GetClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	s := newStarter(t)
	watch := func() error { return clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(s))) }
	g.Expect(watch()).To(Succeed())
	var connects atomic.Int32
	g.Expect(clusters.GetClusterSource("c", func(ctx context.Context, cluster client.Object) []ctrl.Request {
		if _, err := clusters.GetClient(ctx, client.ObjectKeyFromObject(cluster)); err == nil {
			connects.Add(1)
		}
		return nil
	}).Start(s.ctx, s.queue)).To(Succeed())
	g.Eventually(connects.Load).WithTimeout(testenv.Patience).Should(BeEquivalentTo(1))

	address, err := url.Parse(cp.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	address.Host = net.JoinHostPort("localhost", address.Port())
	g.Expect(address.String()).NotTo(Equal(cp.Config().Host))
	g.Expect(admin(t).Update(t.Context(), kubeconfigSecret(key, kubeconfigAt(t, user, address.String())))).To(Succeed())
	g.Eventually(func(g Gomega) {
		config, err := clusters.GetRESTConfig(t.Context(), key)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Host).To(Equal(address.String()))
	}).WithTimeout(testenv.Patience).Should(Succeed())
	g.Expect(before.Create(t.Context(), configMap(namespace))).To(MatchError(latchkey.ErrNotConnected))
	g.Eventually(connects.Load).WithTimeout(testenv.Patience).Should(BeNumerically(">=", 2))
	g.Expect(watch()).To(Succeed())
	g.Expect(s.started.Load()).To(BeEquivalentTo(2))
	now, err := clusters.GetClient(t.Context(), key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now.Create(t.Context(), configMap(namespace))).To(Succeed())
	g.Eventually(s.seen("create " + namespace)).WithTimeout(testenv.Patience).Should(Equal(1))
}

// A cluster without a kubeconfig counts failures as in Cluster API, so that its controllers notice.
func TestHealthWithoutKubeconfig(t *testing.T) {
	g := NewWithT(t)
	since := time.Now()
	state := latchkey.ConnectionState{
		Phase:             latchkey.PhaseDisconnected,
		Reason:            latchkey.ReasonInvalidCredential,
		DisconnectedSince: since,
	}
	g.Expect(health(state, since.Add(time.Second))).
		To(Equal(HealthCheckingState{LastProbeTime: since, ConsecutiveFailures: 1}))
	g.Expect(health(state, since.Add(2*time.Minute+time.Second))).
		To(Equal(HealthCheckingState{LastProbeTime: since.Add(2 * time.Minute), ConsecutiveFailures: 5}))
	state.Health.ConsecutiveFailures, state.Health.LastProbeTime = 9, since.Add(time.Hour)
	g.Expect(health(state, since.Add(time.Second))).
		To(Equal(HealthCheckingState{LastProbeTime: since.Add(time.Hour), ConsecutiveFailures: 9}), "probes count")
	state = latchkey.ConnectionState{Phase: latchkey.PhaseDisconnected, Reason: latchkey.ReasonNotStarted}
	g.Expect(health(state, since)).To(BeZero(), "its first connect has not begun")
}

// Each call for a cluster that is not connected returns Cluster API's error, and latchkey's in it.
func TestErrors(t *testing.T) {
	g := NewWithT(t)
	clusters := NewFakeEmptyClusterCache()
	key := client.ObjectKey{Namespace: "n", Name: "red"}
	_, clientErr := clusters.GetClient(t.Context(), key)
	_, readerErr := clusters.GetReader(t.Context(), key)
	_, uncachedErr := clusters.GetUncachedClient(t.Context(), key)
	_, configErr := clusters.GetRESTConfig(t.Context(), key)
	for prefix, err := range map[string]error{
		"error getting client":                     clientErr,
		"error getting client reader":              readerErr,
		"error getting uncached client":            uncachedErr,
		"error getting REST config":                configErr,
		"error creating watch w for *v1.ConfigMap": clusters.Watch(t.Context(), key, NewWatcher(watcherOptions(nil))),
	} {
		g.Expect(err).To(MatchError(ErrClusterNotConnected), prefix)
		g.Expect(err).To(MatchError(latchkey.ErrNotConnected), prefix)
		g.Expect(err.Error()).To(HavePrefix(prefix + ": connection to the workload cluster is down: "))
	}
	g.Expect(clusters.GetHealthCheckingState(t.Context(), key)).To(BeZero())
}
