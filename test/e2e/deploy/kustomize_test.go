package deploy

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/internal/deployment"
	"github.com/latchkey-dev/latchkey/internal/testenv"
)

// kustomize returns the manifests of a folder of deploy/kustomize.
func kustomize(t *testing.T, cp *controlplane.ControlPlane, folder string) string {
	t.Helper()
	manifests, err := cp.Kubectl(t.Context(), "kustomize", folder)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return manifests
}

// exampleOn returns a copy of the example whose base is another folder.
func exampleOn(t *testing.T, base string) string {
	t.Helper()
	g := NewWithT(t)
	const example = "../../../deploy/kustomize/example"
	dir := t.TempDir()
	here, err := os.Getwd()
	g.Expect(err).NotTo(HaveOccurred())
	relative, err := filepath.Rel(dir, filepath.Join(here, "../../../deploy/kustomize", base))
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"kustomization.yaml", "team-blue.yaml"} {
		content, err := os.ReadFile(filepath.Join(example, name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(filepath.Join(dir, name),
			[]byte(strings.ReplaceAll(string(content), "- ../default #", "- "+relative+" #")), 0o600)).To(Succeed())
	}
	return dir
}

// program builds cmd/latchkey.
func program(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "latchkey")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../../../cmd/latchkey").CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", out)
	return file
}

// everything returns all objects that the API server lists, except for what controllers write into
// each namespace at any time.
func everything(t *testing.T, cp *controlplane.ControlPlane) (found []string) {
	t.Helper()
	g := NewWithT(t)
	kinds, err := cp.Kubectl(t.Context(), "api-resources", "--verbs=list", "-o", "name")
	g.Expect(err).NotTo(HaveOccurred())
	resources := slices.DeleteFunc(strings.Fields(kinds), func(name string) bool {
		return strings.HasPrefix(name, "events") || strings.HasPrefix(name, "componentstatuses")
	})
	list, err := cp.Kubectl(t.Context(), "get", strings.Join(resources, ","), "-A", "-o",
		`jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	g.Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if !strings.HasSuffix(line, "/kube-root-ca.crt") && !strings.HasSuffix(line, "/default") {
			found = append(found, line)
		}
	}
	slices.Sort(found)
	return found
}

// On an API server without anything of ours: kubectl apply -k, then the manager connects five
// extensions with the rendered identity and no other permissions than it uses. The profile
// "restricted" admits its Pods. kubectl delete -k leaves nothing.
func TestKustomize(t *testing.T) {
	binary := program(t)
	for _, base := range []string{"default", "state-api"} {
		t.Run(base, func(t *testing.T) {
			g := NewWithT(t)
			cp, err := controlplane.Start(t.Context(), controlplane.Options{ControllerManager: true,
				Aggregation: base == "state-api"})
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { g.Expect(cp.Stop()).To(Succeed()) })
			g.Expect(deployment.Prepare(t.Context(), cp)).To(Succeed())
			before := everything(t, cp)

			folder := exampleOn(t, base)
			_, err = cp.Kubectl(t.Context(), "apply", "--validate=strict", "-k", folder)
			g.Expect(err).NotTo(HaveOccurred())
			objects, err := deployment.Decode(kustomize(t, cp, folder))
			g.Expect(err).NotTo(HaveOccurred())
			admitted(t, cp, objects)
			g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
			options := deployment.Options{Program: binary, Dir: t.TempDir()}
			g.Expect(deployment.Exercise(t.Context(), cp, objects, options, testenv.Patience)).To(Succeed())
			checkPermissions(t, cp, objects)

			_, err = cp.Kubectl(t.Context(), "delete", "clusterrolebinding", "prometheus-reads-latchkey")
			g.Expect(err).NotTo(HaveOccurred())
			_, err = cp.Kubectl(t.Context(), "delete", "-k", folder, "--wait=false")
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func() []string {
				return slices.DeleteFunc(everything(t, cp), func(object string) bool { return slices.Contains(before, object) })
			}).WithTimeout(testenv.Patience).Should(BeEmpty())
		})
	}
}

// admitted creates the Pod of the Deployment, without keeping it.
func admitted(t *testing.T, cp *controlplane.ControlPlane, objects []*unstructured.Unstructured) {
	t.Helper()
	g := NewWithT(t)
	pod, err := deployment.Pod(objects)
	g.Expect(err).NotTo(HaveOccurred())
	create := func() (string, error) {
		content, err := json.Marshal(pod)
		g.Expect(err).NotTo(HaveOccurred())
		return cp.KubectlInput(context.Background(), string(content), "create", "--dry-run=server", "-f", "-")
	}
	_, err = create()
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() (string, error) { // by the real controllers
		return cp.Kubectl(context.Background(), "get", "pods", "-n", pod.Namespace, "-o", "name")
	}).WithTimeout(testenv.Patience).Should(HavePrefix("pod/" + pod.Name))
	pod.Spec.Containers[0].SecurityContext = nil
	_, err = create()
	g.Expect(err).To(MatchError(ContainSubstring(`violates PodSecurity "restricted:latest"`)))
}

// checkPermissions checks with the audit log that the manager's permissions sufficed, and that it
// used each of them.
func checkPermissions(t *testing.T, cp *controlplane.ControlPlane, objects []*unstructured.Unstructured) {
	t.Helper()
	g := NewWithT(t)
	const user = "system:serviceaccount:latchkey-system:latchkey"
	requests, err := deployment.Requests(cp.AuditLog(), user)
	g.Expect(err).NotTo(HaveOccurred())
	for _, request := range requests {
		g.Expect(request.Denied()).To(BeFalse(), "%s", request)
	}
	permissions, bindings, err := deployment.Permissions(objects, user)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(permissions)).To(BeNumerically(">=", 15))
	for _, permission := range permissions {
		g.Expect(permission.Used(requests)).To(BeTrue(), "not used: %s", permission)
	}
	for _, binding := range bindings {
		g.Expect(slices.ContainsFunc(requests, func(r deployment.Request) bool { return r.AllowedBy(binding) })).
			To(BeTrue(), "not used: %s", binding)
	}
}
