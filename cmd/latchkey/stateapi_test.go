package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

const patience = 3 * time.Minute // a safety bound: informers of client-go wait up to a minute between tries

// kubeconfigOf writes a kubeconfig with a token.
func kubeconfigOf(t *testing.T, cp *controlplane.ControlPlane, token string) string {
	t.Helper()
	content, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "it",
		"contexts": []any{map[string]any{"name": "it", "context": map[string]any{"cluster": "it", "user": "it"}}},
		"clusters": []any{
			map[string]any{
				"name": "it", "cluster": map[string]any{
					"server": cp.Config().Host, "certificate-authority-data": cp.Config().CAData,
				},
			},
		},
		"users": []any{map[string]any{"name": "it", "user": map[string]any{"token": strings.TrimSpace(token)}}},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(t.TempDir(), "kubeconfig")
	NewWithT(t).Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
	return file
}

// replica is a process of "latchkey manager --state-api".
type replica struct {
	cmd     *exec.Cmd
	address string // that the state API listens on
	log     *testutil.Output
	ended   chan struct{}
}

// startReplica starts a manager, whose Pod would have the IP address.
func startReplica(t *testing.T, kubeconfig, ip string) *replica {
	t.Helper()
	return startReplicaWith(t, "--kubeconfig", kubeconfig, "--leader-elect", "--state-api-address="+ip)
}

func startReplicaWith(t *testing.T, flags ...string) *replica {
	t.Helper()
	r := &replica{address: freeAddress(t), log: &testutil.Output{}, ended: make(chan struct{})}
	r.cmd = latchkey(t, append([]string{"manager", "--guarded-by-admission", "--metrics-bind-address=0",
		"--health-probe-bind-address=0", "--leader-election-namespace=latchkey-system", "--state-api",
		"--state-api-namespace=latchkey-system", "--state-api-bind-address=" + r.address}, flags...)...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	NewWithT(t).Expect(r.cmd.Start()).To(Succeed())
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

func (r *replica) stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	<-r.ended
}

// serves reports whether the replica's state API answers.
func (r *replica) serves(client *http.Client) bool {
	resp, err := client.Get("https://" + r.address + "/healthz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return true // with whatever status
}

// relay forwards TCP connections to the replica that listens. Kubernetes refuses loopback addresses
// in EndpointSlices, so it stands for the cluster's network.
type relay struct {
	listener net.Listener
	replicas atomic.Pointer[[]*replica]
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	r := &relay{}
	r.replicas.Store(&[]*replica{})
	var err error
	r.listener, err = net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = r.listener.Close() })
	go func() {
		for {
			conn, err := r.listener.Accept()
			if err != nil {
				return
			}
			go r.forward(conn)
		}
	}()
	return r
}

func (r *relay) forward(conn net.Conn) {
	defer conn.Close()
	for _, to := range *r.replicas.Load() {
		if out, err := net.Dial("tcp", to.address); err == nil {
			defer out.Close()
			go func() {
				_, _ = io.Copy(out, conn)
				_ = out.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(conn, out)
			return
		}
	}
}

// The manager serves its state with what "latchkey state-api manifests" prints, and no more
// permissions: with a certificate of its own that the API server verifies, and at the address of
// the leader. When the leader ends or is killed, clients find the next one, there is never a second
// one that answers, and none of them takes a connection for deleted that exists.
func TestStateAPI(t *testing.T) {
	g := NewWithT(t)
	cp := testenv.Start(t, controlplane.Options{Aggregation: true})
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := cp.Kubectl(t.Context(), args...)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	apply := func(text string, args ...string) {
		t.Helper()
		_, err := cp.KubectlInput(t.Context(), text, append([]string{"apply", "-f", "-"}, args...)...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	kubectl("create", "namespace", "latchkey-system")
	kubectl("create", "serviceaccount", "latchkey", "-n", "latchkey-system")
	apply(config.Manifests(config.CRD))
	kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/clusterextensions.latchkey.dev")
	var forAnyNamespace []string // without Roles of other namespaces, which are for other features
	for document := range strings.SplitSeq(config.Manifests(config.RBAC), "\n---\n") {
		if !strings.Contains(document, "\n  namespace: ") {
			forAnyNamespace = append(forAnyNamespace, document)
		}
	}
	apply(strings.Join(forAnyNamespace, "\n---\n"), "-n", "latchkey-system")
	kubectl("create", "clusterrolebinding", "latchkey-operator", "--clusterrole=latchkey-operator",
		"--serviceaccount=latchkey-system:latchkey")
	kubectl("create", "rolebinding", "latchkey-leader-election", "-n", "latchkey-system",
		"--role=latchkey-leader-election", "--serviceaccount=latchkey-system:latchkey")
	for _, name := range []string{"red", "blue"} {
		kubectl("create", "serviceaccount", name, "-n", "default")
		apply(`{"apiVersion": "latchkey.dev/v1alpha1", "kind": "ClusterExtension", "metadata": {"name": "` + name + `"},
			"spec": {"namespace": "default", "serviceAccount": {"name": "` + name + `"}}}`)
	}

	// The manifests as printed, but for the Service, which leads to the relay.
	printed, err := latchkey(t, "state-api", "manifests").Output()
	g.Expect(err).NotTo(HaveOccurred())
	network := newRelay(t)
	_, port, _ := net.SplitHostPort(network.listener.Addr().String())
	apply(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "latchkey-state",
		"namespace": "latchkey-system"}, "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"name": "https", "port": ` + port + `}]}}`)
	kubeconfig := kubeconfigOf(t, cp, kubectl("create", "token", "latchkey", "-n", "latchkey-system", "--duration=2h"))
	first := startReplica(t, kubeconfig, "10.1.2.3")
	network.replicas.Store(&[]*replica{first})
	eventually := func(f func() string) AsyncAssertion {
		t.Helper()
		return g.Eventually(f).WithTimeout(patience).WithPolling(50 * time.Millisecond)
	}
	try := func(args ...string) func() string {
		return func() string {
			out, err := cp.Kubectl(t.Context(), args...)
			if err != nil {
				return err.Error()
			}
			return out
		}
	}
	// Without its permissions it says what it lacks, and goes on. With them it serves.
	eventually(first.log.String).Should(And(ContainSubstring("Cannot serve the state API yet"),
		ContainSubstring("bind Role extension-apiserver-authentication-reader in namespace kube-system")))
	_, rest, _ := strings.Cut(string(printed), "\n---\n")
	apply(strings.ReplaceAll(rest, "port: 443", "port: "+port))
	connected := And(MatchRegexp(`\nblue +system:serviceaccount:default:blue +Connected `),
		MatchRegexp(`\nred +system:serviceaccount:default:red +Connected `))
	eventually(try("get", "connections")).Should(connected)
	slice := try("get", "endpointslice", "latchkey-state-leader", "-n", "latchkey-system",
		"-o", "jsonpath={.endpoints[*].addresses[*]}:{.ports[*].port}:{.metadata.ownerReferences[*].kind}")
	portOf := func(r *replica) string { _, port, _ := net.SplitHostPort(r.address); return port }
	eventually(slice).Should(Equal("10.1.2.3:" + portOf(first) + ":Service"))

	// Another replica waits, and two clients watch.
	second := startReplica(t, kubeconfig, "10.1.2.4")
	network.replicas.Store(&[]*replica{first, second})
	direct := &http.Client{
		Timeout: time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		},
	} //nolint:gosec // only whether it answers
	watching, stopWatching := context.WithCancel(t.Context())
	var both atomic.Bool
	var background sync.WaitGroup
	t.Cleanup(background.Wait)
	t.Cleanup(stopWatching)
	var mu sync.Mutex
	replicas := []*replica{first, second} // guarded by mu
	background.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); watching.Err() == nil; {
			select {
			case <-watching.Done():
			case <-tick.C:
			}
			mu.Lock()
			current := replicas
			mu.Unlock()
			answering := 0
			for _, r := range current {
				if r.serves(direct) {
					answering++
				}
			}
			if answering > 1 {
				both.Store(true)
			}
		}
	})
	seen := watchConnections(watching, t, cp, &background)
	eventually(func() string { return seen.text() }).Should(Or(Equal("+blue +red"), Equal("+red +blue")))
	began := seen.text()

	// The leader ends, and an extension is deleted before the next one leads.
	g.Expect(second.serves(direct)).To(BeFalse(), "it does not lead")
	first.stop()
	g.Expect(first.log.String()).NotTo(ContainSubstring("panic"))
	kubectl("delete", "clusterextension", "blue")
	eventually(try("get", "connections")).Should(And(MatchRegexp(`\nred +system:serviceaccount:default:red +Connected `),
		Not(ContainSubstring("blue"))))
	eventually(slice).Should(Equal("10.1.2.4:" + portOf(second) + ":Service"))
	eventually(func() string { return seen.text() }).Should(Equal(began + " -blue"))

	// The next leader is killed, and cannot say so.
	third := startReplica(t, kubeconfig, "10.1.2.5")
	mu.Lock()
	replicas = []*replica{second, third}
	mu.Unlock()
	network.replicas.Store(&[]*replica{second, third})
	g.Expect(second.cmd.Process.Kill()).To(Succeed())
	apply(`{"apiVersion": "latchkey.dev/v1alpha1", "kind": "ClusterExtension", "metadata": {"name": "blue"},
		"spec": {"namespace": "default", "serviceAccount": {"name": "blue"}}}`)
	eventually(try("get", "connections")).Should(connected)
	eventually(func() string { return seen.text() }).Should(Equal(began + " -blue +blue"))
	g.Expect(both.Load()).To(BeFalse(), "two replicas served at a time")

	// With the manifests exactly as printed, the API server accepts the EndpointSlice that the leader
	// writes for the Service: it gets as far as dialing the Service's address, which leads nowhere
	// here.
	kubectl("delete", "service", "latchkey-state", "-n", "latchkey-system")
	apply(string(printed))
	eventually(try("get", "apiservice", "v1alpha1.state.latchkey.dev", "-o",
		`jsonpath={.status.conditions[?(@.type=="Available")].reason}`)).Should(Equal("FailedDiscoveryCheck"))

	// Uninstall: the APIService first, then the manager, whose address is withdrawn.
	kubectl("delete", "apiservice", "v1alpha1.state.latchkey.dev")
	third.stop()
	g.Expect(slice()).To(HavePrefix(":"), "no address")
	_, err = cp.Kubectl(t.Context(), "get", "connections")
	g.Expect(err).To(HaveOccurred(), "kubectl may remember that the resource existed")
	g.Expect(kubectl("get", "--raw", "/apis")).NotTo(ContainSubstring("state.latchkey.dev"))
}

// seen are the connections that an informer added and deleted.
type seen struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (s *seen) note(sign string, object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, sign+object.(*unstructured.Unstructured).GetName())
}

func (s *seen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, " ")
}

// watchConnections starts an informer.
func watchConnections(ctx context.Context, t *testing.T, cp *controlplane.ControlPlane,
	background *sync.WaitGroup) *seen {
	t.Helper()
	client, err := dynamic.NewForConfig(cp.Config())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	informer := dynamicinformer.NewFilteredDynamicInformer(client, schema.GroupVersionResource{
		Group:    "state.latchkey.dev",
		Version:  "v1alpha1",
		Resource: "connections",
	}, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	s := &seen{}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { s.note("+", object) },
		DeleteFunc: func(object any) { s.note("-", object) },
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	background.Go(func() { informer.RunWithContext(ctx) })
	return s
}

// Flags that cannot work are named.
func TestStateAPIFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"state-api manifests":              {"state-api"},
		"takes no arguments":               {"state-api", "manifests", "extra"},
		"namespace A":                      {"state-api", "manifests", "--namespace=A"},
		"a group of an aggregated API has": {"state-api", "manifests", "--group=" + strconv.Itoa(1)},
	} {
		out, err := latchkey(t, args...).CombinedOutput()
		NewWithT(t).Expect(err).To(HaveOccurred())
		NewWithT(t).Expect(string(out)).To(ContainSubstring(want))
	}
}

// The flags say how this replica is part of a fleet, and the errors which of them is wrong.
func TestFleetFlags(t *testing.T) {
	g := NewWithT(t)
	flags := stateFlags{service: "state", address: "192.0.2.1", peerBindAddress: ":6444"}
	options, err := flags.fleet("fleet", "ns", "me")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(options).To(Equal(stateapi.FleetOptions{
		Name:        "fleet",
		Namespace:   "ns",
		Identity:    "me",
		Secret:      "state-authority",
		BindAddress: ":6444",
		Address:     netip.MustParseAddrPort("192.0.2.1:6444"),
	}))
	flags.peerAddress, flags.authority = "[2001:db8::1]:7000", "mine"
	options, err = flags.fleet("fleet", "ns", "me")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(options.Address.String()).To(Equal("[2001:db8::1]:7000"))
	g.Expect(options.Secret).To(Equal("mine"))
	for want, wrong := range map[string]stateFlags{
		"--state-api-peer-address: ":                                 {peerAddress: "pod"},
		"--state-api-address: ":                                      {address: "pod"},
		"--state-api-peer-bind-address: ":                            {address: "::1", peerBindAddress: "6444"},
		`--state-api-peer-bind-address ":https" needs a port number`: {address: "::1", peerBindAddress: ":https"},
	} {
		_, err := wrong.fleet("fleet", "ns", "me")
		g.Expect(err).To(MatchError(ContainSubstring(want)))
	}
}

// Two managers that share the extensions serve one list of all, with the printed manifests, which
// may be applied again. The list names a replica as the Leases of its buckets do.
func TestStateAPIOfSharingReplicas(t *testing.T) {
	g := NewWithT(t)
	cp := testenv.Start(t, controlplane.Options{Aggregation: true})
	apply := func(text string) {
		t.Helper()
		_, err := cp.KubectlInput(t.Context(), text, "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	apply(config.Manifests(config.CRD))
	apply(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "latchkey-system"}}`)
	const extensions = 12
	for i := range extensions {
		apply(fmt.Sprintf(`{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: default, name: seen-%[1]d}}
---
apiVersion: latchkey.dev/v1alpha1
kind: ClusterExtension
metadata: {name: seen-%[1]d}
spec: {namespace: default, serviceAccount: {name: seen-%[1]d}}
`, i))
	}
	printed, err := latchkey(t, "state-api", "manifests", "--shared").Output()
	g.Expect(err).NotTo(HaveOccurred())
	network := newRelay(t)
	_, port, _ := net.SplitHostPort(network.listener.Addr().String())
	apply(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "latchkey-state",
		"namespace": "latchkey-system"}, "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"name": "https", "port": ` + port + `}]}}`)
	parts := strings.Split(string(printed), "\n---\n")
	others := slices.DeleteFunc(slices.Clone(parts), func(part string) bool {
		return strings.Contains(part, "\nkind: Service\n")
	})
	g.Expect(others).To(HaveLen(len(parts) - 1))
	rest := strings.ReplaceAll(strings.Join(others, "\n---\n"), "port: 443", "port: "+port)
	apply(rest)
	var pages []string
	start := func(ip string) *replica {
		peers, page := freeAddress(t), freeAddress(t)
		pages = append(pages, page)
		return startReplicaWith(t, "--kubeconfig", cp.Kubeconfig(), "--buckets=8", "--state-api-address="+ip,
			"--state-api-peer-bind-address="+peers, "--state-api-peer-address="+peers, "--status-address="+page)
	}
	first, second := start("10.1.2.3"), start("10.1.2.4")
	network.replicas.Store(&[]*replica{first, second})
	holders := func() map[string]int {
		out, err := cp.Kubectl(t.Context(), "get", "connections.state.latchkey.dev", "-o",
			`jsonpath={range .items[*]}{.status.state} {.status.replica}{"\n"}{end}`)
		if err != nil {
			return nil
		}
		found := map[string]int{}
		for line := range strings.Lines(out) {
			if state, replica, _ := strings.Cut(strings.TrimSpace(line), " "); state == "Connected" {
				found[replica]++
			}
		}
		return found
	}
	sum := func(found map[string]int) (sum int) {
		for _, n := range found {
			sum += n
		}
		return sum
	}
	g.Eventually(holders).WithTimeout(patience).Should(And(HaveLen(2), WithTransform(sum, Equal(extensions))))
	leases, err := cp.Kubectl(t.Context(), "get", "leases", "-n", "latchkey-system", "-l",
		"ownership.latchkey.dev/fleet=latchkey-manager", "-o", `jsonpath={range .items[*]}{.spec.holderIdentity}{"\n"}{end}`)
	g.Expect(err).NotTo(HaveOccurred())
	for holder := range holders() {
		g.Expect(strings.Split(leases, "\n")).To(ContainElement(holder))
	}
	for _, page := range pages {
		g.Eventually(func(g Gomega) { g.Expect(shownBy(page)).To(Equal(holders())) }).WithTimeout(patience).Should(Succeed(),
			"the status page of each has the extensions of both")
	}
	authority := func() string {
		out, err := cp.Kubectl(t.Context(), "get", "secret", "latchkey-state-authority", "-n", "latchkey-system", "-o",
			`jsonpath={.data.tls\.crt}`)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	before := authority()
	g.Expect(before).NotTo(BeEmpty())
	apply(rest)
	g.Expect(authority()).To(Equal(before))

	check := func(flags ...string) (string, error) {
		out, err := latchkey(t, append([]string{"check", "--from-state-api", "--once", "--kubeconfig", cp.Kubeconfig()},
			flags...)...).CombinedOutput()
		return string(out), err
	}
	out, err := check()
	g.Expect(err).NotTo(HaveOccurred(), out)
	g.Expect(out).To(HavePrefix("EXTENSION "))
	for holder := range holders() {
		g.Expect(out).To(MatchRegexp(`(?m)^seen-\d+ +system:serviceaccount:default:seen-\d+ +Connected +- +` + holder + ` +$`))
	}
	out, err = check("--state-api-group=other.example.com")
	g.Expect(err).To(HaveOccurred())
	g.Expect(out).To(ContainSubstring("there is no state API other.example.com here: run the operator with --state-api"))
	out, err = check("--kind=ConfigMap.v1.")
	g.Expect(err).To(HaveOccurred())
	g.Expect(out).To(ContainSubstring("--kind says how to connect, and --from-state-api connects nothing"))
	failed := &testutil.Output{}
	var lines *bufio.Scanner
	awaitLine := func(pattern string) {
		t.Helper()
		for lines.Scan() && !regexp.MustCompile(pattern).MatchString(lines.Text()) {
		}
		g.Expect(lines.Text()).To(MatchRegexp(pattern), failed.String)
	}
	watch := func() (*exec.Cmd, io.Reader) {
		t.Helper()
		watching := latchkey(t, "check", "--from-state-api", "--kubeconfig", cp.Kubeconfig())
		stdout, err := watching.StdoutPipe()
		g.Expect(err).NotTo(HaveOccurred())
		watching.Stderr = failed
		g.Expect(watching.Start()).To(Succeed())
		lines = bufio.NewScanner(stdout)
		awaitLine(`^seen-3 .* Connected `)
		return watching, stdout
	}
	watching, stdout := watch()
	_, err = cp.Kubectl(t.Context(), "delete", "serviceaccount", "seen-3", "-n", "default")
	g.Expect(err).NotTo(HaveOccurred())
	awaitLine(`^seen-3 .* Disconnected +ServiceAccountNotFound `)
	g.Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
	remaining, err := io.ReadAll(stdout)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(watching.Wait()).To(MatchError("exit status 1"), "%s", remaining)
	_, err = cp.Kubectl(t.Context(), "create", "serviceaccount", "seen-3", "-n", "default")
	g.Expect(err).NotTo(HaveOccurred())

	first.stop()
	g.Eventually(holders).WithTimeout(patience).Should(And(HaveLen(1), WithTransform(sum, Equal(extensions))))
	watching, _ = watch()
	second.stop()
	awaitLine(`^No answer since .*: no replica serves the state API `)
	g.Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
	g.Expect(watching.Wait()).To(MatchError("exit status 1"))
	for _, r := range []*replica{first, second} {
		g.Expect(r.log.String()).NotTo(Or(ContainSubstring("panic"), ContainSubstring("PRIVATE KEY")))
	}
}

// shownBy returns how many extensions the status page at an address shows as connected, by replica.
func shownBy(address string) map[string]int {
	resp, err := http.Get("http://" + address + "/status/view?state=Connected")
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	var view struct {
		Page struct{ Rows []struct{ Replica string } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&view); err != nil {
		return nil
	}
	found := map[string]int{}
	for _, row := range view.Page.Rows {
		found[row.Replica]++
	}
	return found
}
