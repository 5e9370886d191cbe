package permissioncheck

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// maxRules is how many permissions of a role are asked about: a tenant writes the role.
const maxRules = 500

// byRBAC begins the reason of what RBAC allows. What another authorizer allows does not count where
// RBAC asks what the writer of a role has.
const byRBAC = "RBAC: allowed by "

// everything is what RBAC requires of those who write a role that aggregates others.
var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// escalations asks what RBAC asks of those who write roles and bindings: to have what these give,
// or the verb escalate or bind on the role.
func (r *run) escalations(ctx context.Context) error {
	if !r.has("create", "update", "patch") {
		return nil
	}
	for i := range r.objects {
		o := &r.objects[i]
		if o.kind.Group != rbacv1.GroupName || o.unserved {
			continue
		}
		var err error
		switch o.kind.Kind {
		case "Role", "ClusterRole":
			err = r.writesRole(ctx, o)
		case "RoleBinding", "ClusterRoleBinding":
			err = r.writesBinding(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writesRole asks what it takes to write a role.
func (r *run) writesRole(ctx context.Context, o *object) error {
	role, err := roleOf(o)
	if err != nil {
		return err
	}
	escalate := permissions.Permission{
		Verb:      permissions.Escalate,
		Group:     rbacv1.GroupName,
		Resource:  o.resource.Resource,
		Namespace: o.GetNamespace(),
	}
	if r.has("patch", "update") {
		escalate.Name = o.GetName() // that of the path
	}
	present, err := r.readRole(ctx, o.resource.Resource, o.GetNamespace(), o.GetName())
	if err != nil {
		return err
	}
	rules, aggregates := role.Rules, role.AggregationRule != nil
	if present != nil {
		if changesNothing(role, present) {
			r.answer.Allowed = append(r.answer.Allowed, escalate) // RBAC does not ask
			return nil
		}
		if o.Object["rules"] == nil {
			rules = present.Rules // as they are
		}
		aggregates = aggregates || present.AggregationRule != nil
	}
	if aggregates {
		rules = everything
	}
	return r.needs(ctx, escalate, rules, o)
}

// changesNothing reports whether to apply a role leaves the present one as it is.
func changesNothing(role, present *rbacv1.ClusterRole) bool {
	return equality.Semantic.DeepEqual(role.Rules, present.Rules) &&
		equality.Semantic.DeepEqual(role.AggregationRule, present.AggregationRule) && hasMetadata(present, role)
}

// hasMetadata reports whether an object has the labels and annotations of another one.
func hasMetadata(object, of metav1.Object) bool {
	return isPart(of.GetLabels(), object.GetLabels()) && isPart(of.GetAnnotations(), object.GetAnnotations())
}

func isPart(part, all map[string]string) bool {
	for key, value := range part {
		if present, found := all[key]; !found || present != value {
			return false
		}
	}
	return true
}

// isBound reports whether to apply a binding leaves the present one as it is.
func (r *run) isBound(ctx context.Context, o *object) (bool, error) {
	found, err := r.readAsIdentity(ctx, o.resource.Resource, o.kind.Kind, o.GetNamespace(), o.GetName())
	if err != nil || found == nil {
		return false, err
	}
	var present, wanted rbacv1.RoleBinding
	for _, convert := range []struct {
		from *unstructured.Unstructured
		to   *rbacv1.RoleBinding
	}{{found, &present}, {o.Unstructured, &wanted}} {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(convert.from.Object, convert.to); err != nil {
			return false, errors.Wrapf(err, "reading %s %s", o.kind.Kind, o.GetName())
		}
	}
	sameSubjects := wanted.Subjects == nil || equality.Semantic.DeepEqual(wanted.Subjects, present.Subjects)
	return wanted.RoleRef == present.RoleRef && sameSubjects && hasMetadata(found, o), nil
}

// bindOf returns the verb bind on the role that a binding names, and where the role is.
func bindOf(o *object) (bind permissions.Permission, role roleKey, err error) {
	var binding rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &binding); err != nil {
		return bind, role, errors.Wrapf(err, "reading %s %s", o.kind.Kind, o.GetName())
	}
	role = roleKey{kind: binding.RoleRef.Kind, namespace: o.GetNamespace(), name: binding.RoleRef.Name}
	if role.kind == "ClusterRole" {
		role.namespace = ""
	}
	return permissions.Permission{
		Verb:      permissions.Bind,
		Group:     rbacv1.GroupName,
		Resource:  strings.ToLower(role.kind) + "s",
		Namespace: o.GetNamespace(),
		Name:      role.name,
	}, role, nil
}

// writesBinding asks what it takes to write a binding.
func (r *run) writesBinding(ctx context.Context, o *object) error {
	bind, key, err := bindOf(o)
	if err != nil {
		return err
	}
	asked, err := r.reviewer.one(ctx, bind)
	if err != nil {
		return err
	}
	if asked.verdict == allowed {
		r.answer.Allowed = append(r.answer.Allowed, bind)
		return nil
	}
	same, err := r.isBound(ctx, o)
	if err != nil {
		return err
	}
	if same {
		r.answer.Allowed = append(r.answer.Allowed, bind) // RBAC does not ask
		return nil
	}
	present, err := r.readRole(ctx, bind.Resource, key.namespace, key.name)
	if err != nil {
		return err
	}
	made := r.roleBefore(key, o.index)
	if made != nil && present == nil {
		r.noRole(o, key, true)
	}
	switch {
	case made != nil && made.AggregationRule != nil:
		r.undecided(bind, "or what the role aggregates", o)
		return nil
	case made != nil:
		return r.needs(ctx, bind, made.Rules, o)
	case present != nil:
		return r.needs(ctx, bind, present.Rules, o)
	}
	get := bind
	get.Verb, get.Namespace = "get", key.namespace
	asked, err = r.reviewer.one(ctx, get)
	if err != nil {
		return err
	}
	if asked.verdict == allowed {
		r.noRole(o, key, false)
	} else {
		r.undecided(bind, "or what the role gives, which the identity cannot read", o)
	}
	return nil
}

// noRole notes that the role of a binding is not there yet.
func (r *run) noRole(o *object, key roleKey, created bool) {
	o.pending = true
	r.answer.NotFound = append(r.answer.NotFound, NotFound{
		Kind:      rbacv1.SchemeGroupVersion.WithKind(key.kind),
		Namespace: key.namespace,
		Name:      key.name,
		Created:   created,
		For:       []int{o.index},
	})
}

func (r *run) undecided(p permissions.Permission, reason string, o *object) {
	o.undecided = true
	r.answer.Undecided = append(r.answer.Undecided, Missing{Permission: p, Reason: reason, For: []int{o.index}})
}

// needs notes what is missing of: a permission, or what rules give.
func (r *run) needs(ctx context.Context, instead permissions.Permission, rules []rbacv1.PolicyRule, o *object) error {
	asked, err := r.reviewer.one(ctx, instead)
	if err != nil {
		return err
	}
	if asked.verdict == allowed {
		r.answer.Allowed = append(r.answer.Allowed, instead)
		return nil
	}
	given := &questions{}
	for _, rule := range rules {
		for p := range permissionsOf(rule, o.GetNamespace()) {
			if given.add(p, o.index); len(given.all) > maxRules {
				r.undecided(instead, fmt.Sprintf("or what the role gives, which is more than %d permissions", maxRules), o)
				return nil
			}
		}
	}
	if err := r.reviewer.ask(ctx, given); err != nil {
		return err
	}
	byOthers := false
	for _, one := range given.all {
		byOthers = byOthers || one.verdict != denied && !strings.HasPrefix(one.reason, byRBAC)
		if one.verdict == denied {
			text := one.Verb + " " + one.Object()
			r.answer.Missing = append(r.answer.Missing, Missing{
				Permission: instead,
				Reason:     fmt.Sprintf("the role gives %s, which the identity does not have", text),
				For:        []int{o.index},
			})
			return nil
		}
	}
	if byOthers {
		r.undecided(instead, "or what the role gives: the identity has that, but not by RBAC", o)
		return nil
	}
	r.answer.Allowed = append(r.answer.Allowed, instead)
	return nil
}

// permissionsOf returns the permissions of a rule in a namespace. Wildcards stay: only a wildcard
// gives one.
func permissionsOf(rule rbacv1.PolicyRule, namespace string) iter.Seq[permissions.Permission] {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	return func(yield func(permissions.Permission) bool) {
		for _, verb := range rule.Verbs {
			for _, path := range rule.NonResourceURLs {
				if !yield(permissions.Permission{Verb: verb, Path: path}) {
					return
				}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, name := range names {
						p := permissions.Permission{Verb: verb, Group: group, Namespace: namespace, Name: name}
						p.Resource, p.Subresource, _ = strings.Cut(resource, "/")
						if !yield(p) {
							return
						}
					}
				}
			}
		}
	}
}

// readRole reads a role, nil if it is not there or the identity may not.
func (r *run) readRole(ctx context.Context, resource, namespace, name string) (*rbacv1.ClusterRole, error) {
	kind := "Role"
	if resource == "clusterroles" {
		kind = "ClusterRole"
	}
	found, err := r.readAsIdentity(ctx, resource, kind, namespace, name)
	if err != nil || found == nil {
		return nil, err
	}
	of := &rbacv1.ClusterRole{}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, of)
	return of, errors.Wrapf(err, "reading %s %s", kind, name)
}

// readAsIdentity reads an object of RBAC, nil if it is not there or the identity may not.
func (r *run) readAsIdentity(ctx context.Context, resource, kind, namespace, name string) (
	*unstructured.Unstructured, error) {
	asked, err := r.reviewer.one(ctx, permissions.Permission{
		Verb:      "get",
		Group:     rbacv1.GroupName,
		Resource:  resource,
		Namespace: namespace,
		Name:      name,
	})
	if err != nil || asked.verdict != allowed {
		return nil, err
	}
	found := unstructuredOf(rbacv1.SchemeGroupVersion.WithKind(kind))
	err = r.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, found)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	return found, errors.Wrapf(err, "reading %s %s", kind, name)
}
