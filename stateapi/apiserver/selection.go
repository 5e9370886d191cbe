package apiserver

import (
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// selection is what a list or a watch selects.
type selection[T runtime.Object] struct {
	namespace string // empty for all
	labels    labels.Selector
	fields    fields.Selector
	extract   map[string]func(T) string
}

func (m *MemoryStore[T, TList]) newSelection(namespace string, options *metav1.ListOptions) (s selection[T],
	err error) {
	s = selection[T]{namespace: namespace, extract: m.options.Fields}
	if s.labels, err = labels.Parse(options.LabelSelector); err != nil {
		return s, apierrors.NewBadRequest("the label selector is invalid: " + err.Error())
	}
	if s.fields, err = fields.ParseSelector(options.FieldSelector); err != nil {
		return s, apierrors.NewBadRequest("the field selector is invalid: " + err.Error())
	}
	for _, requirement := range s.fields.Requirements() {
		switch requirement.Field {
		case "metadata.name", "metadata.namespace":
		default:
			if s.extract[requirement.Field] == nil {
				return s, apierrors.NewBadRequest("the field " + strconv.Quote(requirement.Field) + " cannot be selected by")
			}
		}
	}
	return s, nil
}

func (s selection[T]) hasKey(key string) bool {
	return s.namespace == "" || strings.HasPrefix(key, s.namespace+"\x00")
}

func (s selection[T]) matches(object T) bool {
	metadata := accessorOf(object)
	if s.namespace != "" && metadata.GetNamespace() != s.namespace || !s.labels.Matches(labels.Set(metadata.GetLabels())) {
		return false
	}
	if s.fields.Empty() {
		return true
	}
	set := fields.Set{}
	for _, requirement := range s.fields.Requirements() {
		switch requirement.Field {
		case "metadata.name":
			set[requirement.Field] = metadata.GetName()
		case "metadata.namespace":
			set[requirement.Field] = metadata.GetNamespace()
		default:
			set[requirement.Field] = s.extract[requirement.Field](object)
		}
	}
	return s.fields.Matches(set)
}
