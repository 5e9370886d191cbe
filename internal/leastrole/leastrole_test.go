package leastrole

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// all are the permissions of a small world.
func all() (every []permissions.Permission) {
	for _, verb := range []string{"get", "list", "create", "patch"} {
		for _, group := range []string{"", "apps"} {
			for _, resource := range []string{"secrets", "pods"} {
				for _, subresource := range []string{"", "log", "status"} {
					for _, name := range []string{"", "a", "b"} {
						every = append(every, permissions.Permission{
							Verb:        verb,
							Group:       group,
							Resource:    resource,
							Subresource: subresource,
							Name:        name,
							Namespace:   "n",
						})
					}
				}
			}
		}
		for _, path := range []string{"/metrics", "/metrics/x"} {
			every = append(every, permissions.Permission{Verb: verb, Path: path})
		}
	}
	return every
}

// The rules for any permissions grant these and no others, except that of all objects grants that
// of one. No rule has a wildcard, none can go, and the order does not matter.
func TestRulesAreExact(t *testing.T) {
	every := all()
	for seed := range uint64(300) {
		g := NewWithT(t)
		random := rand.New(rand.NewPCG(seed, 0))
		var needs []permissions.Permission
		for range 1 + random.IntN(8) {
			needs = append(needs, every[random.IntN(len(every))])
		}
		rules := Rules(needs)
		wanted := func(p permissions.Permission) bool {
			ofAll := p
			ofAll.Name = ""
			return slices.Contains(needs, p) || slices.Contains(needs, ofAll)
		}
		granted := func(rules []rbacv1.PolicyRule, p permissions.Permission) bool {
			return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return Grants(rule, p) })
		}
		for _, p := range every {
			g.Expect(granted(rules, p)).To(Equal(wanted(p)), "seed %d: %+v by %v of %v", seed, p, rules, needs)
		}
		g.Expect(fmt.Sprint(rules)).NotTo(ContainSubstring("*"))
		for n := range rules {
			rest := slices.Delete(slices.Clone(rules), n, n+1)
			g.Expect(slices.ContainsFunc(needs, func(p permissions.Permission) bool { return !granted(rest, p) })).
				To(BeTrue(), "seed %d: rule %d can go", seed, n)
		}
		slices.Reverse(needs)
		g.Expect(Rules(needs)).To(Equal(rules))
	}
}

func TestGrants(t *testing.T) {
	g := NewWithT(t)
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	logs := permissions.Permission{Verb: "get", Resource: "pods", Subresource: "log"}
	for _, yes := range []rbacv1.PolicyRule{rule("", "pods/log", "get"), rule("*", "*", "*"), rule("", "*/log", "get")} {
		g.Expect(Grants(yes, logs)).To(BeTrue(), "%v", yes)
	}
	for _, no := range []rbacv1.PolicyRule{rule("", "pods", "get"), rule("apps", "*", "*"), rule("", "*/status", "get"),
		rule("", "pods/log", "list")} {
		g.Expect(Grants(no, logs)).To(BeFalse(), "%v", no)
	}
	named := rule("", "pods", "get")
	named.ResourceNames = []string{"x"}
	g.Expect(Grants(named, permissions.Permission{Verb: "get", Resource: "pods"})).To(BeFalse(), "of all")
	g.Expect(Grants(named, permissions.Permission{Verb: "get", Resource: "pods", Name: "x"})).To(BeTrue())
	paths := rbacv1.PolicyRule{NonResourceURLs: []string{"/a/*"}, Verbs: []string{"get"}}
	g.Expect(Grants(paths, permissions.Permission{Verb: "get", Path: "/a/b"})).To(BeTrue())
	g.Expect(Grants(paths, permissions.Permission{Verb: "get", Path: "/a"})).To(BeFalse())
}

// Two extensions never share a role, nor do two subjects, and what is applied later takes nothing
// away.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", 250)
	seen := map[string]bool{}
	for _, key := range [][2]string{{"a", "b-c"}, {"a-b", "c"}, {"", "a-b-c"}, {"", long + "a"}, {"", long + "b"}} {
		for _, subject := range []string{"x", "y"} {
			o := Owner{
				Extension: types.NamespacedName{Namespace: key[0], Name: key[1]},
				Purpose:   "latchkey",
				Subject:   rbacv1.Subject{Kind: "ServiceAccount", Namespace: "n", Name: subject},
			}
			for _, resource := range []string{"pods", "secrets"} {
				roles := o.Roles([]permissions.Permission{{Verb: "get", Resource: resource, Namespace: "n"}})
				NewWithT(t).Expect(roles).To(HaveLen(2))
				name := roles[0].GetName()
				NewWithT(t).Expect(seen).NotTo(HaveKey(name))
				NewWithT(t).Expect(len(name)).To(BeNumerically("<=", 253))
				seen[name] = true
			}
		}
	}
}

// A namespace is granted by its name for all of the cluster: it may not exist yet.
func TestNamespaces(t *testing.T) {
	g := NewWithT(t)
	roles := Owner{Purpose: "latchkey"}.Roles([]permissions.Permission{
		{Verb: "patch", Resource: "namespaces", Namespace: "n", Name: "n"}, {Verb: "get", Resource: "pods", Namespace: "n"}})
	kinds := func() (kinds []string) {
		for _, role := range roles {
			kinds = append(kinds, role.GetObjectKind().GroupVersionKind().Kind)
		}
		return kinds
	}
	g.Expect(kinds()).To(Equal([]string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}))
	g.Expect(roles[0].(*rbacv1.ClusterRole).Rules).To(Equal([]rbacv1.PolicyRule{{
		APIGroups:     []string{""},
		Resources:     []string{"namespaces"},
		ResourceNames: []string{"n"},
		Verbs:         []string{"patch"},
	}}))
}

func TestPowers(t *testing.T) {
	g := NewWithT(t)
	power := func(verb, group, resource, subresource, namespace string) string {
		word, _ := PowerOf(permissions.Permission{
			Verb:        verb,
			Group:       group,
			Resource:    resource,
			Subresource: subresource,
			Namespace:   namespace,
		})
		return word
	}
	g.Expect(power("get", "", "secrets", "", "n")).To(Equal("secrets"))
	g.Expect(power("get", "other", "secrets", "", "n")).To(BeEmpty())
	g.Expect(power("create", "", "pods", "exec", "")).To(Equal("pods/exec"))
	g.Expect(power("create", "", "serviceaccounts", "token", "n")).To(Equal("serviceaccounts/token"))
	g.Expect(power("get", "", "pods", "log", "n")).To(BeEmpty())
	g.Expect(power("bind", rbacv1.GroupName, "roles", "", "n")).To(Equal("bind"))
	g.Expect(power("impersonate-on:serviceaccount:get", "", "pods", "", "n")).To(Equal("impersonate"))
	g.Expect(power("get", "", "nodes", "", "")).To(Equal("cluster-wide/nodes"))
	g.Expect(power("get", "", "", "", "")).To(Equal("cluster-wide/"), "of a path")
	g.Expect(power("patch", rbacv1.GroupName, "rolebindings", "", "n")).To(Equal("rolebindings." + rbacv1.GroupName))
	g.Expect(power("get", rbacv1.GroupName, "rolebindings", "", "n")).To(BeEmpty())
	g.Expect(power("get", "*", "x", "", "n")).To(Equal("everything"))
	g.Expect(Rules([]permissions.Permission{{Verb: "get", Group: "*", Resource: "*"}})).To(BeEmpty())
	g.Expect(RunsPods(permissions.Permission{Verb: "patch", Group: "apps", Resource: "deployments"})).To(BeTrue())
	g.Expect(RunsPods(permissions.Permission{Verb: "get", Group: "apps", Resource: "deployments"})).To(BeFalse())
}
