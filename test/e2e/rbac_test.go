package e2e

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/credential"
)

// TestRBACExamples checks the examples of least privilege. Each example suffices for a host
// operator to act as the identities that the example names, and as no other identity.
func TestRBACExamples(t *testing.T) {
	tokens := credential.ServiceAccountTokens(credential.ServiceAccountOptions{})
	impersonation := credential.Impersonation(credential.ImpersonationOptions{})
	kubeconfigs := credential.KubeconfigSecrets(credential.KubeconfigOptions{
		Reference: func(object client.Object) (credential.SecretReference, error) {
			namespace, _, err := unstructured.NestedString(object.(*unstructured.Unstructured).Object, "spec", "namespace")
			return credential.SecretReference{Namespace: namespace, Name: object.GetName() + "-kubeconfig", Key: "value"}, err
		},
	})
	for example, tc := range map[string]struct {
		credentials credential.Provider
		guard       func(context.Context, client.Object, types.NamespacedName) error
		// The host operator sees the ServiceAccounts of one namespace only, and may act as all of
		// them.
		oneNamespace bool
		refusal      string
	}{
		"tokens-by-name": {tokens, clustercache.GuardedByAdmission, false,
			`cannot create resource "serviceaccounts/token"`},
		"tokens-in-a-namespace":     {tokens, clustercache.GuardedByAdmission, true, "unknown namespace for the cache"},
		"impersonation":             {impersonation, clustercache.GuardedByAdmission, false, "cannot impersonate"},
		"constrained-impersonation": {impersonation, clustercache.GuardedByAdmission, false, "cannot impersonate"},
		"kubeconfig-secrets":        {kubeconfigs, nil, false, `cannot list resource "secrets"`},
	} {
		t.Run(example, func(t *testing.T) {
			g := NewWithT(t)
			system, team, elsewhere := namespace(t), namespace(t), namespace(t)
			create(t, serviceAccount(system, "operator"))
			for name, ns := range map[string]string{"blue": team, "green": team, "red": elsewhere} {
				create(t, serviceAccount(ns, name))
				create(t, extension(ns, name))
				create(t, kubeconfigSecret(ns, name, kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, name)})))
			}
			manifest := exampleOf(t, example)
			manifest = strings.NewReplacer("latchkey-system", system, "team-blue", team).Replace(manifest)
			_, err := cp.KubectlInput(t.Context(), manifest, "apply", "-f", "-")
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() {
				_, err := cp.KubectlInput(context.Background(), manifest, "delete", "-f", "-")
				g.Expect(err).NotTo(HaveOccurred())
			})
			if example == "tokens-by-name" {
				checkCommandsOfSecurityPage(t, strings.NewReplacer("latchkey-system", system, "team-blue", team))
			}
			config := rest.AnonymousClientConfig(cp.Config())
			config.BearerToken = token(t, system, "operator")
			o := newOperatorAt(t, config, clustercache.Options{Credentials: tc.credentials, AllowIdentity: tc.guard},
				func(o *operator, options *clustercache.Options) {
					if !tc.oneNamespace {
						return
					}
					restricted, err := cluster.New(config, func(c *cluster.Options) {
						c.Cache.ByObject = map[client.Object]cache.ByObject{
							metadataOf("ServiceAccount"): {Namespaces: map[string]cache.Config{team: {}}},
						}
					})
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(o.mgr.Add(restricted)).To(Succeed())
					o.also = append(o.also, func() { utilnet.CloseIdleConnectionsFor(restricted.GetHTTPClient().Transport) })
					options.Cluster = restricted
				}).start(t)
			o.waitConnected(t, "blue")
			refused := func(s clustercache.ConnectionState) bool {
				return s.Phase == clustercache.PhaseDisconnected && strings.Contains(s.Message, tc.refusal) &&
					(!tc.oneNamespace || s.Reason == clustercache.ReasonOperatorForbidden)
			}
			if tc.oneNamespace {
				o.waitConnected(t, "green")
			} else {
				o.waitFor(t, "green", refused)
			}
			o.waitFor(t, "red", refused)
		})
	}
	NewWithT(t).Expect(config.Manifests()).NotTo(ContainSubstring("latchkey-tokens-by-name"),
		"the default manifests contain no example")
}

// checkCommandsOfSecurityPage runs the commands with which docs/security.md checks what the host
// operator may do, and compares their output with the page.
func checkCommandsOfSecurityPage(t *testing.T, names *strings.Replacer) {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/security.md")
	g.Expect(err).NotTo(HaveOccurred())
	blocks := regexp.MustCompile("(?s)```console\n(kubectl auth can-i .*?)\n```\n[^`]*```text\n(.*?)\n```").
		FindAllStringSubmatch(string(page), -1)
	g.Expect(blocks).To(HaveLen(1))
	commands, answers := strings.Split(blocks[0][1], "\n"), strings.Split(blocks[0][2], "\n")
	g.Expect(commands).To(HaveLen(4))
	g.Expect(answers).To(HaveLen(4))
	for i, command := range commands {
		args := strings.Fields(names.Replace(command))
		g.Expect(args[0]).To(Equal("kubectl"))
		answer, _ := cp.Kubectl(t.Context(), args[1:]...) // kubectl exits with 1 if the answer is no
		g.Expect(strings.TrimSpace(answer)).To(Equal(answers[i]), command)
	}
}

// exampleOf returns the objects of an example, which are those with the name latchkey-<example>.
func exampleOf(t *testing.T, example string) string {
	t.Helper()
	var documents []string
	for _, document := range strings.Split(config.Manifests(config.RBACExamples), "\n---\n") {
		object := &unstructured.Unstructured{}
		NewWithT(t).Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
		if object.GetName() == "latchkey-"+example {
			documents = append(documents, document)
		}
	}
	NewWithT(t).Expect(len(documents)).To(BeNumerically(">=", 4), example)
	return strings.Join(documents, "\n---\n")
}
