package deploy

import (
	"os"
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
