package scopedcache

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Scope selects the objects of a kind that one informer lists and watches. The zero value selects
// all objects. Compare scopes with Equal.
type Scope struct {
	// Namespace restricts a namespaced kind. Namespace has no effect on cluster-scoped kinds.
	Namespace string
	// Namespaces restricts a namespaced kind to a set of namespaces, each with an informer of its own:
	// see [InNamespaces], [NamespacesWithLabels] and [WhereverAllowed]. nil restricts nothing. It is
	// an error if Namespace is set, too.
	Namespaces *Namespaces
	// LabelSelector and FieldSelector restrict what is listed and watched, in addition to the
	// cache's own options for the kind. nil selects everything. A selector that selects nothing,
	// such as labels.Nothing, is refused. The API server defines which fields a FieldSelector may
	// use: metadata.name and metadata.namespace for most kinds. With another field the scope is
	// Failing. With metadata.name, a permission that is restricted by resourceNames suffices.
	LabelSelector labels.Selector
	FieldSelector fields.Selector
}

// Equal reports whether two scopes have the same requirements, in any order. Scopes that select the
// same objects by other requirements differ: a=x and a in (x).
func (s Scope) Equal(other Scope) bool { return s.key() == other.key() }

// selectsNothing reports whether a selector selects nothing. Such a selector has an empty text, so
// the API server would return all objects.
func (s Scope) selectsNothing() bool {
	return noLabels(s.LabelSelector) || noFields(s.FieldSelector) || s.Namespaces != nil && s.Namespaces.selectsNothing()
}

func noLabels(selector labels.Selector) bool {
	if selector == nil {
		return false
	}
	_, selectable := selector.Requirements()
	return !selectable
}

func noFields(selector fields.Selector) bool { return selector != nil && selector == fields.Nothing() }

// String describes for people what the scope selects. "" means everything.
func (s Scope) String() string {
	k := s.key()
	var words []string
	for _, word := range []struct{ name, value string }{{"namespace ", k.namespace}, {"namespaces ", k.namespaces},
		{"labels ", k.labels}, {"fields ", k.fields}} {
		if word.value != "" {
			words = append(words, word.name+word.value)
		}
	}
	return strings.Join(words, ", ")
}

// scopeKey is a comparable form of Scope, for use as the key of a map.
type scopeKey struct{ namespace, namespaces, labels, fields string }

// selective reports whether the scope has selectors of its own.
func (k scopeKey) selective() bool { return k.labels != "" || k.fields != "" }

func (s Scope) key() scopeKey {
	return scopeKey{
		namespace:  s.Namespace,
		namespaces: s.Namespaces.String(),
		labels:     labelKey(s.LabelSelector),
		fields:     fieldKey(s.FieldSelector),
	}
}

func labelKey(selector labels.Selector) string {
	if noLabels(selector) {
		return "nothing"
	}
	return strings.Join(labelTerms(selector), ",")
}

func fieldKey(selector fields.Selector) string {
	if noFields(selector) {
		return "nothing"
	}
	return strings.Join(fieldTerms(selector), ",")
}

// andLabels returns a selector for what both select.
func andLabels(one, other labels.Selector) labels.Selector {
	if one == nil || one.Empty() {
		return other
	}
	if other == nil || other.Empty() {
		return one
	}
	requirements, selectable := other.Requirements()
	if !selectable {
		return other
	}
	return one.Add(requirements...)
}

// andFields returns a selector for what both select.
func andFields(one, other fields.Selector) fields.Selector {
	if one == nil || one.Empty() {
		return other
	}
	if other == nil || other.Empty() {
		return one
	}
	return fields.AndSelectors(one, other)
}

func representationOf(object runtime.Object) Representation {
	switch object.(type) {
	case runtime.Unstructured:
		return RepresentationUnstructured
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return RepresentationMetadata
	default:
		return RepresentationTyped
	}
}

// inNamespace returns the field selector of the informer's requests. controller-runtime takes the
// namespace in it for the path, so that a Role suffices, and sends the selector too.
func inNamespace(namespace string, selector fields.Selector) fields.Selector {
	if namespace == "" {
		return selector
	}
	if exact, found := requiredNamespace(selector); found && exact == namespace {
		return selector
	}
	return andFields(fields.OneTermEqualSelector(namespaceField, namespace), selector)
}

// requiredNamespace returns the namespace that a selector restricts a kind to.
func requiredNamespace(selector fields.Selector) (namespace string, found bool) {
	if selector == nil || selector.Empty() {
		return "", false
	}
	return selector.RequiresExactMatch(namespaceField)
}
