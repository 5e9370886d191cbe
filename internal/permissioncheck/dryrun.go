package permissioncheck

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/permissions"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

func unstructuredOf(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object
}

// dryRun applies the objects whose dependencies are there and whose permissions are, with dry run.
// What the API server refuses then is what no review could tell.
func (r *run) dryRun(ctx context.Context) error {
	lacking := map[int]bool{}
	for _, missing := range r.answer.Missing {
		if slices.Contains([]string{"create", "patch", permissions.Escalate, permissions.Bind}, missing.Verb) {
			for _, i := range missing.For {
				lacking[i] = true
			}
		}
	}
	for i := range r.objects {
		o := &r.objects[i]
		if o.pending || o.undecided || lacking[i] {
			continue
		}
		configuration := o.DeepCopy()
		configuration.SetManagedFields(nil)
		configuration.SetResourceVersion("")
		err := r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(configuration),
			client.FieldOwner(r.check.FieldOwner), client.ForceOwnership, client.DryRunAll)
		if err := ctx.Err(); err != nil {
			return err
		}
		r.noteDryRun(o, err)
	}
	return nil
}

// noteDryRun takes over the result of a dry run.
func (r *run) noteDryRun(o *object, err error) {
	p := permissions.Permission{
		Verb:      "patch",
		Group:     o.resource.Group,
		Resource:  o.resource.Resource,
		Namespace: o.GetNamespace(),
		Name:      o.GetName(),
	}
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return
	case meta.IsNoMatchError(err):
		r.notServed(o)
		return
	case apierrors.IsForbidden(err) && errors.As(err, &status):
		if verb, _ := permissions.Refusal(p, status.Status().Message); verb != "" {
			if p.Verb = verb; verb == permissions.Bind {
				if bind, _, err := bindOf(o); err == nil {
					p = bind
				}
			}
			r.answer.Missing = append(r.answer.Missing, Missing{
				Permission: p.Normal(),
				Reason:     untrusted.Shorten(status.Status().Message),
				For:        []int{o.index},
			})
			return
		}
	}
	r.answer.Failed = append(r.answer.Failed, Failed{Object: o.index, Err: untrusted.Error(err)})
}
