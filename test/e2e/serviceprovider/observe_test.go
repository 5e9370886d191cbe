package serviceprovider

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// reconcileErrors returns how many reconciles of a controller returned an error.
func reconcileErrors(t *testing.T, controller string) (total float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_errors_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "controller" && label.GetValue() == controller {
					total += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return total
}

// auditEvent is what the tests need of an event in an API server's audit log.
type auditEvent struct {
	Stage      string
	Verb       string
	RequestURI string
	UserAgent  string
	ObjectRef  struct{ Resource, Subresource, Namespace, Name string }
}

// sent returns the requests of a user in the audit log of a cluster. verb, resource (with
// "/subresource") and name may be empty for all.
func sent(t *testing.T, p place, user, verb, resource, name string) (events []auditEvent) {
	t.Helper()
	log, err := os.ReadFile(p.cp.AuditLog())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte(`"username":"`+user+`"`)) {
			continue // most of the lines are about the actor, and decoding is slow
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return events // the last line, which is being written
		}
		found := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			found += "/" + e.ObjectRef.Subresource
		}
		if e.Stage == "RequestReceived" && (verb == "" || e.Verb == verb) && (resource == "" || found == resource) &&
			(name == "" || e.ObjectRef.Name == name) {
			events = append(events, e)
		}
	}
	return events
}
