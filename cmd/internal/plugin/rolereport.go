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
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/internal/leastrole"
	"github.com/latchkey-dev/latchkey/internal/permissions"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// use is a permission that was used or refused.
type use struct {
	permissions.Permission // without Name
	anyNamespace           bool
	names                  []string // empty for all
	anyName                bool     // of more objects than there are names on record
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
		anyName:      u.AnyName,
		count:        u.Count,
		last:         u.Last.Time,
	}
}

// generated matches the names of objects that a controller made, which the next one does not have.
var generated = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// namedByControllers are resources whose objects have names that a controller made.
var namedByControllers = []string{"pods", "replicasets.apps", "jobs.batch", "controllerrevisions.apps", "events",
	"events.events.k8s.io"}

// isOfAll reports whether only a permission of all names helps: those on record will not come
// again. Permissions with power over others keep their names.
func (u use) isOfAll() bool {
	word, _ := leastrole.PowerOf(u.Normal())
	of := u.Permission
	of.Subresource = "" // pods/log: the Pods' names are generated
	return len(u.names) == 0 || word == "" && slices.Contains(namedByControllers, of.Object()) &&
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
	needed        map[string]bool // words for --allow
}

// power is why a permission is left out, and the word by which --allow would add it, if it can.
type power struct{ word, meaning string }

// leftOut is what the roles do not grant.
type leftOut struct {
	use
	powers []power
}

func (r *report) note(format string, args ...any) {
	if text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "); !slices.Contains(r.notes, text) {
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
		out.WriteString("\nThese roles grant that, except for what is left out. Read them first; with \"-o yaml\" this " +
			"command prints only them, to apply:\n\n" + roles)
	}
	return out.String()
}

// names returns the extensions that count.
func (r *report) names() string { return strings.Join(append([]string{r.name}, r.siblings...), ", ") }

// table writes a line for each permission, verbs together. Scopes that differ only in what they
// select, or whose requests are on record, have no line of their own.
func (r *report) table(out *strings.Builder, uses []use) {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "  VERB\tOF\tIN\tREQUESTS\tLAST")
	what := func(u use) string { return strings.Join([]string{u.Verb, u.of(), u.in()}, "\t") }
	known := sets.New[string]()
	for _, u := range uses {
		if u.count > 0 {
			known.Insert(what(u))
		}
	}
	for _, u := range uses {
		count, last := "-", "-"
		switch {
		case u.count > 0:
			count, last = fmt.Sprint(u.count), duration.HumanDuration(r.now.Sub(u.last))+" ago"
		case known.Has(what(u)):
			continue
		}
		known.Insert(what(u))
		fmt.Fprintf(table, "  %s\t%s\t%s\n", what(u), count, last)
	}
	_ = table.Flush() // a strings.Builder has no error
}

// of returns what the permission is about.
func (u use) of() string {
	if u.Path != "" {
		return shown(u.Path)
	}
	text := shown(u.Object())
	if len(u.names) > 0 {
		names := make([]string, len(u.names))
		for n, name := range u.names {
			names[n] = shown(name)
		}
		text += " " + strings.Join(names, ",")
	}
	return text
}

// plain matches what needs no quotes to be seen for what it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:/_-]{0,252}$`)

// shown returns a name that a tenant chose, in quotes if it could be taken for more than that.
func shown(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return untrusted.Quote(name)
}

// in returns where.
func (u use) in() string {
	switch {
	case u.anyNamespace:
		return "several namespaces"
	case u.Normal().Namespace == "":
		return "the cluster"
	}
	return shown(u.Namespace)
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
			if granted && u.anyName {
				comments[n] += fmt.Sprintf("# Of all names, because the record has no more of them: %s %s\n", u.Verb, u.of())
			}
			if granted && leastrole.RunsPods(u.Permission) {
				comments[n] += fmt.Sprintf("# Runs Pods, as any ServiceAccount of the namespace: %s %s\n", u.Verb, u.of())
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
