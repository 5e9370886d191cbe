package controlplane

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/internal/controlplane/assets"
)

// auditPolicy logs the user and the request, but never a body, because bodies hold tokens.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
`

// Options configure a control plane. The zero value starts etcd and kube-apiserver without CRDs.
type Options struct {
	// CRDs are files or directories whose CustomResourceDefinitions are installed.
	CRDs []string
	// ControllerManager also starts kube-controller-manager. Without kube-controller-manager,
	// deleted namespaces stay Terminating, aggregated roles stay empty, and no default
	// ServiceAccounts exist.
	ControllerManager bool
	// Aggregation lets the API server authenticate to aggregated API servers.
	Aggregation bool
	// AuthenticationConfig starts the API server with an AuthenticationConfiguration, which trusts no
	// issuer until SetAuthenticationConfig.
	AuthenticationConfig bool
}

// ControlPlane is a running control plane. Its methods are not safe for concurrent use.
type ControlPlane struct {
	env        *envtest.Environment
	dir        string
	kubectl    string
	kubeconfig string
	manager    *exec.Cmd
	managerLog *os.File
	frontProxy *certs.Authority // nil without Options.Aggregation
}

// Start starts a control plane and returns once it is ready. The caller must call Stop.
func Start(ctx context.Context, options Options) (_ *ControlPlane, err error) {
	programs, err := assets.Find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "latchkey-controlplane-")
	if err != nil {
		return nil, errors.WithStack(err)
	}
	c := &ControlPlane{
		dir:        dir,
		kubectl:    filepath.Join(programs, "kubectl"),
		kubeconfig: filepath.Join(dir, "kubeconfig"),
		env: &envtest.Environment{
			BinaryAssetsDirectory:    programs,
			CRDDirectoryPaths:        options.CRDs,
			ErrorIfCRDPathMissing:    true,
			ControlPlaneStartTimeout: 2 * time.Minute, // long enough for a loaded machine
			ControlPlaneStopTimeout:  2 * time.Second, // after that envtest kills the processes
		},
	}
	defer func() {
		if err != nil {
			_ = c.Stop() // the caller gets the first error
		}
	}()

	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, errors.WithStack(err)
	}
	// A separate directory keeps certificates and signing keys across a restart of the API server.
	server := c.env.ControlPlane.GetAPIServer()
	server.CertDir = filepath.Join(dir, "kube-apiserver")
	if err := os.Mkdir(server.CertDir, 0o700); err != nil {
		return nil, errors.WithStack(err)
	}
	server.Configure().
		Set("audit-policy-file", policy).
		Set("audit-log-path", c.AuditLog()).
		Set("audit-log-maxsize", "1000"). // MB, so that the log does not rotate during a test
		Set("advertise-address", "127.0.0.1").
		// Nothing uses the endpoints of Service kubernetes, and Kubernetes 1.37 refuses to write a
		// loopback address into them.
		Set("endpoint-reconciler-type", "none")

	if options.AuthenticationConfig {
		if err := c.SetAuthenticationConfig(noAuthenticators); err != nil {
			return nil, err
		}
		server.Configure().Set("authentication-config", c.authenticationConfig())
	}
	if options.Aggregation {
		if err := c.enableAggregation(); err != nil {
			return nil, err
		}
	}
	if _, err := c.env.Start(); err != nil {
		return nil, errors.Wrap(err, "starting etcd and kube-apiserver")
	}
	if err := os.WriteFile(c.kubeconfig, c.env.KubeConfig, 0o600); err != nil {
		return nil, errors.WithStack(err)
	}
	if err := c.waitReady(ctx); err != nil {
		return nil, err
	}
	if options.ControllerManager {
		if err := c.startControllerManager(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Config returns a copy of the administrator's config.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.env.Config) }

// Kubeconfig returns the path of the file with the administrator's credentials.
func (c *ControlPlane) Kubeconfig() string { return c.kubeconfig }

// Programs returns the directory that holds kubectl and the other programs.
func (c *ControlPlane) Programs() string { return filepath.Dir(c.kubectl) }

// AuditLog returns the path of the file to which the API server writes one JSON audit event per
// line.
func (c *ControlPlane) AuditLog() string { return filepath.Join(c.dir, "audit.log") }

// UserConfig returns a config that authenticates as a user with a client certificate.
func (c *ControlPlane) UserConfig(name string) (*rest.Config, error) {
	user, err := c.env.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		return nil, errors.Wrapf(err, "adding user %s", name)
	}
	return user.Config(), nil
}

// Kubectl runs kubectl as the administrator and returns its standard output.
func (c *ControlPlane) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlInput(ctx, "", args...)
}

// KubectlInput is Kubectl with a standard input.
func (c *ControlPlane) KubectlInput(ctx context.Context, stdin string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, c.kubectl, append([]string{"--kubeconfig", c.kubeconfig}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(),
			errors.Wrapf(err, "kubectl %s: %s", strings.Join(args, " "), strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// KillAPIServer ends the API server within about 2 s, without the minute that the API server
// otherwise gives to open watches. etcd keeps its data. StartAPIServer restarts the API server at
// the same address, with the same certificates and signing keys.
func (c *ControlPlane) KillAPIServer(ctx context.Context) error {
	server := c.env.ControlPlane.APIServer
	_ = server.Stop() // Stop kills a process that does not end in time, and its error reports only that
	address := net.JoinHostPort(server.SecureServing.Address, server.SecureServing.Port)
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, "tcp", address)
			if err != nil {
				return true, nil // no process listens any more
			}
			return false, conn.Close()
		})
	return errors.Wrap(err, "killing kube-apiserver")
}

// StartAPIServer starts the API server again and waits until it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	if err := c.env.ControlPlane.APIServer.Start(); err != nil {
		return errors.Wrap(err, "starting kube-apiserver")
	}
	return c.waitReady(ctx)
}

// stopTimeout is how long Stop waits after it sent a server the signal to end.
const stopTimeout = 10 * time.Second

// Stop ends all programs and removes their files.
func (c *ControlPlane) Stop() error {
	if c.manager != nil {
		// SIGTERM instead of an interrupt, because shells make background processes ignore
		// interrupts.
		_ = c.manager.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(stopTimeout, func() { _ = c.manager.Process.Kill() })
		_ = c.manager.Wait() // the exit code only reports the signal
		kill.Stop()
		_ = c.managerLog.Close()
	}
	_ = c.env.Stop() // Stop kills a process that does not end in time, and its error reports only that
	return errors.Wrap(os.RemoveAll(c.dir), "removing the files of the control plane")
}

// waitReady waits until /readyz succeeds: before that, the API server answers 403 to authorized
// requests.
func (c *ControlPlane) waitReady(ctx context.Context) error {
	httpClient, err := rest.HTTPClientFor(c.env.Config)
	if err != nil {
		return errors.WithStack(err)
	}
	defer utilnet.CloseIdleConnectionsFor(httpClient.Transport)
	last := "no answer"
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.env.Config.Host, "/")+"/readyz",
				nil)
			if err != nil {
				return false, err
			}
			resp, err := httpClient.Do(req)
			if err != nil {
				last = err.Error()
				return false, nil
			}
			defer resp.Body.Close()
			last = resp.Status
			return resp.StatusCode == http.StatusOK, nil
		})
	return errors.Wrapf(err, "waiting for kube-apiserver to be ready, last seen: %s", last)
}

func (c *ControlPlane) startControllerManager() error {
	log, err := os.Create(filepath.Join(c.dir, "kube-controller-manager.log"))
	if err != nil {
		return errors.WithStack(err)
	}
	program, err := assets.FindControllerManager()
	if err != nil {
		return err
	}
	cmd := exec.Command(program,
		"--kubeconfig", c.kubeconfig,
		"--leader-elect=false",
		"--secure-port=0",
		"--service-account-private-key-file", c.keyFile(signingKeyFile),
	)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		_ = log.Close()
		return errors.Wrap(err, "starting kube-controller-manager")
	}
	c.manager, c.managerLog = cmd, log
	return nil
}
