package plugin

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"

	"github.com/latchkey-dev/latchkey/internal/leastrole"
)

// unused prints what the ServiceAccount may do by the API server's own account, and did not.
func (c *cli) unused(ctx context.Context, out io.Writer, r *report) error {
	may, err := c.permissionsOf(ctx, r)
	if err != nil {
		return err
	}
	var text strings.Builder
	account := keyString(r.subject.Namespace, r.subject.Name)
	lines := r.unusedLines(may)
	if len(lines) == 0 {
		fmt.Fprintf(&text, "ServiceAccount %s used all that it may.\n", account)
	} else {
		fmt.Fprintf(&text, "ServiceAccount %s may, and did not as %s:\n\n", account, r.names())
		for _, line := range lines {
			fmt.Fprintf(&text, "  %s\n", line)
		}
		fmt.Fprintf(&text, "\nThe record is as old as the operator's process: what is done once a month may be missing. "+
			"\"%s -o yaml\" prints roles for what was used.\n", r.command)
	}
	for _, note := range r.notes {
		fmt.Fprintf(&text, "\n%s\n", note)
	}
	_, err = io.WriteString(out, text.String())
	return err
}

// permissionsOf returns the rules that give the ServiceAccount permissions which not every
// ServiceAccount of its namespace has: by namespace, "" for all.
func (c *cli) permissionsOf(ctx context.Context, r *report) (map[string][]rbacv1.PolicyRule, error) {
	namespaces := map[string]bool{r.subject.Namespace: true}
	for _, u := range r.uses {
		if in := u.Normal().Namespace; in != "" {
			namespaces[in] = true
		}
	}
	c.addBoundNamespaces(ctx, r, namespaces)
	nowhere := "latchkey-none-" + rand.String(8) // a namespace without roles, and a name without bindings
	everywhere, err := c.rulesIn(ctx, r, r.subject.Name, nowhere)
	if err != nil {
		return nil, errors.Wrapf(err, "asking what ServiceAccount %s may, as it (you need impersonate on it)",
			keyString(r.subject.Namespace, r.subject.Name))
	}
	everybodys, err := c.rulesIn(ctx, r, nowhere, nowhere)
	if err != nil {
		r.note("What every ServiceAccount may is listed, too: you may not impersonate others.")
	}
	may := map[string][]rbacv1.PolicyRule{"": without(everywhere, everybodys)}
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		there, err := c.rulesIn(ctx, r, r.subject.Name, namespace)
		if err != nil {
			return nil, err
		}
		inherited, _ := c.rulesIn(ctx, r, nowhere, namespace)
		may[namespace] = without(there, append(inherited, everywhere...))
	}
	return may, nil
}

// addBoundNamespaces adds the namespaces in which a RoleBinding names the ServiceAccount.
func (c *cli) addBoundNamespaces(ctx context.Context, r *report, namespaces map[string]bool) {
	resource := c.dynamic.Resource(rbacv1.SchemeGroupVersion.WithResource("rolebindings"))
	bindings, err := resource.List(ctx, metav1.ListOptions{})
	if err != nil {
		r.note("Permissions in namespaces that it did not use are not listed: you may not list all RoleBindings.")
		return
	}
	for _, found := range bindings.Items {
		var binding rbacv1.RoleBinding
		if fromUnstructured(&found, &binding) == nil && slices.ContainsFunc(binding.Subjects,
			func(s rbacv1.Subject) bool {
				return s.Kind == r.subject.Kind && s.Name == r.subject.Name && s.Namespace == r.subject.Namespace
			}) {
			namespaces[binding.Namespace] = true
		}
	}
}

// rulesIn asks the API server for the permissions of a ServiceAccount of the subject's namespace.
func (c *cli) rulesIn(ctx context.Context, r *report, name, namespace string) (rules []rbacv1.PolicyRule, err error) {
	clients, err := kubernetes.NewForConfig(c.asIdentity(r.subject.Namespace, name))
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	review, err := clients.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if review.Status.Incomplete {
		r.note("The API server says that its list may be incomplete: %s", review.Status.EvaluationError)
	}
	for _, rule := range review.Status.ResourceRules {
		rules = append(rules, rbacv1.PolicyRule{
			Verbs:         rule.Verbs,
			APIGroups:     rule.APIGroups,
			Resources:     rule.Resources,
			ResourceNames: rule.ResourceNames,
		})
	}
	for _, rule := range review.Status.NonResourceRules {
		rules = append(rules, rbacv1.PolicyRule{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
	}
	return split(rules), nil
}

// split returns a rule for each verb, resource and name.
func split(rules []rbacv1.PolicyRule) (all []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, url := range rule.NonResourceURLs {
				all = append(all, rbacv1.PolicyRule{Verbs: []string{verb}, NonResourceURLs: []string{url}})
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					one := rbacv1.PolicyRule{
						Verbs:     []string{verb},
						APIGroups: []string{group},
						Resources: []string{resource},
					}
					for _, name := range rule.ResourceNames {
						named := one
						named.ResourceNames = []string{name}
						all = append(all, named)
					}
					if len(rule.ResourceNames) == 0 {
						all = append(all, one)
					}
				}
			}
		}
	}
	return all
}

// without returns the rules that are not among others, sorted.
func without(rules, others []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	known := map[string]bool{}
	for _, rule := range others {
		known[lineOf(rule)] = true
	}
	var rest []rbacv1.PolicyRule
	for _, rule := range rules {
		if line := lineOf(rule); !known[line] {
			known[line] = true
			rest = append(rest, rule)
		}
	}
	slices.SortFunc(rest, leastrole.Compare)
	return rest
}

// unusedLines returns a line for each permission that was not used, or in one namespace only.
func (r *report) unusedLines(may map[string][]rbacv1.PolicyRule) (lines []string) {
	for _, namespace := range slices.Sorted(maps.Keys(may)) {
		for _, rule := range may[namespace] {
			in := "in all namespaces"
			if namespace != "" {
				in = "in " + namespace
			}
			users := r.usersOf(rule, namespace)
			switch {
			case len(users) == 0:
				lines = append(lines, lineOf(rule)+" "+in)
			case strings.Contains(lineOf(rule), "*"):
				lines = append(lines, lineOf(rule)+" "+in+", except for what it used of that")
			case namespace == "" && !slices.Contains(users, ""):
				lines = append(lines, lineOf(rule)+" outside of "+strings.Join(users, ", "))
			}
		}
	}
	return lines
}

// usersOf returns in which namespaces a permission was used, "" for all.
func (r *report) usersOf(rule rbacv1.PolicyRule, namespace string) (in []string) {
	for _, u := range r.uses {
		there := u.Normal().Namespace
		if u.anyNamespace {
			there = ""
		}
		if namespace != "" && there != namespace && !u.anyNamespace && u.Resource != "namespaces" {
			continue
		}
		for _, p := range u.each() {
			if leastrole.Grants(rule, p) && !slices.Contains(in, there) {
				in = append(in, there)
			}
		}
	}
	slices.Sort(in)
	return in
}

// lineOf returns a rule of one verb and one resource for people.
func lineOf(rule rbacv1.PolicyRule) string {
	if len(rule.NonResourceURLs) > 0 {
		return rule.Verbs[0] + " " + rule.NonResourceURLs[0]
	}
	line := rule.Verbs[0] + " " + rule.Resources[0]
	if group := rule.APIGroups[0]; group != "" {
		line += "." + group
	}
	if len(rule.ResourceNames) > 0 {
		line += " " + rule.ResourceNames[0]
	}
	return line
}
