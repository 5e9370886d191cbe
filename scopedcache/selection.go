package scopedcache

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
)

// selection is a kind and the scope that selects from it.
type selection struct {
	kind  *kind
	scope Scope // as the caller requested it
}

// question identifies the objects that the scope's informer needs access to.
func (s *selection) question(mapping *meta.RESTMapping) access.Question {
	config, namespace := s.configOf(mapping), s.namespaceIn(mapping)
	return access.Question{
		Mapping:   mapping,
		Namespace: namespace,
		Labels:    config.LabelSelector,
		Fields:    inNamespace(namespace, config.FieldSelector),
		Selection: Scope{LabelSelector: config.LabelSelector, FieldSelector: config.FieldSelector}.String(),
	}
}

// configOf returns the cache's options for the scope, combined with the scope's own selectors.
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

// namespaceIn returns the namespace to list, empty for all namespaces and for cluster-scoped kinds.
func (s *selection) namespaceIn(mapping *meta.RESTMapping) string {
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return metav1.NamespaceAll
	}
	return s.namespace(s.configOf(mapping))
}

// namespace returns the namespace to list of a namespaced kind: that of the scope, or one that a
// selector requires.
func (s *selection) namespace(config cache.Config) string {
	if s.scope.Namespace == metav1.NamespaceAll {
		namespace, _ := requiredNamespace(config.FieldSelector)
		return namespace
	}
	return s.scope.Namespace
}

// concerns returns the namespace in which the scope needs access if the kind is namespaced, empty
// for all namespaces.
func (s *selection) concerns() string {
	config := s.kind.config.everywhere
	config.FieldSelector = andFields(config.FieldSelector, s.scope.FieldSelector)
	return s.namespace(config)
}
