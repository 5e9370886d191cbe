package permissioncheck

import (
	"github.com/pkg/errors"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// object is an object of the content.
type object struct {
	*unstructured.Unstructured // a copy
	index                      int
	kind                       schema.GroupVersionKind
	resource                   schema.GroupResource
	unserved                   bool // the API server does not serve the kind, and no content defines it
	pending                    bool // its kind, its namespace or its role is not there yet
	undecided                  bool // whether it may be written is not known
}

func (o *object) isNamespace() bool { return o.kind.Group == "" && o.kind.Kind == "Namespace" }

// contents are what objects of the content make for others.
type contents struct {
	namespaces map[string]bool
	kinds      map[schema.GroupKind]definition
}

// definition is what a CustomResourceDefinition says of a kind.
type definition struct {
	plural     string
	namespaced bool
}

// roleKey is a Role, or a ClusterRole without a namespace.
type roleKey struct{ kind, namespace, name string }

// roleOf returns a role of the content. A ClusterRole has the fields of a Role.
func roleOf(o *object) (*rbacv1.ClusterRole, error) {
	role := &rbacv1.ClusterRole{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, role)
	return role, errors.Wrapf(err, "reading %s %s", o.kind.Kind, o.GetName())
}

// roleBefore returns the role that the content makes before the object at an index, nil for none.
func (r *run) roleBefore(key roleKey, index int) *rbacv1.ClusterRole {
	for i := index - 1; i >= 0; i-- {
		o := &r.objects[i]
		if o.kind.Group == rbacv1.GroupName && (roleKey{o.kind.Kind, o.GetNamespace(), o.GetName()}) == key {
			role, err := roleOf(o)
			if err != nil {
				return nil
			}
			return role
		}
	}
	return nil
}

// read reads the objects, and which resources they are.
func (r *run) read() error {
	r.content = contents{
		namespaces: map[string]bool{},
		kinds:      map[schema.GroupKind]definition{},
	}
	for i, given := range r.check.Objects {
		if given == nil {
			return errors.Errorf("object %d is nil", i)
		}
		kind, err := apiutil.GVKForObject(given, r.client.Scheme())
		if err != nil {
			return errors.Wrapf(err, "the kind of object %d", i)
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(given)
		if err != nil {
			return errors.Wrapf(err, "reading object %d", i)
		}
		o := object{Unstructured: &unstructured.Unstructured{Object: runtime.DeepCopyJSON(fields)}, index: i, kind: kind}
		o.SetGroupVersionKind(kind)
		if o.GetName() == "" {
			return errors.Errorf("object %d, a %s, has no name", i, kind.Kind)
		}
		if err := r.content.add(&o); err != nil {
			return errors.Wrapf(err, "reading %s %s", kind.Kind, o.GetName())
		}
		r.objects = append(r.objects, o)
	}
	for i := range r.objects {
		if err := r.locate(&r.objects[i]); err != nil {
			return err
		}
	}
	return nil
}

// add takes over what an object makes for others.
func (c *contents) add(o *object) error {
	convert := func(to any) error { return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, to) }
	switch o.kind.GroupKind() {
	case schema.GroupKind{Kind: "Namespace"}:
		c.namespaces[o.GetName()] = true
	case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		var crd struct {
			Spec struct {
				Group string `json:"group"`
				Scope string `json:"scope"`
				Names struct {
					Kind   string `json:"kind"`
					Plural string `json:"plural"`
				} `json:"names"`
			} `json:"spec"`
		}
		if err := convert(&crd); err != nil {
			return err
		}
		if len(validation.IsDNS1123Subdomain(crd.Spec.Group)) > 0 ||
			len(validation.IsDNS1035Label(crd.Spec.Names.Plural)) > 0 {
			return nil // no API server takes it
		}
		c.kinds[schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}] =
			definition{crd.Spec.Names.Plural, crd.Spec.Scope == "Namespaced"}
	}
	return nil
}

// locate finds out which resource an object is, and whether it has a namespace.
func (r *run) locate(o *object) error {
	mapping, err := r.client.RESTMapper().RESTMapping(o.kind.GroupKind(), o.kind.Version)
	defined, isDefined := r.content.kinds[o.kind.GroupKind()]
	var namespaced bool
	switch {
	case err == nil:
		o.resource, namespaced = mapping.Resource.GroupResource(), mapping.Scope.Name() == meta.RESTScopeNameNamespace
	case !meta.IsNoMatchError(err):
		return errors.Wrapf(err, "finding the resource of %s", o.kind)
	case isDefined:
		o.resource, namespaced = schema.GroupResource{Group: o.kind.Group, Resource: defined.plural}, defined.namespaced
		o.pending = true
		r.notServed(o)
	default:
		o.unserved, o.pending = true, true
		r.notServed(o)
		return nil
	}
	switch {
	case namespaced && o.GetNamespace() == "":
		return errors.Errorf("%s %s has no namespace", o.kind.Kind, o.GetName())
	case !namespaced:
		o.SetNamespace("")
	}
	return nil
}

// notServed notes that the kind of an object is not there.
func (r *run) notServed(o *object) {
	for i := range r.answer.NotFound {
		if found := &r.answer.NotFound[i]; found.Kind == o.kind && found.Name == "" {
			found.For = append(found.For, o.index)
			return
		}
	}
	r.answer.NotFound = append(r.answer.NotFound, NotFound{Kind: o.kind, Created: !o.unserved, For: []int{o.index}})
}
