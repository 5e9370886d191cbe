package stateapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// content is what a host operator does for a tenant.
type content struct {
	name  string
	allow string // for role
	// install does it with the tenant's connection.
	install func(ctx context.Context, b clustercache.Bound, namespace string) error
	// objects are what install leaves in a namespace.
	objects func(namespace string) []string
}

// apply applies manifests as a tenant, with N for the namespace.
func apply(ctx context.Context, c client.Client, namespace string, manifests ...string) error {
	for _, manifest := range manifests {
		object := parse(manifest, namespace)
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("content"),
			client.ForceOwnership); err != nil {
			return errors.WithMessagef(err, "applying %s", object.GetName())
		}
	}
	return nil
}

func parse(manifest, namespace string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(manifest, "NS", namespace)), &object.Object); err != nil {
		panic(err)
	}
	return object
}

func poll(ctx context.Context, done func() (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return done() })
}

const (
	configMapManifest  = `{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: NS}, data: {a: b}}`
	configMapManifest2 = `{apiVersion: v1, kind: ConfigMap, metadata: {name: more, namespace: NS}, data: {a: b}}`
	serviceManifest    = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NS}, spec: {ports: [{port: 80}]}}`
	deploymentManifest = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: NS}, spec: {replicas: 0,
  selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`
	crdManifest = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
  metadata: {name: things.NS.example.com}, spec: {group: NS.example.com, scope: Namespaced,
  names: {kind: Thing, plural: things}, versions: [{name: v1, served: true, storage: true,
  schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`
	thingManifest = `{apiVersion: NS.example.com/v1, kind: Thing, metadata: {name: one, namespace: NS}}`
	roleManifest  = `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader, namespace: NS},
  rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]}`
	roleBindingManifest = `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding,
  metadata: {name: readers, namespace: NS}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader},
  subjects: [{kind: ServiceAccount, name: default}]}`
	namespaceManifest = `{apiVersion: v1, kind: Namespace, metadata: {name: NS-own, labels: {a: b}}}`
	insideManifest    = `{apiVersion: v1, kind: ConfigMap, metadata: {name: inside, namespace: NS-own}}`
	jobManifest       = `{apiVersion: batch/v1, kind: Job, metadata: {name: once, namespace: NS}, spec: {template: {
  spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`
)

var contents = []content{
	{
		name: "deployment",
		install: func(ctx context.Context, b clustercache.Bound, ns string) error {
			c, err := b.GetClient(ctx)
			if err != nil {
				return err
			}
			if err := apply(ctx, c, ns, configMapManifest, configMapManifest2, serviceManifest, deploymentManifest); err != nil {
				return err
			}
			if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "settings"}, &corev1.ConfigMap{}); err != nil {
				return err // from the cache
			}
			return c.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}})
		},
		objects: func(string) []string {
			return []string{configMapManifest, configMapManifest2, serviceManifest, deploymentManifest}
		},
	},
	{
		name: "crd",
		install: func(ctx context.Context, b clustercache.Bound, ns string) error {
			c, err := b.GetUncachedClient(ctx)
			if err != nil {
				return err
			}
			if err := apply(ctx, c, ns, crdManifest); err != nil {
				return err
			}
			crd := parse(crdManifest, ns)
			if err := poll(ctx, func() (bool, error) {
				err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd)
				text, _ := json.Marshal(crd.Object["status"])
				return strings.Contains(string(text), `"Established"`), err
			}); err != nil {
				return err
			}
			if err := poll(ctx, func() (bool, error) {
				err := apply(ctx, c, ns, thingManifest)
				if cause := errors.Cause(err); apierrors.IsNotFound(cause) || meta.IsNoMatchError(cause) { // not served yet
					return false, nil
				}
				return true, err
			}); err != nil {
				return err
			}
			return c.Delete(ctx, parse(thingManifest, ns))
		},
		objects: func(string) []string { return []string{crdManifest} },
	},
	{
		name:  "roles",
		allow: "bind,escalate",
		install: func(ctx context.Context, b clustercache.Bound, ns string) error {
			c, err := b.GetUncachedClient(ctx)
			if err != nil {
				return err
			}
			return apply(ctx, c, ns, roleManifest, roleBindingManifest)
		},
		objects: func(string) []string { return []string{roleManifest, roleBindingManifest} },
	},
	{
		name: "namespace",
		install: func(ctx context.Context, b clustercache.Bound, ns string) error {
			c, err := b.GetUncachedClient(ctx)
			if err != nil {
				return err
			}
			if err := apply(ctx, c, ns, namespaceManifest, insideManifest); err != nil {
				return err
			}
			return c.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(ns+"-own"))
		},
		objects: func(string) []string { return []string{insideManifest} }, // the namespace is kept: a role is in it
	},
	{
		name: "job",
		install: func(ctx context.Context, b clustercache.Bound, ns string) error {
			c, err := b.GetUncachedClient(ctx)
			if err != nil {
				return err
			}
			config, err := b.GetRESTConfig(ctx)
			if err != nil {
				return err
			}
			clients, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			job := &batchv1.Job{}
			text, _ := json.Marshal(parse(jobManifest, ns))
			if err := json.Unmarshal(text, job); err != nil {
				return err
			}
			if err := c.Create(ctx, job); err != nil {
				return err
			}
			pods := &corev1.PodList{}
			if err := poll(ctx, func() (bool, error) {
				err := c.List(ctx, pods, client.InNamespace(ns), client.MatchingLabels{batchv1.ControllerUidLabel: string(job.UID)})
				return len(pods.Items) > 0, err
			}); err != nil {
				return err
			}
			_, err = clients.CoreV1().Pods(ns).GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err != nil && !apierrors.IsBadRequest(err) { // it has no node
				return err
			}
			return c.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
		},
		objects: func(string) []string { return []string{jobManifest} },
	},
}

// acts says how an operator acts as the tenants.
type acts struct {
	options clustercache.Options
	user    string // of the operator, if it needs permissions for what it does as the tenants
}

// An extension's content is installed by a ServiceAccount that may do anything. With the roles that
// are printed then, and nothing else, another ServiceAccount can do the same, and is refused
// nothing. Without any one of their rules it cannot. With constrained impersonation, that includes
// the rules of the operator.
func TestRoleIsExact(t *testing.T) {
	plugin := buildPlugin(t)
	for way, a := range map[string]acts{
		"tokens": {},
		"impersonation": {
			options: clustercache.Options{Credentials: credential.Impersonation(credential.ImpersonationOptions{})},
			user:    "impersonating-operator",
		},
	} {
		t.Run(way, func(t *testing.T) {
			config := cp.Config()
			if a.user != "" {
				var err error
				config, err = cp.UserConfig(a.user)
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
				allowToConnect(t, a.user)
			}
			o := startOperatorAs(t, config, func(options *clustercache.Options) {
				options.Credentials = a.options.Credentials
				options.Permissions.Record = true
			})
			for _, c := range contents {
				t.Run(c.name, func(t *testing.T) {
					e := &experiment{
						content:  c,
						acts:     a,
						operator: o,
						ns:       way + "-" + c.name,
						plugin:   plugin,
					}
					e.run(t)
				})
			}
		})
	}
}

// allowToConnect grants what the operator needs to act as ServiceAccounts by constrained
// impersonation, whatever it does then: config/rbac-examples/constrained-impersonation.yaml.
func allowToConnect(t *testing.T, user string) {
	t.Helper()
	role := parse(connectManifest, user)
	create(t, role)
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	})
}

const connectManifest = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: NS}, rules: [
  {apiGroups: [latchkey.dev], resources: [clusterextensions], verbs: [list, watch]},
  {apiGroups: [""], resources: [serviceaccounts], verbs: [list, watch]},
  {apiGroups: [authentication.k8s.io], resources: [selfsubjectreviews],
    verbs: ["impersonate-on:serviceaccount:create"]},
  {apiGroups: [authorization.k8s.io], resources: [selfsubjectaccessreviews],
    verbs: ["impersonate-on:serviceaccount:create"]},
  {nonResourceURLs: [/api, "/api/*", /apis, "/apis/*", /readyz], verbs: ["impersonate-on:serviceaccount:get"]}]}`

type experiment struct {
	content
	acts
	operator *operator
	ns       string
	plugin   func(args ...string) (string, error)
	tries    int
}

func (e *experiment) run(t *testing.T) {
	g := NewWithT(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.ns}})
	everything := []*unstructured.Unstructured{
		parse(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: NS-admin},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
  subjects: [{kind: ServiceAccount, name: deployer, namespace: NS}]}`, e.ns)}
	if e.user != "" { // by legacy impersonation, as it were before
		everything = append(everything, parse(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole,
  metadata: {name: NS-admin}, rules: [{apiGroups: [""], resources: [serviceaccounts], verbs: [impersonate]}]}`, e.ns),
			parse(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: NS-impersonate},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NS-admin}}`, e.ns))
		everything[2].Object["subjects"] = []any{map[string]any{"kind": "User", "name": e.user}}
	}
	var text string
	e.with(t, everything, "deployer", func(extension client.Object, _ time.Time) {
		g.Expect(e.install(t.Context(), e.operator.connections.For(t.Context(), extension), e.ns)).To(Succeed())
		args := []string{"role", extension.GetName(), "-o", "yaml"}
		if e.allow != "" {
			args = append(args, "--allow", e.allow)
		}
		if e.user != "" {
			args = append(args, "--impersonator", e.user)
		}
		var err error
		text, err = e.plugin(args...)
		g.Expect(err).NotTo(HaveOccurred(), text)
	})
	roles := documents(text)
	g.Expect(text).NotTo(ContainSubstring("*"))
	name := e.next()
	e.with(t, renamed(roles, name), name, func(extension client.Object, begin time.Time) {
		g.Expect(e.install(t.Context(), e.operator.connections.For(t.Context(), extension), e.ns)).To(Succeed(), text)
		g.Expect(refusals(t, e.ns, name, begin)).To(BeEmpty(), text)
	})
	for n, role := range roles {
		for m, removed := range splitRules(role) {
			if removed.Verbs[0] == "create" && removed.Resources[0] == "namespaces" {
				continue // it exists already, because a role is in it
			}
			if e.name == "deployment" && removed.Verbs[0] == permissions.ImpersonateOn+"list" {
				continue // the informer watches from the beginning; it lists if that fails
			}
			name := e.next()
			fewer := renamed(roles, name)
			rest := splitRules(fewer[n])
			setRules(fewer[n], slices.Delete(rest, m, m+1))
			e.with(t, fewer, name, func(extension client.Object, _ time.Time) {
				err := e.install(t.Context(), e.operator.connections.For(t.Context(), extension), e.ns)
				refused := apierrors.IsForbidden(errors.Cause(err)) || errors.Is(err, clustercache.ErrNotConnected)
				g.Expect(refused).To(BeTrue(), "without %v: %v", removed, err)
			})
		}
	}
	t.Logf("%d ServiceAccounts", e.tries+1)
}

// splitRules returns the rules of a role, each with one verb and one resource.
func splitRules(role *unstructured.Unstructured) (all []rbacv1.PolicyRule) {
	rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
	text, _ := json.Marshal(rules)
	var typed []rbacv1.PolicyRule
	if err := json.Unmarshal(text, &typed); err != nil {
		panic(err)
	}
	for _, rule := range typed {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				one := rule
				one.Verbs, one.Resources = []string{verb}, []string{resource}
				all = append(all, one)
			}
		}
	}
	return all
}

func setRules(role *unstructured.Unstructured, rules []rbacv1.PolicyRule) {
	text, _ := json.Marshal(rules)
	var list []any
	if err := json.Unmarshal(text, &list); err != nil {
		panic(err)
	}
	role.Object["rules"] = list
}

func (e *experiment) next() string {
	e.tries++
	return fmt.Sprintf("deployer-%d", e.tries)
}

// with calls f with the connected extension of a new ServiceAccount that has the roles, and deletes
// everything then.
func (e *experiment) with(t *testing.T, roles []*unstructured.Unstructured, name string,
	f func(extension client.Object, begin time.Time)) {
	t.Helper()
	g := NewWithT(t)
	begin := time.Now()
	account := parse(`{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: NS}}`, e.ns)
	account.SetName(name)
	extension := parse(`{spec: {namespace: NS}}`, e.ns)
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	extension.SetName(e.ns + "-" + name)
	g.Expect(unstructured.SetNestedField(extension.Object, name, "spec", "serviceAccount", "name")).To(Succeed())
	var objects []*unstructured.Unstructured
	for _, role := range roles {
		objects = append(objects, role.DeepCopy())
	}
	objects = append(objects, account)
	for _, object := range objects {
		g.Expect(admin.Create(t.Context(), object)).To(Succeed())
		t.Cleanup(func() { _ = admin.Delete(context.Background(), object) }) // if the test fails
	}
	e.awaitPermissions(t, objects, name)
	objects = append(objects, extension)
	g.Expect(admin.Create(t.Context(), extension)).To(Succeed())
	t.Cleanup(func() { _ = admin.Delete(context.Background(), extension) })
	key := client.ObjectKeyFromObject(extension)
	eventually(t, func() bool { // or refused for good, if the operator may not act as it
		state, _ := e.operator.connections.GetConnectionState(t.Context(), key)
		return state.Phase == clustercache.PhaseConnected || state.Reason == clustercache.ReasonOperatorForbidden ||
			state.Reason == clustercache.ReasonUnauthorized
	}).Should(BeTrue())
	f(extension, begin)
	for _, manifest := range e.objects(e.ns) {
		g.Expect(client.IgnoreNotFound(admin.Delete(t.Context(), parse(manifest, e.ns),
			client.PropagationPolicy(metav1.DeletePropagationBackground)))).To(Succeed())
	}
	for _, object := range objects {
		g.Expect(admin.Delete(t.Context(), object)).To(Succeed())
	}
	for _, manifest := range e.objects(e.ns) {
		object := parse(manifest, e.ns)
		eventually(t, func() bool {
			err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)
			return apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
		}).Should(BeTrue())
	}
}

// awaitPermissions returns when the API server has all rules of the roles.
func (e *experiment) awaitPermissions(t *testing.T, roles []*unstructured.Unstructured, name string) {
	t.Helper()
	if name == "deployer" { // cluster-admin
		eventually(t, func() bool {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + e.ns + ":" + name,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"},
			}}
			NewWithT(t).Expect(admin.Create(t.Context(), review)).To(Succeed())
			return review.Status.Allowed
		}).Should(BeTrue())
	}
	for _, role := range roles {
		subject := "system:serviceaccount:" + e.ns + ":" + name
		if strings.Contains(role.GetName(), "latchkey-acting-as-") || strings.HasSuffix(role.GetName(), "-admin") {
			subject = e.user
		}
		for _, rule := range splitRules(role) {
			resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: subject,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace:   role.GetNamespace(),
					Verb:        rule.Verbs[0],
					Group:       rule.APIGroups[0],
					Resource:    resource,
					Subresource: subresource,
				},
			}}
			if len(rule.ResourceNames) > 0 {
				review.Spec.ResourceAttributes.Name = rule.ResourceNames[0]
			}
			eventually(t, func() bool {
				asked := review.DeepCopy()
				NewWithT(t).Expect(admin.Create(t.Context(), asked)).To(Succeed())
				return asked.Status.Allowed
			}).Should(BeTrue(), "%v for %s", rule, subject)
		}
	}
}

// documents returns the objects of a YAML file.
func documents(text string) (all []*unstructured.Unstructured) {
	for document := range strings.SplitSeq(text, "---\n") {
		all = append(all, parse(document, ""))
	}
	return all
}

// renamed returns the roles under other names, for another ServiceAccount.
func renamed(roles []*unstructured.Unstructured, account string) (all []*unstructured.Unstructured) {
	for _, role := range roles {
		text, _ := json.Marshal(role)
		text = []byte(strings.ReplaceAll(string(text), `"deployer"`, `"`+account+`"`))
		text = []byte(strings.ReplaceAll(string(text), `"name":"latchkey-`, `"name":"`+account+`-latchkey-`))
		all = append(all, parse(string(text), ""))
	}
	return all
}

// refusals returns which requests of a ServiceAccount were refused, by the audit log.
func refusals(t *testing.T, namespace, name string, begin time.Time) (all []string) {
	t.Helper()
	log, err := os.Open(cp.AuditLog())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	type user struct{ Username string }
	for lines.Scan() {
		var event struct {
			RequestURI, Verb         string
			User                     user
			ImpersonatedUser         *user
			ResponseStatus           metav1.Status
			RequestReceivedTimestamp time.Time
			UserAgent                string
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.RequestReceivedTimestamp.Before(begin) ||
			event.ResponseStatus.Code != http.StatusForbidden {
			continue
		}
		username := "system:serviceaccount:" + namespace + ":" + name
		if event.User.Username == username || event.ImpersonatedUser != nil && event.ImpersonatedUser.Username == username ||
			strings.HasSuffix(event.UserAgent, "/"+namespace+"-"+name) {
			all = append(all, event.Verb+" "+event.RequestURI)
		}
	}
	return all
}

// What an identity was refused is counted, shown with its connection, and granted by the roles that
// are printed for it, writes included. What it may do and did not, is listed, and of its siblings
// what they did counts.
func TestMissingAndUnusedPermissions(t *testing.T) {
	g := NewWithT(t)
	plugin := buildPlugin(t)
	const ns = "lacking"
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	deployer(t, ns)
	for _, manifest := range []string{
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: some, namespace: NS}, rules: [
  {apiGroups: [""], resources: [configmaps, services], verbs: [get, delete]}]}`,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: some, namespace: NS},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: some},
  subjects: [{kind: ServiceAccount, name: deployer, namespace: NS}]}`,
	} {
		create(t, parse(manifest, ns))
	}
	o := startOperator(t, func(options *clustercache.Options) { options.Permissions.Record = true })
	tenants := []client.Object{tenant(t, "lacking", ns), tenant(t, "lacking-too", ns)}
	clients := make([]client.Client, len(tenants))
	for n, extension := range tenants {
		eventually(t, func() (err error) {
			clients[n], err = o.connections.For(t.Context(), extension).GetUncachedClient(t.Context())
			return err
		}).Should(Succeed())
	}
	refused := func() string {
		return tryKubectl(t, "get", fullName, "lacking", "-o",
			"jsonpath={.status.refused} {.status.permissions.refused[*].verb}")
	}
	eventually(t, refused).Should(Equal("0 "))
	install := func() error { return apply(t.Context(), clients[0], ns, configMapManifest, serviceManifest) }
	g.Expect(apierrors.IsForbidden(errors.Cause(install()))).To(BeTrue())
	elsewhere := strings.Replace(configMapManifest, "namespace: NS", "namespace: rooms", 1)
	g.Expect(apply(t.Context(), clients[0], ns, elsewhere)).NotTo(Succeed())
	g.Expect(refused()).To(Equal("2 patch patch"))
	g.Expect(kubectl(t, "get", fullName, "lacking", "-o", "wide")).To(MatchRegexp(`(?s) REFUSED .* 0 +2 +[^ ]+ +https`),
		"Forbidden, Refused, Shared Cache, Target")
	g.Expect(kubectl(t, "get", fullName, "-o", "jsonpath={.items[*].status.permissions}")).To(BeEmpty())
	g.Expect(plugin("why", "lacking")).To(ContainSubstring("\n  patch configmaps settings in lacking, once\n"))

	var granted []string
	for range 4 { // one Forbidden at a time: patch and create of two objects
		before := install()
		roles, err := plugin("role", "lacking", "--missing", "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred(), roles)
		g.Expect(roles).NotTo(ContainSubstring("namespace: rooms\n"))
		g.Expect(roles).To(ContainSubstring("--allow namespace/rooms adds it"))
		granted = append(granted, roles)
		kubectlWith(t, roles, "apply", "-f", "-")
		eventually(t, func() bool {
			after := install()
			return after == nil || after.Error() != before.Error()
		}).Should(BeTrue())
	}
	g.Expect(install()).To(Succeed())
	eventually(t, refused).Should(Equal("1 patch"), "in the other namespace")

	settings := client.ObjectKey{Namespace: ns, Name: "settings"}
	g.Expect(clients[1].Get(t.Context(), settings, &corev1.ConfigMap{})).To(Succeed())
	unused, err := plugin("role", "lacking", "--unused")
	g.Expect(err).NotTo(HaveOccurred(), unused)
	g.Expect(unused).To(ContainSubstring(`ServiceAccount lacking/deployer may, and did not as lacking, lacking-too:

  delete configmaps in lacking
  delete services in lacking
  get services in lacking

The record is as old`))
	for _, roles := range granted {
		kubectlWith(t, roles, "delete", "--ignore-not-found", "-f", "-")
	}

	// What has the name of a role to be applied is not overwritten.
	text, err := plugin("role", "lacking", "-o", "yaml")
	g.Expect(err).NotTo(HaveOccurred(), text)
	foreign := documents(text)[0]
	foreign.SetLabels(nil)
	create(t, foreign)
	text, err = plugin("role", "lacking", "-o", "yaml")
	g.Expect(err).To(HaveOccurred())
	g.Expect(text).To(ContainSubstring("it would be overwritten"))
}
