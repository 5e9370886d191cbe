package e2e

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// addCache adds another ClusterCache to the operator's manager.
func (o *operator) addCache(t *testing.T, options clustercache.Options) *operator {
	t.Helper()
	cc, err := clustercache.SetupWithManager(t.Context(), o.mgr, quick(options), unnamed())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return &operator{ClusterCache: cc, mgr: o.mgr}
}

// TestSeveralClusterCaches checks three ClusterCaches of one manager: two of one kind, and one of
// another. Each has its own connections and series of metrics. They share the TCP connections to an
// API server. All of it is gone with the manager.
func TestSeveralClusterCaches(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	grantOperatorConfigMaps(t)
	p := newProxy(t)
	hosts := map[string]string{"red": p.url(), "blue": p.url()}
	for _, name := range []string{"red", "blue"} {
		tenant(t, ns, name)
	}
	config := configMap(ns, "own-kind")
	config.Data = map[string]string{"account": "red"}
	create(t, config)
	named := func(name string) func(client.Object) bool {
		return func(object client.Object) bool { return object.GetName() == name }
	}
	red := newOperator(t, clustercache.Options{
		Name:        "reds",
		Filter:      named("red"),
		Credentials: elsewhere(token(t, ns, "red"), hosts),
	})
	blue := red.addCache(t, clustercache.Options{
		Name:        "blues",
		Filter:      named("blue"),
		Credentials: elsewhere(token(t, ns, "blue"), hosts),
		HealthProbe: healthprobe.Options{Interval: 2 * time.Second, FailureThreshold: 3},
	})
	maps := red.addCache(t, clustercache.Options{
		Name:    "config-maps",
		Object:  &corev1.ConfigMap{},
		Filter:  named("own-kind"),
		Metrics: clustercache.MetricsOptions{PerExtension: true},
		Credentials: credential.ServiceAccountTokens(credential.ServiceAccountOptions{
			Reference: func(object client.Object) (types.NamespacedName, error) {
				return types.NamespacedName{
					Namespace: object.GetNamespace(),
					Name:      object.(*corev1.ConfigMap).Data["account"],
				}, nil
			}}),
	})
	red.start(t)

	for name, cc := range map[string]*operator{"red": red, "blue": blue} {
		state := cc.waitConnected(t, name)
		g.Expect(state.Identity.Username).To(Equal("system:serviceaccount:" + ns + ":" + name))
		g.Expect(cc.ListConnectionStates(t.Context())).To(HaveLen(1), "each knows its own extensions only")
	}
	var state clustercache.ConnectionState
	g.Eventually(func() clustercache.Phase {
		state, _ = maps.GetConnectionState(t.Context(), client.ObjectKeyFromObject(config))
		return state.Phase
	}).WithTimeout(patience).Should(Equal(clustercache.PhaseConnected))
	g.Expect(state.Identity.Username).To(Equal("system:serviceaccount:" + ns + ":red"))

	events := newFakeController(t)
	g.Expect(blue.Watch(t.Context(), key("blue"),
		clustercache.NewWatcher(events.watch("content", &corev1.Secret{}, ns)))).To(Succeed())
	cached, err := red.GetClient(t.Context(), key("red"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cached.List(t.Context(), &corev1.ServiceAccountList{}, client.InNamespace(ns))).To(Succeed())
	most, _ := p.counts()
	g.Expect(most).To(Equal(1), "both ClusterCaches send their requests over one TCP connection")

	g.Eventually(func() map[string]float64 { return series(t) }).WithTimeout(patience).Should(And(
		HaveKeyWithValue("latchkey_connections cache=reds phase=Connected reason=", 1.0),
		HaveKeyWithValue("latchkey_connections cache=blues phase=Connected reason=", 1.0),
		HaveKeyWithValue("latchkey_connections cache=config-maps phase=Connected reason=", 1.0),
		HaveKeyWithValue("latchkey_watches cache=blues", 1.0),
		HaveKeyWithValue("latchkey_watches cache=reds", 0.0),
		HaveKeyWithValue("latchkey_token_requests_total cache=config-maps result=Issued", 1.0),
		HaveKeyWithValue("latchkey_extension_connected cache=config-maps name=own-kind namespace="+ns, 1.0)))

	p.setCut(true) // what is known of the API server is shared, and each treats it by its own options
	red.waitReason(t, "red", clustercache.ReasonUnreachable)
	blue.waitReason(t, "blue", clustercache.ReasonUnreachable)
	state, _ = maps.GetConnectionState(t.Context(), client.ObjectKeyFromObject(config))
	g.Expect(state.Phase).To(Equal(clustercache.PhaseConnected), "another API server's address")
	p.setCut(false)
	red.waitConnected(t, "red")
	blue.waitConnected(t, "blue")

	events.close()
	red.end(t)
	for name := range series(t) {
		for _, cache := range []string{"reds", "blues", "config-maps"} {
			g.Expect(strings.Contains(name, "cache="+cache)).To(BeFalse(), name)
		}
	}
	_, err = blue.GetClient(t.Context(), key("blue"))
	g.Expect(err).To(MatchError(clustercache.ErrNotConnected))
}
