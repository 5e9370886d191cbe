package config

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Two programs in one cluster share no object, and nothing of the default names is left.
func TestStateAPIManifests(t *testing.T) {
	g := NewWithT(t)
	own, err := StateAPIManifests(StateAPIOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(own).To(Equal(Manifests(StateAPI)))
	own, err = StateAPIManifests(StateAPIOptions{Shared: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(own).To(Equal(Manifests(StateAPIFleet, StateAPI)))
	other, err := StateAPIManifests(StateAPIOptions{
		Group:          "state.example.com",
		Namespace:      "ns",
		Name:           "mine",
		ServiceAccount: "robot",
		Shared:         true,
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(other).NotTo(Or(ContainSubstring("latchkey-"), ContainSubstring("state.latchkey.dev")))
	names := map[string]bool{}
	for _, object := range documents(t, own) {
		names[object.GetKind()+object.GetNamespace()+object.GetName()] = true
	}
	for _, object := range documents(t, other) {
		g.Expect(names).NotTo(HaveKey(object.GetKind() + object.GetNamespace() + object.GetName()))
		subjects, _, _ := unstructured.NestedSlice(object.Object, "subjects")
		if strings.HasSuffix(object.GetKind(), "Binding") {
			g.Expect(subjects).To(HaveLen(1))
		}
		for _, subject := range subjects {
			g.Expect(subject).To(Equal(map[string]any{"kind": "ServiceAccount", "namespace": "ns", "name": "robot"}))
		}
		if object.GetKind() == "Secret" {
			g.Expect(object.GetName()).To(Equal("mine-authority"), "as --state-api-authority by default")
			g.Expect(object.Object).NotTo(Or(HaveKey("data"), HaveKey("stringData")), "which would erase the replicas'")
		}
		if object.GetKind() == "APIService" {
			g.Expect(object.GetName()).To(Equal("v1alpha1.state.example.com"))
			spec := object.Object["spec"].(map[string]any)
			g.Expect(spec).To(And(HaveKeyWithValue("group", "state.example.com"), Not(HaveKey("insecureSkipTLSVerify"))))
			g.Expect(spec["service"]).To(And(HaveKeyWithValue("name", "mine"), HaveKeyWithValue("namespace", "ns")))
		}
	}
	for field, options := range map[string]StateAPIOptions{
		"group": {Group: "state"}, "name": {Name: "x\nkind: Secret"}, "namespace": {Namespace: "A"},
		"ServiceAccount": {ServiceAccount: "_"},
	} {
		_, err := StateAPIManifests(options)
		g.Expect(err).To(MatchError(HavePrefix(field)))
	}
}
