package scopedcache

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// selection is the part of a kind that a scope has.
type selection struct {
	kind  *kind
	scope Scope // as asked for
}

func (s *selection) question(mapping *meta.RESTMapping) question {
	config := s.configOf(mapping)
	return question{mapping: mapping, namespace: s.namespaceIn(mapping), labels: config.LabelSelector,
		fields: config.FieldSelector}
}

// configOf is what the cache's options say of the scope, with its own selectors.
func (s *selection) configOf(mapping *meta.RESTMapping) cache.Config {
	config := s.kind.config.everywhere
	if configured, ok := s.kind.config.namespaces[s.scope.Namespace]; ok &&
		mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		config = configured
	}
	config.LabelSelector = andLabels(config.LabelSelector, s.scope.LabelSelector)
	config.FieldSelector = andFields(config.FieldSelector, s.scope.FieldSelector)
	return config
}

// namespaceIn is the namespace to list, empty for all and for kinds that have none.
func (s *selection) namespaceIn(mapping *meta.RESTMapping) string {
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return metav1.NamespaceAll
	}
	return s.namespace(s.configOf(mapping))
}

// namespace is the namespace to list of a kind that has some: that which was asked for, or which a
// selector requires.
func (s *selection) namespace(config cache.Config) string {
	if s.scope.Namespace == metav1.NamespaceAll {
		namespace, _ := requiredNamespace(config.FieldSelector)
		return namespace
	}
	return s.scope.Namespace
}

// concerns is the namespace whose rights the scope needs if the kind has namespaces, empty for all.
func (s *selection) concerns() string {
	config := s.kind.config.everywhere
	config.FieldSelector = andFields(config.FieldSelector, s.scope.FieldSelector)
	return s.namespace(config)
}
