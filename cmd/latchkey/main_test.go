package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/cmd/latchkey/demo"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// mainEnv makes the test binary run main.
const mainEnv = "LATCHKEY_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// latchkey returns a command that runs main with args as a separate process.
func latchkey(t *testing.T, args ...string) *exec.Cmd {
	self, err := os.Executable()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a safety bound
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // the process then stops its control plane
	cmd.WaitDelay = time.Minute
	return cmd
}

func TestDemo(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	out, err := latchkey(t, "demo", "--once").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	for _, step := range demo.Steps() {
		g.Expect(string(out)).To(ContainSubstring("] " + step + ": "))
	}
	g.Expect(string(out)).To(ContainSubstring("All 5 steps saw their expected results"))
	g.Expect(string(out)).NotTo(ContainSubstring("FAIL"))
}

// A tour that cannot fail proves nothing. Without its action each step must fail, and the error
// must name the step.
func TestDemoFailsWithoutACause(t *testing.T) {
	testenv.SkipIfShort(t)
	for _, step := range demo.Steps() {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			out, err := latchkey(t, "demo", "--once", "--break", step, "--patience", "30s").CombinedOutput()
			g.Expect(err).To(HaveOccurred())
			var exit *exec.ExitError
			g.Expect(errors.As(err, &exit)).To(BeTrue())
			g.Expect(exit.ExitCode()).To(Equal(1))
			g.Expect(string(out)).To(ContainSubstring("BREAK skipped"))
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			g.Expect(lines[len(lines)-1]).To(HavePrefix("latchkey: step "+step+": expected "), "%s", out)
		})
	}
}

// startControlPlane starts a control plane that serves our own ClusterExtension, with more
// manifests.
func startControlPlane(t *testing.T, more ...config.Folder) *controlplane.ControlPlane {
	t.Helper()
	g := NewWithT(t)
	cp := testenv.Start(t, controlplane.Options{})
	_, err := cp.KubectlInput(t.Context(), config.Manifests(append([]config.Folder{config.CRD}, more...)...),
		"apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=60s",
		"crd/clusterextensions.latchkey.dev")
	g.Expect(err).NotTo(HaveOccurred())
	return cp
}

func TestManager(t *testing.T) {
	g := NewWithT(t)
	cp := startControlPlane(t)
	_, err := cp.Kubectl(t.Context(), "create", "serviceaccount", "red", "-n", "default")
	g.Expect(err).NotTo(HaveOccurred())
	// A ConfigMap serves as an extension of another kind, with the reference in another field.
	_, err = cp.Kubectl(t.Context(), "create", "configmap", "red", "-n", "default", "--from-literal=sa=red")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), `{"apiVersion": "latchkey.dev/v1alpha1", "kind": "ClusterExtension", "metadata": {"name": "red"},
		"spec": {"namespace": "default", "serviceAccount": {"name": "red"}}}`, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())

	run := func(t *testing.T, args ...string) {
		g := NewWithT(t)
		cmd := latchkey(t,
			append([]string{"manager", "--kubeconfig", cp.Kubeconfig(), "--metrics-bind-address=0",
				"--health-probe-bind-address=0"}, args...)...)
		stderr, err := cmd.StderrPipe()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cmd.Start()).To(Succeed())
		var seen bytes.Buffer
		for lines := bufio.NewScanner(io.TeeReader(stderr, &seen)); lines.Scan() &&
			!strings.Contains(lines.Text(), `"Connected"`); {
		}
		g.Expect(seen.String()).To(ContainSubstring("system:serviceaccount:default:red"))
		g.Expect(cmd.Process.Signal(syscall.SIGTERM)).To(Succeed())
		_, _ = io.Copy(&seen, stderr)
		g.Expect(cmd.Wait()).To(Succeed(), "%s", seen.String())
	}
	t.Run("ClusterExtensions", func(t *testing.T) {
		run(t, "--guarded-by-admission", "--leader-elect", "--leader-election-namespace=default")
	})
	t.Run("any kind", func(t *testing.T) {
		run(t, "--kind=ConfigMap.v1.", "--namespace-path=.metadata.namespace", "--service-account-path=.data.sa")
	})
	t.Run("impersonation", func(t *testing.T) {
		run(t, "--credentials=impersonation", "--guarded-by-admission")
	})
	t.Run("kubeconfigs", func(t *testing.T) {
		g := NewWithT(t)
		token, err := cp.Kubectl(t.Context(), "create", "token", "red", "-n", "default")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = cp.Kubectl(t.Context(), "create", "secret", "generic", "red-kubeconfig", "-n", "default",
			"--from-file=value="+kubeconfigOf(t, cp, token))
		g.Expect(err).NotTo(HaveOccurred())
		run(t, "--credentials=kubeconfigs", "--kind=ConfigMap.v1.")
	})

	t.Run("check", func(t *testing.T) {
		g := NewWithT(t)
		check := func() (string, error) {
			out, err := latchkey(t, "check", "--once", "--kubeconfig", cp.Kubeconfig()).CombinedOutput()
			return string(out), err
		}
		out, err := check()
		g.Expect(err).NotTo(HaveOccurred(), out)
		g.Expect(out).To(MatchRegexp(`^EXTENSION .*\nred +system:serviceaccount:default:red +Connected +- +\n$`))

		_, err = cp.KubectlInput(t.Context(), `{"apiVersion": "latchkey.dev/v1alpha1", "kind": "ClusterExtension", "metadata": {"name": "lost"},
			"spec": {"namespace": "default", "serviceAccount": {"name": "missing"}}}`, "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
		out, err = check()
		var exit *exec.ExitError
		g.Expect(errors.As(err, &exit)).To(BeTrue(), out)
		g.Expect(exit.ExitCode()).To(Equal(1))
		g.Expect(out).To(And(MatchRegexp(`(?m)^lost +- +Disconnected +ServiceAccountNotFound +.*default/missing`),
			MatchRegexp(`(?m)^red .* Connected `), ContainSubstring("1 of 2 extensions are not connected")))

		watching := latchkey(t, "check", "--kubeconfig", cp.Kubeconfig())
		stdout, err := watching.StdoutPipe()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(watching.Start()).To(Succeed())
		lines := bufio.NewScanner(stdout)
		for lines.Scan() && !strings.Contains(lines.Text(), "ServiceAccountNotFound") {
		}
		_, err = cp.Kubectl(t.Context(), "create", "serviceaccount", "missing", "-n", "default")
		g.Expect(err).NotTo(HaveOccurred())
		connected := regexp.MustCompile(`^lost +system:serviceaccount:default:missing +Connected `)
		for lines.Scan() && !connected.MatchString(lines.Text()) {
		}
		g.Expect(lines.Text()).To(HavePrefix("lost "), "the change is printed")
		g.Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
		_, _ = io.Copy(io.Discard, stdout)
		g.Expect(watching.Wait()).To(Succeed(), "all extensions are connected now")
	})

	taken, err := net.Listen("tcp", "127.0.0.1:0") // options are checked before ports are bound
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer taken.Close()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a port that is taken": {[]string{"--guarded-by-admission"}, "--health-probe-bind-address: listen tcp"},
		"unknown credentials":  {[]string{"--credentials=passwords"}, "use tokens, impersonation or kubeconfigs"},
		"no guard for Secrets": {[]string{"--credentials=kubeconfigs", "--secret-namespace=default"},
			"--guarded-by-admission"},
		"no guard":           {nil, "--guarded-by-admission"},
		"malformed kind":     {[]string{"--kind=Extension"}, "not of the form Kind.version.group"},
		"malformed path":     {[]string{"--guarded-by-admission", "--namespace-path=a..b"}, "no dotted path"},
		"missing kubeconfig": {[]string{"--kubeconfig=/does/not/exist"}, "finding a cluster"},
		"arguments":          {[]string{"extra"}, "takes no arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			out, err := latchkey(t, append([]string{"manager", "--kubeconfig", cp.Kubeconfig(), "--metrics-bind-address=0",
				"--health-probe-bind-address=" + taken.Addr().String()}, tc.args...)...).CombinedOutput()
			g.Expect(err).To(HaveOccurred())
			g.Expect(string(out)).To(ContainSubstring(tc.want))
			g.Expect(string(out)).NotTo(ContainSubstring("panic"))
		})
	}
}

func TestVersion(t *testing.T) {
	out, err := latchkey(t, "version").CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(string(out)).To(MatchRegexp(`^latchkey \S+, built with go.*, sigs.k8s.io/controller-runtime v`))
}

func TestUsage(t *testing.T) {
	g := NewWithT(t)
	out, err := latchkey(t).CombinedOutput()
	g.Expect(err).To(HaveOccurred())
	g.Expect(string(out)).To(ContainSubstring("latchkey demo"))
	out, err = latchkey(t, "sing").CombinedOutput()
	g.Expect(err).To(HaveOccurred())
	g.Expect(string(out)).To(ContainSubstring(`no command "sing"`))
	out, err = latchkey(t, "manager", "-h").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(out)).
		To(And(ContainSubstring("namespace-path"), ContainSubstring("kubeconfig"), ContainSubstring("zap-log-level")))
	out, err = latchkey(t, "demo", "--break", "nothing").CombinedOutput()
	g.Expect(err).To(HaveOccurred())
	g.Expect(string(out)).To(ContainSubstring("steps are connect, repair"))
}
