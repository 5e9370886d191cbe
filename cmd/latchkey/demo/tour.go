package demo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/cmd/internal/plugin"
	"github.com/latchkey-dev/latchkey/examples/contentoperator"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

// tour runs the steps.
type tour struct {
	*narrator
	cp          *controlplane.ControlPlane
	admin       client.Client
	connections clustercache.ClusterCache
	broken      string // the step whose action is skipped
}

// causer performs the action of a step and prints what. For the step that Options.Break names,
// causer skips the action, prints that, and returns nil.
type causer func(what string, do func() error) error

// step performs an action and waits for the expected result. run passes the action to cause, so
// that Options.Break can skip the action.
type step struct {
	name, title string
	run         func(t *tour, ctx context.Context, cause causer) error
}

var steps = []step{
	{"connect", "five extensions name five ServiceAccounts", (*tour).connect},
	{"repair", "a managed object is deleted", (*tour).repair},
	{"recreate", "a ServiceAccount is deleted, then recreated", (*tour).recreate},
	{"grant", "an identity has no write access, then receives it", (*tour).grant},
	{"restart", "the API server is killed, then restarted", (*tour).restart},
}

// Steps returns the names of the steps, in order.
func Steps() (names []string) {
	for _, step := range steps {
		names = append(names, step.name)
	}
	return names
}

func (t *tour) walk(ctx context.Context) error {
	start := time.Now()
	for i, step := range steps {
		t.line("")
		t.line("[%d/%d] %s: %s", i+1, len(steps), step.name, step.title)
		begin := time.Now()
		cause := func(what string, do func() error) error {
			if t.broken == step.name {
				t.line("      BREAK skipped: %s; the step must fail", what)
				return nil
			}
			if err := do(); err != nil {
				return errors.WithMessage(err, what)
			}
			t.did("%s", what)
			return nil
		}
		if err := step.run(t, ctx, cause); err != nil {
			t.line("      FAIL  %s: %v", step.name, err)
			return errors.WithMessagef(err, "step %s", step.name)
		}
		t.line("      ok    %s", since(begin))
	}
	t.line("")
	t.line("All %d steps saw their expected results (%s)", len(steps), since(start))
	return nil
}

// connect creates the objects of all tenants and waits for five connections. The cause is the
// creation of violet's ServiceAccount.
func (t *tour) connect(ctx context.Context, cause causer) error {
	for _, tenant := range tenants {
		for _, object := range tenant.objects() {
			if err := t.admin.Create(ctx, object); err != nil {
				return errors.Wrapf(err, "creating the objects of %s", tenant.name)
			}
		}
	}
	t.did("created 5 namespaces with Roles and content, and 5 ClusterExtensions")
	if err := t.until(ctx, "five extensions to report ServiceAccountNotFound",
		t.allAre(func(state clustercache.ConnectionState) bool {
			return state.Reason == clustercache.ReasonServiceAccountNotFound
		})); err != nil {
		return err
	}
	t.saw("5 extensions not connected: %s", clustercache.ReasonServiceAccountNotFound)
	for _, tenant := range tenants {
		create := func() error { return t.admin.Create(ctx, tenant.serviceAccount()) }
		what := fmt.Sprintf("created serviceaccount %s/%s", tenant.namespace(), tenant.name)
		if tenant.name != "violet" {
			if err := create(); err != nil {
				return errors.WithMessage(err, what)
			}
			t.did("%s", what)
		} else if err := cause(what, create); err != nil {
			return err
		}
	}
	if err := t.until(ctx, "five connections", t.allAre(isConnected)); err != nil {
		return err
	}
	for _, tenant := range tenants {
		state := t.state(tenant.name)
		t.saw("%-7s %-38s uid %s", tenant.name, state.Identity.Username, state.Identity.UID)
		serviceAccount := &corev1.ServiceAccount{}
		if err := t.admin.Get(ctx, client.ObjectKey{Namespace: tenant.namespace(), Name: tenant.name},
			serviceAccount); err != nil {
			return errors.WithStack(err)
		}
		if state.Identity.UID != serviceAccount.UID ||
			state.Identity.Username != "system:serviceaccount:"+tenant.namespace()+":"+tenant.name {
			return errors.Errorf("%s is connected as another identity: its ServiceAccount has UID %s", tenant.name,
				serviceAccount.UID)
		}
	}
	if err := t.seeConnections(ctx); err != nil {
		return err
	}
	return t.until(ctx, "content of all but yellow to be installed", func() (bool, string) {
		var missing []string
		for _, tenant := range tenants {
			if !tenant.readOnly && !meta.IsStatusConditionTrue(t.conditions(ctx, tenant.name), contentoperator.Installed) {
				missing = append(missing, tenant.name)
			}
		}
		return len(missing) == 0, "not installed: " + strings.Join(missing, ", ")
	})
}

// repair deletes the ConfigMap that red applied and waits until red applies the ConfigMap again.
func (t *tour) repair(ctx context.Context, cause causer) error {
	key := client.ObjectKey{Namespace: "team-red", Name: "greeting"}
	original := &corev1.ConfigMap{}
	if err := t.admin.Get(ctx, key, original); err != nil {
		return errors.WithStack(err)
	}
	if err := cause(fmt.Sprintf("deleted configmap %s (uid %s)", key, original.UID), func() error {
		return t.admin.Delete(ctx, original)
	}); err != nil {
		return err
	}
	replacement := &corev1.ConfigMap{}
	if err := t.until(ctx, "a new configmap with the same name", func() (bool, string) {
		replacement = &corev1.ConfigMap{}
		if err := t.admin.Get(ctx, key, replacement); err != nil {
			return false, err.Error()
		}
		return replacement.UID != original.UID, "uid " + string(replacement.UID)
	}); err != nil {
		return err
	}
	t.saw("configmap %s (uid %s), applied by the content operator", key, replacement.UID)
	return nil
}

// recreate deletes blue's ServiceAccount, which must disconnect blue. Then recreate creates the
// ServiceAccount again, which is another identity with another UID.
func (t *tour) recreate(ctx context.Context, cause causer) error {
	oldState := t.state("blue")
	oldClient, err := t.connections.GetUncachedClient(ctx, client.ObjectKey{Name: "blue"})
	if err != nil {
		return err
	}
	blue := tenants[2]
	start := time.Now()
	if err := t.admin.Delete(ctx, blue.serviceAccount()); err != nil {
		return errors.WithStack(err)
	}
	t.did("deleted serviceaccount team-blue/blue (uid %s)", oldState.Identity.UID)
	if err := t.until(ctx, "blue to be disconnected", func() (bool, string) {
		state := t.state("blue")
		return state.Reason == clustercache.ReasonServiceAccountNotFound, describe(state)
	}); err != nil {
		return err
	}
	t.saw("blue is not connected: %s (after %s)", t.state("blue").Reason, since(start))
	err = oldClient.List(ctx, &corev1.ServiceList{}, client.InNamespace("team-blue"))
	if !errors.Is(err, clustercache.ErrNotConnected) {
		return errors.Errorf("a client from before the deletion still works: %v", err)
	}
	t.saw("a client from before the deletion fails at once: %v", err)

	start = time.Now()
	if err := cause("created serviceaccount team-blue/blue again", func() error {
		return t.admin.Create(ctx, blue.serviceAccount())
	}); err != nil {
		return err
	}
	if err := t.until(ctx, "blue to connect as the new ServiceAccount", func() (bool, string) {
		state := t.state("blue")
		return isConnected(state) && state.Identity.UID != oldState.Identity.UID, describe(state)
	}); err != nil {
		return err
	}
	state := t.state("blue")
	t.saw("blue is connected as uid %s, epoch %d instead of %d (after %s)", state.Identity.UID, state.Epoch,
		oldState.Epoch, since(start))
	return nil
}

// grant shows that yellow has no write access, and grants the access on the same connection.
func (t *tour) grant(ctx context.Context, cause causer) error {
	epoch := t.state("yellow").Epoch
	message := ""
	if err := t.until(ctx, "writes by yellow to be forbidden", func() (bool, string) {
		condition := meta.FindStatusCondition(t.conditions(ctx, "yellow"), contentoperator.Installed)
		if condition == nil {
			return false, "no condition"
		}
		message = condition.Message
		return condition.Reason == string(metav1.StatusReasonForbidden),
			fmt.Sprintf("Installed is %s, %s", condition.Status, condition.Reason)
	}); err != nil {
		return err
	}
	t.saw("yellow is connected but not installed: %s", message)
	if err := t.seeRole(ctx, "yellow", "--missing"); err != nil {
		return err
	}
	if err := cause("granted yellow write access to configmaps in team-yellow", func() error {
		yellow := tenants[3]
		yellow.readOnly = false
		return t.admin.Update(ctx, yellow.role())
	}); err != nil {
		return err
	}
	if err := t.until(ctx, "yellow to be installed", func() (bool, string) {
		condition := meta.FindStatusCondition(t.conditions(ctx, "yellow"), contentoperator.Installed)
		if condition == nil {
			return false, "no condition"
		}
		return condition.Status == metav1.ConditionTrue,
			fmt.Sprintf("Installed is %s, %s", condition.Status, condition.Reason)
	}); err != nil {
		return err
	}
	if current := t.state("yellow").Epoch; current != epoch {
		return errors.Errorf("yellow reconnected: epoch %d instead of %d", current, epoch)
	}
	t.saw("yellow is installed, on the same connection (epoch %d)", epoch)
	return t.seeRole(ctx, "yellow")
}

// seeRole prints which permissions an extension used, or was refused, as the plugin of kubectl
// does.
func (t *tour) seeRole(ctx context.Context, name string, flags ...string) error {
	var out bytes.Buffer
	args := append([]string{"role", name}, flags...)
	if err := plugin.Run(ctx, &out, append(args, "--kubeconfig", t.cp.Kubeconfig())); err != nil {
		return errors.WithMessage(err, "kubectl latchkey role")
	}
	t.did("kubectl latchkey %s", strings.Join(args, " "))
	_, text, _ := strings.Cut(out.String(), "\n\n")
	table, _, _ := strings.Cut(text, "\n\n") // then come the roles
	for line := range strings.Lines(table) {
		t.saw("%s", strings.TrimSpace(line))
	}
	return nil
}

// restart kills the API server, waits until all extensions are disconnected, and starts the API
// server again. The connections must return with the same identities and without new tokens.
func (t *tour) restart(ctx context.Context, cause causer) error {
	requestsBefore, err := t.tokenRequests()
	if err != nil {
		return err
	}
	uids := map[string]types.UID{}
	for _, tenant := range tenants {
		uids[tenant.name] = t.state(tenant.name).Identity.UID
	}
	start := time.Now()
	if err := t.cp.KillAPIServer(ctx); err != nil {
		return err
	}
	t.did("killed kube-apiserver")
	if err := t.until(ctx, "five extensions to report Unreachable",
		t.allAre(func(state clustercache.ConnectionState) bool {
			return state.Phase != clustercache.PhaseConnected && state.Reason == clustercache.ReasonUnreachable
		})); err != nil {
		return err
	}
	t.saw("5 extensions not connected: %s (after %s)", clustercache.ReasonUnreachable, since(start))

	if err := cause("started kube-apiserver", func() error { return t.cp.StartAPIServer(ctx) }); err != nil {
		return err
	}
	start = time.Now()
	if err := t.until(ctx, "five connections", t.allAre(isConnected)); err != nil {
		return err
	}
	for _, tenant := range tenants {
		if state := t.state(tenant.name); state.Identity.UID != uids[tenant.name] {
			return errors.Errorf("%s has UID %s instead of %s", tenant.name, state.Identity.UID, uids[tenant.name])
		}
	}
	requestsAfter, err := t.tokenRequests()
	if err != nil {
		return err
	}
	if requestsAfter != requestsBefore {
		return errors.Errorf("%d new tokens were requested although the old ones were valid",
			requestsAfter-requestsBefore)
	}
	t.saw("5 connections with the same identities, without new tokens (after %s)", since(start))
	return nil
}

func (t *tour) state(name string) clustercache.ConnectionState {
	state, _ := t.connections.GetConnectionState(context.Background(), client.ObjectKey{Name: name})
	return state
}

func isConnected(state clustercache.ConnectionState) bool {
	return state.Phase == clustercache.PhaseConnected
}

func describe(state clustercache.ConnectionState) string {
	if isConnected(state) {
		return fmt.Sprintf("connected as uid %s", state.Identity.UID)
	}
	return fmt.Sprintf("%s, %s", state.Phase, state.Reason)
}

// allAre returns a function for until. The function reports whether the connection of every tenant
// matches, how many do, and one that does not.
func (t *tour) allAre(matches func(clustercache.ConnectionState) bool) func() (bool, string) {
	return func() (bool, string) {
		count, last := 0, ""
		for _, tenant := range tenants {
			if state := t.state(tenant.name); matches(state) {
				count++
			} else {
				last = tenant.name + " is " + describe(state)
			}
		}
		return count == len(tenants), fmt.Sprintf("%d of %d (%s)", count, len(tenants), last)
	}
}

func (t *tour) conditions(ctx context.Context, name string) []metav1.Condition {
	extension := &unstructured.Unstructured{}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	if err := t.admin.Get(ctx, client.ObjectKey{Name: name}, extension); err != nil {
		return nil
	}
	var object struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(extension.Object, &object); err != nil {
		return nil
	}
	return object.Status.Conditions
}

// tokenRequests counts the completed TokenRequests in the API server's audit log.
func (t *tour) tokenRequests() (int, error) {
	log, err := os.ReadFile(t.cp.AuditLog())
	if err != nil {
		return 0, errors.Wrap(err, "reading the audit log")
	}
	count := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `"stage":"ResponseComplete"`) && strings.Contains(line, `"subresource":"token"`) {
			count++
		}
	}
	return count, nil
}
