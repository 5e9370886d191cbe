package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/latchkey-dev/latchkey/test/support/deployment"
)

// exampleTenants are values with the tenants of deploy/kustomize/example.
const exampleTenants = "tenants[0].namespace=team-blue,tenants[0].names={blue,green,red,white,yellow}"

// byName returns objects by their kinds, namespaces and names.
func byName(t *testing.T, manifests string) map[string]map[string]any {
	t.Helper()
	objects, err := deployment.Decode(manifests)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	found := map[string]map[string]any{}
	for _, object := range objects {
		found[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object.Object
	}
	return found
}

// A release latchkey in latchkey-system has the objects of deploy/kustomize by the same names, with
// the same selectors and references, which Kubernetes does not change. So Helm can take them over.
func TestNamesOfKustomize(t *testing.T) {
	for folder, args := range map[string]string{"default": "", "state-api": ",stateAPI.enabled=true"} {
		t.Run(folder, func(t *testing.T) {
			g := NewWithT(t)
			var manifests strings.Builder
			for _, file := range []string{folder + "/namespace.yaml", folder + "/latchkey.yaml", "example/team-blue.yaml"} {
				content, err := os.ReadFile("../../deploy/kustomize/" + file)
				g.Expect(err).NotTo(HaveOccurred())
				manifests.WriteString("\n---\n" + string(content))
			}
			before := byName(t, manifests.String())
			rendered, err := render(t, "--set", exampleTenants+args)
			g.Expect(err).NotTo(HaveOccurred())
			after := byName(t, rendered)
			var gone, compared []string
			for name, object := range before {
				if after[name] == nil {
					gone = append(gone, name)
					continue
				}
				for _, path := range [][]string{{"spec", "selector"}, {"roleRef"}, {"rules"}} {
					want, found, err := unstructured.NestedFieldNoCopy(object, path...)
					g.Expect(err).NotTo(HaveOccurred())
					if !found {
						continue
					}
					got, _, _ := unstructured.NestedFieldNoCopy(after[name], path...)
					g.Expect(got).To(Equal(want), name)
					compared = append(compared, name)
				}
				delete(after, name)
			}
			g.Expect(compared).To(ContainElements("Deployment latchkey-system/latchkey",
				"Service latchkey-system/latchkey-metrics", "ClusterRoleBinding /latchkey", "Role team-blue/latchkey"))
			g.Expect(gone).To(ConsistOf("Namespace /latchkey-system", "Role latchkey-system/latchkey-without-tenants",
				"RoleBinding latchkey-system/latchkey-without-tenants"))
			g.Expect(after).To(BeEmpty(), "only Helm has these")
		})
	}
}

// The move from deploy/kustomize to the chart and back, as the chart's README has it: Helm takes
// over the Deployment that is there, and tenants' objects stay.
func TestMoveFromKustomize(t *testing.T) {
	g := NewWithT(t)
	binary := program(t)
	cp := start(t)
	const example = "../../deploy/kustomize/example"
	kubectl := func(args ...string) string {
		out, err := cp.Kubectl(t.Context(), args...)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	run := func(args ...string) string {
		out, err := helm(t.Context(), cp.Kubeconfig(), append(args, "--namespace", namespace)...)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	connect := func(manifests string) {
		objects, err := deployment.Decode(manifests)
		g.Expect(err).NotTo(HaveOccurred())
		options := deployment.Options{Program: binary, Dir: t.TempDir()}
		g.Expect(deployment.Exercise(t.Context(), cp, objects, options, patience)).To(Succeed())
	}
	uids := func(kind ...string) string {
		return kubectl(append([]string{"get", "-n", namespace, "-o", "jsonpath={..metadata.uid}"}, kind...)...)
	}

	kubectl("apply", "-k", "../../deploy/kustomize/default") // whose role for no tenants the example leaves there
	kubectl("apply", "-k", example)
	g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
	connect(kubectl("kustomize", example))
	extensions, manager := uids("clusterextensions.latchkey.dev"), uids("deployment", "latchkey")
	g.Expect(extensions).NotTo(BeEmpty())

	release := []string{"latchkey", chart, "--set", exampleTenants}
	run(slices.Concat([]string{"upgrade", "--install"}, takeOver, release)...)
	kubectl("-n", namespace, "delete", "role,rolebinding", "latchkey-without-tenants")
	g.Expect(uids("deployment", "latchkey")).To(Equal(manager))
	args := kubectl("get", "deployment", "latchkey", "-n", namespace, "-o",
		"jsonpath={.spec.template.spec.containers[0].args}")
	g.Expect(strings.Count(args, "--service-account-namespaces=")).To(Equal(1), "only the chart's")
	connect(run("get", "manifest", "latchkey"))
	run(slices.Concat([]string{"upgrade"}, takeOver[1:], release, []string{"--set", "log.level=debug"})...)
	g.Expect(uids("clusterextensions.latchkey.dev")).To(Equal(extensions))

	run("uninstall", "latchkey", "--wait")
	kubectl("apply", "-k", example)
	connect(kubectl("kustomize", example))
	g.Expect(uids("clusterextensions.latchkey.dev")).To(Equal(extensions))
	kubectl("delete", "-k", example, "--wait=false")
	g.Eventually(func() error {
		_, err := cp.Kubectl(t.Context(), "get", "crd", "clusterextensions.latchkey.dev")
		return err
	}).WithTimeout(patience).Should(MatchError(ContainSubstring("NotFound")), "also what the release kept")
}
