package scopedcache

import (
	"crypto/sha256"
	"encoding/json"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// rbacIndex knows which subjects a change of RBAC concerns: those of the changed binding, or of all
// bindings of the changed role. rbacIndex decides only which caches ask the API server, never what
// the answer is. Aggregated ClusterRoles need no special case, because their controller writes the
// rules into them. A deleted object concerns the subjects that it had. rbacIndex is not safe for
// concurrent use.
type rbacIndex struct {
	roles    map[roleKey][sha256.Size]byte // digests of their rules
	bindings map[bindingKey]binding
	byRole   map[roleKey]map[bindingKey]struct{} // bindings of each role, which need not exist
}

// roleKey identifies a role. For a ClusterRole, namespace is empty.
type roleKey struct{ namespace, name string }

// bindingKey identifies a binding. For a ClusterRoleBinding, namespace is empty.
type bindingKey struct{ namespace, name string }

// binding is the part of a binding that affects access.
type binding struct {
	role     roleKey
	subjects map[subject]struct{}
}

// subject is a user, a group or a ServiceAccount. namespace is set for ServiceAccounts only.
type subject struct{ kind, namespace, name string }

// concern is a subject whose permissions may have changed, in a namespace, or everywhere if
// namespace is empty.
type concern struct {
	namespace string
	subject   subject
}

func newRBACIndex() *rbacIndex {
	return &rbacIndex{roles: map[roleKey][sha256.Size]byte{}, bindings: map[bindingKey]binding{},
		byRole: map[roleKey]map[bindingKey]struct{}{}}
}

// setRole records a role and returns the subjects that the change concerns. Unchanged rules concern
// no one.
func (x *rbacIndex) setRole(key roleKey, rules []rbacv1.PolicyRule) []concern {
	content, _ := json.Marshal(rules) // rules contain only strings, so Marshal does not fail
	digest := sha256.Sum256(content)
	if before, ok := x.roles[key]; ok && before == digest {
		return nil
	}
	x.roles[key] = digest
	return x.concernsOf(key)
}

// removeRole records the deletion of a role and returns the subjects that it concerns.
func (x *rbacIndex) removeRole(key roleKey) []concern {
	if _, ok := x.roles[key]; !ok {
		return nil
	}
	delete(x.roles, key)
	return x.concernsOf(key)
}

// concernsOf returns the subjects of all bindings of a role.
func (x *rbacIndex) concernsOf(role roleKey) (concerns []concern) {
	for key := range x.byRole[role] {
		for s := range x.bindings[key].subjects {
			concerns = append(concerns, concern{key.namespace, s})
		}
	}
	return concerns
}

// setBinding records a binding and returns the subjects that the change concerns. These are the
// added and removed subjects, or all if the binding refers to another role now.
func (x *rbacIndex) setBinding(key bindingKey, reference rbacv1.RoleRef,
	subjects []rbacv1.Subject) (concerns []concern) {
	after := binding{role: roleKey{name: reference.Name}, subjects: map[subject]struct{}{}}
	if reference.Kind == "Role" {
		after.role.namespace = key.namespace
	}
	for _, s := range subjects {
		after.subjects[subjectOf(s, key.namespace)] = struct{}{}
	}
	before := x.bindings[key]
	for s := range before.subjects {
		if _, stays := after.subjects[s]; !stays || before.role != after.role {
			concerns = append(concerns, concern{key.namespace, s})
		}
	}
	for s := range after.subjects {
		if _, was := before.subjects[s]; !was || before.role != after.role {
			concerns = append(concerns, concern{key.namespace, s})
		}
	}
	x.unbind(key, before.role)
	x.bindings[key] = after
	if x.byRole[after.role] == nil {
		x.byRole[after.role] = map[bindingKey]struct{}{}
	}
	x.byRole[after.role][key] = struct{}{}
	return concerns
}

// removeBinding records the deletion of a binding and returns its subjects.
func (x *rbacIndex) removeBinding(key bindingKey) (concerns []concern) {
	before := x.bindings[key]
	for s := range before.subjects {
		concerns = append(concerns, concern{key.namespace, s})
	}
	x.unbind(key, before.role)
	delete(x.bindings, key)
	return concerns
}

func (x *rbacIndex) unbind(key bindingKey, role roleKey) {
	delete(x.byRole[role], key)
	if len(x.byRole[role]) == 0 {
		delete(x.byRole, role)
	}
}

// subjectOf converts a subject of a binding in a namespace. A ServiceAccount without a namespace is
// in the namespace of the binding.
func subjectOf(s rbacv1.Subject, namespace string) subject {
	if s.Kind != rbacv1.ServiceAccountKind {
		return subject{kind: s.Kind, name: s.Name}
	}
	if s.Namespace != "" {
		namespace = s.Namespace
	}
	return subject{rbacv1.ServiceAccountKind, namespace, s.Name}
}

// subjectsOf returns the subjects by which bindings may refer to an identity. groups are nil if
// they are not known. The groups of a ServiceAccount follow from its name. complete is false if
// there may be more subjects.
func subjectsOf(username string, groups []string) (subjects []subject, complete bool) {
	if username == "" {
		return nil, false
	}
	subjects = []subject{{kind: rbacv1.UserKind, name: username}}
	complete = len(groups) > 0
	if rest, ok := strings.CutPrefix(username, "system:serviceaccount:"); ok {
		if namespace, name, ok := strings.Cut(rest, ":"); ok && !strings.Contains(name, ":") {
			subjects = append(subjects, subject{rbacv1.ServiceAccountKind, namespace, name})
			if !complete {
				groups, complete = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace,
					"system:authenticated"}, true
			}
		}
	}
	for _, group := range groups {
		subjects = append(subjects, subject{kind: rbacv1.GroupKind, name: group})
	}
	return subjects, complete
}
