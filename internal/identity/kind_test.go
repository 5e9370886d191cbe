package identity

import (
	"reflect"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// published is the schema of a CustomResourceDefinition as an API server publishes it.
const published = `{"components": {"schemas": {
	"com.example.v1.Tenant": {
		"type": "object",
		"properties": {
			"metadata": {"allOf": [{"$ref": "#/components/schemas/io.k8s.ObjectMeta"}]},
			"spec": {"type": "object", "properties": {
				"serviceAccount": {"type": "object", "properties": {"name": {"type": "string"}}},
				"size": {"type": "integer"},
				"labels": {"type": "object", "additionalProperties": {"type": "string"}},
				"any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				"port": {"x-kubernetes-int-or-string": true},
				"circle": {"$ref": "#/components/schemas/circle"}
			}}
		},
		"x-kubernetes-group-version-kind": [{"group": "example.com", "kind": "Tenant", "version": "v1"}]
	},
	"circle": {"$ref": "#/components/schemas/circle"},
	"io.k8s.ObjectMeta": {"type": "object", "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}}}
}}}`

var tenants = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Tenant"}

func TestFieldPathsAreChecked(t *testing.T) {
	inOpenAPI, err := fieldsInOpenAPI([]byte(published), tenants)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	custom := Kind{GroupVersionKind: tenants, Fields: inOpenAPI}
	pods := Kind{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Fields:           FieldsOf(reflect.TypeFor[*corev1.Pod]()),
	}
	metadata := Kind{GroupVersionKind: tenants, Fields: FieldsOf(reflect.TypeFor[*metav1.PartialObjectMetadata]())}
	configMaps := Kind{Fields: FieldsOf(reflect.TypeFor[*corev1.ConfigMap]())}
	for name, tc := range map[string]struct {
		kind    Kind
		path    string
		problem string // empty if there is none
	}{
		"a field":            {custom, "spec.serviceAccount.name", ""},
		"with a leading dot": {custom, ".metadata.namespace", ""},
		"braces":             {custom, "{.spec.serviceAccount.name}", "write it without braces"},
		"one brace":          {Kind{}, "spec.{x", "write it without braces"},
		"a typo": {custom, "spec.serviceAcount.name",
			"Tenant.example.com has no field spec.serviceAcount.name (spec has any, circle, labels, port, " +
				"serviceAccount, size)"},
		"a typo at the top":          {custom, "sepc.x", "has no field sepc.x (it has metadata, spec)"},
		"a field of a string":        {custom, "spec.serviceAccount.name.x", "(spec.serviceAccount.name has no fields)"},
		"not a string":               {custom, "spec.size", "field spec.size of Tenant.example.com is not a string"},
		"a map":                      {custom, "spec.serviceAccount", "is not a string"},
		"a label":                    {custom, "spec.labels.sa", ""},
		"below an undescribed field": {custom, "spec.any.thing", ""},
		"a number or a string":       {custom, "spec.port", ""},
		"a circle":                   {custom, "spec.circle.x", ""},
		"no schema":                  {Kind{}, "spec.x", ""},
		"in a Go type":               {pods, "spec.serviceAccountName", ""},
		"a typo in a Go type":        {pods, "spec.serviceAccountname", "Pod has no field spec.serviceAccountname"},
		"in embedded fields":         {pods, "metadata.namespace", ""},
		"a Go number":                {pods, "spec.terminationGracePeriodSeconds", "is not a string"},
		"a Go list":                  {pods, "spec.containers", "is not a string"},
		"in a map in a Go type":      {configMaps, "data.sa", ""},
		"metadata without spec": {metadata, "spec.serviceAccountName",
			"has no field spec.serviceAccountName (it has apiVersion, kind, metadata)"},
		"annotations of metadata": {metadata, "metadata.annotations.sa", ""},
		"nothing":                 {custom, ".", "is no dotted path"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := tc.kind.Path("NamePath", tc.path)
			if tc.problem == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(And(HavePrefix("NamePath: "), ContainSubstring(tc.problem))))
		})
	}
	_, err = fieldsInOpenAPI([]byte(published), corev1.SchemeGroupVersion.WithKind("Pod"))
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("does not have")))
	_, err = fieldsInOpenAPI([]byte("["), tenants)
	NewWithT(t).Expect(err).To(HaveOccurred())
}
