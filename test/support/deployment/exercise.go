package deployment

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pkg/errors"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

// Tenants are the ServiceAccounts and extensions of [Prepare], in namespace team-blue.
var Tenants = []string{"blue", "green", "red", "white", "yellow"}

// TenantNamespace is the namespace of the ServiceAccounts.
const TenantNamespace = "team-blue"

// Prepare creates the namespace and the ServiceAccounts of the tenants, and in namespace monitoring
// a ServiceAccount prometheus. What exists stays.
func Prepare(ctx context.Context, cp *controlplane.ControlPlane) error {
	var manifests strings.Builder
	for _, namespace := range []string{TenantNamespace, "monitoring"} {
		fmt.Fprintf(&manifests, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace)
	}
	account := func(namespace, name string) {
		fmt.Fprintf(&manifests, "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {namespace: %s, name: %s}\n",
			namespace, name)
	}
	for _, name := range Tenants {
		account(TenantNamespace, name)
	}
	account("monitoring", "prometheus")
	_, err := cp.KubectlInput(ctx, manifests.String(), "apply", "-f", "-")
	return err
}

// CreateExtensions creates a ClusterExtension for each of the tenants, once their definition is
// served.
func CreateExtensions(ctx context.Context, cp *controlplane.ControlPlane) error {
	if _, err := cp.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s",
		"crd/clusterextensions.latchkey.dev"); err != nil {
		return err
	}
	var manifests strings.Builder
	for _, name := range Tenants {
		fmt.Fprintf(&manifests, "---\napiVersion: latchkey.dev/v1alpha1\nkind: ClusterExtension\nmetadata: {name: %s}\n"+
			"spec: {namespace: %s, serviceAccount: {name: %s}}\n", name, TenantNamespace, name)
	}
	_, err := cp.KubectlInput(ctx, manifests.String(), "apply", "-f", "-")
	return err
}

// Exercise runs the manager of the objects three times, with Pods of different addresses. Each time
// all tenants connect, the readiness probe succeeds, prometheus of namespace monitoring reads the
// metrics if the manager serves them, and readers read the status page and the state API.
// An error says which of these did not happen within the patience, and has the manager's log.
func Exercise(ctx context.Context, cp *controlplane.ControlPlane, objects []*unstructured.Unstructured,
	options Options, patience time.Duration) error {
	for _, options.PodIP = range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"} {
		m, err := Start(ctx, cp, objects, options)
		if err != nil {
			return err
		}
		err = m.exercise(ctx, cp, patience)
		m.Stop()
		if err != nil {
			return errors.WithMessagef(err, "the manager logged:\n%s\n", m.Log())
		}
	}
	return nil
}

func (m *Manager) exercise(ctx context.Context, cp *controlplane.ControlPlane, patience time.Duration) error {
	last := errors.New("nothing was asked yet")
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			if last = m.Ready(ctx); last == nil && strings.Count(m.Log(), `"msg":"Connected"`) < len(Tenants) {
				last = errors.New("not all tenants are connected")
			}
			return last == nil, nil
		})
	if err != nil {
		return last
	}
	if m.servesMetrics() {
		if err := m.exerciseMetrics(ctx, cp); err != nil {
			return err
		}
	}
	if m.servesStatusPage() {
		if err := m.exerciseStatusPage(ctx, cp); err != nil {
			return err
		}
	}
	if m.servesStateAPI() {
		return m.exerciseStateAPI(ctx, cp)
	}
	return nil
}

// exerciseStatusPage reads the status page: as those do who may forward the Pod's port, or a secure
// one as prometheus of namespace monitoring, whom the manifests must name as a reader, and without
// permission.
func (m *Manager) exerciseStatusPage(ctx context.Context, cp *controlplane.ControlPlane) error {
	url, reader := "http://"+m.StatusAddress+"/status/view", ""
	if m.hasFlag("--status-secure") {
		url = strings.Replace(url, "http:", "https:", 1)
		var err error
		if reader, err = cp.Kubectl(ctx, "create", "token", "-n", "monitoring", "prometheus"); err != nil {
			return err
		}
		read := func(token string) error {
			_, err := get(ctx, insecure, url, token)
			return err
		}
		if err := refusesOthers(ctx, cp, read); err != nil {
			return errors.WithMessage(err, "the status page")
		}
	}
	text, err := get(ctx, insecure, url, reader)
	if err != nil {
		return errors.WithMessage(err, "reading the status page")
	}
	var view struct {
		Fleet struct{ States map[string]int }
	}
	if err := json.Unmarshal([]byte(text), &view); err != nil || view.Fleet.States["Connected"] != len(Tenants) {
		return errors.Errorf("the status page: %v, %v", view, err)
	}
	return nil
}

// refusesOthers returns an error unless reading fails without a token, and with that of a tenant.
func refusesOthers(ctx context.Context, cp *controlplane.ControlPlane, read func(token string) error) error {
	stranger, err := cp.Kubectl(ctx, "create", "token", "-n", TenantNamespace, Tenants[0])
	if err != nil {
		return err
	}
	for token, want := range map[string]int{"": http.StatusUnauthorized, stranger: http.StatusForbidden} {
		err := read(token)
		var status *StatusError
		if !errors.As(err, &status) || status.Code != want {
			return errors.Errorf("reading without permission: %v, want status %d", err, want)
		}
	}
	return nil
}

// exerciseMetrics reads the metrics as prometheus, and without permission.
func (m *Manager) exerciseMetrics(ctx context.Context, cp *controlplane.ControlPlane) error {
	token, err := cp.Kubectl(ctx, "create", "token", "-n", "monitoring", "prometheus")
	if err != nil {
		return err
	}
	if _, err := cp.Kubectl(ctx, "auth", "can-i", "get", "/metrics",
		"--as=system:serviceaccount:monitoring:prometheus"); err != nil {
		if _, err := cp.Kubectl(ctx, "create", "clusterrolebinding", "prometheus-reads-latchkey",
			"--clusterrole="+m.Name+"-metrics-reader", "--serviceaccount=monitoring:prometheus"); err != nil {
			return err
		}
	}
	var samples model.Vector
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 10*time.Second, true,
		func(ctx context.Context) (bool, error) { // the binding may not be known yet
			samples, err = m.Metrics(ctx, token)
			return err == nil, nil
		})
	if err != nil {
		return errors.WithMessage(err, "reading the metrics as prometheus")
	}
	if n := Sum(samples, "latchkey_connections", model.LabelSet{"phase": "Connected"}); n != float64(len(Tenants)) {
		return errors.Errorf("latchkey_connections: %v are Connected", n)
	}
	return errors.WithMessage(refusesOthers(ctx, cp, func(token string) error {
		_, err := m.Metrics(ctx, token)
		return err
	}), "the metrics")
}

// exerciseStateAPI reads the connections from the manager's state API, with the role for its
// readers.
func (m *Manager) exerciseStateAPI(ctx context.Context, cp *controlplane.ControlPlane) error {
	name := TenantNamespace + "-viewer"
	if _, err := cp.KubectlInput(ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s-state-viewer}
subjects: [{kind: ServiceAccount, namespace: %s, name: %s}]
`, name, m.Name, TenantNamespace, Tenants[0]), "apply", "-f", "-"); err != nil {
		return err
	}
	defer func() { _, _ = cp.Kubectl(context.WithoutCancel(ctx), "delete", "clusterrolebinding", name) }()
	token, err := cp.Kubectl(ctx, "create", "token", "-n", TenantNamespace, Tenants[0])
	if err != nil {
		return err
	}
	var connections string
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 20*time.Second, true,
		func(ctx context.Context) (bool, error) { // the leader begins to serve after its first connects
			connections, err = get(ctx, insecure, "https://"+m.StateAddress+"/apis/"+m.flag("state-api-group")+
				"/v1alpha1/connections", token)
			return err == nil, nil
		})
	if err != nil {
		return errors.WithMessage(err, "reading the state API")
	}
	for _, tenant := range Tenants {
		if !strings.Contains(connections, `"name":"`+tenant+`"`) {
			return errors.Errorf("the state API has no connection %s: %s", tenant, connections)
		}
	}
	return nil
}
