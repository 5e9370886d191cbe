package scopedcache

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Scope is the part of a kind that one informer sees. The zero value is all of it. Compare scopes
// with Equal.
type Scope struct {
	// Namespace restricts a namespaced kind; it means nothing for kinds that have none.
	Namespace string
	// LabelSelector and FieldSelector restrict what is listed and watched, in addition to what the
	// cache's own options say of the kind. nil selects everything; what selects nothing, as
	// labels.Nothing, is refused. Which fields there are the API server knows, for most kinds
	// metadata.name and metadata.namespace; another one is Failing. With metadata.name a right that
	// is restricted by resourceNames suffices.
	LabelSelector labels.Selector
	FieldSelector fields.Selector
}

// Equal reports whether two scopes select the same by the same words, in any order: a=x and a in
// (x) differ.
func (s Scope) Equal(other Scope) bool { return s.key() == other.key() }

// selectsNothing reports whether there is nothing to be selected. Such selectors have no words, so
// an API server would be asked for everything.
func (s Scope) selectsNothing() bool { return noLabels(s.LabelSelector) || noFields(s.FieldSelector) }

func noLabels(selector labels.Selector) bool {
	if selector == nil {
		return false
	}
	_, selectable := selector.Requirements()
	return !selectable
}

func noFields(selector fields.Selector) bool { return selector != nil && selector == fields.Nothing() }

// String tells a person what is selected; "" is everything.
func (s Scope) String() string {
	k := s.key()
	var words []string
	for _, word := range []struct{ name, value string }{{"namespace ", k.namespace}, {"labels ", k.labels},
		{"fields ", k.fields}} {
		if word.value != "" {
			words = append(words, word.name+word.value)
		}
	}
	return strings.Join(words, ", ")
}

// scopeKey is a Scope that can be compared and be a map's key.
type scopeKey struct{ namespace, labels, fields string }

func (s Scope) key() scopeKey {
	return scopeKey{namespace: s.Namespace, labels: labelKey(s.LabelSelector), fields: fieldKey(s.FieldSelector)}
}

func labelKey(selector labels.Selector) string {
	if selector == nil || selector.Empty() {
		return ""
	}
	requirements, selectable := selector.Requirements()
	if !selectable {
		return "nothing"
	}
	terms := make([]string, 0, len(requirements))
	for i := range requirements {
		terms = append(terms, requirements[i].String())
	}
	slices.Sort(terms)
	return strings.Join(slices.Compact(terms), ",")
}

func fieldKey(selector fields.Selector) string {
	if selector == nil || selector.Empty() {
		return ""
	}
	if noFields(selector) {
		return "nothing"
	}
	requirements := selector.Requirements()
	terms := make([]string, 0, len(requirements))
	for _, r := range requirements {
		terms = append(terms, r.Field+string(r.Operator)+fields.EscapeValue(r.Value))
	}
	slices.Sort(terms)
	return strings.Join(slices.Compact(terms), ",")
}

// andLabels selects what both select.
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

// andFields selects what both select.
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
		return Unstructured
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return Metadata
	default:
		return Typed
	}
}
