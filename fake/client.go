package fake

import (
	"context"
	"slices"
	"strings"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// client returns the client of the test, bound to this connection.
func (c *connection) client() client.Client { return &boundClient{Client: c.testClient, conn: c} }

// boundClient passes calls to the client of the test. After the end of its connection, every call
// fails at once and permanently.
type boundClient struct {
	client.Client
	conn *connection
}

func (b *boundClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object,
	opts ...client.GetOption) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	if gvk, err := b.GroupVersionKindFor(obj); err == nil {
		if err := b.conn.checkAccess(gvk, key.Namespace, key.Name, "get"); err != nil {
			return err
		}
	}
	return b.Client.Get(ctx, key, obj, opts...)
}

func (b *boundClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	name := nameIn(options.FieldSelector)
	if gvk, err := b.GroupVersionKindFor(list); err == nil {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
		if err := b.conn.checkAccess(gvk, options.Namespace, name, "list"); err != nil {
			return err
		}
	}
	// controller-runtime's fake client takes only the fields that it has an index of.
	rest, key := splitKey(options.FieldSelector)
	if len(key) == 0 {
		return b.Client.List(ctx, list, opts...)
	}
	options.FieldSelector = rest
	if err := b.Client.List(ctx, list, &options); err != nil {
		return err
	}
	return keep(list, key)
}

// splitKey returns what a selector requires of the fields of name and namespace, and the rest of
// the selector, nil if there is none.
func splitKey(selector fields.Selector) (rest fields.Selector, key map[string]string) {
	if selector == nil {
		return nil, nil
	}
	var others []fields.Selector
	for _, r := range selector.Requirements() {
		isKey := r.Field == metav1.ObjectNameField || r.Field == "metadata.namespace"
		switch {
		case isKey && r.Operator != selection.NotEquals && key == nil:
			key = map[string]string{r.Field: r.Value}
		case isKey && r.Operator != selection.NotEquals:
			key[r.Field] = r.Value
		case r.Operator == selection.NotEquals:
			others = append(others, fields.OneTermNotEqualSelector(r.Field, r.Value))
		default:
			others = append(others, fields.OneTermEqualSelector(r.Field, r.Value))
		}
	}
	if len(others) > 0 {
		rest = fields.AndSelectors(others...)
	}
	return rest, key
}

// keep removes the objects of other names and namespaces from a list.
func keep(list client.ObjectList, key map[string]string) error {
	items, err := meta.ExtractList(list)
	if err != nil {
		return errors.WithStack(err)
	}
	items = slices.DeleteFunc(items, func(item runtime.Object) bool {
		accessor, err := meta.Accessor(item)
		if err != nil {
			return true
		}
		name, byName := key[metav1.ObjectNameField]
		namespace, byNamespace := key["metadata.namespace"]
		return byName && accessor.GetName() != name || byNamespace && accessor.GetNamespace() != namespace
	})
	return errors.WithStack(meta.SetList(list, items))
}

func (b *boundClient) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if err := b.mayApply(ctx, obj); err != nil {
		return err
	}
	return b.Client.Apply(ctx, obj, opts...)
}

// mayApply returns why an apply fails, nil if it does not: there must be a permission to create,
// too, if there is no such object.
func (b *boundClient) mayApply(ctx context.Context, configuration runtime.ApplyConfiguration) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(configuration)
	if err != nil {
		return nil // so says the client
	}
	object := &unstructured.Unstructured{Object: content}
	if err := b.mayWrite(object, "patch"); err != nil {
		return err
	}
	if err := b.mayWrite(object, "create"); err != nil {
		found := object.DeepCopy()
		if apierrors.IsNotFound(b.Client.Get(ctx, client.ObjectKeyFromObject(object), found)) {
			return err
		}
	}
	return nil
}

// mayWrite returns why a write fails: the connection has ended, or ForbidWrites took the verb.
func (b *boundClient) mayWrite(object client.Object, verb string) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	gvk, err := b.GroupVersionKindFor(object)
	if err != nil {
		return nil // so says the client
	}
	return b.conn.checkAccess(gvk, object.GetNamespace(), object.GetName(), verb)
}

func (b *boundClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if err := b.mayWrite(obj, "create"); err != nil {
		return err
	}
	return b.Client.Create(ctx, obj, opts...)
}

func (b *boundClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if err := b.mayWrite(obj, "delete"); err != nil {
		return err
	}
	return b.Client.Delete(ctx, obj, opts...)
}

func (b *boundClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	if err := b.mayWrite(obj, "update"); err != nil {
		return err
	}
	return b.Client.Update(ctx, obj, opts...)
}

func (b *boundClient) Patch(ctx context.Context, obj client.Object, patch client.Patch,
	opts ...client.PatchOption) error {
	if err := b.mayWrite(obj, "patch"); err != nil {
		return err
	}
	return b.Client.Patch(ctx, obj, patch, opts...)
}

func (b *boundClient) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	options := client.DeleteAllOfOptions{}
	options.ApplyOptions(opts)
	if err := b.conn.Err(); err != nil {
		return err
	}
	if gvk, err := b.GroupVersionKindFor(obj); err == nil {
		if err := b.conn.checkAccess(gvk, options.Namespace, "", "deletecollection"); err != nil {
			return err
		}
	}
	return b.Client.DeleteAllOf(ctx, obj, opts...)
}

func (b *boundClient) Status() client.SubResourceWriter { return b.SubResource("status") }

func (b *boundClient) SubResource(name string) client.SubResourceClient {
	return &boundSubResource{SubResourceClient: b.Client.SubResource(name), conn: b.conn}
}

// boundSubResource is the client of a subresource, bound to the connection like boundClient.
type boundSubResource struct {
	client.SubResourceClient
	conn *connection
}

func (b *boundSubResource) Get(ctx context.Context, obj, sub client.Object, opts ...client.SubResourceGetOption) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	return b.SubResourceClient.Get(ctx, obj, sub, opts...)
}

func (b *boundSubResource) Apply(ctx context.Context, obj runtime.ApplyConfiguration,
	opts ...client.SubResourceApplyOption) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	return b.SubResourceClient.Apply(ctx, obj, opts...)
}

func (b *boundSubResource) Create(ctx context.Context, obj, sub client.Object,
	opts ...client.SubResourceCreateOption) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	return b.SubResourceClient.Create(ctx, obj, sub, opts...)
}

func (b *boundSubResource) Update(ctx context.Context, obj client.Object,
	opts ...client.SubResourceUpdateOption) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	return b.SubResourceClient.Update(ctx, obj, opts...)
}

func (b *boundSubResource) Patch(ctx context.Context, obj client.Object, patch client.Patch,
	opts ...client.SubResourcePatchOption) error {
	if err := b.conn.Err(); err != nil {
		return err
	}
	return b.SubResourceClient.Patch(ctx, obj, patch, opts...)
}
