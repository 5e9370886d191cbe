package scopedcache

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The fields that every kind has.
const (
	nameField      = metav1.ObjectNameField
	namespaceField = "metadata.namespace"
)

// requirements are what a read asks for, or what a scope selects: all of these have to hold for an
// object. Terms are compared as text, as in Scope.Equal. There is no other algebra of selectors.
type requirements struct {
	namespace string // empty for all, and for cluster-scoped kinds
	name      string // empty for all
	labels    []string
	fields    []string // without those of namespace and name
	get       bool     // a Get asks
	contrary  bool     // two names or two namespaces, or an empty one: selects nothing
}

// ofObject returns the requirements of a Get.
func ofObject(key client.ObjectKey) requirements {
	return requirements{namespace: key.Namespace, name: key.Name, get: true}
}

// ofList returns the requirements of a List.
func ofList(options *client.ListOptions) requirements {
	return requirementsOf(Scope{
		Namespace:     options.Namespace,
		LabelSelector: options.LabelSelector,
		FieldSelector: options.FieldSelector,
	})
}

func requirementsOf(scope Scope) requirements {
	result := requirements{namespace: scope.Namespace, labels: labelTerms(scope.LabelSelector)}
	if scope.FieldSelector == nil {
		return result
	}
	for _, r := range scope.FieldSelector.Requirements() {
		switch {
		case !isEqual(r.Operator):
			result.fields = append(result.fields, fieldTerm(r))
		case r.Field == nameField:
			result.contrary = result.contrary || r.Value == "" || result.name != "" && result.name != r.Value
			result.name = r.Value
		case r.Field == namespaceField:
			result.contrary = result.contrary || r.Value == "" || result.namespace != "" && result.namespace != r.Value
			result.namespace = r.Value
		default:
			result.fields = append(result.fields, fieldTerm(r))
		}
	}
	return result
}

// answer reports whether an informer of these requirements has what a read asks for: each of them
// is one of the read's.
func (r *requirements) answer(read *requirements) bool {
	if r.contrary || read.contrary {
		return false
	}
	return (r.namespace == metav1.NamespaceAll || r.namespace == read.namespace) &&
		(r.name == "" || r.name == read.name) &&
		containsAll(read.labels, r.labels) && containsAll(read.fields, r.fields)
}

func containsAll(all, some []string) bool {
	for _, term := range some {
		if !slices.Contains(all, term) {
			return false
		}
	}
	return true
}

// without returns options whose fields leave out what the requirements have: an informer of these
// requirements needs no index of such a field.
func (r *requirements) without(options client.ListOptions) *client.ListOptions {
	if options.FieldSelector == nil || len(r.fields) == 0 {
		return &options
	}
	var rest []fields.Selector
	for _, term := range options.FieldSelector.Requirements() {
		if !slices.Contains(r.fields, fieldTerm(term)) {
			rest = append(rest, fieldSelector(term))
		}
	}
	options.FieldSelector = fields.AndSelectors(rest...)
	return &options
}

func fieldSelector(r fields.Requirement) fields.Selector {
	if isEqual(r.Operator) {
		return fields.OneTermEqualSelector(r.Field, r.Value)
	}
	return fields.OneTermNotEqualSelector(r.Field, r.Value)
}

func isEqual(operator operators.Operator) bool {
	return operator == operators.Equals || operator == operators.DoubleEquals
}

// labelTerms returns the terms of a selector, sorted, each once.
func labelTerms(selector labels.Selector) []string {
	if selector == nil || selector.Empty() {
		return nil
	}
	all, _ := selector.Requirements()
	terms := make([]string, 0, len(all))
	for i := range all {
		term := all[i].String()
		if all[i].Operator() == operators.DoubleEquals {
			term = strings.Replace(term, "==", "=", 1)
		}
		terms = append(terms, term)
	}
	slices.Sort(terms)
	return slices.Compact(terms)
}

func fieldTerm(r fields.Requirement) string {
	operator := string(r.Operator)
	if isEqual(r.Operator) {
		operator = string(operators.Equals)
	}
	return r.Field + operator + fields.EscapeValue(r.Value)
}

// fieldTerms returns the terms of a selector, sorted, each once.
func fieldTerms(selector fields.Selector) []string {
	if selector == nil || selector.Empty() {
		return nil
	}
	all := selector.Requirements()
	terms := make([]string, 0, len(all))
	for _, r := range all {
		terms = append(terms, fieldTerm(r))
	}
	slices.Sort(terms)
	return slices.Compact(terms)
}
