package scopedcache

import (
	"crypto/sha256"
	"encoding/json"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// rbacIndex knows which subjects a change of RBAC concerns: those of the binding that changed, or
// of all bindings of the role that did. It decides who asks the API server, and never what the
// answer is. An aggregated ClusterRole needs nothing of its own: its controller writes the rules
// into it. What is removed counts by what it was. Not safe for concurrent use.
type rbacIndex struct {
	roles    map[roleKey][sha256.Size]byte // digests of their rules
	bindings map[bindingKey]binding
	bound    map[roleKey]map[bindingKey]struct{} // the bindings of each role, whether there is such a role or not
}

// roleKey names a role; a ClusterRole has no namespace.
type roleKey struct{ namespace, name string }

// bindingKey names a binding; a ClusterRoleBinding has no namespace.
type bindingKey struct{ namespace, name string }

// binding is what counts of a binding.
type binding struct {
	role     roleKey
	subjects map[subject]struct{}
}

// subject is a user, a group or a ServiceAccount, of which alone namespace is set.
type subject struct{ kind, namespace, name string }

// concern is a subject whose rights may have changed, in a namespace or, if that is empty,
// everywhere.
type concern struct {
	namespace string
	subject   subject
}

func newRBACIndex() *rbacIndex {
	return &rbacIndex{roles: map[roleKey][sha256.Size]byte{}, bindings: map[bindingKey]binding{},
		bound: map[roleKey]map[bindingKey]struct{}{}}
}

// setRole records a role and returns whom that concerns. Unchanged rules concern no one.
func (x *rbacIndex) setRole(key roleKey, rules []rbacv1.PolicyRule) []concern {
	content, _ := json.Marshal(rules) // of strings only
	digest := sha256.Sum256(content)
	if before, ok := x.roles[key]; ok && before == digest {
		return nil
	}
	x.roles[key] = digest
	return x.boundTo(key)
}

// removeRole takes note that a role has gone.
func (x *rbacIndex) removeRole(key roleKey) []concern {
	if _, ok := x.roles[key]; !ok {
		return nil
	}
	delete(x.roles, key)
	return x.boundTo(key)
}

func (x *rbacIndex) boundTo(role roleKey) (concerns []concern) {
	for key := range x.bound[role] {
		for s := range x.bindings[key].subjects {
			concerns = append(concerns, concern{key.namespace, s})
		}
	}
	return concerns
}

// setBinding takes note of a binding and returns whom that concerns: the subjects that are new or
// gone, or all if it binds another role now.
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
	if x.bound[after.role] == nil {
		x.bound[after.role] = map[bindingKey]struct{}{}
	}
	x.bound[after.role][key] = struct{}{}
	return concerns
}

// removeBinding takes note that a binding has gone.
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
	delete(x.bound[role], key)
	if len(x.bound[role]) == 0 {
		delete(x.bound, role)
	}
}

// subjectOf is a subject of a binding in a namespace, which is that of a ServiceAccount that names
// none.
func subjectOf(s rbacv1.Subject, namespace string) subject {
	if s.Kind != rbacv1.ServiceAccountKind {
		return subject{kind: s.Kind, name: s.Name}
	}
	if s.Namespace != "" {
		namespace = s.Namespace
	}
	return subject{rbacv1.ServiceAccountKind, namespace, s.Name}
}

// subjectsOf are the subjects by which bindings may mean an identity. Groups are nil if they are
// not known; those of a ServiceAccount are. complete is false if there may be more.
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
