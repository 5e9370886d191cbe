package targets

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSetSharesAndForgets(t *testing.T) {
	g := NewWithT(t)
	var s Set
	acquire := func(config *rest.Config) *Membership {
		target, err := s.Join(config, nil, &Policy{})
		g.Expect(err).NotTo(HaveOccurred())
		return target
	}
	one := acquire(&rest.Config{Host: "https://one"})
	again := acquire(&rest.Config{Host: "https://one"})
	g.Expect(again.Target).To(BeIdenticalTo(one.Target))
	two := acquire(&rest.Config{Host: "https://two"})
	g.Expect(two.Target).NotTo(BeIdenticalTo(one.Target))
	g.Expect(s.List()).To(Equal([]*Target{one.Target, two.Target}))
	for _, other := range []*rest.Config{
		{Host: "https://one", APIPath: "/p"},
		{Host: "https://one", TLSClientConfig: rest.TLSClientConfig{ServerName: "n"}},
		{Host: "https://one", TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
	} {
		different := acquire(other)
		g.Expect(different.Target).NotTo(BeIdenticalTo(one.Target))
		different.Leave()
	}
	one.Leave()
	g.Expect(s.List()).To(ContainElement(one.Target), "another member is left")
	again.Leave()
	g.Expect(s.List()).To(Equal([]*Target{two.Target}))
	g.Expect(acquire(&rest.Config{Host: "https://one"}).Target).NotTo(BeIdenticalTo(one.Target), "a new target")
}

// The last member that leaves closes the TCP connections, and no other does.
func TestLastMemberClosesConnections(t *testing.T) {
	g := NewWithT(t)
	var open atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	var s Set
	one, err := s.Join(&rest.Config{Host: server.URL}, nil, &Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	two, err := s.Join(&rest.Config{Host: server.URL}, nil, &Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	resp, err := (&http.Client{Transport: one.RoundTripper()}).Get(server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = io.Copy(io.Discard, resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
	one.Leave()
	g.Consistently(open.Load).WithTimeout(50 * time.Millisecond).Should(BeEquivalentTo(1))
	two.Leave()
	g.Eventually(open.Load).Should(BeZero())
}

func TestTargetHasNoIdentity(t *testing.T) {
	g := NewWithT(t)
	var s Set
	_, err := s.Join(&rest.Config{
		Host:            "https://one",
		TLSClientConfig: rest.TLSClientConfig{CertData: []byte("c"), KeyData: []byte("k")},
	}, nil, &Policy{})
	g.Expect(err).To(MatchError(ContainSubstring("client certificate")))
	g.Expect(s.List()).To(BeEmpty())
	target, err := s.Join(&rest.Config{Host: "https://one", BearerToken: "t", Username: "u", Password: "p"}, nil,
		&Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(target.Config()).To(Equal(&rest.Config{Host: "https://one"}))
}

// apiServer serves discovery of one group, and counts the discoveries.
type apiServer struct {
	*httptest.Server
	kinds     atomic.Pointer[[]string]
	discovery atomic.Int32
	refuse    atomic.Pointer[string]        // the User-Agent that the server rejects
	hold      atomic.Pointer[chan struct{}] // closed when discovery may continue
	holdOnly  atomic.Pointer[string]        // the User-Agent that hold is for; nil for all
	others    atomic.Bool                   // also serves group h, with hats, in two versions
	failing   atomic.Bool                   // group h answers 503
}

func newAPIServer(t *testing.T, kinds ...string) *apiServer {
	a := &apiServer{}
	a.kinds.Store(&kinds)
	reply := func(w http.ResponseWriter, object any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}})
	})
	mux.HandleFunc("/apis", func(w http.ResponseWriter, r *http.Request) {
		a.discovery.Add(1)
		if hold, only := a.hold.Load(), a.holdOnly.Load(); hold != nil && (only == nil || *only == r.UserAgent()) {
			<-*hold
		}
		if refused := a.refuse.Load(); refused != nil && *refused == r.UserAgent() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		version := metav1.GroupVersionForDiscovery{GroupVersion: "g/v1", Version: "v1"}
		reply(w, metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
			Groups: append([]metav1.APIGroup{
				{Name: "g", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
			}, a.otherGroups()...),
		})
	})
	mux.HandleFunc("/apis/h/{version}", func(w http.ResponseWriter, r *http.Request) {
		if a.failing.Load() {
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
			return
		}
		reply(w, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "h/" + r.PathValue("version"),
			APIResources: []metav1.APIResource{{Name: "hats", Kind: "hat"}},
		})
	})
	mux.HandleFunc("/apis/g/v1", func(w http.ResponseWriter, _ *http.Request) {
		list := metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "g/v1",
		}
		for _, kind := range *a.kinds.Load() {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: kind + "s", Kind: kind, Namespaced: true})
		}
		reply(w, list)
	})
	a.Server = httptest.NewServer(mux)
	t.Cleanup(a.Close)
	return a
}

func (a *apiServer) otherGroups() []metav1.APIGroup {
	if !a.others.Load() {
		return nil
	}
	version := func(v string) metav1.GroupVersionForDiscovery {
		return metav1.GroupVersionForDiscovery{GroupVersion: "h/" + v, Version: v}
	}
	return []metav1.APIGroup{{
		Name:             "h",
		Versions:         []metav1.GroupVersionForDiscovery{version("v2"), version("v1")},
		PreferredVersion: version("v2"),
	}}
}

func (a *apiServer) target(t *testing.T) *Target {
	var s Set
	target, err := s.Join(&rest.Config{Host: a.URL}, nil, &Policy{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	return target.Target
}

// member returns the mapper of a connection with that User-Agent.
func member(t *Target, userAgent string) *Mapper {
	return t.Mapper("",
		&http.Client{Transport: testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Header.Set("User-Agent", userAgent)
			return t.RoundTripper().RoundTrip(req)
		})}, 0)
}

var gadget = schema.GroupKind{Group: "g", Kind: "gadget"}

func TestDiscoveryIsShared(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t, "gadget")
	target := a.target(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			mapping, err := member(target, "member").RESTMapping(gadget, "v1")
			if err != nil || mapping.Resource.Resource != "gadgets" {
				t.Errorf("mapping %v: %v", mapping, err)
			}
		})
	}
	wg.Wait()
	g.Expect(a.discovery.Load()).To(BeNumerically("<=", 3), "callers during a discovery share it")
	requests := a.discovery.Load()
	_, err := member(target, "late").RESTMapping(gadget)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.discovery.Load()).To(Equal(requests), "a later caller causes no discovery")

	// A missing kind stays cached for rediscoverAfter.
	for range 10 {
		_, err = member(target, "member").RESTMapping(schema.GroupKind{Group: "g", Kind: "other"})
		g.Expect(meta.IsNoMatchError(err)).To(BeTrue())
	}
	g.Expect(a.discovery.Load()).To(Equal(requests))
}

// The rejection of one identity does not affect the others.
func TestDiscoveryThatFailsForOneIsDoneByTheNext(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t, "gadget")
	refused := "refused"
	a.refuse.Store(&refused)
	target := a.target(t)
	_, err := member(target, "refused").RESTMapping(gadget)
	g.Expect(err).To(HaveOccurred())
	g.Expect(meta.IsNoMatchError(err)).To(BeFalse(), "a failed discovery does not mean that the kind does not exist")
	_, err = member(target, "welcome").RESTMapping(gadget)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = member(target, "refused").RESTMapping(gadget)
	g.Expect(err).NotTo(HaveOccurred(), "all identities share the discovered kinds")
}

// A caller that waits for a hanging discovery waits no longer than its own context. Callers that
// continue to wait receive the result.
func TestDiscoveryThatHangs(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t, "gadget")
	hold := make(chan struct{})
	a.hold.Store(&hold)
	target := a.target(t)
	var patient sync.WaitGroup
	patient.Go(func() {
		if _, err := member(target, "patient").RESTMapping(gadget); err != nil {
			t.Error(err)
		}
	})
	g.Eventually(a.discovery.Load).Should(BeEquivalentTo(1))
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		_, err := member(target, "impatient").RESTMappingWithContext(impatient, gadget)
		g.Expect(err).To(MatchError(context.Canceled))
	}
	// The same applies to the caller that has started the discovery.
	cold := a.target(t)
	_, err := member(cold, "impatient").RESTMappingWithContext(impatient, gadget)
	g.Expect(err).To(MatchError(context.Canceled))
	close(hold)
	patient.Wait()
	_, err = member(cold, "patient").RESTMapping(gadget) // joins the flight that no caller waits for, or starts a new one
	g.Expect(err).NotTo(HaveOccurred())
}

var hat = schema.GroupKind{Group: "h", Kind: "hat"}

// A group whose discovery fails for a moment keeps the kinds that it had.
func TestFailedGroupKeepsItsKinds(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t, "gadget")
	a.others.Store(true)
	target := a.target(t)
	before, err := member(target, "one").RESTMapping(hat)
	g.Expect(err).NotTo(HaveOccurred())
	a.failing.Store(true)
	for range 2 { // also what was carried over is
		target.kinds.forget()
		forgetTime(target)
		_, err = member(target, "two").RESTMapping(schema.GroupKind{Group: "g", Kind: "unknown"})
		g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
		after, err := member(target, "three").RESTMapping(hat)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after).To(Equal(before))
		_, err = member(target, "three").RESTMapping(hat, "v1")
		g.Expect(err).NotTo(HaveOccurred())
	}
	a.others.Store(false) // the group is gone, and does not fail
	target.kinds.forget()
	forgetTime(target)
	_, err = member(target, "four").RESTMapping(schema.GroupKind{Group: "g", Kind: "unknown"})
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
	_, err = member(target, "four").RESTMapping(hat)
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
}

// A group of which nothing is known, because its discovery fails, may exist: the error says why.
func TestFailedGroupIsNotMissing(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t, "gadget")
	a.others.Store(true)
	a.failing.Store(true)
	target := a.target(t)
	_, err := member(target, "one").RESTMapping(schema.GroupKind{Group: "g", Kind: "unknown"})
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
	_, err = member(target, "two").RESTMapping(hat)
	g.Expect(meta.IsNoMatchError(err)).To(BeFalse())
	g.Expect(apierrors.IsServiceUnavailable(err)).To(BeTrue(), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring(`group "h"`)))
	_, err = member(target, "two").KindFor(schema.GroupVersionResource{Resource: "hats"})
	g.Expect(apierrors.IsServiceUnavailable(err)).To(BeTrue(), "it may be in that group: %v", err)
	_, err = member(target, "two").RESTMapping(gadget)
	g.Expect(err).NotTo(HaveOccurred(), "other groups are known")
	a.failing.Store(false)
	forgetTime(target)
	_, err = member(target, "three").RESTMapping(hat)
	g.Expect(err).NotTo(HaveOccurred())
}

// A call after a success does not join the flight that brought it, and that has not ended yet.
func TestDiscoverAfterSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var shared sharedDiscovery
		first, ends := newKinds(), make(chan struct{})
		published := atomic.Pointer[kinds]{}
		found, err := shared.discover(t.Context(), func(publish func()) (*kinds, error) {
			published.Store(first)
			publish()
			<-ends
			return first, nil
		}, published.Load)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(BeIdenticalTo(first))
		start, second := time.Now(), newKinds()
		found, err = shared.discover(t.Context(), func(func()) (*kinds, error) { return second, nil }, published.Load)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(BeIdenticalTo(second))
		g.Expect(time.Now()).To(Equal(start), "it does not wait for the first flight")
		close(ends)
	})
}

// forgetTime makes the last discovery older than rediscoverAfter.
func forgetTime(target *Target) {
	last := target.kinds.latest.Load()
	older := &kinds{mapper: last.mapper, groups: last.groups, failed: last.failed, at: last.at.Add(-rediscoverAfter)}
	older.stale.Store(last.stale.Load())
	target.kinds.latest.Store(older)
}

// A member whose credential hangs delays the others by a second, and by no more than its own
// timeout. A server that is slow for everyone does not get a discovery from each member.
func TestFollowersAskAlone(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t, "gadget")
	hold, hung := make(chan struct{}), "hung"
	a.hold.Store(&hold)
	a.holdOnly.Store(&hung)
	target := a.target(t)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if _, err := member(target, hung).RESTMapping(gadget); err != nil {
			t.Error(err)
		}
	})
	g.Eventually(a.discovery.Load).Should(BeEquivalentTo(1))
	var others sync.WaitGroup
	for range 50 {
		others.Go(func() {
			if _, err := member(target, "other").RESTMapping(gadget); err != nil {
				t.Error(err)
			}
		})
	}
	others.Wait() // would hang until the end of the test
	g.Expect(a.discovery.Load()).To(BeNumerically("<=", 10), "the first success is everyone's")
	waiting.Wait() // the hung member has it, too
	close(hold)
}

// Turns are apart, so that a server that is slow for everyone gets few discoveries.
func TestTurns(t *testing.T) {
	g := NewWithT(t)
	var shared sharedDiscovery
	now := time.Now()
	g.Expect(shared.turn(now)).To(BeZero())
	g.Expect(shared.turn(now)).To(Equal(aloneInterval))
	g.Expect(shared.turn(now.Add(aloneInterval))).To(Equal(aloneInterval))
	g.Expect(shared.turn(now.Add(time.Second))).To(BeZero())
}

// A discovery is not subject to the rate limit of the identity that runs it, because others may
// wait for the discovery.
func TestDiscoveryIsNotThrottled(t *testing.T) {
	g := NewWithT(t)
	target := newAPIServer(t, "gadget").target(t)
	mapper := member(target, "busy")
	client, _, err := mapper.discoveryClient()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(client.RESTClient().GetRateLimiter()).To(BeNil())
	_, err = mapper.RESTMapping(gadget)
	g.Expect(err).NotTo(HaveOccurred())
}

// Discovery at a server that a kubeconfig names is bounded in bytes, in values and in the number of
// requests.
func TestDiscoveryIsBounded(t *testing.T) {
	const maxBytes = 10_000_000
	g := NewWithT(t)
	var unit atomic.Pointer[string]
	var sent, requests atomic.Int64
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","apiVersion":"v1","versions":[]}`))
		case "/apis":
			_, _ = w.Write([]byte(`{"kind":"APIGroupList","apiVersion":"v1","groups":[`))
			for i := 0; r.Context().Err() == nil && sent.Load() < 10*maxBytes &&
				(*unit.Load() != groups || i < maxRequests+1000); i++ {
				n, _ := w.Write([]byte(strings.ReplaceAll(*unit.Load(), "#", strconv.Itoa(i)) + ","))
				sent.Add(int64(n))
			}
			_, _ = w.Write([]byte(`{"name":"last","versions":[]}]}`))
		default:
			_ = json.NewEncoder(w).
				Encode(metav1.APIResourceList{
					TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
					GroupVersion: "g/v1",
				})
		}
	}))
	t.Cleanup(endless.Close)
	for what, tc := range map[string]struct{ unit, problem string }{
		"bytes":    {`{"name":"` + strings.Repeat("g", 1000) + `","versions":[]}`, "answers exceed 10000000 bytes of memory"},
		"values":   {`{}`, "answers exceed 10000000 bytes of memory"},
		"requests": {groups, "more than 10000 requests"},
	} {
		sent.Store(0)
		requests.Store(0)
		unit.Store(&tc.unit)
		var s Set
		target, err := s.Join(&rest.Config{Host: endless.URL}, nil, &Policy{})
		g.Expect(err).NotTo(HaveOccurred())
		mapper := member(target.Target, "member")
		mapper.maxBytes = maxBytes
		if what == "requests" {
			mapper.maxBytes = 10 * maxBytes
		}
		_, err = mapper.RESTMapping(gadget)
		g.Expect(err).To(MatchError(ContainSubstring(tc.problem)), what)
		if what == "values" {
			g.Expect(sent.Load()).To(BeNumerically("<", maxBytes/10), "each takes more memory than its text")
		}
		g.Expect(sent.Load()).To(BeNumerically("<", 2*maxBytes), what)
		g.Expect(requests.Load()).To(BeNumerically("<=", maxRequests+3), what)
		target.Leave()
	}
}

// groups is the template of a group of a discovery; # is its number.
const groups = `{"name":"g#","versions":[{"groupVersion":"g#/v1","version":"v1"}]}`

func TestKindsComeAndGo(t *testing.T) {
	g := NewWithT(t)
	a := newAPIServer(t, "gadget")
	target := a.target(t)
	mapper := member(target, "member")
	_, err := mapper.RESTMapping(gadget)
	g.Expect(err).NotTo(HaveOccurred())

	a.kinds.Store(&[]string{"other"})
	age := func() {
		aged := &kinds{mapper: target.kinds.latest.Load().mapper, at: time.Now().Add(-rediscoverAfter)}
		aged.stale.Store(target.kinds.latest.Load().stale.Load())
		target.kinds.latest.Store(aged)
	}
	age()
	_, err = mapper.RESTMapping(gadget)
	g.Expect(err).NotTo(HaveOccurred(), "a cached kind causes no discovery")
	// The API server answers in plain text that a path does not exist.
	httpClient := &http.Client{Transport: target.RoundTripper()}
	resp, err := httpClient.Get(a.URL + "/apis/g/v1/gadgets")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
	age()
	_, err = mapper.RESTMapping(gadget)
	g.Expect(meta.IsNoMatchError(err)).To(BeTrue(), "%v", err)
	_, err = mapper.RESTMapping(schema.GroupKind{Group: "g", Kind: "other"})
	g.Expect(err).NotTo(HaveOccurred())
}

// The credentials for one server are not sent to another, for example after a redirect.
func TestRequestsGoToTheTargetOnly(t *testing.T) {
	g := NewWithT(t)
	var s Set
	target, err := s.Join(&rest.Config{Host: "https://one"}, nil, &Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	defer target.Leave()
	sent := 0
	transport := target.Observe(testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		sent++
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	}))
	for _, url := range []string{"http://one/api", "https://two/api", "https://one:6443/api", "https://one.two/api"} {
		_, err := transport.RoundTrip(httptest.NewRequest(http.MethodPost, url, nil))
		g.Expect(err).To(MatchError(ContainSubstring("this connection is for https://one")), url)
	}
	g.Expect(sent).To(BeZero())
	g.Expect(target.LastAnswer()).To(BeZero(), "the answer of another server does not count")
	_, err = transport.RoundTrip(httptest.NewRequest(http.MethodPost, "https://one/api", nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sent).To(Equal(1))
}

// The names in a server's certificate, which TLS errors quote, reach no terminal as they are.
func TestHostileCertificate(t *testing.T) {
	g := NewWithT(t)
	var s Set
	target, err := s.Join(&rest.Config{Host: "https://one"}, nil, &Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	defer target.Leave()
	hostile := x509.HostnameError{
		Host: "one",
		Certificate: &x509.Certificate{
			DNSNames:   []string{"\x1b[2J\u202eevil"},
			Extensions: []pkix.Extension{{Id: []int{2, 5, 29, 17}}},
		},
	}
	transport := target.Observe(testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		return nil, hostile
	}))
	_, err = transport.RoundTrip(httptest.NewRequest(http.MethodGet, "https://one/api", nil)) //nolint:bodyclose // none
	g.Expect(hostile.Error()).To(ContainSubstring("\x1b"), "Go quotes the names as they are")
	g.Expect(err.Error()).To(And(ContainSubstring("evil"), Not(ContainSubstring("\x1b")), Not(ContainSubstring("\u202e"))))
	g.Expect(errors.As(err, new(x509.HostnameError))).To(BeTrue())
}
