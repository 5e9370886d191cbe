package plugin

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/latchkey-dev/latchkey/internal/leastrole"
	"github.com/latchkey-dev/latchkey/internal/permissions"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// choose decides what the roles grant. What was used was permitted, except for what only a
// ClusterRole could grant now, and bind and escalate, which are not on record. What was refused may
// be what a tenant's content merely tried: it must not have power over others, and must be in the
// ServiceAccount's own namespace.
func (r *report) choose(f roleFlags) {
	r.needed = map[string]bool{}
	slices.SortStableFunc(r.uses, compareUses)
	for _, u := range r.uses {
		needed := r.powersOf(u, f)
		for _, p := range needed {
			r.needed[p.word] = true
		}
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
	clusterWide := leastrole.ClusterWide + "/" + strings.TrimPrefix(of.Object(), "/")
	switch {
	case verb == permissions.Bind && strings.HasSuffix(u.Resource, "bindings"):
		return []power{{"", "it takes bind on the role that the binding names, or what that role grants"}}
	case onBehalf && f.impersonator == "":
		return []power{{"", "the user who impersonates lacks it; name that user with --impersonator"}}
	case u.anyNamespace:
		all = append(all, power{clusterWide, "in several namespaces, which are not on record"})
	}
	notOnRecord := word == permissions.Bind || word == permissions.Escalate
	if word != "" && !leastrole.IsClusterWide(word) && (f.missing || notOnRecord) {
		all = append(all, power{word, meaning})
	}
	if u.anyName && word != "" {
		all = append(all, power{"all-names", "of more objects than there are names on record"})
	}
	switch {
	case !f.missing || u.anyNamespace:
	case of.Namespace == "":
		all = append(all, power{clusterWide, "a ClusterRole"})
	case of.Namespace != r.subject.Namespace:
		all = append(all, power{"namespace/" + of.Namespace, "not the ServiceAccount's own"})
	}
	return all
}

// noteUnknownWords says which words of --allow nothing needs.
func (r *report) noteUnknownWords(allow []string) {
	for _, word := range allow {
		if !r.needed[word] {
			r.note("--allow %s: nothing is left out for that", word)
		}
	}
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
