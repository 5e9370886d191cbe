package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// gracePeriod is how soon after SIGTERM the manager must have exited, even if the API server does
// not answer: the chart's terminationGracePeriodSeconds, after which the kubelet kills the manager.
// TestEndsWithin tests the manager's own bound.
const gracePeriod = 20 * time.Second

// kubeconfigFile writes c to a kubeconfig file and returns the name of the file.
func kubeconfigFile(t *testing.T, c *rest.Config) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kubeconfig")
	NewWithT(t).Expect(clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: c.Host, CertificateAuthorityData: c.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"it": {ClientCertificateData: c.CertData, ClientKeyData: c.KeyData},
		},
	}, name)).To(Succeed())
	return name
}

// freeAddress returns an address on loopback that no process listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	return listener.Addr().String()
}

// runningManager is a running "latchkey manager".
type runningManager struct {
	process *os.Process
	printed *testutil.Output
	ended   chan error
}

func startManager(t *testing.T, args ...string) *runningManager {
	t.Helper()
	cmd := latchkey(t, append([]string{"manager", "--guarded-by-admission", "--metrics-bind-address=0"}, args...)...)
	m := &runningManager{printed: &testutil.Output{}, ended: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = m.printed, m.printed
	NewWithT(t).Expect(cmd.Start()).To(Succeed())
	m.process = cmd.Process
	go func() { m.ended <- cmd.Wait() }()
	return m
}

// A manager without permissions stays up, and /readyz names the missing permissions. Once they are
// granted, the manager continues. SIGTERM ends the manager.
func TestManagerWithoutPermissions(t *testing.T) {
	g := NewWithT(t)
	cp := startControlPlane(t, config.RBAC)
	powerless, err := cp.UserConfig("powerless")
	g.Expect(err).NotTo(HaveOccurred())
	address := freeAddress(t)
	m := startManager(t, "--kubeconfig", kubeconfigFile(t, powerless), "--health-probe-bind-address="+address)
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	ready := func() int { status, _ := get("/readyz"); return status }
	for _, check := range []string{"may-list-and-watch-ClusterExtension.latchkey.dev",
		"may-list-and-watch-ServiceAccount"} {
		g.Eventually(func() string { _, body := get("/readyz"); return body }).WithTimeout(time.Minute).
			WithPolling(100*time.Millisecond).Should(ContainSubstring("[-]"+check+" failed"), "%s", m.printed)
		// At first the check reports that the first list is not complete.
		g.Eventually(func() string { _, body := get("/readyz/" + check); return body }).WithTimeout(time.Minute).
			WithPolling(100*time.Millisecond).Should(
			And(ContainSubstring(`User "powerless" cannot`), ContainSubstring(`verbs: ["list", "watch"]}`)), "%s", m.printed)
	}
	g.Expect(ready()).To(Equal(http.StatusInternalServerError))
	live, _ := get("/healthz")
	g.Expect(live).To(Equal(http.StatusOK), "a restart does not grant the permission")

	denials := func() int { return strings.Count(m.printed.String(), `"Extensions cannot be read"`) }
	g.Eventually(denials).WithTimeout(time.Minute).Should(Equal(1), "%s", m.printed)

	_, err = cp.Kubectl(t.Context(), "create", "clusterrolebinding", "powerful", "--clusterrole=latchkey-operator",
		"--user=powerless")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(ready).WithTimeout(time.Minute).WithPolling(100*time.Millisecond).
		Should(Equal(http.StatusOK), "%s", m.printed)
	g.Eventually(m.printed.String).WithTimeout(time.Minute).Should(ContainSubstring(`"Extensions can be read"`))

	_, err = cp.Kubectl(t.Context(), "delete", "clusterrolebinding", "powerful")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(ready).WithTimeout(time.Minute).WithPolling(100 * time.Millisecond).
		Should(Equal(http.StatusInternalServerError))
	g.Eventually(denials).WithTimeout(time.Minute).Should(Equal(2), "%s", m.printed)
	g.Expect(m.process.Signal(syscall.SIGTERM)).To(Succeed())
	g.Eventually(m.ended).WithTimeout(gracePeriod).Should(Receive(BeNil()), "%s", m.printed)
	g.Expect(denials()).To(Equal(2), "one log line per denial: %s", m.printed)
	for line := range strings.Lines(m.printed.String()) {
		g.Expect(line).NotTo(Or(ContainSubstring("panic"), ContainSubstring("stacktrace")),
			"the log has no stack traces: a missing permission is not a bug")
	}
}

// endsWithin waits for the shutdown as long as it may take, and no longer.
func TestEndsWithin(t *testing.T) {
	for name, test := range map[string]struct {
		takes, want time.Duration
		err         string
	}{
		"a shutdown in time": {takes: shutdownTimeout - time.Second, want: shutdownTimeout - time.Second, err: "ended"},
		"one that hangs": {
			takes: time.Hour,
			want:  shutdownTimeout,
			err:   "shutdown did not complete within 9s of the signal",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				ctx, signal := context.WithTimeout(t.Context(), time.Minute)
				defer signal()
				begin := time.Now()
				err := endsWithin(ctx, shutdownTimeout, func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(test.takes)
					return errors.New("ended")
				})
				g.Expect(err).To(MatchError(ContainSubstring(test.err)))
				g.Expect(time.Since(begin)).To(Equal(time.Minute + test.want))
				time.Sleep(time.Hour) // until the shutdown has ended
			})
		})
	}
}

// SIGTERM ends the manager within gracePeriod although the API server hangs. A second signal ends
// the manager at once.
func TestManagerEndsThoughTheAPIServerHangs(t *testing.T) {
	testenv.SkipIfShort(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	dials := make(chan struct{}, 1000)
	var conns []net.Conn
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn) // stays open and receives no answer
			dials <- struct{}{}
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-accepting
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	hangingServer := &rest.Config{Host: "https://" + listener.Addr().String()}
	start := func(t *testing.T, args ...string) *runningManager {
		for len(dials) > 0 {
			<-dials
		}
		m := startManager(t,
			append([]string{"--kubeconfig", kubeconfigFile(t, hangingServer), "--health-probe-bind-address=0"}, args...)...)
		NewWithT(t).Eventually(dials).WithTimeout(time.Minute).Should(Receive(), "%s", m.printed)
		return m
	}
	for name, args := range map[string][]string{"without leader election": nil,
		"with leader election": {"--leader-elect", "--leader-election-namespace=default"}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			m := start(t, args...)
			g.Expect(m.process.Signal(syscall.SIGTERM)).To(Succeed())
			g.Eventually(m.ended).WithTimeout(gracePeriod).Should(Receive(), "%s", m.printed)
		})
	}
	t.Run("a second signal", func(t *testing.T) {
		g := NewWithT(t)
		m := start(t)
		g.Expect(m.process.Signal(syscall.SIGTERM)).To(Succeed())
		// Signals are sent repeatedly, because two signals that arrive before the first is handled
		// may count as one.
		g.Eventually(func() error {
			_ = m.process.Signal(syscall.SIGTERM)
			select {
			case err := <-m.ended:
				return err
			default:
				return nil
			}
		}).WithTimeout(shutdownTimeout / 3).WithPolling(50 * time.Millisecond).
			Should(MatchError(ContainSubstring("signal: terminated")))
	})
}

// Errors name the flags as the user typed them, and not the fields behind them.
func TestManagerFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"outside of a cluster need --leader-election-namespace": {"--leader-elect"},
		"need --leader-election-namespace for their leases":     {"--buckets=4"},
		"--leader-elect lets one replica serve all extensions":  {"--leader-elect", "--buckets=4"},
		"--buckets and --ring exclude each other":               {"--ring=x", "--buckets=4"},
		"--buckets: Options.Buckets must be from 1 to 1024, not -1": {"--buckets=-1",
			"--leader-election-namespace=x"},
		"--ring: Options.Ring":                                           {"--ring=a/b", "--leader-election-namespace=x"},
		`--user-agent "a\nb" must be one line`:                           {"--user-agent=a\nb"},
		"--metrics-cert-dir needs --metrics-secure":                      {"--metrics-cert-dir=/tmp"},
		"--status-address must be host:port":                             {"--status-address=8082"},
		"--status-address :8082 is not on loopback: set --status-secure": {"--status-address=:8082"},
		"--status-address 10.0.0.1:8082 is not on loopback":              {"--status-address=10.0.0.1:8082"},
		"--status-address :8082 is not on loopback: set --status-cert-dir": {"--status-address=:8082",
			"--status-secure"},
		"--status-cert-dir needs --status-secure": {"--status-address=localhost:0",
			"--status-cert-dir=/tmp"},
		"--status-secure and --status-cert-dir need --status-address": {"--status-secure"},
		`"Team" is not a namespace`:                                   {"--service-account-namespaces=a,Team"},
	} {
		t.Run(want, func(t *testing.T) {
			g := NewWithT(t)
			out, err := latchkey(t,
				append([]string{"manager", "--guarded-by-admission", "--kubeconfig",
					kubeconfigFile(t, &rest.Config{Host: "https://127.0.0.1:1"})}, args...)...).CombinedOutput()
			g.Expect(err).To(HaveOccurred())
			g.Expect(string(out)).To(ContainSubstring(want))
			g.Expect(string(out)).NotTo(ContainSubstring("LeaderElectionNamespace"))
		})
	}
}

// Namespaces restrict where ServiceAccounts are read. A later flag replaces an earlier one.
func TestNamespaceList(t *testing.T) {
	g := NewWithT(t)
	var list namespaceList
	g.Expect(list.byObject()).To(BeNil(), "all namespaces")
	g.Expect(list.Set("c")).To(Succeed())
	g.Expect(list.Set("b, a,b")).To(Succeed())
	g.Expect(list.String()).To(Equal("a,b"))
	g.Expect(list.byObject()).To(HaveLen(1))
	for object, settings := range list.byObject() {
		g.Expect(object.GetObjectKind().GroupVersionKind().Kind).To(Equal("ServiceAccount"))
		g.Expect(settings.Namespaces).To(And(HaveLen(2), HaveKey("a"), HaveKey("b")))
	}
	g.Expect(list.Set("")).To(Succeed())
	g.Expect(list.byObject()).To(BeNil())
}
