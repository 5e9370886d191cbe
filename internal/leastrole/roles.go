package leastrole

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

const (
	// ManagedByLabel is on each role that this package writes.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is its value.
	ManagedBy = "kubectl-latchkey"
)

// Owner is what roles are for.
type Owner struct {
	// Extension is on whose behalf the permissions are needed, and Purpose begins the roles' names.
	Extension types.NamespacedName
	Purpose   string
	Subject   rbacv1.Subject
}

// SubjectOf returns the ServiceAccount of this cluster that is the source of a credential, if it is
// one. It is never the user that an API server reports: with a kubeconfig, that is a server of the
// tenant's choice.
func SubjectOf(source string) (rbacv1.Subject, bool) {
	account, isServiceAccount := strings.CutPrefix(source, "serviceaccount ")
	namespace, name, ok := strings.Cut(account, "/")
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}, isServiceAccount && ok
}

// Roles returns the roles and bindings by which the subject has exactly these permissions: a Role
// for each namespace, and a ClusterRole for what is in all namespaces or in none. Roles with other
// rules have other names, so that to apply later ones takes nothing away.
func (o Owner) Roles(needs []permissions.Permission) (objects []client.Object) {
	byNamespace := map[string][]permissions.Permission{}
	for _, need := range needs {
		need = need.Normal()
		byNamespace[need.Namespace] = append(byNamespace[need.Namespace], need)
	}
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		objects = append(objects, o.rolesIn(namespace, Rules(byNamespace[namespace]))...)
	}
	return objects
}

// rolesIn returns a role and its binding in a namespace, or cluster-wide ones for "".
func (o Owner) rolesIn(namespace string, rules []rbacv1.PolicyRule) []client.Object {
	metadata := metav1.ObjectMeta{
		Namespace: namespace,
		Name:      o.name(rules),
		Labels:    map[string]string{ManagedByLabel: ManagedBy},
	}
	kind := func(name string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: name}
	}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: metadata.Name}
	}
	subjects := []rbacv1.Subject{o.Subject}
	if namespace == "" {
		return []client.Object{
			&rbacv1.ClusterRole{TypeMeta: kind("ClusterRole"), ObjectMeta: metadata, Rules: rules},
			&rbacv1.ClusterRoleBinding{
				TypeMeta:   kind("ClusterRoleBinding"),
				ObjectMeta: metadata,
				Subjects:   subjects,
				RoleRef:    ref("ClusterRole"),
			},
		}
	}
	return []client.Object{
		&rbacv1.Role{TypeMeta: kind("Role"), ObjectMeta: metadata, Rules: rules},
		&rbacv1.RoleBinding{TypeMeta: kind("RoleBinding"), ObjectMeta: metadata, Subjects: subjects, RoleRef: ref("Role")},
	}
}

// name returns a name that no roles of others have, and none of the same extension with other rules
// or for another subject.
func (o Owner) name(rules []rbacv1.PolicyRule) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", o.Extension.String(), o.Subject, rules))
	name := o.Purpose + "-" + o.Extension.Name
	return strings.TrimRight(name[:min(len(name), 235)], "-.") + "-" + hex.EncodeToString(sum[:6])
}
