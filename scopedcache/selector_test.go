package scopedcache

import (
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func parse(t *testing.T, selector string) labels.Selector {
	t.Helper()
	parsed, err := labels.Parse(selector)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return parsed
}

// Scopes are equal if they have the same requirements, in any form and order.
func TestScopeEqual(t *testing.T) {
	field := fields.ParseSelectorOrDie
	for _, tc := range []struct {
		one, other Scope
		want       bool
	}{
		{Scope{}, Scope{LabelSelector: labels.Everything(), FieldSelector: fields.Everything()}, true},
		{Scope{Namespace: "n"}, Scope{}, false},
		{Scope{LabelSelector: parse(t, "a=1,b in (x,y)")}, Scope{LabelSelector: parse(t, "b in (y,x), a=1")}, true},
		{Scope{LabelSelector: parse(t, "a=1")}, Scope{LabelSelector: parse(t, "a=2")}, false},
		{Scope{LabelSelector: parse(t, "a=1")}, Scope{LabelSelector: parse(t, "a!=1")}, false},
		{Scope{LabelSelector: labels.Nothing()}, Scope{}, false},
		{Scope{FieldSelector: field("a=1,b!=2")}, Scope{FieldSelector: field("b!=2,a=1")}, true},
		{Scope{FieldSelector: field("a=1")}, Scope{FieldSelector: field("a!=1")}, false},
		{Scope{FieldSelector: fields.Nothing()}, Scope{}, false},
		{Scope{LabelSelector: parse(t, "a=1")}, Scope{FieldSelector: field("a=1")}, false},
	} {
		g := NewWithT(t)
		g.Expect(tc.one.Equal(tc.other)).To(Equal(tc.want), "%q and %q", tc.one, tc.other)
		g.Expect(tc.one.String() == tc.other.String()).To(Equal(tc.want), "%q and %q", tc.one, tc.other)
	}
}

// A review asks what the API server would ask its authorizer about the request itself.
func TestQuestion(t *testing.T) {
	g := NewWithT(t)
	mapping := &meta.RESTMapping{
		Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Scope:    meta.RESTScopeNamespace,
	}
	s := selection{
		kind: &kind{},
		scope: Scope{
			Namespace:     "n",
			LabelSelector: parse(t, "a=1,n>5"),
			FieldSelector: fields.ParseSelectorOrDie("metadata.name=x,status!=y"),
		},
	}
	g.Expect(s.question(mapping).Attributes("list")).To(Equal(&authorizationv1.ResourceAttributes{
		Namespace: "n",
		Verb:      "list",
		Group:     "apps",
		Version:   "v1",
		Resource:  "deployments",
		Name:      "x",
		FieldSelector: &authorizationv1.FieldSelectorAttributes{
			RawSelector: "metadata.namespace=n,metadata.name=x,status!=y",
		},
		LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "a=1,n>5"},
	}))
	all := selection{kind: &kind{}}
	g.Expect(all.question(mapping).Attributes("watch")).
		To(Equal(&authorizationv1.ResourceAttributes{Verb: "watch", Group: "apps", Version: "v1", Resource: "deployments"}))
}

// The order of precedence: the namespace's options for the kind, the kind's options, the
// namespace's default, the cache's default.
func TestConfigs(t *testing.T) {
	g := NewWithT(t)
	label := func(value string) labels.Selector { return labels.SelectorFromSet(labels.Set{"from": value}) }
	yes := true
	c, err := newConfigs(cache.Options{
		Scheme:                       scheme.Scheme,
		DefaultLabelSelector:         label("cache"),
		DefaultUnsafeDisableDeepCopy: &yes,
		DefaultNamespaces:            map[string]cache.Config{"a": {LabelSelector: label("default a")}, "b": {}, "": {}},
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {
				Namespaces: map[string]cache.Config{"a": {}, "c": {LabelSelector: label("namespace")}},
				Field:      fields.OneTermEqualSelector("f", "kind"),
			},
			&corev1.Service{}:   {Label: label("kind")},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{}},
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	forKind := func(kind string) kindConfig { return c.forKind(corev1.SchemeGroupVersion.WithKind(kind)) }
	words := func(config cache.Config) string {
		words := labelKey(config.LabelSelector) + "|" + fieldKey(config.FieldSelector)
		if config.UnsafeDisableDeepCopy != nil && *config.UnsafeDisableDeepCopy {
			words += "|shared"
		}
		return words
	}
	got := map[string]string{}
	for _, kind := range []string{"Pod", "Secret", "Service", "ConfigMap"} {
		config := forKind(kind)
		got[kind] = words(config.everywhere)
		for namespace, config := range config.namespaces {
			got[kind+" in "+namespace] = words(config)
		}
	}
	g.Expect(got).To(Equal(map[string]string{
		"Pod":          "from=cache||shared",
		"Pod in a":     "from=default a||shared",
		"Pod in b":     "from=cache||shared",
		"Pod in ":      "from=cache|metadata.namespace!=a,metadata.namespace!=b|shared",
		"Secret":       "from=cache|f=kind|shared",
		"Secret in a":  "from=default a|f=kind|shared",
		"Secret in c":  "from=namespace|f=kind|shared",
		"Service":      "from=kind||shared",
		"Service in a": "from=default a||shared", // as in controller-runtime
		"Service in b": "from=kind||shared",
		"Service in ":  "from=kind|metadata.namespace!=a,metadata.namespace!=b|shared",
		"ConfigMap":    "from=cache||shared",
	}))
}
