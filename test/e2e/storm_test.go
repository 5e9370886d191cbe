package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// atOnce returns the largest number of matching requests that the API server worked on at the same
// time, according to its audit log.
func atOnce(events []auditEvent, matches func(auditEvent) bool) (most int) {
	type edge struct {
		at    time.Time
		delta int
	}
	var edges []edge
	for _, event := range events {
		if event.Stage == "ResponseComplete" && matches(event) {
			edges = append(edges, edge{event.RequestReceivedTimestamp.Time, 1}, edge{event.StageTimestamp.Time, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.delta, b.delta)) })
	now := 0
	for _, e := range edges {
		now += e.delta
		most = max(most, now)
	}
	return most
}

// TestReconnectStorm stops the API server of 500 extensions for a while. After the restart, all
// extensions are connected again within a minute. The reconnects use the existing tokens, run a few
// at a time, and use only the TCP connections that they need.
func TestReconnectStorm(t *testing.T) {
	const extensions = 500
	const back = time.Minute
	down := testenv.Long(20*time.Second, time.Minute)
	g := NewWithT(t)
	ns := namespace(t)
	var objects []client.Object
	for i := range extensions {
		name := fmt.Sprintf("storm-%03d", i)
		objects = append(objects, serviceAccount(ns, name), extension(ns, name))
	}
	createMany(t, objects)
	p := newProxy(t)
	config, err := cp.UserConfig(operatorUser)
	g.Expect(err).NotTo(HaveOccurred())
	config.Host = p.url() // for the manager, and therefore for the extensions' ServiceAccounts
	o := newOperatorAt(t, config, clustercache.Options{
		AllowIdentity: clustercache.GuardedByAdmission,
		HealthProbe: healthprobe.Options{
			Interval:         2 * time.Second,
			IdentityInterval: 20 * time.Second,
			Timeout:          5 * time.Second,
			FailureThreshold: 3,
		},
		ConnectBackoff: wait.Backoff{
			Duration: testenv.Long(5*time.Second, 30*time.Second), // 30 s is the default
			Factor:   2,
			Jitter:   0.2,
			Steps:    20,
			Cap:      5 * time.Minute,
		},
	}).start(t)
	g.Eventually(o.countPhase(clustercache.PhaseConnected)).WithTimeout(patience).Should(Equal(extensions))
	before := map[string]clustercache.ConnectionState{}
	for _, state := range o.ListConnectionStates(t.Context()) {
		before[state.Extension.Name] = state
	}
	// Some extensions have informers, as in production.
	c := newFakeController(t)
	create(t, configMap(ns, "before"))
	for i := range 20 {
		name := fmt.Sprintf("storm-%03d", i)
		grant(t, ns, name, everythingInCore)
		g.Expect(o.Watch(t.Context(), key(name), clustercache.NewWatcher(c.watch("content", &corev1.ConfigMap{}, ns)))).
			To(Succeed())
	}
	countEvents := func(text string) func() int {
		return func() (n int) {
			for _, event := range c.seen() {
				if event == text {
					n++
				}
			}
			return n
		}
	}
	g.Eventually(countEvents("create before")).WithTimeout(patience).Should(Equal(20))

	isDown := time.NewTimer(down)
	g.Expect(cp.KillAPIServer(t.Context())).To(Succeed())
	o.filters++ // the manager's own watch of metadata may leave a goroutine behind
	restart := sync.OnceValue(func() error { return cp.StartAPIServer(context.Background()) })
	t.Cleanup(func() { g.Expect(restart()).To(Succeed()) }) // also if the test fails
	p.counts()
	g.Eventually(o.countPhase(clustercache.PhaseConnected)).WithTimeout(patience).Should(BeZero())
	<-isDown.C
	mostDown, dials := p.counts()
	t.Logf("while the API server was down for %s: %d dials, at most %d at a time", down, dials, mostDown)
	g.Expect(mostDown).
		To(BeNumerically("<=", 6), "one dial of latchkey, up to three if dials hang, and those of the manager")

	restarted := time.Now()
	g.Expect(restart()).To(Succeed())
	answers := time.Now()
	g.Eventually(o.countPhase(clustercache.PhaseConnected)).WithTimeout(2 * back).Should(Equal(extensions))
	took := time.Since(answers)
	most, dials := p.counts()
	t.Logf("all %d extensions are connected again %s after the API server answered: %d dials, at most %d connections "+
		"at a time", extensions, took.Round(100*time.Millisecond), dials, most)
	g.Expect(took).To(BeNumerically("<=", back))
	g.Expect(most).
		To(BeNumerically("<=", 6), "one connection of latchkey, one of the manager, and those that are being replaced")
	for _, state := range o.ListConnectionStates(t.Context()) {
		g.Expect(state.Identity).To(Equal(before[state.Extension.Name].Identity))
		g.Expect(state.TokenExpires).To(Equal(before[state.Extension.Name].TokenExpires), "the extension keeps its token")
	}
	events := auditLog(t, restarted)
	probes := atOnce(events, func(e auditEvent) bool { return e.ObjectRef.Resource == "selfsubjectreviews" })
	t.Logf("at most %d SelfSubjectReviews at a time", probes)
	g.Expect(probes).To(And(BeNumerically(">", 0), BeNumerically("<=", 10)), "the limit per target")
	for _, event := range events {
		g.Expect(event.User.Username == operatorUser && event.what() == "create serviceaccounts/token").
			To(BeFalse(), "the operator replaced a token that was still valid: %s", event)
	}
	c.forget()
	create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "after"}})
	g.Eventually(countEvents("create after")).WithTimeout(patience).Should(Equal(20), "the watches resumed")
}
