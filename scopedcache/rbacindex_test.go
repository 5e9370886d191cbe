package scopedcache

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

func rule(verb string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{verb}}}
}

// inWords are concerns as text, sorted.
func inWords(concerns []concern) []string {
	words := []string{}
	for _, c := range concerns {
		words = append(words,
			fmt.Sprintf("%s/%s%s in %q", c.subject.kind, c.subject.namespace, c.subject.name, c.namespace))
	}
	slices.Sort(words)
	return words
}

func TestRBACIndex(t *testing.T) {
	g := NewWithT(t)
	x := newRBACIndex()
	role, clusterRole := rbacv1.RoleRef{Kind: "Role", Name: "reader"}, rbacv1.RoleRef{Kind: "ClusterRole", Name: "reader"}
	red := rbacv1.Subject{Kind: "ServiceAccount", Namespace: "team", Name: "red"}
	ann, ops := rbacv1.Subject{Kind: "User", Name: "ann"}, rbacv1.Subject{Kind: "Group", Name: "ops"}
	here, there := bindingKey{"n", "readers"}, bindingKey{"m", "readers"}
	steps := []struct {
		what     string
		concerns []concern
		want     []string
	}{
		{"a binding without its role", x.setBinding(here, role, []rbacv1.Subject{red, ann}),
			[]string{`ServiceAccount/teamred in "n"`, `User/ann in "n"`}},
		{"the same again", x.setBinding(here, role, []rbacv1.Subject{ann, red}), []string{}},
		{"its role comes", x.setRole(roleKey{"n", "reader"}, rule("list")),
			[]string{`ServiceAccount/teamred in "n"`, `User/ann in "n"`}},
		{"nothing but metadata changes", x.setRole(roleKey{"n", "reader"}, rule("list")), []string{}},
		{"a role of that name elsewhere", x.setRole(roleKey{"m", "reader"}, rule("list")), []string{}},
		{"a ClusterRole of that name", x.setRole(roleKey{"", "reader"}, rule("list")), []string{}},
		{"a subject comes", x.setBinding(here, role, []rbacv1.Subject{red, ann, ops}), []string{`Group/ops in "n"`}},
		{"a subject goes", x.setBinding(here, role, []rbacv1.Subject{red, ops}), []string{`User/ann in "n"`}},
		{"the ClusterRole is bound elsewhere, to a ServiceAccount of that namespace",
			x.setBinding(there, clusterRole, []rbacv1.Subject{{Kind: "ServiceAccount", Name: "red"}}), []string{
				`ServiceAccount/mred in "m"`,
			}},
		{"and everywhere", x.setBinding(bindingKey{"", "readers"}, clusterRole, []rbacv1.Subject{ops}),
			[]string{`Group/ops in ""`}},
		{"its rules change, as of an aggregated one", x.setRole(roleKey{"", "reader"}, rule("watch")),
			[]string{`Group/ops in ""`, `ServiceAccount/mred in "m"`}},
		{"a binding to another role under the same name", x.setBinding(here, clusterRole, []rbacv1.Subject{red, ops}),
			[]string{`Group/ops in "n"`, `Group/ops in "n"`, `ServiceAccount/teamred in "n"`,
				`ServiceAccount/teamred in "n"`}},
		{"the role that it was bound to goes", x.removeRole(roleKey{"n", "reader"}), []string{}},
		{"and goes again", x.removeRole(roleKey{"n", "reader"}), []string{}},
		{"the ClusterRole goes", x.removeRole(roleKey{"", "reader"}),
			[]string{`Group/ops in ""`, `Group/ops in "n"`, `ServiceAccount/mred in "m"`, `ServiceAccount/teamred in "n"`}},
		{"a binding goes, which counts by what it was", x.removeBinding(here),
			[]string{`Group/ops in "n"`, `ServiceAccount/teamred in "n"`}},
		{"an unknown one goes", x.removeBinding(bindingKey{"n", "unknown"}), []string{}},
		{"the others go", append(x.removeBinding(there), x.removeBinding(bindingKey{"", "readers"})...),
			[]string{`Group/ops in ""`, `ServiceAccount/mred in "m"`}},
		{"the role elsewhere goes", x.removeRole(roleKey{"m", "reader"}), []string{}},
	}
	for _, step := range steps {
		g.Expect(inWords(step.concerns)).To(Equal(step.want), step.what)
	}
	g.Expect(len(x.roles)+len(x.bindings)+len(x.bound)).To(BeZero(), "what is removed leaves nothing")
}

func TestSubjectsOfAnIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		username string
		groups   []string
		want     []subject
		complete bool
	}{
		"unknown": {"", nil, nil, false},
		"a ServiceAccount": {"system:serviceaccount:team:red", nil,
			[]subject{{"User", "", "system:serviceaccount:team:red"}, {"ServiceAccount", "team", "red"},
				{"Group", "", "system:serviceaccounts"}, {"Group", "", "system:serviceaccounts:team"}, {
					"Group", "", "system:authenticated",
				}}, true},
		"a user with groups":       {"ann", []string{"ops"}, []subject{{"User", "", "ann"}, {"Group", "", "ops"}}, true},
		"a user of unknown groups": {"ann", nil, []subject{{"User", "", "ann"}}, false},
		"nearly a ServiceAccount": {"system:serviceaccount:team:red:x", []string{"g"},
			[]subject{{"User", "", "system:serviceaccount:team:red:x"}, {"Group", "", "g"}}, true},
		"stated groups are decisive": {"system:serviceaccount:team:red", []string{"g"},
			[]subject{{"User", "", "system:serviceaccount:team:red"}, {"ServiceAccount", "team", "red"},
				{"Group", "", "g"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			subjects, complete := subjectsOf(tc.username, tc.groups)
			g.Expect(subjects).To(Equal(tc.want))
			g.Expect(complete).To(Equal(tc.complete))
		})
	}
}

// Only caches of identities that a change concerns hear of it, once for what is gathered; what was
// not seen concerns all.
func TestRBACEventsReachWhomTheyConcern(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		e := &RBACWatcher{index: newRBACIndex(), listeners: map[*rbacListener]struct{}{},
			undecided: map[*rbacListener]struct{}{},
			concerned: map[subject]map[*rbacListener]struct{}{}, changed: map[concern]struct{}{}}
		var mu sync.Mutex
		var heard []string
		listen := func(who, username string) (stop func()) {
			return e.listen(username, nil, func(namespace string) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, who+" "+namespace)
			})
		}
		expect := func(want ...string) {
			t.Helper()
			<-time.After(2 * gathering)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			g.Expect(heard).To(ConsistOf(want))
			heard = nil
		}
		stopRed := listen("red", "system:serviceaccount:team:red")
		stopBlue := listen("blue", "system:serviceaccount:team:blue")
		stopUnknown := listen("unknown", "")
		bound := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"},
			RoleRef:  rbacv1.RoleRef{Kind: "Role", Name: "r"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "team", Name: "red"}}}
		e.set(bound)
		e.set(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}, Rules: rule("list")})
		expect("red n", "unknown n")
		e.set(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r", ResourceVersion: "2"},
			Rules: rule("list")})
		expect()
		e.set(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"},
			RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "c"},
			Subjects: []rbacv1.Subject{{Kind: "Group", Name: "system:serviceaccounts:team"}}})
		e.set(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}, Rules: rule("watch")})
		expect("red ", "blue ", "unknown ")
		e.set(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Rules: rule("get")})
		expect("red ", "blue ", "unknown ")
		e.remove(toolscache.DeletedFinalStateUnknown{Key: "c",
			Obj: &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "c"}}})
		expect("red ", "blue ", "unknown ")
		e.remove(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"}}) // counts by what it was
		expect("red n", "unknown n")
		e.mayHaveMissed()
		expect("red ", "blue ", "unknown ")
		stopRed()
		stopUnknown()
		e.mayHaveMissed()
		expect("blue ")
		stopBlue()
		g.Expect(len(e.listeners)+len(e.undecided)+len(e.concerned)).To(BeZero(), "what is removed leaves nothing")
		e.close()
		e.mayHaveMissed()
		expect()
	})
}
