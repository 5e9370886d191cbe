package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// resourceMapper is the part of meta.RESTMapper that finds the resource of a kind.
type resourceMapper interface {
	RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// rolesFor returns the roles and bindings by which the ServiceAccount of a connection may list and
// watch what is Forbidden to it, and nothing else: a Role for each namespace in which something is,
// and a ClusterRole for what is in all namespaces or in none. A scope of one name is granted by
// that name. Roles with other rules have other names, so that to apply later ones takes nothing
// away.
//
// The subject is the ServiceAccount that the extension names, never the user that an API server
// reports: with a kubeconfig, that is a server of the tenant's choice.
func rolesFor(c *v1alpha1.Connection, scopes []v1alpha1.Scope, mapper resourceMapper) ([]runtime.Object, error) {
	subject, ok := subjectOf(c.Status.Source)
	if !ok {
		return nil, nil
	}
	lacking := map[string]map[schema.GroupResource][]string{} // names by namespace and resource; none for all
	for i := range scopes {
		if !isForbidden(&scopes[i]) {
			continue
		}
		selection := scopes[i].Status.Selection
		kind := schema.FromAPIVersionAndKind(selection.APIVersion, selection.Kind)
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			continue // it is not served, so no role helps
		}
		if err != nil {
			return nil, errors.Wrapf(err, "finding the resource of %s", kind)
		}
		resource, there := mapping.Resource.GroupResource(), lacking[selection.Namespace]
		if there == nil {
			there = map[schema.GroupResource][]string{}
			lacking[selection.Namespace] = there
		}
		names, known := there[resource]
		switch name := nameOf(selection.FieldSelector); {
		case name == "":
			there[resource] = nil
		case !known || len(names) > 0 && !slices.Contains(names, name):
			there[resource] = append(names, name)
		}
	}
	var objects []runtime.Object
	for _, namespace := range sortedKeys(lacking) {
		rules := rulesFor(lacking[namespace])
		objects = append(objects, rolesIn(namespace, roleName(c, rules), subject, rules)...)
	}
	return objects, nil
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

// rulesFor returns a rule for each API group, and one for each resource of which only some names
// are read.
func rulesFor(namesByResource map[schema.GroupResource][]string) (rules []rbacv1.PolicyRule) {
	byGroup := map[string][]string{}
	for resource, names := range namesByResource {
		if len(names) == 0 {
			byGroup[resource.Group] = append(byGroup[resource.Group], resource.Resource)
			continue
		}
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups:     []string{resource.Group},
			Resources:     []string{resource.Resource},
			ResourceNames: slices.Sorted(slices.Values(names)),
			Verbs:         []string{"list", "watch"},
		})
	}
	for group, resources := range byGroup {
		slices.Sort(resources)
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{group},
			Resources: resources,
			Verbs:     []string{"list", "watch"},
		})
	}
	slices.SortFunc(rules, func(a, b rbacv1.PolicyRule) int {
		return cmp.Or(slices.Compare(a.APIGroups, b.APIGroups), cmp.Compare(len(a.ResourceNames), len(b.ResourceNames)),
			slices.Compare(a.Resources, b.Resources))
	})
	return rules
}

// rolesIn returns a role and its binding in a namespace, or cluster-wide ones for "".
func rolesIn(namespace, name string, subject rbacv1.Subject, rules []rbacv1.PolicyRule) []runtime.Object {
	metadata := metav1.ObjectMeta{Namespace: namespace, Name: name}
	meta := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
	}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	subjects := []rbacv1.Subject{subject}
	if namespace == "" {
		return []runtime.Object{
			&rbacv1.ClusterRole{TypeMeta: meta("ClusterRole"), ObjectMeta: metadata, Rules: rules},
			&rbacv1.ClusterRoleBinding{
				TypeMeta:   meta("ClusterRoleBinding"),
				ObjectMeta: metadata,
				Subjects:   subjects,
				RoleRef:    ref("ClusterRole"),
			},
		}
	}
	return []runtime.Object{
		&rbacv1.Role{TypeMeta: meta("Role"), ObjectMeta: metadata, Rules: rules},
		&rbacv1.RoleBinding{TypeMeta: meta("RoleBinding"), ObjectMeta: metadata, Subjects: subjects, RoleRef: ref("Role")},
	}
}

// isForbidden reports whether the identity may not read a scope.
func isForbidden(s *v1alpha1.Scope) bool { return s.Status.State == "Forbidden" }

// roleName returns the name of the roles of an extension with these rules, which no other roles
// have.
func roleName(c *v1alpha1.Connection, rules []rbacv1.PolicyRule) string {
	sum := sha256.Sum256(fmt.Append([]byte(c.Namespace+"\x00"+c.Name+"\x00"), rules))
	name := "latchkey-reads-of-" + c.Name
	return strings.TrimRight(name[:min(len(name), 240)], "-.") + "-" + hex.EncodeToString(sum[:4])
}

// subjectOf returns the ServiceAccount of this cluster that is the source of a credential, if it is
// one.
func subjectOf(source string) (rbacv1.Subject, bool) {
	account, isServiceAccount := strings.CutPrefix(source, "serviceaccount ")
	namespace, name, ok := strings.Cut(account, "/")
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}, isServiceAccount && ok
}

// manifest returns objects as YAML.
func manifest(objects []runtime.Object) (string, error) {
	var documents []string
	for _, object := range objects {
		document, err := yaml.Marshal(object)
		if err != nil {
			return "", errors.Wrap(err, "writing a role")
		}
		documents = append(documents, strings.ReplaceAll(string(document), "  creationTimestamp: null\n", ""))
	}
	return strings.Join(documents, "---\n"), nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
