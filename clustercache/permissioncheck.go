package clustercache

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/leastrole"
	"github.com/latchkey-dev/latchkey/internal/permissioncheck"
	"github.com/latchkey-dev/latchkey/internal/permissions"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// PermissionCheck is a content, and what is done with it. CheckPermissions sends a
// SelfSubjectAccessReview for each verb and object, at most ten at a time for each call and outside
// of Client.QPS; what was asked less than five seconds ago is not asked again. It also knows what
// RBAC asks of those who write roles and bindings: to have what these give, or the verbs escalate
// and bind; for that, and to find out what exists, it reads as the identity. Kinds that are not
// served and namespaces that do not exist yet are named as such.
type PermissionCheck struct {
	// Objects are what is applied, in the order in which that happens. Each must have a name, and a
	// namespace if its kind has them. CheckPermissions does not change them.
	Objects []client.Object
	// Verbs are used with each object. It is asked whether the identity may list, watch and
	// deletecollection all objects of the kind in the namespace, and use the other verbs with the
	// object of that name. create is asked with the name if patch or update is among the verbs, as
	// for an apply that creates, and else for all names; it is not missing for an object that
	// exists, as far as the identity may get it. Defaults to get, list, watch, create, patch and
	// delete.
	Verbs []string
	// DryRun also applies, with a server-side dry run, each object whose kind and namespace exist
	// and for which no permission to write is missing. That finds what no review can tell:
	// admission, quota, invalid fields. It needs FieldOwner, and counts for Client.QPS.
	DryRun bool
	// FieldOwner is that of the dry run.
	FieldOwner string
}

// complete sets defaults, and returns what is wrong.
func (c *PermissionCheck) complete() error {
	if len(c.Verbs) == 0 {
		c.Verbs = []string{"get", "list", "watch", "create", "patch", "delete"}
	}
	if c.DryRun && c.FieldOwner == "" {
		return connstate.Mistake("PermissionCheck.DryRun needs a FieldOwner")
	}
	if slices.Contains(c.Verbs, "*") || slices.Contains(c.Verbs, "") {
		return connstate.Mistake("PermissionCheck.Verbs: %q names no verb", c.Verbs)
	}
	return nil
}

// Run answers the check without a ClusterCache, for the identity of a client and of review: the
// client reads from the API server, and review sends a SelfSubjectAccessReview. The report has no
// Roles. It is for implementations of Bound.
func (c PermissionCheck) Run(ctx context.Context, from client.Client, review func(context.Context,
	authorizationv1.SelfSubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)) (
	*PermissionReport, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	answer, err := permissioncheck.New(from, review).Run(ctx, permissioncheck.Check(c))
	if err != nil {
		return nil, err
	}
	return permissionReportOf(answer, client.ObjectKey{}, ""), nil
}

// PermissionReport is the answer to a PermissionCheck, at the time of the check. Permissions may
// change at any time.
type PermissionReport struct {
	// Missing are the permissions that the API server's authorizers deny, sorted.
	Missing []MissingPermission
	// Undecided are those that they could not evaluate, and those to bind a role that the identity
	// cannot read. Reason says why.
	Undecided []MissingPermission
	// NotFound is what the objects need and is not there: kinds, namespaces, roles that bindings
	// name.
	NotFound []ContentNotFound
	// Failed are the objects that the dry run says would be refused for another reason. Objects
	// that need something else of this report first were not tried.
	Failed []ContentFailure
	// Roles are the least roles and bindings that grant Missing, for a ServiceAccount of this
	// cluster; nil for others. They are for an administrator to read: the content is the tenant's,
	// and asks for what it likes. See Power of MissingPermission.
	Roles []client.Object
}

// MissingPermission is a permission in the words of RBAC.
type MissingPermission struct {
	// Verb, Group (empty for the core group), Resource and Subresource are those of a rule.
	Verb, Group, Resource, Subresource string
	// Namespace is empty for what takes a ClusterRole, and Name for all objects.
	Namespace, Name string
	// Reason is what the API server says, often nothing.
	Reason string
	// Power is not empty if the permission gives power over others: in the namespace, in the
	// cluster or in another namespace than the ServiceAccount's. The words are those of --allow of
	// "kubectl latchkey role", such as secrets, cluster-wide/nodes or namespace/NAME.
	Power string
	// Objects are those that need it, as indexes into Objects of the check.
	Objects []int
}

// String returns the permission as a person says it.
func (m MissingPermission) String() string {
	text := m.Verb + " " + resourceText(m)
	if m.Name != "" {
		text += " " + m.Name
	}
	return text + placeText(m.Namespace)
}

// ContentNotFound is what some objects of a content need, and is not there.
type ContentNotFound struct {
	// Kind is the kind that is not served, if Name is empty, or else that of the namespace or role.
	Kind schema.GroupVersionKind
	// Namespace and Name are those of the namespace or role.
	Namespace, Name string
	// Created says that an object of the content makes it: then the other objects can be applied
	// after that.
	Created bool
	// Objects are those that need it, as indexes into Objects of the check.
	Objects []int
}

// ContentFailure is an object that the API server would refuse.
type ContentFailure struct {
	// Object is an index into Objects of the check.
	Object int
	// Err is the answer to the dry run.
	Err error
}

// Err returns an error if permissions are missing, for which apierrors.IsForbidden is true, and
// else nil. What is undecided, not found or failed is no error.
func (r *PermissionReport) Err() error {
	if r == nil || len(r.Missing) == 0 {
		return nil
	}
	err := apierrors.NewForbidden(schema.GroupResource{Group: r.Missing[0].Group, Resource: r.Missing[0].Resource},
		r.Missing[0].Name, nil)
	err.ErrStatus.Message = "the identity lacks permission to " + missingText(r.Missing)
	return err
}

// ConditionPermitted is the type of the conditions that PermissionsCondition returns.
const ConditionPermitted = "Permitted"

// PermissionsCondition returns the condition ConditionPermitted for the result of CheckPermissions:
//
//   - True with reason Permitted if nothing stands in the way.
//   - False with reason MissingPermissions (the message names all, up to 1 KiB), NotFound or
//     Refused (it names the first).
//   - Unknown with reason Undecided if the API server could not evaluate a permission, or
//     CheckFailed or NotConnected if there is no report.
//
// generation is the metadata.generation of the extension. As with Condition, check
// ReportedElsewhere(err) first.
func PermissionsCondition(report *PermissionReport, err error, generation int64) metav1.Condition {
	condition := metav1.Condition{Type: ConditionPermitted, Status: metav1.ConditionFalse, ObservedGeneration: generation}
	set := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		condition.Status, condition.Reason, condition.Message = status, reason, untrusted.Shorten(message)
		return condition
	}
	switch {
	case errors.Is(err, ErrNotConnected):
		return set(metav1.ConditionUnknown, "NotConnected", err.Error())
	case err != nil:
		return set(metav1.ConditionUnknown, "CheckFailed", err.Error())
	case report == nil:
		return set(metav1.ConditionUnknown, "CheckFailed", "there is no report")
	case len(report.Missing) > 0:
		return set(metav1.ConditionFalse, "MissingPermissions", report.Err().Error())
	case len(report.Failed) > 0:
		return set(metav1.ConditionFalse, "Refused", report.Failed[0].Err.Error())
	}
	for _, found := range report.NotFound {
		if !found.Created {
			return set(metav1.ConditionFalse, "NotFound", found.String())
		}
	}
	if len(report.Undecided) > 0 {
		return set(metav1.ConditionUnknown, "Undecided",
			"it is not known whether the identity may "+missingText(report.Undecided))
	}
	return set(metav1.ConditionTrue, "Permitted", "")
}

// String says what is not there.
func (n ContentNotFound) String() string {
	switch {
	case n.Name == "":
		return fmt.Sprintf("the API server does not serve %s %s", n.Kind.GroupVersion(), n.Kind.Kind)
	case n.Namespace == "":
		return fmt.Sprintf("there is no %s %s", n.Kind.Kind, n.Name)
	}
	return fmt.Sprintf("there is no %s %s/%s", n.Kind.Kind, n.Namespace, n.Name)
}

// missingText lists permissions: verbs of the same objects together.
func missingText(missing []MissingPermission) string {
	verbs, order := map[string][]string{}, []string(nil)
	for _, m := range missing {
		of := resourceText(m)
		if m.Name != "" {
			of += " " + m.Name
		}
		of += placeText(m.Namespace)
		if verbs[of] == nil {
			order = append(order, of)
		}
		verbs[of] = append(verbs[of], m.Verb)
	}
	var parts []string
	for _, of := range order {
		parts = append(parts, strings.Join(verbs[of], ", ")+" "+of)
	}
	return strings.Join(parts, "; ")
}

func resourceText(m MissingPermission) string {
	return permissions.Permission{Group: m.Group, Resource: m.Resource, Subresource: m.Subresource}.Object()
}

func placeText(namespace string) string {
	if namespace == "" {
		return " in the cluster"
	}
	return " in namespace " + namespace
}

// permissionReportOf returns the public form of an answer.
func permissionReportOf(answer *permissioncheck.Answer, extension client.ObjectKey, source string) *PermissionReport {
	subject, isServiceAccount := leastrole.SubjectOf(source)
	report := &PermissionReport{
		Missing:   missingPermissionsOf(answer.Missing, subject.Namespace),
		Undecided: missingPermissionsOf(answer.Undecided, subject.Namespace),
	}
	for _, found := range answer.NotFound {
		report.NotFound = append(report.NotFound, ContentNotFound{
			Kind:      found.Kind,
			Namespace: found.Namespace,
			Name:      found.Name,
			Created:   found.Created,
			Objects:   found.For,
		})
	}
	for _, failed := range answer.Failed {
		report.Failed = append(report.Failed, ContentFailure(failed))
	}
	if isServiceAccount {
		var needs []permissions.Permission
		for _, missing := range answer.Missing {
			if powerOf(missing.Permission, subject.Namespace) == "" {
				needs = append(needs, missing.Permission)
			}
		}
		owner := leastrole.Owner{Extension: extension, Purpose: "latchkey", Subject: subject}
		report.Roles = owner.Roles(needs)
	}
	return report
}

// powerOf returns the power of a permission for a ServiceAccount of a namespace, which is empty if
// it is not known.
func powerOf(p permissions.Permission, namespace string) string {
	if power, _ := leastrole.PowerOf(p); power != "" || namespace == "" || p.Namespace == namespace {
		return power
	}
	return "namespace/" + p.Namespace
}

func missingPermissionsOf(list []permissioncheck.Missing, namespace string) []MissingPermission {
	byText := map[string]MissingPermission{}
	for _, one := range list {
		missing := MissingPermission{
			Verb:        one.Verb,
			Group:       one.Group,
			Resource:    one.Resource,
			Subresource: one.Subresource,
			Namespace:   one.Namespace,
			Name:        one.Name,
			Reason:      one.Reason,
			Power:       powerOf(one.Permission, namespace),
			Objects:     one.For,
		}
		if same, known := byText[missing.String()]; known {
			missing.Objects = append(slices.Clone(same.Objects), missing.Objects...)
		}
		byText[missing.String()] = missing
	}
	return slices.SortedFunc(maps.Values(byText), func(x, y MissingPermission) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Group, y.Group),
			cmp.Compare(x.Resource, y.Resource), cmp.Compare(x.Subresource, y.Subresource), cmp.Compare(x.Name, y.Name),
			cmp.Compare(x.Verb, y.Verb))
	})
}
