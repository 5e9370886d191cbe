package scopedcache

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A scope has the answer to a read if each of its requirements is one of the read's.
func TestAnswer(t *testing.T) {
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }
	field, label := fields.ParseSelectorOrDie, func(s string) labels.Selector { return parse(t, s) }
	get := ofObject(client.ObjectKey{Namespace: "n", Name: "x"})
	list := func(namespace string, l labels.Selector, f fields.Selector) requirements {
		return ofList(&client.ListOptions{Namespace: namespace, LabelSelector: l, FieldSelector: f})
	}
	both := field("metadata.name=x,metadata.namespace=n")
	for _, tc := range []struct {
		scope Scope
		read  requirements
		want  bool
	}{
		{Scope{}, get, true},
		{Scope{Namespace: "n"}, get, true},
		{Scope{Namespace: "m"}, get, false},
		{Scope{Namespace: "n", FieldSelector: named("x")}, get, true},
		{Scope{FieldSelector: named("x")}, get, true},
		{Scope{FieldSelector: field("metadata.namespace=n,metadata.name==x")}, get, true},
		{Scope{FieldSelector: field("metadata.namespace=m,metadata.name=x")}, get, false},
		{Scope{Namespace: "n", FieldSelector: field("metadata.namespace=m")}, get, false},
		{Scope{Namespace: "n", FieldSelector: field("metadata.name=x,metadata.name=y")}, get, false},
		{Scope{Namespace: "n", FieldSelector: named("y")}, get, false},
		{Scope{Namespace: "n", FieldSelector: named("")}, get, false}, // selects nothing
		{Scope{Namespace: "n", FieldSelector: field("metadata.name=,metadata.name=x")}, get, false},
		{Scope{FieldSelector: field("metadata.namespace=")}, get, false},
		{Scope{Namespace: "n", FieldSelector: named("x")}, list("n", nil, named("")), false},
		{Scope{Namespace: "n", FieldSelector: field("metadata.name!=y")}, get, false},
		{Scope{Namespace: "n", FieldSelector: field("type=t")}, get, false},
		{Scope{Namespace: "n", LabelSelector: label("a=1")}, get, false}, // its NotFound proves nothing
		{Scope{Namespace: "n", LabelSelector: label("a=1"), FieldSelector: named("x")}, get, false},

		{Scope{Namespace: "n", LabelSelector: label("a=1")}, list("n", label("a=1"), nil), true},
		{Scope{Namespace: "n", LabelSelector: label("a==1")}, list("n", label("a=1,b"), nil), true},
		{Scope{LabelSelector: label("a=1")}, list("n", label("a=1"), nil), true},
		{Scope{Namespace: "n", LabelSelector: label("a=1")}, list("", label("a=1"), nil), false},
		{Scope{Namespace: "n", LabelSelector: label("a=1")}, list("n", nil, nil), false},
		{Scope{Namespace: "n", LabelSelector: label("a=1,b=1")}, list("n", label("a=1"), nil), false},
		{Scope{Namespace: "n", LabelSelector: label("a in (1)")}, list("n", label("a=1"), nil), false}, // no algebra
		{Scope{Namespace: "n", FieldSelector: named("x")}, list("n", label("a=1"), named("x")), true},
		{Scope{Namespace: "n", FieldSelector: named("x")}, list("", nil, both), true},
		{Scope{Namespace: "n", FieldSelector: field("type!=t")}, list("n", nil, field("type!=t,status=s")), true},
		{Scope{Namespace: "n", FieldSelector: field("type!=t")}, list("n", nil, field("type=t")), false},
		{Scope{Namespace: "n", FieldSelector: named("x")}, list("m", nil, both), false},
		{Scope{Namespace: "n", LabelSelector: label("a")}, list("n", labels.Nothing(), nil), false},
	} {
		requires := requirementsOf(tc.scope)
		NewWithT(t).Expect(requires.answer(&tc.read)).To(Equal(tc.want), "%s: %+v", tc.scope, tc.read)
	}
}

// The fields that a scope requires need no index to read from it.
func TestWithout(t *testing.T) {
	g := NewWithT(t)
	requires := requirementsOf(Scope{FieldSelector: fields.ParseSelectorOrDie("type!=t,status=s")})
	rest := requires.without(client.ListOptions{FieldSelector: fields.ParseSelectorOrDie("a=1,status==s,b!=2,type!=t")})
	g.Expect(rest.FieldSelector.String()).To(Equal("a=1,b!=2"))
	g.Expect(requires.without(client.ListOptions{}).FieldSelector).To(BeNil())
	g.Expect(requires.without(client.ListOptions{FieldSelector: fields.ParseSelectorOrDie("type!=t,status=s")}).
		FieldSelector.Empty()).To(BeTrue())
}
