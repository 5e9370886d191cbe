package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// series returns the values of latchkey's metric series, by their names and labels without the
// label cache=clustercache. The value of a histogram is its sample count.
func series(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	found := map[string]float64{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "latchkey_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				if label.GetName() == "cache" && label.GetValue() == "clustercache" {
					continue
				}
				name += fmt.Sprintf(" %s=%s", label.GetName(), label.GetValue())
			}
			switch {
			case metric.GetCounter() != nil:
				found[name] = metric.GetCounter().GetValue()
			case metric.GetHistogram() != nil:
				found[name] = float64(metric.GetHistogram().GetSampleCount())
			default:
				found[name] = metric.GetGauge().GetValue()
			}
		}
	}
	return found
}

// TestMetrics checks that the metrics count everything that exists, and that everything removed
// leaves no series.
func TestMetrics(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "counted")
	create(t, extension(ns, "missing"))
	before := series(t)
	o := startOperator(t,
		clustercache.Options{Metrics: clustercache.MetricsOptions{PerExtension: true}, ConnectBackoff: never()})
	o.waitConnected(t, "counted")
	o.waitReason(t, "missing", clustercache.ReasonServiceAccountNotFound)
	c := newFakeController(t)
	createConfigMaps(t, ns, "a", "b")
	g.Expect(o.Watch(t.Context(), key("counted"),
		clustercache.NewWatcher(c.watch("content", &corev1.ConfigMap{}, ns)))).To(Succeed())
	g.Eventually(c.seen).WithTimeout(patience).Should(ContainElements("create a", "create b"))

	g.Eventually(func() map[string]float64 { return series(t) }).WithTimeout(patience).Should(And(
		HaveKeyWithValue("latchkey_connections phase=Connected reason=", 1.0),
		HaveKeyWithValue("latchkey_connections phase=Disconnected reason=ServiceAccountNotFound", 1.0),
		HaveKeyWithValue("latchkey_watches", 1.0),
		HaveKeyWithValue("latchkey_informers state=Synced", 1.0),
		HaveKeyWithValue("latchkey_caches", 1.0),
		HaveKeyWithValue("latchkey_cache_users", 1.0),
		// The CA's ConfigMap, which the controller manager creates, counts too.
		HaveKeyWithValue("latchkey_objects", BeNumerically(">=", 2)),
		HaveKeyWithValue("latchkey_extension_connected name=counted namespace=", 1.0),
		HaveKeyWithValue("latchkey_extension_connected name=missing namespace=", 0.0),
		HaveKeyWithValue("latchkey_extension_last_success_timestamp_seconds name=counted namespace=",
			BeNumerically(">", 1e9)),
		HaveKeyWithValue("latchkey_extension_last_success_timestamp_seconds name=missing namespace=", 0.0),
		HaveKeyWithValue("latchkey_connects_total result=Connected", before["latchkey_connects_total result=Connected"]+1),
		HaveKeyWithValue("latchkey_token_requests_total result=Issued",
			before["latchkey_token_requests_total result=Issued"]+1),
		HaveKeyWithValue("latchkey_connect_duration_seconds", before["latchkey_connect_duration_seconds"]+1),
		HaveKeyWithValue("latchkey_probes_total result=Valid",
			BeNumerically(">", before["latchkey_probes_total result=Valid"])),
	))
	g.Expect(admin.Delete(t.Context(), extension(ns, "counted"))).To(Succeed())
	g.Eventually(o.known("counted")).WithTimeout(patience).Should(BeFalse())
	after := series(t)
	g.Expect(after).NotTo(HaveKey(ContainSubstring("name=counted")), "a deleted extension leaves no series")
	g.Expect(after).
		To(And(HaveKeyWithValue("latchkey_watches", 0.0), HaveKeyWithValue("latchkey_objects", 0.0),
			Not(HaveKey(HavePrefix("latchkey_informers")))))
	c.close() // o.end checks for leaked goroutines
	o.end(t)
	g.Expect(series(t)).To(BeEmpty(), "a stopped operator leaves no series")
}

// TestEvents checks that the Events on an extension report the same as its connection state.
func TestEvents(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, extension(ns, "eventful"))
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "latchkey-events"},
		RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName,
			Kind:     "Role",
			Name:     "latchkey-events",
		},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: operatorUser}},
	})
	o := newOperator(t, clustercache.Options{}, func(o *operator, options *clustercache.Options) {
		options.EventRecorder = o.mgr.GetEventRecorder("latchkey-e2e")
		options.ConnectBackoff = never()
	}).start(t)
	o.waitReason(t, "eventful", clustercache.ReasonServiceAccountNotFound)
	e := extension(ns, "eventful")
	g.Expect(admin.Get(t.Context(), key("eventful"), e)).To(Succeed())
	recorded := func() (list []string) {
		events := &eventsv1.EventList{}
		g.Expect(admin.List(context.Background(), events, client.InNamespace("default"))).To(Succeed())
		for _, event := range events.Items {
			if event.Regarding.UID == e.GetUID() {
				list = append(list, event.Type+" "+event.Reason+": "+event.Note)
			}
		}
		return list
	}
	missing := HavePrefix("Warning ServiceAccountNotFound: serviceaccount " + ns + "/eventful")
	g.Eventually(recorded).WithTimeout(patience).Should(ConsistOf(missing))
	create(t, serviceAccount(ns, "eventful"))
	o.waitConnected(t, "eventful")
	g.Eventually(recorded).WithTimeout(patience).
		Should(ConsistOf(missing, HavePrefix("Normal Connected: Connected as system:serviceaccount:"+ns+":eventful")))
}
