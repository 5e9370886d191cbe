package config

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// documents returns the objects of manifests.
func documents(t *testing.T, manifests string) (objects []*unstructured.Unstructured) {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		object := &unstructured.Unstructured{}
		NewWithT(t).Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
		objects = append(objects, object)
	}
	return objects
}

// The objects of the default manifests have latchkey's own names. No definition or policy among
// them names another project's group.
func TestDefaultsTouchNothingOfOthers(t *testing.T) {
	g := NewWithT(t)
	kinds := map[string]int{}
	for _, object := range documents(t, Manifests()) {
		kinds[object.GetKind()]++
		g.Expect(object.GetName()).To(Or(HavePrefix("latchkey-"), HaveSuffix(".latchkey.dev")), object.GetKind())
		switch object.GetKind() {
		case "CustomResourceDefinition":
			group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
			g.Expect(group).To(Equal("latchkey.dev"))
		case "ValidatingAdmissionPolicy":
			rules, _, _ := unstructured.NestedSlice(object.Object, "spec", "matchConstraints", "resourceRules")
			g.Expect(rules).NotTo(BeEmpty())
			for _, rule := range rules {
				g.Expect(rule.(map[string]any)["apiGroups"]).To(Equal([]any{"latchkey.dev"}))
			}
		}
	}
	g.Expect(kinds).
		To(And(HaveKeyWithValue("CustomResourceDefinition", 1), HaveKeyWithValue("ValidatingAdmissionPolicy", 1)))
	g.Expect(Manifests()).NotTo(ContainSubstring("apiGroups: [olm.operatorframework.io]"))
	g.Expect(Manifests(AdmissionOLM)).To(ContainSubstring("apiGroups: [olm.operatorframework.io]"))
}

// The chart has copies of these files, because a chart has files of its own folder only. "make
// deploy" writes them.
func TestCopiesOfTheChart(t *testing.T) {
	for name, original := range map[string]string{
		"clusterextensions.yaml": "crd/clusterextensions.yaml",
		"admission.yaml":         "admission/serviceaccount-reference.yaml",
		"admission-olm.yaml":     "admission-olm/serviceaccount-reference.yaml",
		"state-api.yaml":         "stateapi/state-api.yaml",
	} {
		g := NewWithT(t)
		want, err := files.ReadFile(original)
		g.Expect(err).NotTo(HaveOccurred())
		copied, err := os.ReadFile("../deploy/helm/latchkey/files/" + name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(copied)).To(Equal(string(want)), `run "make deploy"`)
	}
	for _, name := range []string{"rules.yaml", "dashboard.json"} {
		g := NewWithT(t)
		want, err := os.ReadFile("../deploy/observability/" + name)
		g.Expect(err).NotTo(HaveOccurred())
		copied, err := os.ReadFile("../deploy/helm/latchkey/files/" + name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(copied)).To(Equal(string(want)), `run "make deploy"`)
	}
}
