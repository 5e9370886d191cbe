package rbacindex

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Index knows which subjects a change of RBAC concerns: those of the changed binding, or of all
// bindings of the changed role. Index decides only which caches ask the API server, never what
// the answer is. Aggregated ClusterRoles need no special case, because their controller writes the
// rules into them. A deleted object concerns the subjects that it had. Index is not safe for
// concurrent use.
type Index struct {
	roles    map[roleKey][sha256.Size]byte // digests of their rules
	bindings map[bindingKey]binding
	byRole   map[roleKey]map[bindingKey]struct{} // bindings of each role, which need not exist
	places   map[Subject]map[string]int          // how many bindings the subject has in each namespace
}

// roleKey identifies a role. For a ClusterRole, namespace is empty.
type roleKey struct{ namespace, name string }

// bindingKey identifies a binding. For a ClusterRoleBinding, namespace is empty.
type bindingKey struct{ namespace, name string }

// binding is the part of a binding that affects access.
type binding struct {
	role     roleKey
	subjects map[Subject]struct{}
}

// Subject is a user, a group or a ServiceAccount. Namespace is set for ServiceAccounts only.
type Subject struct{ Kind, Namespace, Name string }

// Concern is a subject whose permissions may have changed, in a namespace, or everywhere if
// Namespace is empty.
type Concern struct {
	Namespace string
	Subject   Subject
}

// New returns an empty index.
func New() *Index {
	return &Index{
		roles:    map[roleKey][sha256.Size]byte{},
		bindings: map[bindingKey]binding{},
		byRole:   map[roleKey]map[bindingKey]struct{}{},
		places:   map[Subject]map[string]int{},
	}
}

// Namespaces returns the namespaces in which one of the subjects has a RoleBinding, sorted. What
// the binding permits, if anything, the index does not say.
func (x *Index) Namespaces(subjects []Subject) []string {
	found := map[string]struct{}{}
	for _, s := range subjects {
		for namespace := range x.places[s] {
			found[namespace] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Set records a role or binding, and returns the subjects that the change concerns.
func (x *Index) Set(object any) []Concern {
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		return x.setRole(roleKey{name: o.Name}, o.Rules)
	case *rbacv1.Role:
		return x.setRole(roleKey{o.Namespace, o.Name}, o.Rules)
	case *rbacv1.ClusterRoleBinding:
		return x.setBinding(bindingKey{name: o.Name}, o.RoleRef, o.Subjects)
	case *rbacv1.RoleBinding:
		return x.setBinding(bindingKey{o.Namespace, o.Name}, o.RoleRef, o.Subjects)
	}
	return nil
}

// Remove records the deletion of a role or binding, of which only namespace and name must be set,
// and returns the subjects that it concerns.
func (x *Index) Remove(object any) []Concern {
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		return x.removeRole(roleKey{name: o.Name})
	case *rbacv1.Role:
		return x.removeRole(roleKey{o.Namespace, o.Name})
	case *rbacv1.ClusterRoleBinding:
		return x.removeBinding(bindingKey{name: o.Name})
	case *rbacv1.RoleBinding:
		return x.removeBinding(bindingKey{o.Namespace, o.Name})
	}
	return nil
}

// setRole records a role and returns the subjects that the change concerns. Unchanged rules concern
// no one.
func (x *Index) setRole(key roleKey, rules []rbacv1.PolicyRule) []Concern {
	content, _ := json.Marshal(rules) // rules contain only strings, so Marshal does not fail
	digest := sha256.Sum256(content)
	if before, ok := x.roles[key]; ok && before == digest {
		return nil
	}
	x.roles[key] = digest
	return x.concernsOf(key)
}

// removeRole records the deletion of a role and returns the subjects that it concerns.
func (x *Index) removeRole(key roleKey) []Concern {
	if _, ok := x.roles[key]; !ok {
		return nil
	}
	delete(x.roles, key)
	return x.concernsOf(key)
}

// concernsOf returns the subjects of all bindings of a role.
func (x *Index) concernsOf(role roleKey) (concerns []Concern) {
	for key := range x.byRole[role] {
		for s := range x.bindings[key].subjects {
			concerns = append(concerns, Concern{key.namespace, s})
		}
	}
	return concerns
}

// setBinding records a binding and returns the subjects that the change concerns. These are the
// added and removed subjects, or all if the binding refers to another role now.
func (x *Index) setBinding(key bindingKey, reference rbacv1.RoleRef,
	subjects []rbacv1.Subject) (concerns []Concern) {
	after := binding{role: roleKey{name: reference.Name}, subjects: map[Subject]struct{}{}}
	if reference.Kind == "Role" {
		after.role.namespace = key.namespace
	}
	for _, s := range subjects {
		after.subjects[subjectOf(s, key.namespace)] = struct{}{}
	}
	before := x.bindings[key]
	for s := range before.subjects {
		if _, stays := after.subjects[s]; !stays || before.role != after.role {
			concerns = append(concerns, Concern{key.namespace, s})
		}
	}
	for s := range after.subjects {
		if _, was := before.subjects[s]; !was || before.role != after.role {
			concerns = append(concerns, Concern{key.namespace, s})
		}
	}
	x.unbind(key, before)
	x.bindings[key] = after
	x.place(key, after)
	if x.byRole[after.role] == nil {
		x.byRole[after.role] = map[bindingKey]struct{}{}
	}
	x.byRole[after.role][key] = struct{}{}
	return concerns
}

// removeBinding records the deletion of a binding and returns its subjects.
func (x *Index) removeBinding(key bindingKey) (concerns []Concern) {
	before := x.bindings[key]
	for s := range before.subjects {
		concerns = append(concerns, Concern{key.namespace, s})
	}
	x.unbind(key, before)
	delete(x.bindings, key)
	return concerns
}

// place records where the subjects of a binding have it. A ClusterRoleBinding is in no namespace.
func (x *Index) place(key bindingKey, b binding) {
	if key.namespace == "" {
		return
	}
	for s := range b.subjects {
		if x.places[s] == nil {
			x.places[s] = map[string]int{}
		}
		x.places[s][key.namespace]++
	}
}

// unbind removes what is recorded of a binding beside itself.
func (x *Index) unbind(key bindingKey, b binding) {
	delete(x.byRole[b.role], key)
	if len(x.byRole[b.role]) == 0 {
		delete(x.byRole, b.role)
	}
	if key.namespace == "" {
		return
	}
	for s := range b.subjects {
		if x.places[s][key.namespace]--; x.places[s][key.namespace] == 0 {
			delete(x.places[s], key.namespace)
		}
		if len(x.places[s]) == 0 {
			delete(x.places, s)
		}
	}
}

// subjectOf converts a subject of a binding in a namespace. A ServiceAccount without a namespace is
// in the namespace of the binding.
func subjectOf(s rbacv1.Subject, namespace string) Subject {
	if s.Kind != rbacv1.ServiceAccountKind {
		return Subject{Kind: s.Kind, Name: s.Name}
	}
	if s.Namespace != "" {
		namespace = s.Namespace
	}
	return Subject{rbacv1.ServiceAccountKind, namespace, s.Name}
}

// SubjectsOf returns the subjects by which bindings may refer to an identity. groups are nil if
// they are not known. The groups of a ServiceAccount follow from its name. complete is false if
// there may be more subjects.
func SubjectsOf(username string, groups []string) (subjects []Subject, complete bool) {
	if username == "" {
		return nil, false
	}
	subjects = []Subject{{Kind: rbacv1.UserKind, Name: username}}
	complete = len(groups) > 0
	if rest, ok := strings.CutPrefix(username, "system:serviceaccount:"); ok {
		if namespace, name, ok := strings.Cut(rest, ":"); ok && !strings.Contains(name, ":") {
			subjects = append(subjects, Subject{rbacv1.ServiceAccountKind, namespace, name})
			if !complete {
				groups, complete = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace,
					"system:authenticated"}, true
			}
		}
	}
	for _, group := range groups {
		subjects = append(subjects, Subject{Kind: rbacv1.GroupKind, Name: group})
	}
	return subjects, complete
}
