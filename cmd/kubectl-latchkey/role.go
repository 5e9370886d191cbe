package main

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// watch what the connection reads, and nothing else: a Role for each namespace in which something is
// Forbidden, and a ClusterRole for what is in all namespaces or in none. A role has all scopes there,
// also those that are allowed, so that to apply it again takes nothing away.
//
// The subject is the ServiceAccount that the extension names, never the user that an API server
// reports: with a kubeconfig, that is a server of the tenant's choice.
func rolesFor(c *v1alpha1.Connection, scopes []v1alpha1.Scope, mapper resourceMapper) ([]runtime.Object, error) {
	subject, ok := subjectOf(c.Status.Source)
	if !ok {
		return nil, nil
	}
	byNamespace, lacking := map[string][]schema.GroupResource{}, map[string]bool{}
	for i := range scopes {
		selection := scopes[i].Status.Selection
		kind := schema.FromAPIVersionAndKind(selection.APIVersion, selection.Kind)
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			continue // it is not served, so no role helps
		}
		if err != nil {
			return nil, errors.Wrapf(err, "finding the resource of %s", kind)
		}
		if group := mapping.Resource.GroupResource(); !slices.Contains(byNamespace[selection.Namespace], group) {
			byNamespace[selection.Namespace] = append(byNamespace[selection.Namespace], group)
		}
		if isForbidden(&scopes[i]) {
			lacking[selection.Namespace] = true
		}
	}
	var objects []runtime.Object
	for _, namespace := range sortedKeys(lacking) {
		objects = append(objects, rolesIn(namespace, roleName(c), subject, rulesFor(byNamespace[namespace]))...)
	}
	return objects, nil
}

// rulesFor returns a rule for each API group.
func rulesFor(resources []schema.GroupResource) (rules []rbacv1.PolicyRule) {
	byGroup := map[string][]string{}
	for _, resource := range resources {
		byGroup[resource.Group] = append(byGroup[resource.Group], resource.Resource)
	}
	for _, group := range sortedKeys(byGroup) {
		slices.Sort(byGroup[group])
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: byGroup[group],
			Verbs: []string{"list", "watch"}})
	}
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
			&rbacv1.ClusterRoleBinding{TypeMeta: meta("ClusterRoleBinding"), ObjectMeta: metadata, Subjects: subjects,
				RoleRef: ref("ClusterRole")},
		}
	}
	return []runtime.Object{
		&rbacv1.Role{TypeMeta: meta("Role"), ObjectMeta: metadata, Rules: rules},
		&rbacv1.RoleBinding{TypeMeta: meta("RoleBinding"), ObjectMeta: metadata, Subjects: subjects, RoleRef: ref("Role")},
	}
}

// isForbidden reports whether the identity may not read a scope.
func isForbidden(s *v1alpha1.Scope) bool { return s.Status.State == "Forbidden" }

// roleName returns the name of the roles of an extension, which no other extension has.
func roleName(c *v1alpha1.Connection) string {
	sum := sha256.Sum256([]byte(c.Namespace + "\x00" + c.Name))
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
