package watches

import (
	"strings"
	"testing"
	"unique"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/scopedcache"
)

func partNamed(name string) unique.Handle[part] {
	return unique.Make(part{kind: schema.GroupVersionKind{Version: "v1", Kind: name}})
}

// What a caller changes follows from what is registered and what is wanted.
func TestPlanFor(t *testing.T) {
	type registered map[string][]types.UID // by kind
	for name, tc := range map[string]struct {
		content    bool // of the registration
		registered registered
		wants      []string // kinds; dependent "me"
		asContent  bool
		leave      []string
		join       []string
		start      []string
		conflict   string
	}{
		"a new watch":          {wants: []string{"A"}, start: []string{"A"}},
		"the same watch again": {registered: registered{"A": {"me"}}, wants: []string{"A"}},
		"one more dependent": {
			registered: registered{"A": {"other"}},
			wants:      []string{"A"},
			join:       []string{"A"},
		},
		"without dependents": {
			registered: registered{"A": {""}},
			wants:      []string{"A"},
			join:       []string{"A"},
		},
		"another kind": {
			registered: registered{"A": {"me"}},
			wants:      []string{"B"},
			conflict:   "the registered watch is A",
		},
		"a watch under a content": {
			content:    true,
			registered: registered{"A": {"me"}},
			wants:      []string{"A"},
			conflict:   "WatchContent registered",
		},
		"a content under a watch": {
			registered: registered{"A": {"me"}},
			asContent:  true,
			wants:      []string{"A"},
			conflict:   "Watch registered",
		},
		"a new content": {
			content:   true,
			asContent: true,
			wants:     []string{"A", "B"},
			start:     []string{"A", "B"},
		},
		"the same content again": {
			content:    true,
			asContent:  true,
			registered: registered{"A": {"me"}},
			wants:      []string{"A"},
		},
		"a content that changes": {
			content:    true,
			asContent:  true,
			registered: registered{"A": {"me"}, "B": {"me"}},
			wants:      []string{"B", "C"},
			leave:      []string{"A"},
			start:      []string{"C"},
		},
		"contents of two": {
			content:    true,
			asContent:  true,
			registered: registered{"A": {"other"}, "B": {"me", "other"}, "C": {"other"}},
			wants:      []string{"C", "D"},
			leave:      []string{"B"},
			join:       []string{"C"},
			start:      []string{"D"},
		},
		"an empty content": {
			content:    true,
			asContent:  true,
			registered: registered{"A": {"me"}, "B": {"me", "other"}, "C": {"other"}},
			leave:      []string{"A", "B"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var registered []*watch
			for kind, dependents := range tc.registered {
				registered = append(registered, &watch{part: partNamed(kind), dependents: dependents})
			}
			wanted := Spec{content: tc.asContent, dependent: "me"}
			for _, kind := range tc.wants {
				wanted.parts = append(wanted.parts, partObject{part: partNamed(kind)})
			}
			plan, err := planFor(tc.content, registered, wanted)
			if tc.conflict != "" {
				g.Expect(err).To(MatchError(ErrConflict))
				g.Expect(err).To(MatchError(ContainSubstring(tc.conflict)))
				g.Expect(plan).To(Equal(changes{}))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			kinds := func(parts []unique.Handle[part]) (kinds []string) {
				for _, p := range parts {
					kinds = append(kinds, p.Value().kind.Kind)
				}
				return kinds
			}
			var start []unique.Handle[part]
			for _, p := range plan.start {
				start = append(start, p.part)
			}
			g.Expect(kinds(plan.leave)).To(ConsistOf(tc.leave))
			g.Expect(kinds(plan.join)).To(Equal(tc.join))
			g.Expect(kinds(start)).To(Equal(tc.start), "in the order of the content")
			for _, w := range registered {
				g.Expect(w.dependents).To(BeEquivalentTo(tc.registered[w.part.Value().kind.Kind]), "nothing is changed")
			}
		})
	}
}

// A cluster-scoped kind in several namespaces has one part. Only kinds in several scopes are asked
// about, each once.
func TestMergeClusterScoped(t *testing.T) {
	of := func(kind, namespace string) partObject {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind})
		p, err := partOf(object, scopedcache.Scope{Namespace: namespace}, runtime.NewScheme())
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return p
	}
	for name, tc := range map[string]struct {
		wanted, registered, want, asked []string // kind/namespace; kinds
	}{
		"one each":            {[]string{"Cluster/a", "Object/a"}, nil, []string{"Cluster/a", "Object/a"}, nil},
		"with and without":    {[]string{"Cluster/", "Cluster/a"}, nil, []string{"Cluster/"}, []string{"Cluster"}},
		"two":                 {[]string{"Cluster/a", "Cluster/b"}, nil, []string{"Cluster/"}, []string{"Cluster"}},
		"of another one":      {[]string{"Cluster/a"}, []string{"Cluster/"}, []string{"Cluster/"}, []string{"Cluster"}},
		"no cluster-scoped":   {[]string{"Object/a", "Object/b"}, nil, []string{"Object/a", "Object/b"}, []string{"Object"}},
		"without a namespace": {[]string{"Cluster/"}, []string{"Cluster/a"}, []string{"Cluster/"}, nil},
	} {
		g := NewWithT(t)
		parts := func(names []string) (parts []partObject) {
			for _, name := range names {
				kind, namespace, _ := strings.Cut(name, "/")
				parts = append(parts, of(kind, namespace))
			}
			return parts
		}
		var registered []unique.Handle[part]
		for _, p := range parts(tc.registered) {
			registered = append(registered, p.part)
		}
		var asked []string
		merged := mergeClusterScoped(parts(tc.wanted), registered, func(kind schema.GroupVersionKind) bool {
			asked = append(asked, kind.Kind)
			return kind.Kind == "Cluster"
		})
		var got []string
		for _, p := range merged {
			got = append(got, p.part.Value().kind.Kind+"/"+p.scope.Namespace)
			g.Expect(p.part.Value().scope).To(Equal(p.scope.String()))
		}
		g.Expect(got).To(Equal(tc.want), name)
		g.Expect(asked).To(Equal(tc.asked), name)
	}
}
