package leastrole

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// resource is what a rule names: a resource with its subresource, or a path.
type resource struct{ group, name, path string }

// Rules returns rules that grant exactly these permissions, whatever their namespaces are. A
// permission without a name is that of all objects. Equal permissions always yield equal rules.
func Rules(needs []permissions.Permission) (rules []rbacv1.PolicyRule) {
	names := map[resource]map[string][]string{} // by verb; none for all
	for _, need := range needs {
		if strings.Contains(need.Verb+need.Group+need.Resource+need.Subresource+need.Name+need.Path, "*") {
			continue // never: no request needs that
		}
		r := resource{group: need.Group, name: need.Resource, path: need.Path}
		if need.Subresource != "" {
			r.name += "/" + need.Subresource
		}
		if names[r] == nil {
			names[r] = map[string][]string{}
		}
		present, known := names[r][need.Verb]
		switch {
		case need.Name == "":
			names[r][need.Verb] = nil
		case !known || len(present) > 0 && !slices.Contains(present, need.Name):
			names[r][need.Verb] = append(present, need.Name)
		}
	}
	for r, byVerb := range names {
		for _, rule := range rulesOf(r, byVerb) {
			rules = merged(rules, rule)
		}
	}
	for n := range rules {
		slices.Sort(rules[n].Resources)
		slices.Sort(rules[n].NonResourceURLs)
	}
	slices.SortFunc(rules, Compare)
	return rules
}

// rulesOf returns a rule for each set of names of a resource.
func rulesOf(r resource, byVerb map[string][]string) (rules []rbacv1.PolicyRule) {
	for _, verb := range slices.Sorted(maps.Keys(byVerb)) {
		names := slices.Sorted(slices.Values(byVerb[verb]))
		at := slices.IndexFunc(rules, func(rule rbacv1.PolicyRule) bool { return slices.Equal(rule.ResourceNames, names) })
		if at >= 0 {
			rules[at].Verbs = append(rules[at].Verbs, verb)
			continue
		}
		rule := rbacv1.PolicyRule{Verbs: []string{verb}}
		if r.path != "" {
			rule.NonResourceURLs = []string{r.path}
		} else {
			rule.APIGroups, rule.Resources, rule.ResourceNames = []string{r.group}, []string{r.name}, names
		}
		rules = append(rules, rule)
	}
	return rules
}

// merged adds a rule, to one that differs in the resources only if there is one: the product of
// their resources, verbs and names is the same.
func merged(rules []rbacv1.PolicyRule, more rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for n := range rules {
		rule := &rules[n]
		if slices.Equal(rule.APIGroups, more.APIGroups) && slices.Equal(rule.ResourceNames, more.ResourceNames) &&
			slices.Equal(rule.Verbs, more.Verbs) {
			rule.Resources = append(rule.Resources, more.Resources...)
			rule.NonResourceURLs = append(rule.NonResourceURLs, more.NonResourceURLs...)
			return rules
		}
	}
	return append(rules, more)
}

// Compare sorts rules, by what they are about.
func Compare(x, y rbacv1.PolicyRule) int {
	return cmp.Or(slices.Compare(x.APIGroups, y.APIGroups), slices.Compare(x.Resources, y.Resources),
		slices.Compare(x.NonResourceURLs, y.NonResourceURLs), slices.Compare(x.ResourceNames, y.ResourceNames),
		slices.Compare(x.Verbs, y.Verbs))
}

// Grants reports whether a rule grants a permission, in the namespaces that the rule is for.
func Grants(rule rbacv1.PolicyRule, p permissions.Permission) bool {
	if !has(rule.Verbs, p.Verb) {
		return false
	}
	if p.Path != "" {
		return slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool { return matchesPath(url, p.Path) })
	}
	if !has(rule.APIGroups, p.Group) || len(rule.ResourceNames) > 0 && !slices.Contains(rule.ResourceNames, p.Name) {
		return false
	}
	return slices.ContainsFunc(rule.Resources, func(name string) bool {
		switch {
		case name == "*":
			return true
		case p.Subresource == "":
			return name == p.Resource
		}
		return name == p.Resource+"/"+p.Subresource || name == "*/"+p.Subresource
	})
}

func has(all []string, one string) bool {
	return slices.Contains(all, one) || slices.Contains(all, "*")
}

func matchesPath(url, path string) bool {
	if url == path || url == "*" {
		return true
	}
	last := len(url) - 1
	return last >= 0 && url[last] == '*' && len(path) >= last && path[:last] == url[:last]
}
