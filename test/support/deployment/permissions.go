package deployment

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Permission is one verb on one resource that a role of the manifests grants to the manager.
type Permission struct {
	Binding         string // that grants the role, as the audit log has it: RoleBinding "name/namespace"
	Role            string // Kind/name
	Rule            int    // index in the role
	Namespace       string // of the role, or empty
	Group, Resource string // resource/subresource
	Verb            string
	Name            string // or empty for all
}

func (p Permission) String() string {
	text := fmt.Sprintf("%s rule %d: %s %s", p.Role, p.Rule, p.Verb, p.Resource)
	if p.Group != "" {
		text += "." + p.Group
	}
	if p.Name != "" {
		text += " " + p.Name
	}
	if p.Namespace != "" {
		text += " in " + p.Namespace
	}
	return text
}

// Permissions returns what roles among the objects grant to a ServiceAccount. The second result has
// the bindings to roles that are not among the objects, such as those of the cluster.
func Permissions(objects []*unstructured.Unstructured, user string) (permissions []Permission, others []string,
	err error) {
	roles := map[string][]rbacv1.PolicyRule{}
	for _, object := range objects {
		var role rbacv1.ClusterRole // a Role has the same fields
		switch object.GetKind() {
		case "ClusterRole", "Role":
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
				return nil, nil, errors.WithStack(err)
			}
			roles[roleKey(object.GetKind(), object.GetNamespace(), object.GetName())] = role.Rules
		}
	}
	for _, object := range objects {
		var binding rbacv1.ClusterRoleBinding // a RoleBinding has the same fields
		switch object.GetKind() {
		case "ClusterRoleBinding", "RoleBinding":
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
				return nil, nil, errors.WithStack(err)
			}
		default:
			continue
		}
		for _, subject := range binding.Subjects {
			if subject.Kind != rbacv1.ServiceAccountKind {
				return nil, nil, errors.Errorf("%s is for %s %s, who may be others", nameOf(object), subject.Kind, subject.Name)
			}
		}
		if !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && "system:serviceaccount:"+s.Namespace+":"+s.Name == user
		}) {
			continue
		}
		namespace := object.GetNamespace()
		roleNamespace := ""
		if binding.RoleRef.Kind == "Role" {
			roleNamespace = namespace
		}
		rules, ours := roles[roleKey(binding.RoleRef.Kind, roleNamespace, binding.RoleRef.Name)]
		if !ours {
			others = append(others, nameOf(object))
			continue
		}
		for i, rule := range rules {
			if len(rule.NonResourceURLs) > 0 {
				return nil, nil, errors.Errorf("%s grants nonResourceURLs to %s", nameOf(object), user)
			}
			for _, permission := range ofRule(binding.RoleRef.Kind+"/"+binding.RoleRef.Name, i, namespace, rule) {
				permission.Binding = nameOf(object)
				permissions = append(permissions, permission)
			}
		}
	}
	return permissions, others, nil
}

func roleKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// nameOf returns kind and name of a binding, as the audit log has them.
func nameOf(binding *unstructured.Unstructured) string {
	name := binding.GetName()
	if namespace := binding.GetNamespace(); namespace != "" {
		name += "/" + namespace
	}
	return fmt.Sprintf("%s %q", binding.GetKind(), name)
}

func ofRule(role string, index int, namespace string, rule rbacv1.PolicyRule) (permissions []Permission) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					permissions = append(permissions, Permission{
						Role:      role,
						Rule:      index,
						Namespace: namespace,
						Group:     group,
						Resource:  resource,
						Verb:      verb,
						Name:      name,
					})
				}
			}
		}
	}
	return permissions
}

// Request is a request of the audit log.
type Request struct{ auditv1.Event }

// Requests returns the requests of a user that the API server has answered. Watches count from
// their beginning.
func Requests(auditLog, user string) (requests []Request, err error) {
	file, err := os.Open(auditLog)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event auditv1.Event
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // the last line, while the API server writes it
		}
		if event.User.Username == user && event.Stage != auditv1.StageRequestReceived {
			requests = append(requests, Request{event})
		}
	}
	return requests, errors.WithStack(lines.Err())
}

// String returns user, verb, resource and answer.
func (r Request) String() string {
	text := r.Verb + " " + r.RequestURI
	if r.ResponseStatus != nil {
		text += fmt.Sprintf(" (%d %s)", r.ResponseStatus.Code, r.ResponseStatus.Message)
	}
	return text
}

// Denied reports whether a permission was missing.
func (r Request) Denied() bool {
	return r.ResponseStatus != nil && r.ResponseStatus.Code == http.StatusForbidden
}

// AllowedBy reports whether a binding, as `RoleBinding "name/namespace"`, allowed the request.
func (r Request) AllowedBy(binding string) bool {
	return strings.Contains(r.Annotations["authorization.k8s.io/reason"], "allowed by "+binding+" ")
}

// Used returns whether one of the requests needed the permission. A watch that begins with all
// objects is a list, too: the manager asks for permission to both before it sends one.
func (p Permission) Used(requests []Request) bool {
	return slices.ContainsFunc(requests, p.usedBy)
}

// TooWide returns whether the permission is for the whole cluster, and requests needed it in single
// namespaces only.
func (p Permission) TooWide(requests []Request) bool {
	return p.Namespace == "" && !strings.HasPrefix(p.Verb, "impersonate") &&
		!slices.ContainsFunc(requests, func(r Request) bool { return p.usedBy(r) && r.ObjectRef.Namespace == "" })
}

func (p Permission) usedBy(r Request) bool {
	if r.Denied() {
		return false
	}
	if verb, impersonated := strings.CutPrefix(p.Verb, "impersonate"); impersonated {
		return p.usedToImpersonate(r, verb)
	}
	if r.ObjectRef == nil || r.ImpersonatedUser != nil {
		return false
	}
	resource := r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		resource += "/" + r.ObjectRef.Subresource
	}
	verb := r.Verb == p.Verb ||
		p.Verb == "list" && r.Verb == "watch" && strings.Contains(r.RequestURI, "sendInitialEvents=true")
	return verb && r.AllowedBy(p.Binding) && resource == p.Resource && r.ObjectRef.APIGroup == p.Group &&
		(p.Name == "" || r.ObjectRef.Name == p.Name) && (p.Namespace == "" || r.ObjectRef.Namespace == p.Namespace)
}

// usedToImpersonate reports the same of impersonate, impersonate:serviceaccount and
// impersonate-on:serviceaccount:<verb>, given what follows impersonate.
func (p Permission) usedToImpersonate(r Request, verb string) bool {
	if r.ImpersonatedUser == nil {
		return false
	}
	if on, ok := strings.CutPrefix(verb, "-on:serviceaccount:"); ok {
		return r.ObjectRef != nil && r.Verb == on && r.ObjectRef.Resource == p.Resource && r.ObjectRef.APIGroup == p.Group
	}
	account, _ := strings.CutPrefix(r.ImpersonatedUser.Username, "system:serviceaccount:")
	namespace, name, _ := strings.Cut(account, ":")
	return (p.Namespace == "" || p.Namespace == namespace) && (p.Name == "" || p.Name == name)
}
