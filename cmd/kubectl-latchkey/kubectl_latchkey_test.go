package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func connection(state, reason string) *v1alpha1.Connection {
	return &v1alpha1.Connection{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}, Status: v1alpha1.ConnectionStatus{
		State: state, Reason: reason, Message: "some\n message", Source: "serviceaccount b/deployer",
		Since: &metav1.Time{Time: now.Add(-2 * time.Minute)},
	}}
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

func scope(apiVersion, kind, namespace string) v1alpha1.Scope {
	return v1alpha1.Scope{Status: v1alpha1.ScopeStatus{Selection: v1alpha1.Selection{APIVersion: apiVersion, Kind: kind,
		Namespace: namespace}}}
}

// The roles allow exactly the scopes: list and watch, in their namespaces, by their resources.
func TestRoles(t *testing.T) {
	g := NewWithT(t)
	c := connection("Connected", "")
	c.Status.Identity = &v1alpha1.Identity{Username: "system:serviceaccount:b:deployer"}
	objects, err := rolesFor(c, []v1alpha1.Scope{
		scope("v1", "Secret", "b"), scope("v1", "ConfigMap", "b"), scope("v1", "ConfigMap", "b"), scope("v1", "Node", ""),
		scope("apps/v1", "Deployment", "b"), scope("remote.example.com/v1", "Policy", "c"),
	}, mapper{"Secret": "secrets", "ConfigMap": "configmaps", "Node": "nodes", "Deployment.apps": "deployments"})
	g.Expect(err).NotTo(HaveOccurred())
	text, err := manifest(objects)
	g.Expect(err).NotTo(HaveOccurred())
	want, err := os.ReadFile("testdata/roles.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(Equal(string(want)))

	c.Namespace, c.Status.Identity.Username = "ns", "alice"
	objects, err = rolesFor(c, []v1alpha1.Scope{scope("v1", "Secret", "b")}, mapper{"Secret": "secrets"})
	g.Expect(err).NotTo(HaveOccurred())
	text, err = manifest(objects)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(And(ContainSubstring("name: latchkey-reads-of-ns-team-b\n"), ContainSubstring("kind: User\n"),
		ContainSubstring("name: alice\n")))
	c.Status.Identity = nil
	_, err = rolesFor(c, nil, mapper{})
	g.Expect(err).To(MatchError(ContainSubstring("no identity")))
}

func TestTop(t *testing.T) {
	g := NewWithT(t)
	usages := []usageOf{{"a", 1, 5}, {"b", 9, 5}, {"c", 2, 70}, {"d", 0, 0}, {"e", 1, 5}}
	for by, want := range map[string]string{"objects": "c b a e d ", "informers": "b c a e d "} {
		sortUsages(usages, by)
		var order bytes.Buffer
		for _, usage := range usages {
			order.WriteString(usage.name + " ")
		}
		g.Expect(order.String()).To(Equal(want))
	}
	var out bytes.Buffer
	g.Expect(printUsages(&out, []usageOf{{"b", 9, 5}})).To(Succeed())
	g.Expect(out.String()).To(Equal("NAME   OBJECTS   INFORMERS\nb      5         9\n"))
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
