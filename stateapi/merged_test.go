package stateapi

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// A replica says nothing about the scopes of another one's extensions, whatever name it gives them.
func TestScopesOfOthers(t *testing.T) {
	g := NewWithT(t)
	m := newMerged(&StateAPI{version: v1alpha1.GroupVersion}, "me")
	connection := func(name string) *v1alpha1.Connection {
		return &v1alpha1.Connection{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"}}
	}
	selection := v1alpha1.Selection{APIVersion: "v1", Kind: "ConfigMap"}
	scope := func(name, extension, state string) *v1alpha1.Scope {
		return &v1alpha1.Scope{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     v1alpha1.ScopeStatus{Extension: extension, Selection: selection, State: state},
		}
	}
	red := nameOfScope("red", selection, "")
	for replica, name := range map[string]string{"honest": "red", "liar": "blue"} {
		m.Replaced(replica, connectionsResource, []runtime.Object{connection(name)})
		m.Heard(replica)
	}
	m.Replaced("honest", scopesResource, []runtime.Object{scope(red, "red", "Synced")})
	m.Replaced("liar", scopesResource, []runtime.Object{scope(red, "blue", "Failing"), scope(red, "red", "Failing"),
		scope(nameOfScope("blue", selection, ""), "blue", "Forbidden")})
	m.Changed("liar", scopesResource, scope(red, "blue", "Failing"))
	states := map[string]string{}
	shown, err := m.scopes.List(apiserver.Context{}, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	for _, one := range shown.Items {
		states[one.Status.Extension] = one.Status.State
	}
	g.Expect(states).To(Equal(map[string]string{"red": "Synced", "blue": "Forbidden"}))
}
