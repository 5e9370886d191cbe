package main

import (
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

// rolesFor returns the roles and bindings by which the identity may list and watch the scopes, and
// nothing else: a Role for each namespace, and a ClusterRole for what is in all namespaces or in
// none.
func rolesFor(c *v1alpha1.Connection, scopes []v1alpha1.Scope, mapper resourceMapper) ([]runtime.Object, error) {
	if c.Status.Identity == nil {
		return nil, errors.New("the connection has no identity")
	}
	byNamespace := map[string][]schema.GroupResource{}
	for i := range scopes {
		selection := scopes[i].Status.Selection
		kind := schema.FromAPIVersionAndKind(selection.APIVersion, selection.Kind)
		resource, _ := meta.UnsafeGuessKindToResource(kind) // as usual; this cluster may not have a remote one's kind
		if mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version); err == nil {
			resource = mapping.Resource
		} else if !meta.IsNoMatchError(err) {
			return nil, errors.Wrapf(err, "finding the resource of %s", kind)
		}
		if group := resource.GroupResource(); !slices.Contains(byNamespace[selection.Namespace], group) {
			byNamespace[selection.Namespace] = append(byNamespace[selection.Namespace], group)
		}
	}
	var objects []runtime.Object
	for _, namespace := range sortedKeys(byNamespace) {
		objects = append(objects, rolesIn(namespace, roleName(c), subjectOf(c.Status.Identity.Username),
			rulesFor(byNamespace[namespace]))...)
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

// roleName returns the name of the roles of an extension.
func roleName(c *v1alpha1.Connection) string {
	name := "latchkey-reads-of-" + c.Name
	if c.Namespace != "" {
		name = "latchkey-reads-of-" + c.Namespace + "-" + c.Name
	}
	return strings.TrimRight(name[:min(len(name), 253)], "-.")
}

// subjectOf returns the subject of a binding for a user.
func subjectOf(username string) rbacv1.Subject {
	if account, ok := strings.CutPrefix(username, "system:serviceaccount:"); ok {
		if namespace, name, ok := strings.Cut(account, ":"); ok {
			return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
		}
	}
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: username}
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
