package e2e

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// TestLogsOfDisconnectAndStop checks that a disconnect logs one line, and that a stop logs one line
// for all connections. Neither is an error, because a person who reads the log has nothing to do.
func TestLogsOfDisconnectAndStop(t *testing.T) {
	g := NewWithT(t)
	captureLogs(t)
	ns := namespace(t)
	const extensions = 5
	o := newOperator(t, clustercache.Options{}).start(t)
	c := newFakeController(t)
	for i := range extensions {
		name := fmt.Sprintf("logged-%d", i)
		tenant(t, ns, name)
		o.waitConnected(t, name)
		g.Expect(o.Watch(t.Context(), key(name), clustercache.NewWatcher(c.watch("content", &corev1.ConfigMap{}, ns)))).
			To(Succeed())
	}
	createConfigMaps(t, ns, "one")
	g.Eventually(func() int { return len(c.seen()) }).WithTimeout(patience).Should(BeNumerically(">=", extensions))
	lines := func(logs []string, text string) (found []string) {
		for _, line := range logs {
			if strings.Contains(line, text) {
				found = append(found, line)
			}
		}
		return found
	}
	expectNoErrors := func(logs []string) {
		t.Helper()
		for _, line := range logs {
			if !strings.Contains(line, `"level"=`) { // an error line has no level
				t.Errorf("logged as an error: %.300s", line)
			}
		}
	}
	captured.take()
	for i := range extensions {
		name := fmt.Sprintf("logged-%d", i)
		g.Expect(admin.Delete(t.Context(), serviceAccount(ns, name))).To(Succeed())
		o.waitReason(t, name, clustercache.ReasonServiceAccountNotFound)
	}
	var logs []string
	g.Eventually(func() []string { // the state is published before the line is logged
		logs = append(logs, captured.take()...)
		return lines(logs, `"msg"="Not connected"`)
	}).WithTimeout(patience).Should(HaveLen(extensions))
	expectNoErrors(logs)

	for i := range extensions {
		name := fmt.Sprintf("logged-%d", i)
		create(t, serviceAccount(ns, name))
		o.waitConnected(t, name)
	}
	g.Eventually(func() int {
		synced := 0
		for i := range extensions {
			for _, scope := range o.state(fmt.Sprintf("logged-%d", i)).Scopes {
				if scope.State == clustercache.StateSynced {
					synced++
				}
			}
		}
		return synced
	}).WithTimeout(patience).Should(Equal(extensions))
	logs = append(logs, captured.take()...)
	g.Expect(lines(logs, `"msg"="Not connected"`)).To(HaveLen(extensions), "one line for each disconnect")
	o.stopManager(t)
	logs = captured.take()
	g.Expect(lines(logs, `"msg"="Not connected"`)).To(BeEmpty())
	g.Expect(lines(logs, `"msg"="Ended all connections"`)).
		To(ConsistOf(ContainSubstring(fmt.Sprintf(`"connections"=%d`, extensions))))
	expectNoErrors(logs)
	c.close()
	o.leftNothing(t)
}
