package permissioncheck

import (
	"context"
	"fmt"
	"strings"

	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

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
	of := r.content.roles[roleKey{Namespace: o.GetNamespace(), Name: o.GetName()}]
	escalate := permissions.Permission{
		Verb:      permissions.Escalate,
		Group:     rbacv1.GroupName,
		Resource:  o.resource.Resource,
		Namespace: o.GetNamespace(),
		Name:      o.GetName(),
	}
	rules := of.rules
	if of.aggregates {
		rules = everything
	}
	missing, err := r.lacks(ctx, escalate, rules, o)
	if err != nil || missing == nil || of.aggregates {
		return r.note(missing, err)
	}
	// RBAC does not ask for rules that are there already.
	present, err := r.rulesOf(ctx, o.resource.Resource, o.GetNamespace(), o.GetName())
	if err != nil {
		return err
	}
	if present != nil && equality.Semantic.DeepEqual(present.Rules, of.rules) {
		return nil
	}
	return r.note(missing, nil)
}

// writesBinding asks what it takes to write a binding.
func (r *run) writesBinding(ctx context.Context, o *object) error {
	var binding rbacv1.RoleBinding
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &binding); err != nil {
		return errors.Wrapf(err, "reading %s %s", o.kind.Kind, o.GetName())
	}
	key := roleKey{Namespace: o.GetNamespace(), Name: binding.RoleRef.Name}
	bind := permissions.Permission{
		Verb:      permissions.Bind,
		Group:     rbacv1.GroupName,
		Resource:  strings.ToLower(binding.RoleRef.Kind) + "s",
		Namespace: o.GetNamespace(),
		Name:      key.Name,
	}
	if binding.RoleRef.Kind == "ClusterRole" {
		key.Namespace = ""
	}
	asked, err := r.reviewer.one(ctx, bind)
	if err != nil || asked.verdict == allowed {
		return err
	}
	of, inContent := r.content.roles[key]
	present, err := r.rulesOf(ctx, bind.Resource, key.Namespace, key.Name)
	switch {
	case err != nil:
		return err
	case inContent && present == nil:
		o.pending = true
		r.answer.NotFound = append(r.answer.NotFound, NotFound{
			Kind:      rbacv1.SchemeGroupVersion.WithKind(binding.RoleRef.Kind),
			Namespace: key.Namespace,
			Name:      key.Name,
			Created:   true,
			For:       []int{o.index},
		})
	case present != nil && !inContent:
		of.rules = present.Rules
	case present == nil && !inContent:
		return r.unknownRole(ctx, o, bind, key, binding.RoleRef.Kind)
	}
	return r.note(r.lacks(ctx, bind, of.rules, o))
}

// unknownRole notes a binding of a role that the identity cannot read, or that is not there.
func (r *run) unknownRole(ctx context.Context, o *object, bind permissions.Permission, key roleKey, kind string) error {
	get := bind
	get.Verb, get.Namespace = "get", key.Namespace
	asked, err := r.reviewer.one(ctx, get)
	if err != nil {
		return err
	}
	if asked.verdict != allowed {
		r.answer.Undecided = append(r.answer.Undecided, Missing{
			Permission: bind,
			Reason:     "or what the role gives, which the identity cannot read",
			For:        []int{o.index},
		})
		return nil
	}
	o.pending = true
	r.answer.NotFound = append(r.answer.NotFound, NotFound{
		Kind:      rbacv1.SchemeGroupVersion.WithKind(kind),
		Namespace: key.Namespace,
		Name:      key.Name,
		For:       []int{o.index},
	})
	return nil
}

// note adds a permission that is missing, if one is.
func (r *run) note(missing *Missing, err error) error {
	if missing != nil && err == nil {
		r.answer.Missing = append(r.answer.Missing, *missing)
	}
	return err
}

// lacks returns the permission instead of what rules give, if the identity has neither.
func (r *run) lacks(ctx context.Context, instead permissions.Permission, rules []rbacv1.PolicyRule, o *object) (
	*Missing, error) {
	asked, err := r.reviewer.one(ctx, instead)
	if err != nil || asked.verdict == allowed {
		return nil, err
	}
	given := &questions{}
	for _, rule := range rules {
		for _, p := range permissionsOf(rule, o.GetNamespace()) {
			given.add(p, o.index)
		}
	}
	if err := r.reviewer.ask(ctx, given); err != nil {
		return nil, err
	}
	for _, one := range given.all {
		if one.verdict != allowed {
			text := one.Verb + " " + one.Path + one.Resource
			if one.Subresource != "" {
				text += "/" + one.Subresource
			}
			return &Missing{
				Permission: instead,
				Reason:     fmt.Sprintf("the role gives %s, which the identity does not have", text),
				For:        []int{o.index},
			}, nil
		}
	}
	return nil, nil
}

// permissionsOf returns the permissions of a rule in a namespace. Wildcards stay: only a wildcard
// gives one.
func permissionsOf(rule rbacv1.PolicyRule, namespace string) (all []permissions.Permission) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range rule.Verbs {
		for _, path := range rule.NonResourceURLs {
			all = append(all, permissions.Permission{Verb: verb, Path: path})
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					p := permissions.Permission{Verb: verb, Group: group, Namespace: namespace, Name: name}
					p.Resource, p.Subresource, _ = strings.Cut(resource, "/")
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// rulesOf reads a role, nil if it is not there or the identity may not.
func (r *run) rulesOf(ctx context.Context, resource, namespace, name string) (*rbacv1.ClusterRole, error) {
	get := permissions.Permission{
		Verb:      "get",
		Group:     rbacv1.GroupName,
		Resource:  resource,
		Namespace: namespace,
		Name:      name,
	}
	asked, err := r.reviewer.one(ctx, get)
	if err != nil || asked.verdict != allowed {
		return nil, err
	}
	kind := "Role"
	if resource == "clusterroles" {
		kind = "ClusterRole"
	}
	found := unstructuredOf(rbacv1.SchemeGroupVersion.WithKind(kind))
	err = r.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, found)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "reading %s %s", kind, name)
	}
	of := &rbacv1.ClusterRole{}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, of)
	return of, errors.Wrapf(err, "reading %s %s", kind, name)
}
