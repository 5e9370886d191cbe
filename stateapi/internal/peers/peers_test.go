package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientset "k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/stateapi/internal/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

var group = schema.GroupVersion{Group: "state.latchkey.dev", Version: "v1alpha1"}

// fleetOf returns a replica of a fleet whose authority is made for it, and that authority.
func fleetOf(t *testing.T, name string) (*Peers, *certs.Authority) {
	t.Helper()
	p, authority, _ := fleetWithSecret(t, name)
	return p, authority
}

// fleetWithSecret is fleetOf that also returns what writes the Secret of the authority.
func fleetWithSecret(t *testing.T, name string) (*Peers, *certs.Authority, corev1client.SecretInterface) {
	t.Helper()
	g := NewWithT(t)
	shared, err := certs.NewAuthorityFor("fleet", time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	key, err := shared.KeyPEM()
	g.Expect(err).NotTo(HaveOccurred())
	client := clientset.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "authority"},
		Data:       map[string][]byte{"tls.crt": shared.PEM(), "tls.key": key},
	})
	authority := trust.New(client.CoreV1(), trust.Options{Namespace: "ns", Name: "authority", ReadOnly: true})
	ctx, cancel := context.WithCancel(logr.NewContext(context.Background(), logr.Discard()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		authority.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	g.Eventually(authority.CurrentCABundleContent).WithTimeout(patience).ShouldNot(BeEmpty())
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, group)
	scheme.AddKnownTypes(group, &corev1.ConfigMap{}, &corev1.ConfigMapList{}, &corev1.Secret{}, &corev1.SecretList{})
	p := &Peers{
		options: Options{
			Name:        name,
			Namespace:   "ns",
			Identity:    "me",
			Group:       group,
			Resources:   map[string]runtime.Object{"connections": &corev1.ConfigMap{}},
			Scheme:      scheme,
			Authority:   authority,
			Silence:     time.Second,
			Times:       holding.Times{}.WithDefaults(),
			MaxReceived: 1 << 20,

			RenewalSpread: time.Millisecond,
		},
		listener: &heard{},
		leases:   client.CoordinationV1(),
		watching: client.CoordinationV1(),
		checking: client.CoordinationV1(),
		events:   make(chan func(time.Time)),
		observed: observed{longest: time.Hour, leases: map[string]observation{}},
		known:    map[string]*peer{},
	}
	p.leaf = authority.NewLeaf("peer", true, p.options.ServerName("me"))
	return p, shared, client.CoreV1().Secrets("ns")
}

// heard notes what a Listener hears.
type heard struct {
	mu    sync.Mutex
	notes []string // guarded by mu
}

func (h *heard) note(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, text)
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.notes)
}

func (h *heard) Members(identities []string) { h.note("members " + strings.Join(identities, ",")) }
func (h *heard) Gone(identity string)        { h.note("gone " + identity) }
func (h *heard) Heard(identity string)       { h.note("heard " + identity) }
func (h *heard) Replaced(identity, resource string, objects []runtime.Object) {
	h.note(fmt.Sprintf("%s has %d %s", identity, len(objects), resource))
}
func (h *heard) Changed(identity, _ string, object runtime.Object) {
	h.note(identity + " changed " + object.(*corev1.ConfigMap).Name)
}
func (h *heard) Removed(identity, _ string, object runtime.Object) {
	h.note(identity + " removed " + object.(*corev1.ConfigMap).Name)
}

// stranger is a server that notes what it is sent.
type stranger struct {
	*httptest.Server
	mu           sync.Mutex
	certificates int      // guarded by mu; of clients
	requests     []string // guarded by mu
}

func newStranger(t *testing.T, certificate, key []byte, changes ...func(*tls.Config)) *stranger {
	t.Helper()
	s := &stranger{}
	pair, err := tls.X509KeyPair(certificate, key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, req.URL.Path)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequestClientCert,
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.certificates += len(raw)
			return nil
		},
	}
	for _, change := range changes {
		change(s.TLS)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *stranger) got() (certificates int, requests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.certificates, slices.Clone(s.requests)
}

// follow follows a member at an address, and returns what is logged.
func follow(t *testing.T, p *Peers, identity, address string) (logged func() string) {
	t.Helper()
	var mu sync.Mutex
	var lines []string
	logger := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, prefix+args)
	}, funcr.Options{})
	ctx, cancel := context.WithCancel(logr.NewContext(context.Background(), logger))
	p.mu.Lock()
	p.known[identity] = p.startPeer(ctx, member{identity: identity, address: netip.MustParseAddrPort(address)})
	p.mu.Unlock()
	t.Cleanup(func() {
		cancel()
		p.running.Wait()
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(lines, "\n")
	}
}

// What is not the member whose Lease leads to it gets neither a certificate nor a request, and the
// log says why.
func TestImpostors(t *testing.T) {
	p, authority := fleetOf(t, "fleet")
	_, another := fleetOf(t, "fleet")
	issued := func(host string, valid time.Duration) certs.Request {
		return certs.Request{Hosts: []string{host}, Peer: true, ValidFor: valid}
	}
	for name, impostor := range map[string]struct {
		issuer  *certs.Authority
		request certs.Request
		want    string
	}{
		"of another fleet": {another, issued(p.options.ServerName("you"), time.Hour),
			"certificate signed by unknown authority"},
		"another member": {authority, issued(p.options.ServerName("else"), time.Hour),
			"certificate is valid for " + p.options.ServerName("else")},
		"the view of all": {authority, certs.Request{Hosts: []string{"state.ns.svc"}, ValidFor: time.Hour},
			"certificate is valid for state.ns.svc"},
		"expired": {authority, issued(p.options.ServerName("you"), -time.Minute), "certificate has expired"},
		"a client": {authority, certs.Request{CommonName: p.options.ServerName("you"), ValidFor: time.Hour},
			"certificate relies on legacy Common Name"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			certificate, key, err := impostor.issuer.Issue(impostor.request)
			g.Expect(err).NotTo(HaveOccurred())
			server := newStranger(t, certificate, key)
			logged := follow(t, p, "you", server.Listener.Addr().String())
			g.Eventually(logged).WithTimeout(patience).Should(And(ContainSubstring(impostor.want),
				ContainSubstring("is not that member of the fleet, and got no credential")))
			certificates, requests := server.got()
			g.Expect(certificates).To(BeZero())
			g.Expect(requests).To(BeEmpty())
			g.Expect(p.listener.(*heard).all()).NotTo(ContainElement(ContainSubstring("heard")))
		})
	}
}

// What answers without TLS gets the first message of a handshake, which names no replica.
func TestNoTLS(t *testing.T) {
	g := NewWithT(t)
	p, _ := fleetOf(t, "fleet")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	received := make(chan []byte, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		buffer := make([]byte, 16<<10)
		n, _ := conn.Read(buffer)
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
		_ = conn.Close()
		received <- buffer[:n]
	}()
	logged := follow(t, p, "you", listener.Addr().String())
	g.Eventually(logged).WithTimeout(patience).Should(ContainSubstring("is not heard"))
	hello := <-received
	g.Expect(hello[0]).To(BeEquivalentTo(22), "a handshake")
	g.Expect(string(hello)).To(ContainSubstring(p.options.ServerName("you")))
	g.Expect(string(hello)).NotTo(ContainSubstring(p.options.ServerName(p.options.Identity)))
}

// What cannot speak TLS 1.3 gets no certificate, not even as a member: with TLS 1.2 a certificate
// is sent in the clear.
func TestOldTLS(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	certificate, key, err := authority.Issue(certs.Request{
		Hosts:    []string{p.options.ServerName("you")},
		Peer:     true,
		ValidFor: time.Hour,
	})
	g.Expect(err).NotTo(HaveOccurred())
	old := newStranger(t, certificate, key, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
	logged := follow(t, p, "you", old.Listener.Addr().String())
	g.Eventually(logged).WithTimeout(patience).Should(ContainSubstring("protocol version"))
	certificates, requests := old.got()
	g.Expect(certificates).To(BeZero())
	g.Expect(requests).To(BeEmpty())
}

// A member is heard as long as its stream brings something, and is connected anew when it is
// silent.
func TestHeard(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	var mu sync.Mutex
	lists, says := 0, make(chan string)
	address := memberAt(t, p, authority, "you", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if req.URL.Query().Get("watch") == "" {
			mu.Lock()
			lists++
			mu.Unlock()
			_, _ = fmt.Fprint(w, `{"kind": "ConfigMapList", "apiVersion": "state.latchkey.dev/v1alpha1", "metadata":
				{"resourceVersion": "1"}, "items": [{"metadata": {"name": "red", "uid": "1"}}]}`)
			return
		}
		if req.URL.Query().Get("sendInitialEvents") != "" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case <-req.Context().Done():
				return
			case text := <-says:
				_, _ = fmt.Fprint(w, text)
				_ = http.NewResponseController(w).Flush()
			}
		}
	})
	follow(t, p, "you", address)
	notes := func() []string { return p.listener.(*heard).all() }
	g.Eventually(notes).WithTimeout(patience).Should(ContainElements("you has 1 connections", "heard you"))
	before := len(notes())
	says <- `{"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "state.latchkey.dev/v1alpha1",
		"metadata": {"resourceVersion": "2"}}}` + "\n"
	g.Eventually(func() []string { return notes()[before:] }).WithTimeout(patience).Should(ContainElement("heard you"))
	says <- `{"type": "MODIFIED", "object": {"kind": "ConfigMap", "apiVersion": "state.latchkey.dev/v1alpha1",
		"metadata": {"name": "red", "uid": "1", "resourceVersion": "3"}}}` + "\n"
	g.Eventually(notes).WithTimeout(patience).Should(ContainElement("you changed red"))
	g.Eventually(func() int { // it says nothing any more
		mu.Lock()
		defer mu.Unlock()
		return lists
	}).WithTimeout(patience).Should(BeNumerically(">", 1))
}

// A Lease counts if it is that of the identity that it names.
func TestMemberOf(t *testing.T) {
	g := NewWithT(t)
	o := Options{Name: "fleet", Namespace: "ns"}
	lease := func(name, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
	}
	mine := o.leaseName("pod_1 2")
	m, ok := o.memberOf(lease(mine, holder("pod_1 2", netip.MustParseAddrPort("[2001:db8::1]:6444"))))
	g.Expect(ok).To(BeTrue())
	g.Expect(m).To(Equal(member{mine, "pod_1 2", netip.MustParseAddrPort("[2001:db8::1]:6444")}))
	for _, wrong := range []*coordinationv1.Lease{
		lease(o.leaseName("other"), holder("pod_1 2", m.address)),
		lease(mine, "pod_1 2"), lease(mine, ""), lease(mine, "pod_1 2 host:1"), lease(mine, "pod_1 2 10.0.0.1"),
		lease(mine, "pod_1 2 10.0.0.1:0"), lease(mine, "pod_1 2 0.0.0.0:1"), lease(mine, "pod_1 2 224.0.0.1:1"),
		lease(o.leaseName(""), " 10.0.0.1:1"), lease(o.leaseName("a\nb"), "a\nb 10.0.0.1:1"),
		lease(o.leaseName(strings.Repeat("a", 254)), strings.Repeat("a", 254)+" 10.0.0.1:1"),
		{ObjectMeta: metav1.ObjectMeta{Name: mine}},
	} {
		_, ok := o.memberOf(wrong)
		g.Expect(ok).To(BeFalse(), "%v", wrong.Spec.HolderIdentity)
	}
	p := Peers{options: o}
	g.Expect(p.IsMember(o.ServerName("pod_1 2"))).To(BeTrue())
	another := Options{Name: "fleet", Namespace: "other"}
	for _, name := range []string{another.ServerName("pod_1 2"), "state.ns.svc", "a" + o.suffix(), "a.b" + o.suffix(),
		"x." + o.ServerName("pod_1 2"), ""} {
		g.Expect(p.IsMember(name)).To(BeFalse(), name)
	}
}

// Of more Leases than a fleet has replicas, those that are heard and those that are the oldest are
// followed.
func TestMembersOf(t *testing.T) {
	g := NewWithT(t)
	o := Options{Name: "fleet", Namespace: "ns", Identity: "0"}
	var leases []*coordinationv1.Lease
	begin := time.Now()
	for n := range maxMembers + 11 { // the first one is this replica's
		identity := strconv.Itoa(n)
		text := holder(identity, netip.MustParseAddrPort("10.0.0.1:1"))
		leases = append(leases, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name:              o.leaseName(identity),
				CreationTimestamp: metav1.NewTime(begin.Add(time.Duration(n) * time.Second)),
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &text},
		})
	}
	newest := strconv.Itoa(maxMembers + 10)
	rand.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	members, left := o.membersOf(leases, func(identity string) bool { return identity == newest })
	g.Expect(left).To(Equal(10))
	want := []string{newest}
	for n := range maxMembers - 1 {
		want = append(want, strconv.Itoa(n+1))
	}
	g.Expect(slices.Collect(maps.Keys(members))).To(ConsistOf(want))
}

// serve starts a server with a certificate, that asks for one and takes any.
func serve(t *testing.T, certificate, key []byte, handler http.Handler) *httptest.Server {
	t.Helper()
	pair, err := tls.X509KeyPair(certificate, key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// memberAt starts a server that is a member of the fleet.
func memberAt(t *testing.T, p *Peers, authority *certs.Authority, identity string, handler http.HandlerFunc) string {
	t.Helper()
	g := NewWithT(t)
	certificate, key, err := authority.Issue(certs.Request{
		Hosts:    []string{p.options.ServerName(identity)},
		Peer:     true,
		ValidFor: time.Hour,
	})
	g.Expect(err).NotTo(HaveOccurred())
	pair, err := tls.X509KeyPair(certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    roots,
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// A member that never ends what it says takes no more memory than one that has many extensions, and
// the log says so.
func TestEndless(t *testing.T) {
	for name, tc := range map[string]struct {
		says  string
		mode  string
		takes int64 // at least, of the bound
	}{
		"a list": {`{"metadata": {"name": "red"}},`, "list", 2500},
		"a list of objects that are small in JSON": {`{},`, "list", 2000},
		"a list of nothing":                        {`null,`, "list", 2000},
		"a list of numbers":                        {`0,`, "list", 2000},
		"a stream of its own": {`{"type": "ADDED", "object": {"kind": "ConfigMap",
			"apiVersion": "state.latchkey.dev/v1alpha1", "metadata": {"name": "red"}}}`, "watch", 1500},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p, authority := fleetOf(t, "fleet")
			var sent atomic.Int64
			address := memberAt(t, p, authority, "you", func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch watches := req.URL.Query().Get("watch") != ""; {
				case watches && tc.mode == "list":
					w.WriteHeader(http.StatusUnprocessableEntity)
					return
				case !watches:
					_, _ = fmt.Fprint(w, `{"kind": "ConfigMapList", "apiVersion": "state.latchkey.dev/v1alpha1", "items": [`)
				}
				for {
					n, err := fmt.Fprint(w, tc.says)
					if sent.Add(int64(n)); err != nil {
						return
					}
				}
			})
			logged := follow(t, p, "you", address)
			g.Eventually(logged).WithTimeout(patience).Should(ContainSubstring("it sends more than a replica has"))
			// What was sent is hardly more than what was received: buffers of the network.
			most := p.options.MaxReceived*int64(len(tc.says))/tc.takes + 12<<20
			g.Expect(sent.Load()).To(BeNumerically("<", most))
			g.Consistently(func() int { return strings.Count(logged(), "it sends more") }).
				WithTimeout(longestBackoff+time.Second).Should(Equal(1), "it is left alone")
			g.Expect(sent.Load()).To(BeNumerically("<", most))
			g.Expect(p.listener.(*heard).all()).To(BeEmpty())
		})
	}
}

// What a list has of another type is not passed on.
func TestOtherType(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	logged := follow(t, p, "you", memberAt(t, p, authority, "you", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if req.URL.Query().Get("watch") != "" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		_, _ = fmt.Fprint(w, `{"kind": "SecretList", "apiVersion": "state.latchkey.dev/v1alpha1", "metadata":
			{"resourceVersion": "1"}, "items": [{"metadata": {"name": "red"}}]}`)
	}))
	g.Eventually(logged).WithTimeout(patience).Should(ContainSubstring("it sends objects of another type"))
	g.Expect(p.listener.(*heard).all()).To(BeEmpty())
}

// A member leads nowhere else.
func TestRedirects(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	var elsewhere atomic.Int32
	to := memberAt(t, p, authority, "you", func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	logged := follow(t, p, "you", memberAt(t, p, authority, "you", func(w http.ResponseWriter, req *http.Request) {

		http.Redirect(w, req, "https://"+to+req.URL.Path, http.StatusTemporaryRedirect)
	}))
	g.Eventually(logged).WithTimeout(patience).Should(ContainSubstring("it leads elsewhere"))
	g.Expect(elsewhere.Load()).To(BeZero())
}

// What is said of a try has no port of this process, which is another one each time.
func TestReason(t *testing.T) {
	g := NewWithT(t)
	err := errors.WithMessage(&net.OpError{
		Op:     "read",
		Net:    "tcp",
		Source: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:54321")),
		Addr:   net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.2:6444")),
		Err:    syscall.ECONNRESET,
	}, "listing")
	g.Expect(err.Error()).To(ContainSubstring("54321"))
	g.Expect(reason(err)).To(Equal("listing: read tcp 10.0.0.2:6444: connection reset by peer"))
}

// A Lease has expired when it was not seen to change for its duration, whatever it says.
func TestObserved(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	o := observed{longest: 15 * time.Second, leases: map[string]observation{}}
	lease := func(version string, seconds int32) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "l", ResourceVersion: version},
			Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds},
		}
	}
	counts := func(second int) []int {
		current, old := o.current(at(second))
		return []int{len(current), len(old)}
	}
	o.see(lease("1", 3600), begin)
	g.Expect(counts(14)).To(Equal([]int{1, 0}))
	o.see(lease("1", 3600), at(14)) // a list has it again
	g.Expect(counts(15)).To(Equal([]int{0, 0}), "no longer than that of the fleet")
	o.see(lease("2", 5), at(20))
	g.Expect(counts(24)).To(Equal([]int{1, 0}))
	g.Expect(counts(25)).To(Equal([]int{0, 0}))
	g.Expect(counts(171)).To(Equal([]int{0, 1}))
	o.gone("l")
	g.Expect(counts(171)).To(Equal([]int{0, 0}))
	for n := range maxObserved + 1 {
		o.see(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(n)}}, begin)
	}
	g.Expect(counts(0)).To(Equal([]int{maxObserved, 0}))
}
