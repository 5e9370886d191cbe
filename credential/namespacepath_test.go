package credential

import (
	"reflect"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

var tenants = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Tenant"}

// The field with a ServiceAccount's namespace must not be guessed.
func TestDefaultOfNamespacePath(t *testing.T) {
	inBoth := identity.KnownFields{ByName: map[string]func() identity.FieldSchema{"spec": func() identity.FieldSchema {
		return identity.KnownFields{
			ByName: map[string]func() identity.FieldSchema{"namespace": func() identity.FieldSchema {
				return identity.KnownFields{Text: true}
			}},
		}
	}, "metadata": func() identity.FieldSchema { return identity.Anything{} }}}
	inMetadata := identity.KnownFields{
		ByName: map[string]func() identity.FieldSchema{"metadata": func() identity.FieldSchema {
			return identity.Anything{}
		}, "spec": func() identity.FieldSchema { return identity.KnownFields{} }},
	}
	for name, tc := range map[string]struct {
		kind    identity.Kind
		path    string
		want    []string
		problem string
	}{
		"cluster-scoped": {identity.Kind{}, "", []string{"spec", "namespace"}, ""},
		"namespaced": {identity.Kind{Namespaced: true, Fields: inMetadata}, "",
			[]string{"metadata", "namespace"}, ""},
		"namespaced, unknown fields": {identity.Kind{Namespaced: true, GroupVersionKind: tenants}, "", nil,
			"its schema does not say whether it has a field spec.namespace too"},
		"namespaced, unknown fields, metadata.namespace set": {identity.Kind{Namespaced: true}, "metadata.namespace",
			[]string{"metadata", "namespace"}, ""},
		"namespaced, with spec.namespace": {identity.Kind{Namespaced: true, Fields: inBoth, GroupVersionKind: tenants},
			"", nil,
			"set NamespacePath to the field with the ServiceAccount's namespace: metadata.namespace or spec.namespace"},
		"namespaced, with spec.namespace, spec.namespace set": {identity.Kind{Namespaced: true, Fields: inBoth},
			"spec.namespace",
			[]string{"spec", "namespace"}, ""},
		"namespaced, with spec.namespace, metadata.namespace set": {identity.Kind{Namespaced: true, Fields: inBoth},
			"metadata.namespace",
			[]string{"metadata", "namespace"}, ""},
		"cluster-scoped without such fields": {identity.Kind{
			Fields: identity.FieldsOf(
				reflect.TypeFor[*rbacv1.ClusterRole]()),
			GroupVersionKind: tenants,
		}, "", nil, "NamespacePath: Tenant.example.com has no field spec.namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			namePath := "metadata.name"
			if tc.kind.Fields == nil {
				namePath = ""
			}
			r, err := newServiceAccountResolver(hostOf{config: &rest.Config{Host: "https://server"}}, tc.kind,
				serviceAccountReference{namespacePath: tc.path, namePath: namePath})
			if tc.problem != "" {
				g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(r.namespacePath).To(Equal(tc.want))
		})
	}
}
