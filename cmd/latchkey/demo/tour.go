package demo

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/examples/contentoperator"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

// tenant is an extension, its ServiceAccount and what that may do. Extension and ServiceAccount
// have one name.
type tenant struct {
	name      string
	resources []string // core resources that its Role lets it write in its namespace
	readOnly  bool     // it may only read at first
	content   string   // manifests
}

func (t tenant) namespace() string { return "team-" + t.name }

const greeting = `apiVersion: v1
kind: ConfigMap
metadata:
  name: greeting
data:
  hello: world
`

const service = `apiVersion: v1
kind: Service
metadata:
  name: shop
spec:
  selector: {app: shop}
  ports: [{port: 80}]
`

// tenants differ in their rights; yellow may not write anything until it is granted.
var tenants = []tenant{
	{name: "red", resources: []string{"configmaps"}, content: greeting},
	{name: "green", resources: []string{"configmaps", "services"}, content: greeting + "---\n" + service},
	{name: "blue", resources: []string{"configmaps", "services"}, content: service},
	{name: "yellow", resources: []string{"configmaps"}, readOnly: true, content: greeting},
	{name: "violet", resources: []string{"*"}, content: greeting},
}

// tour is the walk through the steps.
type tour struct {
	*narrator
	cp          *controlplane.ControlPlane
	admin       client.Client
	connections clustercache.ClusterCache
	broken      string // the step whose cause is left out
}

// causer does what a step is about and says so, or leaves it out.
type causer func(what string, do func() error) error

// step does something and waits for what it must lead to. Its cause is what Break leaves out.
type step struct {
	name, title string
	run         func(t *tour, ctx context.Context, cause causer) error
}

var steps = []step{
	{"connect", "five extensions name five ServiceAccounts", (*tour).connect},
	{"repair", "a managed object is deleted", (*tour).repair},
	{"recreate", "a ServiceAccount is deleted, then recreated", (*tour).recreate},
	{"grant", "an identity is forbidden to write, then granted", (*tour).grant},
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
				t.line("      BREAK left out: %s; the step must fail", what)
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
	t.line("All %d steps saw what they expected (%s)", len(steps), since(start))
	return nil
}

// connect creates everything and waits for five connections.
func (t *tour) connect(ctx context.Context, cause causer) error {
	for _, tenant := range tenants {
		for _, object := range tenant.objects() {
			if err := t.admin.Create(ctx, object); err != nil {
				return errors.Wrapf(err, "creating the objects of %s", tenant.name)
			}
		}
	}
	t.did("created 5 namespaces with Roles and content, and 5 ClusterExtensions")
	if err := t.until(ctx, "five extensions to miss their ServiceAccounts",
		t.allAre(func(state clustercache.ConnectionState) bool {
			return state.Reason == clustercache.ServiceAccountNotFound
		})); err != nil {
		return err
	}
	t.saw("5 extensions not connected: %s", clustercache.ServiceAccountNotFound)
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
			return errors.Errorf("%s is connected as somebody else: its ServiceAccount has UID %s", tenant.name,
				serviceAccount.UID)
		}
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

// repair deletes what red applied and waits for red to apply it again.
func (t *tour) repair(ctx context.Context, cause causer) error {
	key := client.ObjectKey{Namespace: "team-red", Name: "greeting"}
	before := &corev1.ConfigMap{}
	if err := t.admin.Get(ctx, key, before); err != nil {
		return errors.WithStack(err)
	}
	if err := cause(fmt.Sprintf("deleted configmap %s (uid %s)", key, before.UID), func() error {
		return t.admin.Delete(ctx, before)
	}); err != nil {
		return err
	}
	after := &corev1.ConfigMap{}
	if err := t.until(ctx, "another configmap of that name", func() (bool, string) {
		after = &corev1.ConfigMap{}
		if err := t.admin.Get(ctx, key, after); err != nil {
			return false, err.Error()
		}
		return after.UID != before.UID, "uid " + string(after.UID)
	}); err != nil {
		return err
	}
	t.saw("configmap %s (uid %s), applied by the content operator", key, after.UID)
	return nil
}

// recreate deletes blue's ServiceAccount, which must disconnect it, and creates it again: another
// identity.
func (t *tour) recreate(ctx context.Context, cause causer) error {
	before := t.state("blue")
	old, err := t.connections.GetUncachedClient(ctx, client.ObjectKey{Name: "blue"})
	if err != nil {
		return err
	}
	blue := tenants[2]
	start := time.Now()
	if err := t.admin.Delete(ctx, blue.serviceAccount()); err != nil {
		return errors.WithStack(err)
	}
	t.did("deleted serviceaccount team-blue/blue (uid %s)", before.Identity.UID)
	if err := t.until(ctx, "blue to be disconnected", func() (bool, string) {
		state := t.state("blue")
		return state.Reason == clustercache.ServiceAccountNotFound, describe(state)
	}); err != nil {
		return err
	}
	t.saw("blue is not connected: %s (after %s)", t.state("blue").Reason, since(start))
	err = old.List(ctx, &corev1.ServiceList{}, client.InNamespace("team-blue"))
	if !errors.Is(err, clustercache.ErrNotConnected) {
		return errors.Errorf("a client handed out before still works: %v", err)
	}
	t.saw("a client handed out before fails at once: %v", err)

	start = time.Now()
	if err := cause("created serviceaccount team-blue/blue again", func() error {
		return t.admin.Create(ctx, blue.serviceAccount())
	}); err != nil {
		return err
	}
	if err := t.until(ctx, "blue to connect as the new ServiceAccount", func() (bool, string) {
		state := t.state("blue")
		return isConnected(state) && state.Identity.UID != before.Identity.UID, describe(state)
	}); err != nil {
		return err
	}
	state := t.state("blue")
	t.saw("blue is connected as uid %s, generation %d instead of %d (after %s)", state.Identity.UID, state.Generation,
		before.Generation, since(start))
	return nil
}

// grant shows that yellow may not write, and gives it the right.
func (t *tour) grant(ctx context.Context, cause causer) error {
	before := t.state("yellow").Generation
	message := ""
	if err := t.until(ctx, "yellow to be forbidden to write", func() (bool, string) {
		installed := meta.FindStatusCondition(t.conditions(ctx, "yellow"), contentoperator.Installed)
		if installed == nil {
			return false, "no condition"
		}
		message = installed.Message
		return installed.Reason == string(metav1.StatusReasonForbidden),
			fmt.Sprintf("Installed is %s, %s", installed.Status, installed.Reason)
	}); err != nil {
		return err
	}
	t.saw("yellow is connected but not installed: %s", message)
	if err := cause("granted yellow to write configmaps in team-yellow", func() error {
		yellow := tenants[3]
		yellow.readOnly = false
		return t.admin.Update(ctx, yellow.role())
	}); err != nil {
		return err
	}
	if err := t.until(ctx, "yellow to be installed", func() (bool, string) {
		installed := meta.FindStatusCondition(t.conditions(ctx, "yellow"), contentoperator.Installed)
		if installed == nil {
			return false, "no condition"
		}
		return installed.Status == metav1.ConditionTrue,
			fmt.Sprintf("Installed is %s, %s", installed.Status, installed.Reason)
	}); err != nil {
		return err
	}
	if after := t.state("yellow").Generation; after != before {
		return errors.Errorf("yellow was connected anew: generation %d instead of %d", after, before)
	}
	t.saw("yellow is installed, on the same connection (generation %d)", before)
	return nil
}

// restart kills the API server, waits until all are disconnected, and starts it again.
func (t *tour) restart(ctx context.Context, cause causer) error {
	requested, err := t.tokenRequests()
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
	if err := t.until(ctx, "five extensions to find it unreachable",
		t.allAre(func(state clustercache.ConnectionState) bool {
			return state.Phase != clustercache.Connected && state.Reason == clustercache.Unreachable
		})); err != nil {
		return err
	}
	t.saw("5 extensions not connected: %s (after %s)", clustercache.Unreachable, since(start))

	if err := cause("started kube-apiserver", func() error { return t.cp.StartAPIServer(ctx) }); err != nil {
		return err
	}
	start = time.Now()
	if err := t.until(ctx, "five connections", t.allAre(isConnected)); err != nil {
		return err
	}
	for _, tenant := range tenants {
		if state := t.state(tenant.name); state.Identity.UID != uids[tenant.name] {
			return errors.Errorf("%s has UID %s now, it was %s", tenant.name, state.Identity.UID, uids[tenant.name])
		}
	}
	again, err := t.tokenRequests()
	if err != nil {
		return err
	}
	if again != requested {
		return errors.Errorf("%d tokens were requested anew although the old ones were valid", again-requested)
	}
	t.saw("5 connections, the same identities, no token requested anew (after %s)", since(start))
	return nil
}

// objects are what makes up a tenant but for its ServiceAccount, in the order to create them.
func (t tenant) objects() []client.Object {
	extension := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"namespace":      t.namespace(),
		"serviceAccount": map[string]any{"name": t.name},
	}}}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	extension.SetName(t.name)
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace()}},
		t.role(),
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: "content"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "content"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: t.namespace(), Name: t.name}},
		},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: t.name},
			Data:       map[string]string{"manifests.yaml": t.content},
		},
		extension,
	}
}

func (t tenant) serviceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: t.name}}
}

func (t tenant) role() *rbacv1.Role {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}
	if !t.readOnly {
		rules = append(rules,
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: t.resources,
				Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}})
	}
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace(), Name: "content"}, Rules: rules}
}

func (t *tour) state(name string) clustercache.ConnectionState {
	state, _ := t.connections.GetConnectionState(context.Background(), client.ObjectKey{Name: name})
	return state
}

func isConnected(state clustercache.ConnectionState) bool {
	return state.Phase == clustercache.Connected
}

func describe(state clustercache.ConnectionState) string {
	if isConnected(state) {
		return fmt.Sprintf("connected as uid %s", state.Identity.UID)
	}
	return fmt.Sprintf("%s, %s", state.Phase, state.Reason)
}

// allAre looks whether every tenant's connection is as wanted.
func (t *tour) allAre(wanted func(clustercache.ConnectionState) bool) func() (bool, string) {
	return func() (bool, string) {
		count, last := 0, ""
		for _, tenant := range tenants {
			if state := t.state(tenant.name); wanted(state) {
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
	var with struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(extension.Object, &with); err != nil {
		return nil
	}
	return with.Status.Conditions
}

// tokenRequests counts the TokenRequests that the API server's audit log shows.
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
