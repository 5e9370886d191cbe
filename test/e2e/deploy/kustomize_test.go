package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/deployment"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
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

// On an API server without anything of ours: kubectl apply -k, then the manager connects five
// extensions with the rendered identity and no other permissions than it uses. The profile
// "restricted" admits its Pods. kubectl delete -k leaves nothing.
func TestKustomize(t *testing.T) {
	testenv.SkipIfShort(t)
	binary := program(t)
	for _, base := range []string{"default", "state-api"} {
		t.Run(base, func(t *testing.T) {
			g := NewWithT(t)
			cp := testenv.Start(t, controlplane.Options{ControllerManager: true, Aggregation: base == "state-api"})
			g.Expect(deployment.Prepare(t.Context(), cp)).To(Succeed())
			before, err := deployment.Everything(t.Context(), cp)
			g.Expect(err).NotTo(HaveOccurred())

			folder := exampleOn(t, base)
			_, err = cp.Kubectl(t.Context(), "apply", "--validate=strict", "-k", folder)
			g.Expect(err).NotTo(HaveOccurred())
			objects, err := deployment.Decode(kustomize(t, cp, folder))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(deployment.CheckPod(t.Context(), cp, objects)).To(Succeed())
			g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
			options := deployment.Options{Program: binary, Dir: t.TempDir()}
			g.Expect(deployment.Exercise(t.Context(), cp, objects, options, testenv.Patience)).To(Succeed())
			g.Expect(deployment.CheckPermissions(cp.AuditLog(), objects)).To(Succeed())

			_, err = cp.Kubectl(t.Context(), "delete", "clusterrolebinding", "prometheus-reads-latchkey")
			g.Expect(err).NotTo(HaveOccurred())
			_, err = cp.Kubectl(t.Context(), "delete", "-k", folder, "--wait=false")
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func() ([]string, error) {
				return deployment.Leftovers(t.Context(), cp, before)
			}).WithTimeout(testenv.Patience).Should(BeEmpty())
		})
	}
}
