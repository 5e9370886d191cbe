package scopedcache

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// review asks whether the identity has access with all verbs. If not, and orListOnly is set, it
// asks whether the identity may list.
func (s *scope) review(ctx context.Context, e monitor.AskReview) monitor.Reviewed {
	q := s.question(e.Mapping)
	verdict, err := s.cache.reviewer.may(ctx, q, e.Verbs...)
	if verdict.IsDenial() && e.OrListOnly {
		if v, err := s.cache.reviewer.may(ctx, q, "list"); !v.IsDenial() {
			return monitor.Reviewed{Question: e.Question, Verdict: v, ListOnly: true, Err: err}
		}
	}
	return monitor.Reviewed{Question: e.Question, Verdict: verdict, Err: err}
}

// discover finds the kind's resource, unless that is known and trusted.
func (s *scope) discover(ctx context.Context, distrust bool) (*meta.RESTMapping, error) {
	if known := s.kind.mapping.Load(); known != nil && !distrust {
		return known, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, discoveryTimeout, errDiscovery)
	defer cancel()
	find := s.cache.mapping
	if distrust && !s.cache.mapperForgets() {
		find = s.cache.discover
	}
	mapping, err := find(ctx, s.kind.gvk)
	if err == nil {
		s.kind.mapping.Store(mapping)
	}
	return mapping, err
}

func (s *scope) question(mapping *meta.RESTMapping) question {
	config := s.configOf(mapping)
	return question{mapping: mapping, namespace: s.namespaceIn(mapping), labels: config.LabelSelector,
		fields: config.FieldSelector}
}

// configOf is what the cache's options say of the scope, with its own selectors.
func (s *scope) configOf(mapping *meta.RESTMapping) cache.Config {
	config := s.kind.config.everywhere
	if configured, ok := s.kind.config.namespaces[s.where.Namespace]; ok &&
		mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		config = configured
	}
	config.LabelSelector = andLabels(config.LabelSelector, s.where.LabelSelector)
	config.FieldSelector = andFields(config.FieldSelector, s.where.FieldSelector)
	return config
}

// namespaceIn is the namespace to list, empty for all and for kinds that have none.
func (s *scope) namespaceIn(mapping *meta.RESTMapping) string {
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return metav1.NamespaceAll
	}
	return s.namespace(s.configOf(mapping))
}

// namespace is the namespace to list of a kind that has some: that which was asked for, or which a
// selector requires.
func (s *scope) namespace(config cache.Config) string {
	if s.where.Namespace == metav1.NamespaceAll {
		namespace, _ := requiredNamespace(config.FieldSelector)
		return namespace
	}
	return s.where.Namespace
}

// shown is an error of an informer as it is shown: short, and without the API server's words if
// they are not to be shown.
func (s *scopedCache) shown(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if status, ok := untrusted.StatusText(err); ok && s.own.HideServerMessages && fromServer(err) {
		text = "the API server answered " + status
	}
	if untrusted.Shorten(text) != err.Error() {
		return untrusted.Show(text, err)
	}
	return err
}
