package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func connection(state, reason string) *v1alpha1.Connection {
	return &v1alpha1.Connection{
		ObjectMeta: metav1.ObjectMeta{Name: "team-b"},
		Status: v1alpha1.ConnectionStatus{
			State:   state,
			Reason:  reason,
			Message: "some\n message",
			Source:  "serviceaccount b/deployer",
			Since:   &metav1.Time{Time: now.Add(-2 * time.Minute)},
		},
	}
}

// For each reason of the page for the people on call, why says what to do.
func TestEveryReason(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, table, _ := bytes.Cut(page, []byte("## Reasons"))
	table, _, _ = bytes.Cut(table, []byte("## Metrics"))
	reasons := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllSubmatch(table, -1)
	NewWithT(t).Expect(len(reasons)).To(BeNumerically(">=", 14))
	for _, match := range reasons {
		t.Run(string(match[1]), func(t *testing.T) {
			text := explain(connection("Disconnected", string(match[1])), nil, "", now)
			NewWithT(t).Expect(text).To(MatchRegexp(`^Connection: +team-b\nState: +Disconnected for 2m \(since 2026-01-02T03:02:05Z\)\n` +
				`Reason: +` + string(match[1]) + `\nMessage: +some message\nSource: +serviceaccount b/deployer\nWhat to do: \S.*\.?\n$`))
		})
	}
}

func TestConnected(t *testing.T) {
	g := NewWithT(t)
	c := connection("Connected", "")
	c.Status.Message, c.Status.Identity = "", &v1alpha1.Identity{Username: "system:serviceaccount:b:deployer"}
	c.Status.Probe = v1alpha1.ProbeStatus{Failures: 2, Error: "timeout"}
	g.Expect(explain(c, nil, "", now)).To(And(ContainSubstring("Identity:   system:serviceaccount:b:deployer\n"),
		ContainSubstring("2 failed in a row: timeout"), HaveSuffix("may read all that is asked for.\n")))
	failing := scope("Failing", "v1", "Secret", "b")
	failing.Status.Message = "429"
	g.Expect(explain(c, []v1alpha1.Scope{failing}, "", now)).To(And(Not(ContainSubstring("may read all")),
		ContainSubstring("\n  Failing: Secret.v1 in namespace b: 429\n"), Not(ContainSubstring("Grant"))))
	c.Status.Message = "the newest credential is refused"
	g.Expect(explain(c, nil, "", now)).NotTo(ContainSubstring("may read all"))
}

// mapper knows some kinds.
type mapper map[string]string

func (m mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if resource, ok := m[kind.String()]; ok {
		return &meta.RESTMapping{Resource: kind.WithVersion(versions[0]).GroupVersion().WithResource(resource)}, nil
	}
	return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
}

func scope(state, apiVersion, kind, namespace string) v1alpha1.Scope {
	return v1alpha1.Scope{Status: v1alpha1.ScopeStatus{
		State: state,
		Selection: v1alpha1.Selection{
			APIVersion: apiVersion,
			Kind:       kind,
			Namespace:  namespace,
		},
	}}
}

// The roles allow exactly the scopes: list and watch, in their namespaces, by their resources.
// Where something is Forbidden, a role has what is allowed, too.
func TestRoles(t *testing.T) {
	g := NewWithT(t)
	c := connection("Connected", "")
	c.Status.Identity = &v1alpha1.Identity{Username: "system:serviceaccount:other:account"}
	objects, err := rolesFor(c, []v1alpha1.Scope{
		scope("Forbidden", "v1", "Secret", "b"), scope("Synced", "v1", "ConfigMap", "b"),
		scope("Forbidden", "v1", "ConfigMap", "b"), scope("Forbidden", "v1", "Node", ""),
		scope("Forbidden", "apps/v1", "Deployment", "b"), scope("Forbidden", "example.com/v1", "Unserved", "c"),
		scope("Synced", "v1", "Secret", "allowed"),
	}, mapper{"Secret": "secrets", "ConfigMap": "configmaps", "Node": "nodes", "Deployment.apps": "deployments"})
	g.Expect(err).NotTo(HaveOccurred())
	text, err := manifest(objects)
	g.Expect(err).NotTo(HaveOccurred())
	want, err := os.ReadFile("testdata/roles.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(Equal(string(want)), "the subject is the ServiceAccount that the extension names")

	// Whom a server of a tenant reports is no subject, whatever it says.
	c.Status.Source = "secret b/kubeconfig"
	objects, err = rolesFor(c, []v1alpha1.Scope{scope("Forbidden", "v1", "Secret", "b")}, mapper{"Secret": "secrets"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects).To(BeEmpty())
	c.Status.Target = "https://remote"
	g.Expect(explain(c, []v1alpha1.Scope{scope("Forbidden", "v1", "Secret", "b")}, "", now)).
		To(HaveSuffix("\nGrant list and watch there, at https://remote.\n"))
}

// Two extensions never share a role.
func TestRoleNames(t *testing.T) {
	long := strings.Repeat("x", 250)
	seen := map[string]bool{}
	for _, key := range [][2]string{{"a", "b-c"}, {"a-b", "c"}, {"", "a-b-c"}, {"", long + "a"}, {"", long + "b"}} {
		c := &v1alpha1.Connection{ObjectMeta: metav1.ObjectMeta{Namespace: key[0], Name: key[1]}}
		for _, resource := range []string{"pods", "secrets"} { // what is applied later takes nothing away
			name := roleName(c, []rbacv1.PolicyRule{{Resources: []string{resource}}})
			NewWithT(t).Expect(seen).NotTo(HaveKey(name))
			NewWithT(t).Expect(len(name)).To(BeNumerically("<=", 253))
			seen[name] = true
		}
	}
}

// What is allowed already is not granted again, and a scope of one name by that name only.
func TestRolesGrantNothingElse(t *testing.T) {
	g := NewWithT(t)
	kinds := mapper{"Secret": "secrets", "ConfigMap": "configmaps"}
	named := func(name, fieldSelector string) v1alpha1.Scope {
		s := scope("Forbidden", "v1", name, "b")
		s.Status.Selection.FieldSelector = fieldSelector
		return s
	}
	rules := func(scopes ...v1alpha1.Scope) []rbacv1.PolicyRule {
		objects, err := rolesFor(connection("Connected", ""), scopes, kinds)
		g.Expect(err).NotTo(HaveOccurred())
		return objects[0].(*rbacv1.Role).Rules
	}
	verbs := []string{"list", "watch"}
	g.Expect(rules(named("Secret", "metadata.name=y"), named("Secret", "metadata.name=x"),
		scope("Synced", "v1", "ConfigMap", "b"))).To(Equal([]rbacv1.PolicyRule{{
		APIGroups:     []string{""},
		Resources:     []string{"secrets"},
		ResourceNames: []string{"x", "y"},
		Verbs:         verbs,
	}}))
	all := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: verbs}}
	g.Expect(rules(named("Secret", "metadata.name=y"), named("Secret", ""))).To(Equal(all))
	g.Expect(rules(named("Secret", ""), named("Secret", "metadata.name=y"))).To(Equal(all))
	g.Expect(rules(named("Secret", "type=Opaque"))).To(Equal(all))
}

func TestTop(t *testing.T) {
	g := NewWithT(t)
	usages := []usageOf{{"a", 1, 1, 5}, {"b", 1, 9, 5}, {"c", 1, 2, 70}, {"d", 1, 0, 0}, {"e", 1, 1, 5}}
	for by, want := range map[string]string{"objects": "c b a e d ", "informers": "b c a e d "} {
		sortUsages(usages, by)
		var order bytes.Buffer
		for _, usage := range usages {
			order.WriteString(usage.name + " ")
		}
		g.Expect(order.String()).To(Equal(want))
	}
	var out bytes.Buffer
	g.Expect(printUsages(&out, []usageOf{{"b", 3, 9, 5}})).To(Succeed())
	g.Expect(out.String()).To(Equal("NAME   EXTENSIONS   OBJECTS   INFORMERS\nb      3            5         9\n"))
}

// A cache that extensions share is one, with each scope once.
func TestCachesOfTop(t *testing.T) {
	g := NewWithT(t)
	var connections []v1alpha1.Connection
	for _, c := range [][3]string{{"n", "b", "x"}, {"n", "a", "x"}, {"m", "a", ""}, {"m", "b", ""}, {"m", "c", "y"},
		{"m", "d", "x"}} {
		connections = append(connections, v1alpha1.Connection{
			ObjectMeta: metav1.ObjectMeta{Namespace: c[0], Name: c[1]},
			Status:     v1alpha1.ConnectionStatus{SharedCache: c[2]},
		})
	}
	var names []string
	for _, users := range cachesOf(connections) {
		names = append(names, namesOf(users))
	}
	g.Expect(names).To(Equal([]string{"m/d and 2 more", "m/a", "m/b", "m/c"}))

	of := func(namespace, extension, representation string, s v1alpha1.Scope) v1alpha1.Scope {
		s.Namespace, s.Status.Extension, s.Status.Representation = namespace, extension, representation
		return s
	}
	secrets := scope("Synced", "v1", "Secret", "b")
	byCache := scopesByCache(connections, []v1alpha1.Scope{
		of("n", "a", "Typed", secrets), of("n", "b", "Typed", secrets), of("m", "d", "Metadata", secrets),
		of("n", "b", "Typed", scope("Synced", "v1", "Secret", "c")), of("m", "a", "Typed", secrets),
		of("m", "c", "Typed", secrets), of("gone", "x", "Typed", secrets),
	})
	g.Expect(byCache).To(HaveLen(2))
	g.Expect(byCache["x"]).To(HaveLen(3))
	g.Expect(byCache["x"][0]).To(HaveLen(2), "as both users have it: one may be gone by now")
	g.Expect(byCache["y"]).To(HaveLen(1))

	connections[0].Status.Scopes, connections[1].Status.Scopes = 1, 3
	users := sharing{&connections[0], &connections[1]}
	g.Expect(usesAll(users, 3)).To(BeIdenticalTo(&connections[1]))
	g.Expect(usesAll(users, 4)).To(BeNil())
}

func TestMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		`no command "sing"`: {"sing"}, "name one extension": {"why", "--server=https://127.0.0.1:1"},
		"unknown flag":         {"why", "--nonsense"},
		"takes no arguments":   {"top", "x", "--server=https://127.0.0.1:1"},
		"objects or informers": {"top", "--sort-by=x", "--server=https://127.0.0.1:1"},
	} {
		NewWithT(t).Expect(run(t.Context(), args)).To(MatchError(ContainSubstring(want)))
	}
}
