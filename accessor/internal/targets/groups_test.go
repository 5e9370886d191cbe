package targets

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// scripted is an API server whose answers are texts by path. Paths that are not listed are answered
// with a plain 404, as kube-apiserver does.
type scripted struct {
	mu      sync.Mutex
	answers map[string]string        // guarded by mu; one that begins with a number has this status
	delays  map[string]time.Duration // guarded by mu
	asked   map[string]int           // guarded by mu
}

func (s *scripted) set(path, answer string, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path], s.delays[path] = answer, delay
}

// count returns how often a path was asked for since the last call.
func (s *scripted) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.asked[path] = 0 }()
	return s.asked[path]
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.asked[r.URL.Path]++
	answer, delay := s.answers[r.URL.Path], s.delays[r.URL.Path]
	s.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	status, mediaType := http.StatusOK, "application/json"
	if answer == "" {
		answer, status, mediaType = "404 page not found", http.StatusNotFound, "text/plain; charset=utf-8"
	} else if !strings.HasPrefix(answer, "{") {
		_, _ = fmt.Sscan(answer, &status)
		answer = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"message":%q,"reason":%q}`,
			status, answer, map[int]string{403: "Forbidden", 503: "ServiceUnavailable"}[status])
	}
	return &http.Response{
		StatusCode: status,
		Header:     http.Header{"Content-Type": {mediaType}},
		Body:       io.NopCloser(strings.NewReader(answer)),
		Request:    r,
	}, nil
}

// groupText describes a group in discovery.
func groupText(group string, versions ...string) string {
	var list []string
	for _, v := range versions {
		list = append(list, fmt.Sprintf(`{"groupVersion":"%s/%s","version":"%s"}`, group, v, v))
	}
	return fmt.Sprintf(`{"kind":"APIGroup","apiVersion":"v1","name":%q,"versions":[%s],"preferredVersion":%s}`,
		group, strings.Join(list, ","), list[0])
}

// kindText lists one kind of a version in discovery.
func kindText(version, kind string, namespaced bool) string {
	return fmt.Sprintf(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":%q,"resources":[`+
		`{"name":%q,"singularName":"","namespaced":%t,"kind":%q,"verbs":["get"]}]}`,
		version, strings.ToLower(kind)+"s", namespaced, kind)
}

// newScripted returns a server with group g, which has kind Gadget in v1.
func newScripted(t *testing.T) (*scripted, *Membership, func(user string) *Mapper) {
	s := &scripted{
		delays: map[string]time.Duration{},
		asked:  map[string]int{},
		answers: map[string]string{
			"/api":       `{"kind":"APIVersions","versions":[]}`,
			"/apis":      `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + groupText("g", "v1") + `]}`,
			"/apis/g":    groupText("g", "v1"),
			"/apis/g/v1": kindText("g/v1", "Gadget", true),
		},
	}
	var set Set
	target, err := set.Join(&rest.Config{Host: "http://server"}, nil, &Policy{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	return s, target, func(user string) *Mapper {
		return target.Mapper(user, &http.Client{Transport: target.Observe(s), Timeout: 10 * time.Second}, 0)
	}
}

var gadgetKind = schema.GroupKind{Group: "g", Kind: "Gadget"}

// A lookup of a group that does not exist says nothing about the kinds that are known, although the
// API server answers as it does for a path that is gone.
func TestUnknownGroupMakesNothingStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, _, member := newScripted(t)
		m := member("m")
		_, err := m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(rediscoverAfter)
		_, err = m.RESTMappingAnew(t.Context(), schema.GroupKind{Group: "unknown", Kind: "Thing"}, "v1")
		g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
		g.Expect(s.count("/apis/unknown")).To(Equal(1))
		s.count("/apis")
		_, err = m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.count("/apis")).To(BeZero())
	})
}

// A version that fails hides its own kinds only, with the reason, and is no proof that they are
// gone.
func TestVersionThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, target, member := newScripted(t)
		m := member("m")
		_, err := m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(time.Second)
		s.set("/apis/g", groupText("g", "v1", "v2"), 0)
		s.set("/apis/g/v2", "503 the backend is down", 0)
		_, err = m.RESTMappingAnew(t.Context(), gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = m.RESTMappingAnew(t.Context(), gadgetKind, "v2")
		g.Expect(err).To(MatchError(ContainSubstring("the backend is down")))
		g.Expect(meta.IsNoMatchError(err)).To(BeFalse())
		for _, other := range []string{kindText("g/v2", "Gadget", true), "503 it is, too"} {
			s.set("/apis/g/v1", "503 the backend is down", 0)
			s.set("/apis/g/v2", other, 0)
			time.Sleep(anewFor)
			_, err = m.RESTMappingAnew(t.Context(), gadgetKind, "v1")
			g.Expect(err).To(HaveOccurred())
			g.Expect(meta.IsNoMatchError(err)).To(BeFalse(), "%v", err)
			g.Expect(target.kinds.latest.Load().stale.Load()).To(BeFalse(), other)
		}
		_, err = m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred(), "what is known stays")
	})
}

// The text with which a server denies discovery names the user, and other members do not see it.
func TestDenialIsNotToldToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, _, member := newScripted(t)
		s.set("/apis/g/v1", `403 User "system:serviceaccount:a:secret" may not`, 0)
		for _, user := range []string{"a", "b"} {
			_, err := member(user).RESTMapping(gadgetKind, "v1")
			g.Expect(err).To(MatchError(ContainSubstring("the API server answered Forbidden")))
			g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
		}
		g.Expect(s.count("/apis")).To(Equal(1))
	})
}

// Callers share the discovery of a group, also when it takes longer than what was found is shared.
func TestLookupsOfAGroupAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, _, member := newScripted(t)
		for _, delay := range []time.Duration{0, 900 * time.Millisecond} {
			s.set("/apis/g", groupText("g", "v1"), delay)
			var callers sync.WaitGroup
			for i := range 500 {
				callers.Go(func() {
					if _, err := member(fmt.Sprint(i)).RESTMappingAnew(t.Context(), gadgetKind, "v1"); err != nil {
						t.Error(err)
					}
				})
			}
			callers.Wait()
			g.Expect(s.count("/apis/g")).To(Equal(1), "%s", delay)
			time.Sleep(2 * time.Second)
		}
		s.set("/apis/g", groupText("g", "v1"), 5*time.Second)
		var callers sync.WaitGroup
		for i := range 500 {
			callers.Go(func() { _, _ = member(fmt.Sprint(i)).RESTMappingAnew(t.Context(), gadgetKind, "v1") })
		}
		callers.Wait()
		g.Expect(s.count("/apis/g")).To(BeNumerically("<=", 1+4*10+1), "one at a time asks alone")
		time.Sleep(10 * time.Second)
	})
}

// A lookup goes on without the caller that began it, and what it finds counts.
func TestLookupOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, target, member := newScripted(t)
		m := member("m")
		_, err := m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(rediscoverAfter)
		s.set("/apis/g", groupText("g", "v1"), 3*time.Second)
		s.set("/apis/g/v1", kindText("g/v1", "Gadget", false), 0)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = m.RESTMappingAnew(short, gadgetKind, "v1")
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		g.Expect(target.kinds.anew.groups).To(HaveLen(1), "under way")
		time.Sleep(3 * time.Second)
		s.count("/apis")
		mapping, err := m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(mapping.Scope.Name()).To(Equal(meta.RESTScopeNameRoot))
		g.Expect(s.count("/apis")).To(BeZero(), "the group is enough")
		g.Expect(target.kinds.latest.Load().stale.Load()).To(BeTrue(), "other groups may have changed, too")
		time.Sleep(anewFor)
		_, _ = m.RESTMappingAnew(t.Context(), schema.GroupKind{Group: "unknown", Kind: "Thing"}, "v1")
		time.Sleep(anewFor)
		_, _ = m.RESTMappingAnew(t.Context(), schema.GroupKind{Group: "unknown", Kind: "Thing"}, "v1")
		g.Expect(target.kinds.anew.groups).To(HaveLen(1), "only what is recent is kept")
	})
}

// An identity that may not discover does not take the turn of one that may.
func TestDeniedMembersLeaveDiscoveryToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, target, member := newScripted(t)
		gvk := gadgetKind.WithVersion("v1")
		denied, able := member("denied"), member("able")
		first, err := able.Resolve(t.Context(), gvk, nil)
		g.Expect(err).NotTo(HaveOccurred())
		refused := &http.Client{Transport: target.Observe(refusing{s})}
		denied.client = refused
		time.Sleep(rediscoverAfter)
		s.set("/apis/g/v1", kindText("g/v1", "Gadget", false), 0)
		target.kinds.forget()
		for range 20 {
			_, err := denied.Resolve(t.Context(), gvk, first)
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(s.count("/denied")).To(Equal(1), "another one may try")
		next, err := able.Resolve(t.Context(), gvk, first)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(next.Mapping.Scope.Name()).To(Equal(meta.RESTScopeNameRoot))
		shared, err := denied.Resolve(t.Context(), gvk, first)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(shared.Same(next)).To(BeTrue(), "and finds it for all")
	})
}

// refusing denies discovery.
type refusing struct{ *scripted }

func (s refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/apis" {
		s.set("/denied", "403 no", 0)
		r = r.Clone(r.Context())
		r.URL.Path = "/denied"
	}
	return s.scripted.RoundTrip(r)
}

// What a caller keeps of a kind does not keep the kinds of the whole discovery.
func TestResolvedKeepsNoDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		_, target, member := newScripted(t)
		m := member("m")
		resolved, err := m.Resolve(t.Context(), gadgetKind.WithVersion("v1"), nil)
		g.Expect(err).NotTo(HaveOccurred())
		resolved, err = m.Resolve(t.Context(), gadgetKind.WithVersion("v1"), resolved)
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait() // the goroutine of the discovery has what it found, until it ends
		old := weak.Make(target.kinds.latest.Load())
		target.kinds.latest.Store(nil)
		runtime.GC()
		g.Expect(old.Value()).To(BeNil())
		runtime.KeepAlive(resolved)
	})
}

// The kinds of single groups take at most what one discovery may take, and names that no group has
// are not kept for long.
func TestGroupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var groups groupwise
		full := func(memory int64) *kinds {
			k := newKinds()
			k.memory, k.failed = memory, map[string]error{"": io.EOF}
			return k
		}
		for i := range 20 {
			groups.set(fmt.Sprint(i), full(30), 100)
			time.Sleep(time.Second)
		}
		g.Expect(groups.kinds).To(And(HaveLen(3), HaveKey("17"), HaveKey("18"), HaveKey("19")))
		groups.set("big", full(200), 100)
		g.Expect(groups.kinds).To(And(HaveLen(1), HaveKey("big")), "the latest is kept in any case")
		for i := range 20 {
			groups.set(fmt.Sprint("none", i), newKinds(), 1000)
			time.Sleep(time.Second)
		}
		g.Expect(len(groups.kinds)).To(BeNumerically("<=", 7), "%v", groups.kinds)
		groups.replaced(time.Now())
		g.Expect(groups.kinds).To(BeEmpty())
	})
}

// Where a cluster has outgrown the bound, and the identity may not discover the group alone, what
// others have found serves.
func TestKnownKindsServeBeyondTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, target, member := newScripted(t)
		m := member("m")
		_, err := m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(rediscoverAfter)
		target.kinds.forget()
		m.maxBytes = 100
		s.set("/apis/g", "403 no", 0)
		_, err = m.RESTMapping(gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = m.RESTMapping(schema.GroupKind{Group: "g", Kind: "Other"}, "v1")
		g.Expect(err).To(MatchError(ContainSubstring("exceed 100 bytes")))
	})
}

// A group that is too much alone is read once for all, and then not for some minutes.
func TestGroupThatIsTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, target, member := newScripted(t)
		s.set("/apis/g", groupText("g", "v1"), 100*time.Millisecond)
		s.set("/apis/g/v1", `{"kind":"APIResourceList","resources":[`+strings.Repeat("{},", 1000), 0)
		for range 3 {
			var callers sync.WaitGroup
			for i := range 50 {
				callers.Go(func() {
					m := member(fmt.Sprint(i))
					m.maxBytes = 100_000
					if _, err := m.RESTMappingAnew(t.Context(), gadgetKind, "v1"); !isTooMuch(err) {
						t.Error(err)
					}
				})
			}
			callers.Wait()
			time.Sleep(time.Minute)
		}
		g.Expect(s.count("/apis/g/v1")).To(Equal(1))
		s.set("/apis/g/v1", kindText("g/v1", "Gadget", true), 0)
		time.Sleep(tooMuchFor)
		_, err := member("m").RESTMappingAnew(t.Context(), gadgetKind, "v1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(target.kinds.anew.groups).To(HaveLen(1))
	})
}

// Where the discovery of all groups takes too long, in either form, the group that a lookup names
// is discovered alone, and then known.
func TestDiscoveryThatTakesTooLong(t *testing.T) {
	for _, slow := range []string{"/apis", "/apis/h/v1"} {
		t.Run(slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s, _, member := newScripted(t)
				m := member("m")
				h := groupText("h", "v1")
				s.set("/apis", `{"kind":"APIGroupList","apiVersion":"v1","groups":[`+h+`]}`, 0)
				s.set("/apis/h", h, 0)
				s.set("/apis/h/v1", kindText("h/v1", "Hat", true), 0)
				hat := schema.GroupKind{Group: "h", Kind: "Hat"}
				s.set(slow, s.answers[slow], 20*time.Second)
				if slow != "/apis" { // and quick for the one who asks for the group alone
					time.AfterFunc(9*time.Second, func() { s.set(slow, kindText("h/v1", "Hat", true), 0) })
				}
				begun := time.Now()
				_, err := m.RESTMapping(hat, "v1")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(time.Since(begun)).To(BeNumerically("<=", 10*time.Second))
				time.Sleep(rediscoverAfter)
				begun = time.Now()
				_, err = m.RESTMapping(hat, "v1")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(time.Since(begun)).To(BeZero())
				time.Sleep(time.Minute)
			})
		})
	}
}

// That a discovery is too much is the answer for all: no caller waits for one that hangs.
func TestTooMuchIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var shared sharedDiscovery
		none := func() *kinds { return nil }
		go func() {
			_, _ = shared.discover(t.Context(), func(func()) (*kinds, error) {
				time.Sleep(10 * time.Second)
				return nil, io.EOF
			}, none)
		}()
		synctest.Wait()
		var asked atomic.Int32
		begun := time.Now()
		_, err := shared.discover(t.Context(), func(func()) (*kinds, error) {
			asked.Add(1)
			return nil, &tooMuchError{io.ErrShortBuffer}
		}, none)
		g.Expect(err).To(MatchError(io.ErrShortBuffer))
		g.Expect(time.Since(begun)).To(BeNumerically("<", 2*time.Second))
		g.Expect(asked.Load()).To(BeEquivalentTo(1))
		time.Sleep(10 * time.Second)
	})
}

// A server that makes the most of the budget, with any element in any list of a discovery, makes a
// discovery allocate memory in proportion to it.
func TestMemoryOfDiscovery(t *testing.T) {
	const maxBytes = 8 << 20
	const element, object = 2000, 500 // what they cost beside their texts
	type place struct{ path, mediaType, before, after string }
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	places := map[string]place{
		"groups":    {"/apis", "application/json", `{"kind":"APIGroupList","apiVersion":"v1","groups":[`, `]}`},
		"resources": {"/apis/g/v1", "application/json", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"g/v1","resources":[`, `]}`},
		"items":     {"/apis", aggregated, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[`, `]}`},
		"versions": {"/apis", aggregated, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[` +
			`{"metadata":{"name":"g"},"versions":[`, `]}]}`},
		"aggregated resources": {"/apis", aggregated, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[` +
			`{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[`, `]}]}]}`},
		"subresources": {"/apis", aggregated, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[` +
			`{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"x","responseKind":{"kind":"X"},` +
			`"subresources":[`, `]}]}]}]}`},
	}
	for name, in := range places {
		for _, unit := range []string{`{}`, `null`, `""`, `0`, `[]`, `{"name":"x","kind":"x"}`, `{"metadata":{"name":"x"}}`} {
			t.Run(name+" "+unit, func(t *testing.T) {
				g := NewWithT(t)
				cost := len(unit) + 1 + element
				if strings.HasSuffix(name, "resources") {
					cost -= element - object
				}
				if strings.Contains(unit, `"name"`) {
					cost += 2*40 + strings.Count(unit[1:], "{")*object
				}
				text := in.before + strings.Repeat(unit+",", maxBytes*9/10/cost) + unit + in.after
				s, target, member := newScripted(t)
				m := member("m")
				m.maxBytes = maxBytes
				sent := false
				m.client = &http.Client{Transport: target.Observe(roundTripper(func(r *http.Request) (*http.Response, error) {
					answer := text
					switch {
					case r.URL.Path == in.path:
						sent = true
					case r.URL.Path == "/api" && in.mediaType == aggregated:
						answer = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2"}`
					default:
						return s.RoundTrip(r)
					}
					return &http.Response{
						StatusCode: http.StatusOK,
						Header:     http.Header{"Content-Type": {in.mediaType}},
						Body:       io.NopCloser(strings.NewReader(answer)),
						Request:    r,
					}, nil
				}))}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := m.RESTMapping(gadgetKind, "v1")
				runtime.ReadMemStats(&after)
				g.Expect(sent).To(BeTrue())
				g.Expect(isTooMuch(err)).To(BeFalse(), "%v", err)
				allocated := after.TotalAlloc - before.TotalAlloc
				t.Logf("%d bytes of text, %.1f of the budget: %v", len(text), float64(allocated)/maxBytes, err)
				g.Expect(allocated).To(BeNumerically("<", 3*maxBytes))
			})
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// hanging is the transport of a member whose credential hangs until its requests end.
type hanging struct{ began chan struct{} }

func (h *hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	h.began <- struct{}{}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A request that waits a second for discovery gets an answer, although a member whose credential
// hangs asks already.
func TestDoubtDoesNotWaitForAMemberThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, target, member := newScripted(t)
		m := member("m")
		gvk := gadgetKind.WithVersion("v1")
		last, err := m.Resolve(t.Context(), gvk, nil)
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(rediscoverAfter)
		s.set("/apis/g/v1", kindText("g/v1", "Gadget", false), 0)

		hangs := &hanging{make(chan struct{}, 10)}
		other := target.Mapper("",
			&http.Client{Transport: target.Observe(hangs), Timeout: 10 * time.Second}, 0)
		var asking sync.WaitGroup
		asking.Go(func() { _, _ = other.RESTMappingAnew(t.Context(), gadgetKind, "v1") })
		<-hangs.began
		found := m.Doubt(t.Context(), gvk, last)
		g.Expect(found.Mapping.Scope.Name()).To(Equal(meta.RESTScopeNameRoot), "cluster-scoped by now")
		asking.Wait()
		time.Sleep(10 * time.Second) // until its request ends
	})
}

// What was found by asking for a group does not come back after a newer discovery.
func TestDoubtDoesNotGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s, target, member := newScripted(t)
		a, b := member("a"), member("b")
		gvk := gadgetKind.WithVersion("v1")
		last, err := a.Resolve(t.Context(), gvk, nil)
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(rediscoverAfter)
		g.Expect(a.Doubt(t.Context(), gvk, last).Mapping.Scope.Name()).To(Equal(meta.RESTScopeNameNamespace))

		time.Sleep(anewFor / 4)
		s.set("/apis/g/v1", kindText("g/v1", "Gadget", false), 0)
		target.kinds.forget()
		current, err := a.Resolve(t.Context(), gvk, last) // a discovery of all kinds
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(current.Mapping.Scope.Name()).To(Equal(meta.RESTScopeNameRoot))
		found := b.Doubt(t.Context(), gvk, current)
		g.Expect(found.Mapping.Scope.Name()).To(Equal(meta.RESTScopeNameRoot), "what a found before is older")
	})
}
