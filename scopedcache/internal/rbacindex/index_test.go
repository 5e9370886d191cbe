package rbacindex

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
)

func rule(verb string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{verb}}}
}

// describe returns concerns as text, sorted.
func describe(concerns []Concern) []string {
	words := []string{}
	for _, c := range concerns {
		words = append(words,
			fmt.Sprintf("%s/%s%s in %q", c.Subject.Kind, c.Subject.Namespace, c.Subject.Name, c.Namespace))
	}
	slices.Sort(words)
	return words
}

func TestRBACIndex(t *testing.T) {
	g := NewWithT(t)
	x := New()
	role, clusterRole := rbacv1.RoleRef{Kind: "Role", Name: "reader"}, rbacv1.RoleRef{Kind: "ClusterRole", Name: "reader"}
	red := rbacv1.Subject{Kind: "ServiceAccount", Namespace: "team", Name: "red"}
	ann, ops := rbacv1.Subject{Kind: "User", Name: "ann"}, rbacv1.Subject{Kind: "Group", Name: "ops"}
	here, there := bindingKey{"n", "readers"}, bindingKey{"m", "readers"}
	subjects := []Subject{{"ServiceAccount", "team", "red"}, {"Group", "", "ops"}}
	x.setBinding(bindingKey{"n", "second"}, rbacv1.RoleRef{Kind: "Role", Name: "other"}, []rbacv1.Subject{red})
	g.Expect(x.Namespaces(subjects)).To(Equal([]string{"n"}))
	steps := []struct {
		what     string
		concerns []Concern
		want     []string
	}{
		{"a binding without its role", x.setBinding(here, role, []rbacv1.Subject{red, ann}),
			[]string{`ServiceAccount/teamred in "n"`, `User/ann in "n"`}},
		{"the same again", x.setBinding(here, role, []rbacv1.Subject{ann, red}), []string{}},
		{"its role is created", x.setRole(roleKey{"n", "reader"}, rule("list")),
			[]string{`ServiceAccount/teamred in "n"`, `User/ann in "n"`}},
		{"nothing but metadata changes", x.setRole(roleKey{"n", "reader"}, rule("list")), []string{}},
		{"a role of that name in another namespace", x.setRole(roleKey{"m", "reader"}, rule("list")), []string{}},
		{"a ClusterRole of that name", x.setRole(roleKey{"", "reader"}, rule("list")), []string{}},
		{"a subject is added", x.setBinding(here, role, []rbacv1.Subject{red, ann, ops}), []string{`Group/ops in "n"`}},
		{"a subject is removed", x.setBinding(here, role, []rbacv1.Subject{red, ops}), []string{`User/ann in "n"`}},
		{"the ClusterRole is bound in another namespace, to a ServiceAccount of that namespace",
			x.setBinding(there, clusterRole, []rbacv1.Subject{{Kind: "ServiceAccount", Name: "red"}}), []string{
				`ServiceAccount/mred in "m"`,
			}},
		{"the ClusterRole is bound in all namespaces",
			x.setBinding(bindingKey{"", "readers"}, clusterRole, []rbacv1.Subject{ops}),
			[]string{`Group/ops in ""`}},
		{"the rules of the ClusterRole change, as if it were aggregated", x.setRole(roleKey{"", "reader"}, rule("watch")),
			[]string{`Group/ops in ""`, `ServiceAccount/mred in "m"`}},
		{"a binding is replaced by one to another role", x.setBinding(here, clusterRole, []rbacv1.Subject{red, ops}),
			[]string{`Group/ops in "n"`, `Group/ops in "n"`, `ServiceAccount/teamred in "n"`,
				`ServiceAccount/teamred in "n"`}},
		{"the earlier role of the binding is deleted", x.removeRole(roleKey{"n", "reader"}), []string{}},
		{"the same role is deleted again", x.removeRole(roleKey{"n", "reader"}), []string{}},
		{"the ClusterRole is deleted", x.removeRole(roleKey{"", "reader"}),
			[]string{`Group/ops in ""`, `Group/ops in "n"`, `ServiceAccount/mred in "m"`, `ServiceAccount/teamred in "n"`}},
		{"a binding is deleted, which concerns its last subjects", x.removeBinding(here),
			[]string{`Group/ops in "n"`, `ServiceAccount/teamred in "n"`}},
		{"an unknown binding is deleted", x.removeBinding(bindingKey{"n", "unknown"}), []string{}},
		{"the other bindings are deleted", append(x.removeBinding(there), x.removeBinding(bindingKey{"", "readers"})...),
			[]string{`Group/ops in ""`, `ServiceAccount/mred in "m"`}},
		{"the role in the other namespace is deleted", x.removeRole(roleKey{"m", "reader"}), []string{}},
	}
	for _, step := range steps {
		g.Expect(describe(step.concerns)).To(Equal(step.want), step.what)
	}
	g.Expect(x.Namespaces(subjects)).To(Equal([]string{"n"}), "of two bindings one is left")
	x.setBinding(bindingKey{"o", "third"}, role, []rbacv1.Subject{ops, ann})
	x.setBinding(bindingKey{"", "everywhere"}, role, []rbacv1.Subject{ops})
	g.Expect(x.Namespaces(subjects)).To(Equal([]string{"n", "o"}), "a ClusterRoleBinding is in no namespace")
	x.setBinding(bindingKey{"o", "third"}, role, []rbacv1.Subject{ann})
	x.removeBinding(bindingKey{"n", "second"})
	g.Expect(x.Namespaces(subjects)).To(BeEmpty())
	x.removeBinding(bindingKey{"o", "third"})
	x.removeBinding(bindingKey{"", "everywhere"})
	g.Expect(len(x.roles)+len(x.bindings)+len(x.byRole)+len(x.places)).To(BeZero(), "deleted objects leave nothing behind")
}

func TestSubjectsOfAnIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		username string
		groups   []string
		want     []Subject
		complete bool
	}{
		"unknown": {"", nil, nil, false},
		"a ServiceAccount": {"system:serviceaccount:team:red", nil,
			[]Subject{{"User", "", "system:serviceaccount:team:red"}, {"ServiceAccount", "team", "red"},
				{"Group", "", "system:serviceaccounts"}, {"Group", "", "system:serviceaccounts:team"}, {
					"Group", "", "system:authenticated",
				}}, true},
		"a user with groups":       {"ann", []string{"ops"}, []Subject{{"User", "", "ann"}, {"Group", "", "ops"}}, true},
		"a user of unknown groups": {"ann", nil, []Subject{{"User", "", "ann"}}, false},
		"a name that is almost a ServiceAccount": {"system:serviceaccount:team:red:x", []string{"g"},
			[]Subject{{"User", "", "system:serviceaccount:team:red:x"}, {"Group", "", "g"}}, true},
		"stated groups are decisive": {"system:serviceaccount:team:red", []string{"g"},
			[]Subject{{"User", "", "system:serviceaccount:team:red"}, {"ServiceAccount", "team", "red"},
				{"Group", "", "g"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			subjects, complete := SubjectsOf(tc.username, tc.groups)
			g.Expect(subjects).To(Equal(tc.want))
			g.Expect(complete).To(Equal(tc.complete))
		})
	}
}
