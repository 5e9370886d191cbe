package targets

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// crowded is an API server with many kinds, as CustomResourceDefinitions have them: 100 in each
// group.
type crowded struct {
	*httptest.Server
	groups     int
	aggregated bool         // serves all of them in one answer
	stale      bool         // the last group's own API server is down
	whole      atomic.Int64 // requests for all groups
	alone      atomic.Int64 // requests for a group, or the versions of one
}

func newCrowded(t *testing.T, groups int, aggregated bool) *crowded {
	c := &crowded{groups: groups, aggregated: aggregated}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

var verbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}

func groupName(n int) string       { return fmt.Sprintf("team-%d.example.com", n) }
func kindName(group, n int) string { return fmt.Sprintf("Widget%dOf%d", n, group) }
func kindOf(group, n int) (k schema.GroupKind) {
	return schema.GroupKind{Group: groupName(group), Kind: kindName(group, n)}
}

func (c *crowded) description(n int) metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{GroupVersion: groupName(n) + "/v1", Version: "v1"}
	return metav1.APIGroup{
		TypeMeta:         metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
		Name:             groupName(n),
		Versions:         []metav1.GroupVersionForDiscovery{version},
		PreferredVersion: version,
	}
}

func (c *crowded) resources(n int) metav1.APIResourceList {
	list := metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: groupName(n) + "/v1",
	}
	for i := range 100 {
		name := strings.ToLower(kindName(n, i))
		list.APIResources = append(list.APIResources,
			metav1.APIResource{
				Name:               name + "s",
				SingularName:       name,
				Kind:               kindName(n, i),
				Namespaced:         true,
				Verbs:              verbs,
				ShortNames:         []string{"w"},
				Categories:         []string{"all"},
				StorageVersionHash: "w4tSy8RyVkE=",
			},
			metav1.APIResource{
				Name:       name + "s/status",
				Kind:       kindName(n, i),
				Namespaced: true,
				Verbs:      metav1.Verbs{"get", "patch", "update"},
			})
	}
	return list
}

func (c *crowded) discovery() apidiscovery.APIGroupDiscoveryList {
	all := apidiscovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{
		Kind:       "APIGroupDiscoveryList",
		APIVersion: "apidiscovery.k8s.io/v2",
	}}
	for n := range c.groups {
		version := apidiscovery.APIVersionDiscovery{Version: "v1", Freshness: apidiscovery.DiscoveryFreshnessCurrent}
		for i := range 100 {
			name := strings.ToLower(kindName(n, i))
			gvk := &metav1.GroupVersionKind{Group: groupName(n), Version: "v1", Kind: kindName(n, i)}
			version.Resources = append(version.Resources, apidiscovery.APIResourceDiscovery{
				Resource:         name + "s",
				SingularResource: name,
				ResponseKind:     gvk,
				Scope:            apidiscovery.ScopeNamespace,
				Verbs:            verbs,
				ShortNames:       []string{"w"},
				Categories:       []string{"all"},
				Subresources: []apidiscovery.APISubresourceDiscovery{{
					Subresource:  "status",
					ResponseKind: gvk,
					Verbs:        []string{"get", "patch", "update"},
				}},
			})
		}
		if c.stale && n == c.groups-1 {
			version = apidiscovery.APIVersionDiscovery{Version: "v1", Freshness: apidiscovery.DiscoveryFreshnessStale}
		}
		all.Items = append(all.Items, apidiscovery.APIGroupDiscovery{
			ObjectMeta: metav1.ObjectMeta{Name: groupName(n)},
			Versions:   []apidiscovery.APIVersionDiscovery{version},
		})
	}
	return all
}

func (c *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	aggregated := c.aggregated && strings.Contains(r.Header.Get("Accept"), "APIGroupDiscoveryList")
	if aggregated {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	n := -1
	if len(path) > 1 {
		_, _ = fmt.Sscanf(path[1], "team-%d.example.com", &n)
	}
	var answer any
	switch {
	case r.URL.Path == "/api" && aggregated:
		answer = apidiscovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{
			Kind:       "APIGroupDiscoveryList",
			APIVersion: "apidiscovery.k8s.io/v2",
		}}
	case r.URL.Path == "/api":
		answer = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case r.URL.Path == "/api/v1":
		answer = metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}},
		}
	case r.URL.Path == "/apis" && aggregated:
		c.whole.Add(1)
		answer = c.discovery()
	case r.URL.Path == "/apis":
		c.whole.Add(1)
		all := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for n := range c.groups {
			all.Groups = append(all.Groups, c.description(n))
		}
		answer = all
	case n < 0 || n >= c.groups:
		http.NotFound(w, r)
		return
	case len(path) == 2:
		c.alone.Add(1)
		answer = c.description(n)
	case c.stale && n == c.groups-1:
		http.Error(w, "the backend is down", http.StatusServiceUnavailable)
		return
	default:
		c.alone.Add(1)
		answer = c.resources(n)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// An API server with 10,000 kinds is within the default bound, in both forms of discovery, and also
// while the API server of one more group is down.
func TestTenThousandKinds(t *testing.T) {
	for _, aggregated := range []bool{true, false} {
		t.Run(fmt.Sprintf("aggregated %t", aggregated), func(t *testing.T) {
			g := NewWithT(t)
			server := newCrowded(t, 101, aggregated)
			server.stale = true
			var s Set
			target, err := s.Join(&rest.Config{Host: server.URL}, nil, &Policy{})
			g.Expect(err).NotTo(HaveOccurred())
			defer target.Leave()
			mapper := member(target.Target, "member")
			for _, kind := range []schema.GroupKind{kindOf(0, 0), kindOf(99, 99)} {
				mapping, err := mapper.RESTMapping(kind)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(mapping.Resource.Resource).To(Equal(strings.ToLower(kind.Kind) + "s"))
			}
			g.Expect(server.whole.Load()).To(BeEquivalentTo(1))
			latest := target.kinds.latest.Load()
			g.Expect(latest.failed).To(HaveKey(groupName(100)))
			t.Logf("%d bytes of the budget", latest.memory)
			g.Expect(latest.memory).To(BeNumerically("<", MaxDiscoveryBytes*3/4), "a reserve for those who have more")
		})
	}
}

// Where a whole discovery is too much, the group that a lookup names is discovered alone: kinds are
// found, and those that do not exist are not; the whole is not read again each time.
func TestGroupBeyondTheBound(t *testing.T) {
	for _, aggregated := range []bool{true, false} {
		t.Run(fmt.Sprintf("aggregated %t", aggregated), func(t *testing.T) {
			g := NewWithT(t)
			server := newCrowded(t, 20, aggregated)
			var s Set
			target, err := s.Join(&rest.Config{Host: server.URL}, nil, &Policy{})
			g.Expect(err).NotTo(HaveOccurred())
			defer target.Leave()
			mapper := member(target.Target, "member")
			mapper.maxBytes = 4_000_000 // a group takes less than 1 MB
			var asked int64
			for round := range 3 {
				for _, group := range []int{3, 19} {
					mapping, err := mapper.RESTMapping(kindOf(group, 42), "v1")
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(mapping.Scope.Name()).To(Equal(meta.RESTScopeNameNamespace))
				}
				_, err = mapper.RESTMapping(schema.GroupKind{Kind: "ConfigMap"})
				g.Expect(err).NotTo(HaveOccurred())
				for _, kind := range []schema.GroupKind{kindOf(3, 100), kindOf(20, 0), {Kind: "Nothing"}} {
					_, err = mapper.RESTMapping(kind)
					g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v: %v", kind, err)
				}
				found, err := mapper.KindFor(schema.GroupVersionResource{Group: groupName(3), Resource: "widget1of3s"})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(found.Kind).To(Equal(kindName(3, 1)))
				_, err = mapper.KindFor(schema.GroupVersionResource{Resource: "widget1of3s"})
				g.Expect(err).To(MatchError(ContainSubstring("exceed 4000000 bytes")), "it may be in any group")
				if round == 0 {
					asked = server.alone.Load()
				}
			}
			g.Expect(server.whole.Load()).To(BeEquivalentTo(1), "the whole is too much for some time")
			g.Expect(server.alone.Load()).To(Equal(asked), "each group is asked for once")

			forget := func() {
				target.kinds.forget()
				for _, k := range target.kinds.groups.kinds {
					k.at = k.at.Add(-rediscoverAfter)
				}
				for _, group := range target.kinds.anew.groups {
					group.foundAt = time.Time{}
				}
			}
			forget()
			_, err = mapper.RESTMapping(kindOf(3, 42))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(server.alone.Load()).To(Equal(asked+2), "a path did not exist, so it is asked for again")
			g.Expect(server.whole.Load()).To(BeEquivalentTo(1))

			mapper.maxBytes = 1000
			forget()
			_, err = mapper.RESTMapping(kindOf(3, 42))
			g.Expect(err).NotTo(HaveOccurred(), "what was known serves while a group alone is too much")
			_, err = mapper.RESTMapping(kindOf(4, 42))
			g.Expect(err).To(MatchError(ContainSubstring("exceed 1000 bytes")))
			g.Expect(meta.IsNoMatchError(err)).To(BeFalse())
		})
	}
}
