package plugin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/internal/leastrole"
	"github.com/latchkey-dev/latchkey/internal/permissions"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// use is a permission that was used or refused.
type use struct {
	permissions.Permission // without Name
	anyNamespace           bool
	names                  []string // empty for all
	count                  int64    // 0 if the requests are not counted: of scopes
	last                   time.Time
}

// document is a role or a binding.
type document = client.Object

func useOf(u v1alpha1.PermissionUse) use {
	return use{
		Permission: permissions.Permission{
			Verb:        u.Verb,
			Group:       u.Group,
			Resource:    u.Resource,
			Subresource: u.Subresource,
			Namespace:   u.Namespace,
			Path:        u.NonResourceURL,
		},
		anyNamespace: u.AnyNamespace,
		names:        u.Names,
		count:        u.Count,
		last:         u.Last.Time,
	}
}

// generated matches the names of objects that a controller made, which the next one does not have.
var generated = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// isOfAll reports whether only a permission of all names helps: those on record will not come
// again. Permissions with power over others keep their names.
func (u use) isOfAll() bool {
	word, _ := leastrole.PowerOf(u.Normal())
	return len(u.names) == 0 || (word == "" || word == leastrole.ClusterWide) &&
		slices.ContainsFunc(u.names, generated.MatchString)
}

// each returns a permission for each name.
func (u use) each() (all []permissions.Permission) {
	if u.isOfAll() {
		return []permissions.Permission{u.Permission}
	}
	for _, name := range u.names {
		p := u.Permission
		p.Name = name
		all = append(all, p)
	}
	return all
}

// report is what role prints.
type report struct {
	name, command string
	siblings      []string
	subject       rbacv1.Subject
	now           time.Time
	uses          []use
	notes         []string
	granted       []use
	onBehalf      []permissions.Permission // of the impersonator
	leftOut       []leftOut
}

// power is why a permission is left out, and the word by which --allow would add it, if it can.
type power struct{ word, meaning string }

// leftOut is what the roles do not grant.
type leftOut struct {
	use
	powers []power
}

func (r *report) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

// addScopes adds list and watch of what a cache reads, or may not read.
func (r *report) addScopes(scopes []v1alpha1.Scope, refused bool, mapper resourceMapper) error {
	for i := range scopes {
		status := &scopes[i].Status
		if status.State != "Synced" && status.State != "Forbidden" || isForbidden(&scopes[i]) != refused {
			continue
		}
		kind := schema.FromAPIVersionAndKind(status.APIVersion, status.Kind)
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			continue // it is not served, so no role helps
		}
		if err != nil {
			return errors.Wrapf(err, "finding the resource of %s", kind)
		}
		for _, verb := range []string{"list", "watch"} {
			u := use{last: r.now}
			u.Verb, u.Namespace = verb, status.Selection.Namespace
			u.Group, u.Resource = mapping.Resource.Group, mapping.Resource.Resource
			if name := nameOf(status.FieldSelector); name != "" {
				u.names = []string{name}
			}
			r.uses = append(r.uses, u)
		}
	}
	return nil
}

// nameOf returns the name that a field selector requires, "" if it requires none.
func nameOf(fieldSelector string) string {
	selector, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch("metadata.name")
	return name
}

// isForbidden reports whether the identity may not read a scope.
func isForbidden(s *v1alpha1.Scope) bool { return s.Status.State == "Forbidden" }

// filter leaves what was used since begin.
func (r *report) filter(begin time.Time) {
	r.uses = slices.DeleteFunc(r.uses, func(u use) bool { return u.last.Before(begin) })
}

// choose decides what the roles grant. What was used was permitted, except for what only a
// ClusterRole could grant now, and bind and escalate, which are not on record. What was refused may
// be what a tenant's content merely tried: it must not have power over others, and must be in the
// ServiceAccount's own namespace.
func (r *report) choose(f roleFlags) {
	slices.SortStableFunc(r.uses, compareUses)
	for _, u := range r.uses {
		needed := r.powersOf(u, f)
		needed = slices.DeleteFunc(needed, func(p power) bool { return slices.Contains(f.allow, p.word) })
		_, onBehalf := strings.CutPrefix(u.Verb, permissions.ImpersonateOn)
		switch {
		case len(needed) > 0:
			r.leftOut = append(r.leftOut, leftOut{u, needed})
		case onBehalf:
			r.onBehalf = append(r.onBehalf, u.each()...)
		default:
			r.granted = append(r.granted, u)
		}
	}
}

// powersOf returns what must be allowed, so that the roles grant a permission.
func (r *report) powersOf(u use, f roleFlags) (all []power) {
	verb, onBehalf := strings.CutPrefix(u.Verb, permissions.ImpersonateOn)
	of := u.Normal()
	of.Verb = verb
	word, meaning := leastrole.PowerOf(of)
	switch {
	case verb == permissions.Bind && strings.HasSuffix(u.Resource, "bindings"):
		return []power{{"", "it takes bind on the role that the binding names, or what that role grants"}}
	case onBehalf && f.impersonator == "":
		return []power{{"", "the user who impersonates lacks it; name that user with --impersonator"}}
	case u.anyNamespace:
		all = append(all, power{leastrole.ClusterWide, "in several namespaces, which are not on record"})
	}
	notOnRecord := word == permissions.Bind || word == permissions.Escalate
	if word != "" && word != leastrole.ClusterWide && (f.missing || notOnRecord) {
		all = append(all, power{word, meaning})
	}
	switch {
	case !f.missing || u.anyNamespace:
	case of.Namespace == "":
		all = append(all, power{leastrole.ClusterWide, "a ClusterRole"})
	case of.Namespace != r.subject.Namespace:
		all = append(all, power{"namespace/" + of.Namespace, "not the ServiceAccount's own"})
	}
	return all
}

// roles returns the roles of what is granted, and those of the impersonator, if it has a name.
func (r *report) roles(c *v1alpha1.Connection, f roleFlags) []document {
	var needs []permissions.Permission
	for _, u := range r.granted {
		needs = append(needs, u.each()...)
	}
	objects := ownerOf(c, r.subject).Roles(needs)
	if f.impersonator == "" {
		return objects
	}
	if !f.missing {
		r.onBehalf = append(actingAs(r.subject), onBehalf(needs)...)
	}
	owner := ownerOf(c, subjectNamed(f.impersonator))
	owner.Purpose = "latchkey-acting-as"
	return append(objects, owner.Roles(r.onBehalf)...)
}

// actingAs returns what it takes to impersonate a ServiceAccount, for any request.
func actingAs(account rbacv1.Subject) []permissions.Permission {
	return []permissions.Permission{{
		Verb:      "impersonate:serviceaccount",
		Group:     "authentication.k8s.io",
		Resource:  "serviceaccounts",
		Name:      account.Name,
		Namespace: account.Namespace,
	}}
}

// onBehalf returns what the user who impersonates needs for requests that need these permissions.
// That an apply may create, bind and escalate is asked for as the ServiceAccount only.
func onBehalf(needs []permissions.Permission) (all []permissions.Permission) {
	for _, p := range needs {
		created := p.Verb == "create" && p.Subresource == "" && p.Name != ""
		if created || p.Verb == permissions.Bind || p.Verb == permissions.Escalate {
			continue
		}
		p.Verb = permissions.ImpersonateOn + p.Verb
		all = append(all, p)
	}
	return all
}

// subjectNamed returns the user with a name: a ServiceAccount has a name of its own form.
func subjectNamed(username string) rbacv1.Subject {
	if account, ok := strings.CutPrefix(username, "system:serviceaccount:"); ok {
		namespace, name, _ := strings.Cut(account, ":")
		return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
	}
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: username}
}

// describe returns the report for people.
func (r *report) describe(f roleFlags, roles string) string {
	var out strings.Builder
	account := keyString(r.subject.Namespace, r.subject.Name)
	what, list := "used", r.granted
	if f.missing {
		what, list = "was refused, and lacks", slices.Clone(r.uses)
	}
	if len(list) == 0 {
		fmt.Fprintf(&out, "Nothing is known that ServiceAccount %s, as %s, %s.\n", account, r.name, what)
	} else {
		fmt.Fprintf(&out, "ServiceAccount %s, as %s, %s:\n\n", account, r.names(), what)
		r.table(&out, list)
	}
	for _, line := range r.leftOutLines() {
		fmt.Fprintf(&out, "\n%s\n", line)
	}
	for _, note := range r.notes {
		fmt.Fprintf(&out, "\n%s\n", note)
	}
	if roles != "" {
		out.WriteString("\nThese roles grant it. Read them first; with \"-o yaml\" this command prints only them, to " +
			"apply:\n\n" + roles)
	}
	return out.String()
}

// names returns the extensions that count.
func (r *report) names() string { return strings.Join(append([]string{r.name}, r.siblings...), ", ") }

// table writes a line for each permission, verbs together.
func (r *report) table(out *strings.Builder, uses []use) {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "  VERB\tOF\tIN\tREQUESTS\tLAST")
	for _, u := range uses {
		count, last := "-", "-"
		if u.count > 0 {
			count, last = fmt.Sprint(u.count), duration.HumanDuration(r.now.Sub(u.last))+" ago"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\n", u.Verb, u.of(), u.in(), count, last)
	}
	_ = table.Flush() // a strings.Builder has no error
}

// of returns what the permission is about.
func (u use) of() string {
	if u.Path != "" {
		return u.Path
	}
	text := u.Resource
	if u.Subresource != "" {
		text += "/" + u.Subresource
	}
	if u.Group != "" {
		text += "." + u.Group
	}
	if len(u.names) > 0 {
		text += " " + strings.Join(u.names, ",")
	}
	return text
}

// in returns where.
func (u use) in() string {
	switch {
	case u.anyNamespace:
		return "several namespaces"
	case u.Normal().Namespace == "":
		return "the cluster"
	}
	return u.Namespace
}

// leftOutLines says what the roles do not grant, and how they would.
func (r *report) leftOutLines() (lines []string) {
	for _, l := range r.leftOut {
		var words, meanings []string
		for _, p := range l.powers {
			meanings = append(meanings, p.meaning)
			if p.word != "" {
				words = append(words, p.word)
			}
		}
		line := fmt.Sprintf("Left out: %s %s in %s (%s)", l.Verb, l.of(), l.in(), strings.Join(meanings, "; "))
		if len(words) > 0 {
			line += "; --allow " + strings.Join(words, ",") + " adds it"
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// comments returns what stands above each document: what gives power over others.
func (r *report) comments(objects []document) []string {
	comments := make([]string, len(objects))
	for n, object := range objects {
		var rules []rbacv1.PolicyRule
		switch role := object.(type) {
		case *rbacv1.Role:
			rules = role.Rules
		case *rbacv1.ClusterRole:
			rules = role.Rules
		}
		for _, u := range r.granted {
			granted := slices.ContainsFunc(u.each(), func(p permissions.Permission) bool {
				return p.Normal().Namespace == object.GetNamespace() &&
					slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return leastrole.Grants(rule, p) })
			})
			if granted && len(u.names) > 0 && u.isOfAll() {
				comments[n] += fmt.Sprintf("# Of all names, because these look generated: %s %s\n", u.Verb, u.of())
			}
			if word, meaning := leastrole.PowerOf(u.Normal()); granted && word != "" {
				comments[n] += fmt.Sprintf("# Power over others: %s %s (%s)\n", u.Verb, u.of(), meaning)
			}
		}
	}
	var header strings.Builder
	for _, line := range append(r.leftOutLines(), r.notes...) {
		header.WriteString("# " + line + "\n")
	}
	if len(objects) > 0 {
		comments[0] = header.String() + comments[0]
	}
	return comments
}

// manifest returns objects as YAML, with a comment above each.
func manifest(comments []string, objects []document) (string, error) {
	var documents []string
	for n, object := range objects {
		document, err := yaml.Marshal(object)
		if err != nil {
			return "", errors.Wrap(err, "writing a role")
		}
		documents = append(documents, comments[n]+strings.ReplaceAll(string(document), "  creationTimestamp: null\n", ""))
	}
	return strings.Join(documents, "---\n"), nil
}
