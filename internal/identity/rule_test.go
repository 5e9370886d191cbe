package identity

import (
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// A rule is YAML that a role can have, and grants what is named and nothing else.
func TestRule(t *testing.T) {
	g := NewWithT(t)
	parsed := func(text string) (rule rbacv1.PolicyRule) {
		g.Expect(yaml.UnmarshalStrict([]byte(text), &rule)).To(Succeed(), text)
		return rule
	}
	g.Expect(parsed(Rule(schema.GroupResource{Group: "example.com", Resource: "widgets"}, nil, "list", "watch"))).
		To(Equal(rbacv1.PolicyRule{
			APIGroups: []string{"example.com"},
			Resources: []string{"widgets"},
			Verbs:     []string{"list", "watch"},
		}))
	g.Expect(parsed(Rule(schema.GroupResource{Resource: "serviceaccounts/token"}, []string{"a"}, "create"))).
		To(Equal(rbacv1.PolicyRule{
			APIGroups:     []string{""},
			Resources:     []string{"serviceaccounts/token"},
			ResourceNames: []string{"a"},
			Verbs:         []string{"create"},
		}))
}
