package serviceprovider

import (
	"context"
	"encoding/json"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// errNoSubresource: the API server has the object, and not its status.
var errNoSubresource = errors.New("the kind of the object has no status subresource")

// patchStatus writes what changed in the status from base to obj. Conditions that others wrote
// since base was read stay. An object that is gone is no error; a kind without a status subresource
// is one.
func patchStatus[T API](ctx context.Context, onboarding cluster.Cluster, empty func() T, base, obj T) error {
	if equality.Semantic.DeepEqual(base.GetStatus(), obj.GetStatus()) {
		return nil
	}
	changes, err := statusChanges(base, obj)
	if err != nil || len(changes) == 0 {
		return err
	}
	version, others := obj.GetResourceVersion(), *base.GetConditions()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if _, ok := changes["conditions"]; ok {
			changes["conditions"] = mergeConditions(*base.GetConditions(), *obj.GetConditions(), others)
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": version}, "status": changes})
		if err != nil {
			return err
		}
		written := empty()
		written.SetNamespace(obj.GetNamespace())
		written.SetName(obj.GetName())
		err = onboarding.GetClient().Status().Patch(ctx, written, client.RawPatch(types.MergePatchType, patch))
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		fresh := empty()
		if err := onboarding.GetAPIReader().Get(ctx, client.ObjectKeyFromObject(obj), fresh); err != nil {
			return err
		}
		if fresh.GetUID() != obj.GetUID() {
			return nil // the status of another object
		}
		if apierrors.IsNotFound(err) {
			return errNoSubresource
		}
		version, others = fresh.GetResourceVersion(), *fresh.GetConditions()
		return err
	})
	return errors.Wrap(client.IgnoreNotFound(err), "writing the status")
}

// statusChanges returns the JSON merge patch of the status.
func statusChanges(base, obj client.Object) (map[string]any, error) {
	data, err := client.MergeFrom(base).Data(obj)
	if err != nil {
		return nil, errors.Wrap(err, "comparing the status")
	}
	var patch struct {
		Status map[string]any `json:"status"`
	}
	return patch.Status, errors.Wrap(json.Unmarshal(data, &patch), "comparing the status")
}

// mergeConditions returns others with what changed from base to ours.
func mergeConditions(base, ours, others []metav1.Condition) []metav1.Condition {
	merged := append([]metav1.Condition{}, others...)
	for _, condition := range ours {
		if before := meta.FindStatusCondition(base, condition.Type); before == nil || *before != condition {
			meta.SetStatusCondition(&merged, condition)
		}
	}
	for _, condition := range base {
		if meta.FindStatusCondition(ours, condition.Type) == nil {
			meta.RemoveStatusCondition(&merged, condition.Type)
		}
	}
	return merged
}
