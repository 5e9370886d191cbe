package stateapi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
)

// buildPlugin returns a function that runs "kubectl latchkey".
func buildPlugin(t *testing.T) func(args ...string) (string, error) {
	t.Helper()
	folder := t.TempDir()
	out, err := exec.Command("go", "build", "-o", filepath.Join(folder, "kubectl-latchkey"),
		"../../../cmd/kubectl-latchkey").CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(out))
	return func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(cp.Programs(), "kubectl"),
			append([]string{"latchkey"}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "KUBECONFIG="+cp.Kubeconfig())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// The plugin says why an extension is not connected and what to do, and the roles that it prints,
// applied, end the refusals: in a namespace and in all.
func TestPlugin(t *testing.T) {
	g := NewWithT(t)
	plugin := buildPlugin(t)
	eventually(t, func() string { text, _ := plugin("why", "asked"); return text }).
		Should(ContainSubstring("the cluster has no API state.latchkey.dev/v1alpha1"))

	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "asked"}})
	o := startOperator(t)
	tenant(t, "asked", "asked")
	why := func() string { text, _ := plugin("why", "asked"); return text }
	eventually(t, why).Should(And(MatchRegexp(`State: +Disconnected for `), MatchRegexp(`Reason: +ServiceAccountNotFound\n`),
		MatchRegexp(`What to do: +Create it; the connection follows within a second.\n`)))
	text, err := plugin("why", "unknown")
	g.Expect(err).To(HaveOccurred())
	g.Expect(text).To(ContainSubstring("there is no connection unknown"))

	deployer(t, "asked")
	key := client.ObjectKey{Name: "asked"}
	for name, kind := range map[string]clustercache.WatcherOptions{
		"secrets": {Kind: &corev1.Secret{}, Scope: clustercache.Scope{Namespace: "asked"}},
		"roles":   {Kind: &rbacv1.Role{}, Scope: clustercache.Scope{Namespace: "asked"}},
		"nodes":   {Kind: &corev1.Node{}},
	} {
		kind.Name, kind.Watcher, kind.EventHandler = name, fake.NewController(t), &handler.EnqueueRequestForObject{}
		eventually(t, func() error { return o.connections.Watch(t.Context(), key, clustercache.NewWatcher(kind)) }).
			Should(Succeed())
	}
	eventually(t, why).Should(And(ContainSubstring("It cannot read 3 of its 3 scopes:"),
		ContainSubstring("  Forbidden: Secret.v1 in namespace asked, for secrets\n"),
		ContainSubstring("  Forbidden: Node.v1 in all namespaces"),
		HaveSuffix("\"kubectl latchkey role asked --missing\" prints roles that would allow it.\n")))
	text, err = plugin("role", "asked", "--missing")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(And(
		ContainSubstring("Left out: list nodes in the cluster (a ClusterRole); --allow cluster-wide/nodes adds it\n"),
		Not(ContainSubstring("kind: ClusterRoleBinding")), ContainSubstring("keeps no record")))
	roles, err := plugin("role", "asked", "--missing", "--allow", "cluster-wide/nodes,secrets", "-o", "yaml")
	g.Expect(err).NotTo(HaveOccurred())
	kubectlWith(t, roles, "apply", "-f", "-")
	t.Cleanup(func() {
		if _, err := cp.KubectlInput(context.Background(), roles, "delete", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, why).WithTimeout(2 * time.Minute).Should(ContainSubstring("may read all that is asked for"))
	for _, allowed := range []string{"yes list secrets -n asked", "yes watch roles.rbac.authorization.k8s.io -n asked",
		"yes list nodes", "no get secrets -n asked", "no list secrets -n default", "no create secrets -n asked"} {
		answer, question, _ := strings.Cut(allowed, " ")
		said := tryKubectl(t, append([]string{"auth", "can-i", "--as=system:serviceaccount:asked:deployer"},
			strings.Fields(question)...)...)
		g.Expect(said).To(HavePrefix(map[string]string{"yes": "yes\n", "no": "kubectl auth can-i"}[answer]), question)
		g.Expect(strings.HasSuffix(said, "exit status 1")).To(Equal(answer == "no"), said)
	}
	eventually(t, func() string { text, _ := plugin("top"); return text }).Should(MatchRegexp(`^NAME +EXTENSIONS +OBJECTS +INFORMERS\nasked +1 +1 +3\n`), "the Role that was applied")
	g.Expect(plugin("top", "--sort-by=informers")).To(MatchRegexp(`\nasked +1 +1 +3\n`))

	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "asked", Name: "one"}})
	version := func() string {
		return tryKubectl(t, "get", "connections.state.latchkey.dev", "asked", "-o", "jsonpath={.metadata.resourceVersion}")
	}
	before := version()
	tenant(t, "asked-too", "asked") // the same ServiceAccount
	too := client.ObjectKey{Name: "asked-too"}
	for name, kind := range map[string]client.Object{"secrets": &corev1.Secret{}, "configmaps": &corev1.ConfigMap{}} {
		watcher := clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:         name,
			Kind:         kind,
			Scope:        clustercache.Scope{Namespace: "asked"},
			Watcher:      fake.NewController(t),
			EventHandler: &handler.EnqueueRequestForObject{},
		})
		eventually(t, func() error { return o.connections.Watch(t.Context(), too, watcher) }).Should(Succeed())
	}
	eventually(t, func() string { text, _ := plugin("top"); return text }).
		Should(MatchRegexp(`\nasked and 1 more +2 +2 +4\n`),
			"the Secret, which both have, is one object of one informer, and there is the Role that was applied")
	g.Expect(version()).To(Equal(before), "that others share is no change")
	shared := "custom-columns=CACHE:.status.sharedCache"
	g.Expect(strings.Fields(tryKubectl(t, "get", "connections.state.latchkey.dev", "asked", "asked-too", "-o", shared))).
		To(And(HaveLen(3), Not(ContainElement("<none>")),
			WithTransform(func(words []string) bool { return words[1] == words[2] }, BeTrue())))
}
