package plugin

import (
	"bytes"
	"io"
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
	page, err := os.ReadFile("../../../docs/operations.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, table, _ := bytes.Cut(page, []byte("## Reasons"))
	table, _, _ = bytes.Cut(table, []byte("## Metrics"))
	reasons := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllSubmatch(table, -1)
	NewWithT(t).Expect(len(reasons)).To(BeNumerically(">=", 14))
	for _, match := range reasons {
		t.Run(string(match[1]), func(t *testing.T) {
			text := explain(connection("Disconnected", string(match[1])), nil, now)
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
	g.Expect(explain(c, nil, now)).To(And(ContainSubstring("Identity:   system:serviceaccount:b:deployer\n"),
		ContainSubstring("2 failed in a row: timeout"), HaveSuffix("may read all that is asked for.\n")))
	failing := scope("Failing", "v1", "Secret", "b")
	failing.Status.Message = "429"
	g.Expect(explain(c, []v1alpha1.Scope{failing}, now)).To(And(Not(ContainSubstring("may read all")),
		ContainSubstring("\n  Failing: Secret.v1 in namespace b: 429\n"), Not(ContainSubstring("roles"))))
	forbidden := []v1alpha1.Scope{scope("Forbidden", "v1", "Secret", "b")}
	const wayOut = "\"kubectl latchkey role team-b --missing\" prints roles that would allow it.\n"
	g.Expect(explain(c, forbidden, now)).To(HaveSuffix(wayOut))
	refused := c.DeepCopy()
	refused.Status.Permissions = &v1alpha1.PermissionRecord{
		Refused: []v1alpha1.PermissionUse{refusedUse("get", "", "pods", "b")}}
	g.Expect(explain(refused, nil, now)).To(And(ContainSubstring("\n  get pods in b, 3 times\n"), HaveSuffix(wayOut)))
	refused.Status.Permissions.Refused[0].Count = 1
	g.Expect(explain(refused, nil, now)).To(ContainSubstring("\n  get pods in b, once\n"))
	// Whom a server of a tenant reports is no subject of roles, whatever it says.
	refused.Status.Source, refused.Status.Target = "secret b/kubeconfig", "https://remote"
	g.Expect(explain(refused, nil, now)).To(HaveSuffix("\nGrant it there, at https://remote.\n"))
	c.Status.State, c.Status.Reason, c.Status.Message = "Degraded", "CredentialNotUsed", "the newest one expired"
	c.Status.Problems = []v1alpha1.Problem{{Reason: "CredentialNotUsed", Message: "the newest one expired"},
		{Reason: "RequestsRefused", Message: "may not create pods"},
		{Reason: "KindsNotServed", Message: "Thing", Muted: true}}
	g.Expect(explain(c, nil, now)).To(And(Not(ContainSubstring("may read all")),
		ContainSubstring("\nReason:     CredentialNotUsed\nMessage:    the newest one expired\n"),
		ContainSubstring("\nWhat to do: Correct the Secret"),
		MatchRegexp(`\nAlso: +RequestsRefused: may not create pods\n +Grant the ServiceAccount .*\n`+
			`Also: +KindsNotServed: Thing \(muted\)\n +Install`)))
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

func refusedUse(verb, group, resource, namespace string, names ...string) v1alpha1.PermissionUse {
	return v1alpha1.PermissionUse{
		Verb:      verb,
		Group:     group,
		Resource:  resource,
		Namespace: namespace,
		Names:     names,
		Count:     3,
		Last:      metav1.NewTime(now.Add(-time.Minute)),
	}
}

func reportOf(uses ...v1alpha1.PermissionUse) *report {
	r := &report{
		name:    "team-b",
		subject: rbacv1.Subject{Kind: "ServiceAccount", Namespace: "b", Name: "deployer"},
		now:     now,
	}
	for _, one := range uses {
		r.uses = append(r.uses, useOf(one))
	}
	return r
}

// Of what was refused, the roles grant what has no power over others, in the ServiceAccount's own
// namespace. The rest is named, with the word that adds it. Of scopes, they grant list and watch.
func TestMissingRoles(t *testing.T) {
	g := NewWithT(t)
	kinds := mapper{"Secret": "secrets", "ConfigMap": "configmaps", "Node": "nodes", "Deployment.apps": "deployments"}
	for name, f := range map[string]roleFlags{
		"missing": {missing: true},
		"missing-allowed": {
			missing:      true,
			allow:        []string{"secrets", "cluster-wide/nodes", "namespace/c", "escalate"},
			impersonator: "system:serviceaccount:op:operator",
		},
	} {
		r := reportOf(refusedUse("create", "", "services", "b"), refusedUse("patch", "", "services", "b", "s"),
			refusedUse("get", "", "secrets", "b"), refusedUse("get", "", "configmaps", "c"),
			refusedUse("escalate", "rbac.authorization.k8s.io", "roles", "b", "x"),
			refusedUse("impersonate-on:serviceaccount:get", "", "pods", "b"),
			refusedUse("impersonate-on:serviceaccount:get", "", "secrets", "d"),
			v1alpha1.PermissionUse{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: "b", Count: 1})
		one := scope("Forbidden", "apps/v1", "Deployment", "b")
		one.Status.FieldSelector = "metadata.name=y"
		g.Expect(r.addScopes([]v1alpha1.Scope{scope("Synced", "v1", "ConfigMap", "b"), scope("Forbidden", "v1", "Node", ""),
			scope("Forbidden", "example.com/v1", "Unserved", "b"), one}, true, kinds)).To(Succeed())
		r.choose(f)
		objects := r.roles(connection("Connected", ""), f)
		text, err := manifest(r.comments(objects), objects)
		g.Expect(err).NotTo(HaveOccurred())
		want, err := os.ReadFile("testdata/" + name + ".yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(text).To(Equal(string(want)), name)
		g.Expect(r.describe(f, text)).To(And(MatchRegexp(`patch +services s +b +3 +60s ago`), HaveSuffix(text)))
	}
}

// Roles for what was used grant all of that, except for what RBAC alone asks for and what is in
// namespaces that are not on record.
func TestUsedRoles(t *testing.T) {
	g := NewWithT(t)
	several := refusedUse("get", "", "pods", "")
	several.AnyNamespace = true
	r := reportOf(refusedUse("get", "", "secrets", "b"),
		refusedUse("bind", "rbac.authorization.k8s.io", "roles", "b", "x"),
		refusedUse("list", "", "nodes", ""), refusedUse("create", "", "configmaps", "other", "made-by-apply"), several)
	r.choose(roleFlags{})
	g.Expect(r.leftOut).To(HaveLen(2))
	f := roleFlags{impersonator: "jane"}
	objects := r.roles(connection("Connected", ""), f)
	rules := map[string][]rbacv1.PolicyRule{}
	for _, object := range objects {
		key := object.GetObjectKind().GroupVersionKind().Kind + " " + object.GetNamespace() + " " + object.GetName()[:12]
		switch role := object.(type) {
		case *rbacv1.Role:
			rules[key] = role.Rules
		case *rbacv1.ClusterRole:
			rules[key] = role.Rules
		}
	}
	one := func(group, resource, name, verb string) []rbacv1.PolicyRule {
		rule := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}}
		if name != "" {
			rule.ResourceNames = []string{name}
		}
		return []rbacv1.PolicyRule{rule}
	}
	g.Expect(rules).To(Equal(map[string][]rbacv1.PolicyRule{
		"ClusterRole  latchkey-tea": one("", "nodes", "", "list"),
		"Role b latchkey-tea":       one("", "secrets", "", "get"),
		"Role other latchkey-tea":   one("", "configmaps", "made-by-apply", "create"),
		"ClusterRole  latchkey-act": one("", "nodes", "", "impersonate-on:serviceaccount:list"),
		"Role b latchkey-act": append(one("", "secrets", "", "impersonate-on:serviceaccount:get"),
			one("authentication.k8s.io", "serviceaccounts", "deployer", "impersonate:serviceaccount")...),
	}))
}

// Scopes that are alike for RBAC, or whose requests are counted, are one line of the table.
func TestTableSaysThingsOnce(t *testing.T) {
	g := NewWithT(t)
	r := reportOf(refusedUse("watch", "", "configmaps", "b"))
	labelled := scope("Synced", "v1", "ConfigMap", "b")
	labelled.Status.LabelSelector = "a=b"
	g.Expect(r.addScopes([]v1alpha1.Scope{labelled, scope("Synced", "v1", "ConfigMap", "b")}, false,
		mapper{"ConfigMap": "configmaps"})).To(Succeed())
	g.Expect(r.uses).To(HaveLen(5))
	var out strings.Builder
	r.table(&out, r.uses)
	g.Expect(strings.Fields(out.String())).To(Equal(strings.Fields(`VERB OF IN REQUESTS LAST
		watch configmaps b 3 60s ago
		list configmaps b - -`)))
}

// A role is wider than what is on record only where a comment says so, and never for what has power
// over others. A name cannot look like more than a name.
func TestWiderRoles(t *testing.T) {
	g := NewWithT(t)
	names := func(allow ...string) (rules []rbacv1.PolicyRule, report *report, text string) {
		many := refusedUse("get", "", "secrets", "b")
		many.AnyName = true
		logs := refusedUse("get", "", "pods", "b", "web-bcdfg")
		logs.Subresource = "log"
		everything := refusedUse("list", "*", "*", "b")
		r := reportOf(refusedUse("get", "", "pods", "b", "web-bcdfg"), refusedUse("get", "", "configmaps", "b", "web-bcdfg"),
			refusedUse("delete", "", "namespaces", "", "team-42424"),
			refusedUse("patch", "apps", "deployments", "b", "x in shop\n#"),
			many, everything, logs)
		f := roleFlags{allow: allow}
		r.choose(f)
		objects := r.roles(connection("Connected", ""), f)
		text, err := manifest(r.comments(objects), objects)
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			switch role := object.(type) {
			case *rbacv1.Role:
				rules = append(rules, role.Rules...)
			case *rbacv1.ClusterRole:
				rules = append(rules, role.Rules...)
			}
		}
		return rules, r, text
	}
	named := func(rules []rbacv1.PolicyRule) (all map[string]string) {
		all = map[string]string{}
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				all[resource] = strings.Join(rule.ResourceNames, ",")
			}
		}
		return all
	}
	rules, r, text := names()
	g.Expect(named(rules)).To(Equal(map[string]string{
		"pods": "", "pods/log": "", "configmaps": "web-bcdfg", "namespaces": "team-42424", "deployments": "x in shop\n#",
	}))
	g.Expect(text).To(And(ContainSubstring("# Of all names, because these look generated: get pods web-bcdfg\n"),
		ContainSubstring(`# Runs Pods, as any ServiceAccount of the namespace: patch deployments.apps "x in shop\n#"`+"\n"),
		ContainSubstring("--allow all-names adds it\n")))
	g.Expect(r.leftOutLines()).To(ContainElement("Left out: get secrets in b (of more objects than there are names on " +
		"record); --allow all-names adds it"))
	rules, r, _ = names("all-names", "nonsense")
	g.Expect(named(rules)).To(HaveKeyWithValue("secrets", ""))
	g.Expect(named(rules)).NotTo(HaveKey("*"))
	r.noteUnknownWords([]string{"all-names", "nonsense"})
	g.Expect(r.notes).To(Equal([]string{"--allow nonsense: nothing is left out for that"}))
}

// What the identity may do and did not, is listed: also where it did only a part, and where not.
func TestUnused(t *testing.T) {
	g := NewWithT(t)
	r := reportOf(refusedUse("list", "", "pods", "b"), refusedUse("get", "", "secrets", "b", "x"),
		refusedUse("list", "", "nodes", ""), refusedUse("patch", "apps", "deployments", "b", "d"))
	rule := func(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			Verbs:         strings.Fields(verbs),
			APIGroups:     []string{group},
			Resources:     strings.Fields(resources),
			ResourceNames: names,
		}
	}
	everybodys := split([]rbacv1.PolicyRule{rule("create", "authorization.k8s.io", "selfsubjectaccessreviews")})
	may := map[string][]rbacv1.PolicyRule{
		"": without(split([]rbacv1.PolicyRule{rule("list", "", "nodes pods"), rule("*", "*", "*"), everybodys[0],
			{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}}}), everybodys),
		"b": without(split([]rbacv1.PolicyRule{rule("get delete", "", "secrets", "x", "y"), rule("*", "apps", "deployments"),
			rule("*", "batch", "jobs")}), nil),
	}
	g.Expect(r.unusedLines(may)).To(Equal([]string{
		"get /metrics in all namespaces",
		"list pods outside of b",
		"* *.* in all namespaces, except for what it used of that",
		"delete secrets x in b",
		"delete secrets y in b",
		"get secrets y in b",
		"* deployments.apps in b, except for what it used of that",
		"* jobs.batch in b",
	}))
	g.Expect(r.unusedLines(nil)).To(BeEmpty())
}

func TestSince(t *testing.T) {
	g := NewWithT(t)
	f := roleFlags{since: "90s"}
	begin, err := f.begin(now)
	g.Expect(err).NotTo(HaveOccurred())
	r := reportOf(refusedUse("get", "", "pods", "b"))
	r.filter(begin)
	g.Expect(r.uses).To(HaveLen(1))
	f.since = now.Add(-30 * time.Second).Format(time.RFC3339)
	begin, err = f.begin(now)
	g.Expect(err).NotTo(HaveOccurred())
	r.filter(begin)
	g.Expect(r.uses).To(BeEmpty())
	g.Expect(r.describe(f, "")).To(Equal("Nothing is known that ServiceAccount b/deployer, as team-b, used.\n"))
	f.since = "yesterday"
	_, err = f.begin(now)
	g.Expect(err).To(MatchError(ContainSubstring("--since")))
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
		"not both":             {"role", "x", "--missing", "--unused", "--server=https://127.0.0.1:1"},
		"only yaml":            {"role", "x", "-o", "json", "--server=https://127.0.0.1:1"},
		"kept for an hour":     {"role", "x", "--missing", "--since=1h", "--server=https://127.0.0.1:1"},
		"takes no arguments":   {"top", "x", "--server=https://127.0.0.1:1"},
		"objects or informers": {"top", "--sort-by=x", "--server=https://127.0.0.1:1"},
	} {
		NewWithT(t).Expect(Run(t.Context(), io.Discard, args)).To(MatchError(ContainSubstring(want)))
	}
}
