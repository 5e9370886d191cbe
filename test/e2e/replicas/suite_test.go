package replicas

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

var (
	unfenced  = flag.Bool("unfenced", false, "run replicas without a fence, to see the tests fail")
	logs      = flag.Bool("logs", false, "show the logs of the replicas also if the test passes")
	rounds    = flag.Int("rounds", testenv.Long(1, 3), "how often a leader is suspended")
	sequences = flag.Int("sequences", 4, "how many random sequences of faults")
	views     = flag.Int("views", 2, "how many random sequences of faults the view of all replicas is to survive")
	seed      = flag.Uint64("seed", 1, "seed of the first random sequence of faults")
	rows      = flag.Int("rows", 30, "how many extensions the views of replicas have")
	size      = flag.Int("extensions", 300, "how many extensions replicas share")
)

const busyVariable = "LATCHKEY_TEST_BUSY"

// patience bounds waits on a loaded machine.
const patience = time.Minute

var cp *controlplane.ControlPlane

func TestMain(m *testing.M) {
	if text := os.Getenv(optionsVariable); text != "" {
		if err := runReplica(text); err != nil {
			fmt.Fprintln(os.Stderr, "replica:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(busyVariable) != "" {
		spin()
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if testenv.Short() {
		return 0
	}
	var err error
	cp, err = controlplane.Start(context.Background(), controlplane.Options{
		Aggregation: true,
		CRDs:        []string{"../../../config/crd"},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := cp.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// extensions creates extensions whose ServiceAccounts may write ConfigMaps.
func extensions(t *testing.T, prefix string, n int) (names []string) {
	t.Helper()
	var manifests strings.Builder
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		names = append(names, name)
		fmt.Fprintf(&manifests, `
---
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: default, name: %[1]s}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: default, name: %[1]s}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: default, name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit-configmaps}
subjects: [{kind: ServiceAccount, namespace: default, name: %[1]s}]
---
apiVersion: latchkey.dev/v1alpha1
kind: ClusterExtension
metadata: {name: %[1]s}
spec: {namespace: default, serviceAccount: {name: %[1]s}}
`, name)
	}
	_, err := cp.KubectlInput(t.Context(), `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: edit-configmaps}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, patch]}]
`+manifests.String(), "apply", "-f", "-")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, _ = cp.Kubectl(context.Background(), "delete", "lease", leaderLease, "--ignore-not-found")
		_, _ = cp.Kubectl(context.Background(), append([]string{"delete", "clusterextensions.latchkey.dev"}, names...)...)
	})
	return names
}

// replica is a running replica.
type replica struct {
	name  string
	cmd   *exec.Cmd
	log   *testutil.Output
	out   *testutil.Output // its report
	ended chan struct{}    // closed when the process has ended

	mu       sync.Mutex
	reported []change // guarded by mu; what of out was decoded, up to the offset decoded
	decoded  int      // guarded by mu
}

// startReplica starts a replica, whose name no other process of the test has.
func startReplica(t testing.TB, o options) *replica {
	t.Helper()
	g := NewWithT(t)
	o.Kubeconfig, o.Unfenced = cp.Kubeconfig(), *unfenced
	text, err := json.Marshal(o)
	g.Expect(err).NotTo(HaveOccurred())
	program, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	r := &replica{
		name:  o.Name,
		cmd:   exec.Command(program),
		log:   &testutil.Output{},
		out:   &testutil.Output{},
		ended: make(chan struct{}),
	}
	r.cmd.Env = append(os.Environ(), optionsVariable+"="+string(text))
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.log
	g.Expect(r.cmd.Start()).To(Succeed())
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		r.signal(syscall.SIGKILL)
		<-r.ended
		if t.Failed() || *logs {
			t.Logf("%s logged:\n%s", r.name, r.log)
		}
	})
	return r
}

// GomegaString implements format.GomegaStringer. Without it, gomega reads fields that are being
// written.
func (r *replica) GomegaString() string { return r.name }

// hasEnded reports whether the process has ended.
func (r *replica) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

func (r *replica) signal(signal os.Signal) { _ = r.cmd.Process.Signal(signal) }

// requests returns how many requests of tenants the replica has sent.
func (r *replica) requests() int {
	audit.mu.Lock()
	defer audit.mu.Unlock()
	audit.readLocked()
	n := 0
	for _, requests := range audit.requests {
		for _, request := range requests {
			if request.replica == r.name {
				n++
			}
		}
	}
	return n
}

// writes waits until the replica has sent more requests as tenants.
func (r *replica) writes(t *testing.T, more int) {
	t.Helper()
	before := r.requests()
	NewWithT(t).Eventually(r.requests).WithTimeout(patience).WithPolling(20*time.Millisecond).
		Should(BeNumerically(">=", before+more), "requests of %s", r.name)
}

// tenantRequest is a request that a replica has sent as a tenant, as the API server received it.
type tenantRequest struct {
	replica, extension string
	at                 time.Time
	uri                string
}

// leaseWrite is a write to the Lease of a bucket that the API server has carried out.
type leaseWrite struct {
	replica string
	bucket  int
	at      time.Time // of the answer
}

// auditReader reads the audit log as it grows. Its methods may be called from any goroutine.
type auditReader struct {
	mu       sync.Mutex
	offset   int64                      // guarded by mu; of the first line that was not read
	requests map[string][]tenantRequest // guarded by mu; by the prefix of the extension's name
	leases   map[string][]leaseWrite    // guarded by mu; by fleet
	// guarded by mu; the updates that the API server has answered, by the prefix of the extension
	updates map[string][]tenantUpdate
}

var audit = auditReader{
	requests: map[string][]tenantRequest{},
	leases:   map[string][]leaseWrite{},
	updates:  map[string][]tenantUpdate{},
}

// tenantRequests returns the requests of all replicas as the tenants whose names begin with prefix
// and a dash, by the time at which the API server received them.
func tenantRequests(prefix string) []tenantRequest {
	audit.mu.Lock()
	defer audit.mu.Unlock()
	audit.readLocked()
	requests := slices.Clone(audit.requests[prefix])
	slices.SortStableFunc(requests, func(x, y tenantRequest) int { return x.at.Compare(y.at) })
	return requests
}

// tenantUpdate is an update of a tenant that the API server has answered.
type tenantUpdate struct {
	tenantRequest
	answered time.Time
	code     int32
}

// tenantUpdates returns the updates of tenantRequests.
func tenantUpdates(prefix string) []tenantUpdate {
	audit.mu.Lock()
	defer audit.mu.Unlock()
	audit.readLocked()
	return slices.Clone(audit.updates[prefix])
}

// leaseWrites returns the writes to the Leases of a fleet's buckets, by the time of the answer.
func leaseWrites(fleet string) []leaseWrite {
	audit.mu.Lock()
	defer audit.mu.Unlock()
	audit.readLocked()
	writes := slices.Clone(audit.leases[fleet])
	slices.SortStableFunc(writes, func(x, y leaseWrite) int { return x.at.Compare(y.at) })
	return writes
}

func (a *auditReader) readLocked() {
	file, err := os.Open(cp.AuditLog())
	if err != nil {
		return
	}
	defer file.Close()
	if _, err := file.Seek(a.offset, io.SeekStart); err != nil {
		return
	}
	for lines := bufio.NewReaderSize(file, 1<<20); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // also a line that the API server has not finished
		}
		a.offset += int64(len(line))
		ofTenant, complete := bytes.Contains(line, []byte(" extension/")), bytes.Contains(line, []byte(`"stage":"ResponseComplete"`))
		ofUpdate := ofTenant && complete && bytes.Contains(line, []byte(`"verb":"update"`))
		ofLease := bytes.Contains(line, []byte("-bucket-")) && complete
		ofTenant = ofTenant && bytes.Contains(line, []byte(`"stage":"RequestReceived"`))
		if !ofTenant && !ofLease && !ofUpdate {
			continue
		}
		var event auditv1.Event
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		if ofLease {
			a.leaseLocked(&event)
			continue
		}
		replica, extension, _ := strings.Cut(event.UserAgent, " extension/")
		prefix := prefixOf(extension)
		request := tenantRequest{replica, extension, event.RequestReceivedTimestamp.Time,
			event.Verb + " " + event.RequestURI}
		if ofUpdate && event.ResponseStatus != nil {
			a.updates[prefix] = append(a.updates[prefix],
				tenantUpdate{request, event.StageTimestamp.Time, event.ResponseStatus.Code})
		}
		if !ofTenant {
			continue
		}
		a.requests[prefix] = append(a.requests[prefix], request)
	}
}

// prefixOf returns the name of an extension without the last dash and what follows.
func prefixOf(extension string) string { return extension[:max(0, strings.LastIndex(extension, "-"))] }

func (a *auditReader) leaseLocked(event *auditv1.Event) {
	if event.Verb != "update" && event.Verb != "create" || event.ObjectRef == nil || event.ResponseStatus == nil ||
		event.ResponseStatus.Code >= 300 {
		return
	}
	name := event.ObjectRef.Name
	fleet, number, ok := strings.Cut(name, "-bucket-")
	if bucket, err := strconv.Atoi(number); ok && err == nil {
		a.leases[fleet] = append(a.leases[fleet], leaseWrite{event.UserAgent, bucket, event.StageTimestamp.Time})
	}
}

// expectNoOverlap checks that the requests of each replica are in one piece: none is after the
// first of its successor. It returns the replicas in their order.
func expectNoOverlap(t *testing.T, prefix string) (order []string) {
	t.Helper()
	var last tenantRequest
	for _, request := range tenantRequests(prefix) {
		if request.replica == last.replica {
			last = request
			continue
		}
		if slices.Contains(order, request.replica) {
			t.Errorf("%s sent %s at %s, %s after %s had sent %s", request.replica, request.uri,
				request.at.Format(time.StampMicro), request.at.Sub(last.at), last.replica, last.uri)
		}
		order = append(order, request.replica)
		last = request
	}
	return order
}

// expectNoInterleaving checks for each extension that the requests of each replica are in one
// piece, until the extension comes back to the replica: that a replica which has sent a request
// after another one does not follow a request of its own that was sent before it gave the extension
// up cannot be seen, so each return needs a connect.
func expectNoInterleaving(t *testing.T, prefix string) {
	t.Helper()
	last := map[string]tenantRequest{}
	returns := 0
	for _, request := range tenantRequests(prefix) {
		before, known := last[request.extension]
		last[request.extension] = request
		if !known || before.replica == request.replica {
			continue
		}
		returns++
		if !strings.Contains(request.uri, "selfsubjectreviews") {
			t.Errorf("%s sent %s for %s at %s, %s after %s had sent %s, and had not connected anew", request.replica,
				request.uri, request.extension, request.at.Format(time.StampMicro), request.at.Sub(before.at), before.replica,
				before.uri)
		}
	}
	t.Logf("%d moves", returns)
	NewWithT(t).Expect(returns).To(BeNumerically(">", 0))
}

// proxy forwards TCP connections to a server. set cuts them, or lets their data wait. lag and
// fallBehind let what the server says come late on some of them.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []*proxied    // guarded by mu
	cut      bool          // guarded by mu; new connections are closed
	flows    chan struct{} // guarded by mu; closed while data flows
	running  sync.WaitGroup
	address  string // of what it leads to
}

// proxied is a connection through a proxy.
type proxied struct {
	client, server net.Conn
	begun          time.Time
	cut            chan struct{} // closed when it is cut
	flows          chan struct{} // guarded by proxy.mu; closed while what the server says flows
	behind         *behind       // guarded by proxy.mu; nil if what the server says comes at once
}

// startProxy starts a proxy in front of the API server.
func startProxy(t testing.TB) *proxy {
	t.Helper()
	server, err := url.Parse(cp.Config().Host)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return startProxyTo(t, server.Host)
}

func startProxyTo(t testing.TB, address string) *proxy {
	t.Helper()
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	p := &proxy{listener: listener, address: address, flows: make(chan struct{})}
	close(p.flows)
	p.running.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.set(true, false)
		p.set(true, true)
		p.running.Wait()
	})
	return p
}

// url returns where clients reach the API server through the proxy.
func (p *proxy) url() string { return "https://" + p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		upstream, err := net.Dial("tcp", p.address)
		if err != nil {
			_ = conn.Close()
			continue
		}
		p.mu.Lock()
		if p.cut {
			_, _ = conn.Close(), upstream.Close()
		} else {
			one := &proxied{
				client: conn,
				server: upstream,
				begun:  time.Now(),
				cut:    make(chan struct{}),
				flows:  make(chan struct{}),
			}
			close(one.flows)
			p.conns = append(p.conns, one)
			p.running.Go(func() { p.forward(upstream, conn, func() chan struct{} { return p.flows }) })
			p.running.Go(func() {
				late, end := p.readLate(one)
				defer end()
				p.forward(conn, late, func() chan struct{} { return p.flows }, func() chan struct{} { return one.flows })
				p.mu.Lock()
				defer p.mu.Unlock()
				p.conns = slices.DeleteFunc(p.conns, func(other *proxied) bool { return other == one })
			})
		}
		p.mu.Unlock()
	}
}

// forward copies data while it may flow. What it has read stays there until then.
func (p *proxy) forward(to io.WriteCloser, from io.Reader, gates ...func() chan struct{}) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		for _, gate := range gates {
			p.mu.Lock()
			flows := gate()
			p.mu.Unlock()
			<-flows
		}
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// set cuts the path, or lets data wait in it.
func (p *proxy) set(cut, flows bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	select {
	case <-p.flows:
		if !flows {
			p.flows = make(chan struct{})
		}
	default:
		if flows {
			close(p.flows)
		}
	}
	if cut {
		for _, one := range p.conns {
			_, _ = one.client.Close(), one.server.Close()
			close(one.cut)
		}
		p.conns = nil
	}
}

// connections returns those that there are.
func (p *proxy) connections() []*proxied {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.conns)
}

// behind lets what the server says come later and later, each time before the reader takes the
// server for silent: what is said at a time after the beginning comes slope times that time later.
type behind struct {
	begun time.Time
	ended chan struct{} // closed when all comes at once again
}

const slope = 2.0

// fallBehind lets what the server says on some connections come later and later, until end is
// called.
func (p *proxy) fallBehind(conns []*proxied) (end func()) {
	late := &behind{begun: time.Now(), ended: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range conns {
		one.behind = late
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, one := range conns {
			if one.behind == late {
				one.behind = nil
			}
		}
		close(late.ended)
	})
}

// lateReader reads what the server said on a connection, when it is time.
type lateReader struct {
	said chan lateBytes
	rest []byte
	cut  chan struct{}
}

type lateBytes struct {
	data   []byte
	due    time.Time
	behind *behind
}

// readLate returns a reader of what the server says on a connection, until end is called.
func (p *proxy) readLate(one *proxied) (reader io.Reader, end func()) {
	said, ended := make(chan lateBytes, 1<<12), make(chan struct{})
	late := &lateReader{said: said, cut: one.cut}
	p.running.Go(func() {
		defer close(said)
		for {
			data := make([]byte, 32<<10)
			n, err := one.server.Read(data)
			next := lateBytes{data: data[:n], due: time.Now()}
			p.mu.Lock()
			if next.behind = one.behind; next.behind != nil {
				next.due = next.due.Add(time.Duration(slope * float64(next.due.Sub(next.behind.begun))))
			}
			p.mu.Unlock()
			select {
			case said <- next:
			case <-ended:
				return
			}
			if err != nil {
				return
			}
		}
	})
	return late, func() { close(ended) }
}

// Read implements io.Reader.
func (r *lateReader) Read(data []byte) (int, error) {
	for len(r.rest) == 0 {
		next, more := <-r.said
		if !more {
			return 0, io.EOF
		}
		if next.behind != nil {
			select {
			case <-time.After(time.Until(next.due)):
			case <-next.behind.ended:
			case <-r.cut:
				return 0, io.ErrClosedPipe
			}
		}
		r.rest = next.data
	}
	n := copy(data, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// longestLag is less than the time after which a replica is not heard. In lagPause what was held
// goes on.
const (
	longestLag = 3 * time.Second
	lagPause   = 200 * time.Millisecond
)

// lag holds what the server says on about half of the connections that there are now, again and
// again, until end is called.
func (p *proxy) lag(random *rand.Rand) (end func()) {
	done := make(chan struct{})
	var holding sync.WaitGroup
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.conns {
		if random.IntN(2) == 0 {
			continue
		}
		hold := longestLag/2 + time.Duration(random.Int64N(int64(longestLag/2)))
		holding.Go(func() {
			for ended := false; !ended; {
				flows := make(chan struct{})
				p.mu.Lock()
				one.flows = flows
				p.mu.Unlock()
				select {
				case <-done:
					ended = true
				case <-time.After(hold):
				}
				close(flows)
				select {
				case <-done:
				case <-time.After(lagPause):
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		close(done)
		holding.Wait()
	})
}
