package deployment

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// Decode returns the objects of a YAML stream.
func Decode(manifests string) (objects []*unstructured.Unstructured, err error) {
	for document := range strings.SplitSeq("\n"+manifests, "\n---") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return nil, errors.WithStack(err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// find returns the only object of a kind.
func find(objects []*unstructured.Unstructured, kind string, into any) error {
	var found *unstructured.Unstructured
	for _, object := range objects {
		if object.GetKind() != kind {
			continue
		}
		if found != nil {
			return errors.Errorf("the manifests have more than one %s", kind)
		}
		found = object
	}
	if found == nil {
		return errors.Errorf("the manifests have no %s", kind)
	}
	return errors.WithStack(runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, into))
}

// Options configure the process.
type Options struct {
	// Program is the path of cmd/latchkey's binary.
	Program string
	// Dir is a directory for the kubeconfig.
	Dir string
	// PodIP is the address that the manager has as $POD_IP. An EndpointSlice may name no loopback
	// address. Nothing connects to this one. Defaults to 192.0.2.1.
	PodIP string
	// Args come after those of the Deployment, which they override.
	Args []string
}

// Manager is a running manager.
type Manager struct {
	// Namespace and Name are those of the Deployment.
	Namespace, Name string
	// User is the name by which the API server knows the manager.
	User string
	// MetricsAddress, ProbesAddress, StateAddress and StatusAddress are where the process listens.
	MetricsAddress, ProbesAddress, StateAddress, StatusAddress string

	grace time.Duration // terminationGracePeriodSeconds
	cmd   *exec.Cmd
	log   testutil.Output
	ended chan struct{}
}

// Start starts the manager of the only Deployment of the objects. The caller must call Stop.
func Start(ctx context.Context, cp *controlplane.ControlPlane, objects []*unstructured.Unstructured,
	options Options) (*Manager, error) {
	var deployment appsv1.Deployment
	if err := find(objects, "Deployment", &deployment); err != nil {
		return nil, err
	}
	pod := deployment.Spec.Template.Spec
	account := pod.ServiceAccountName
	kubeconfig, err := writeKubeconfig(ctx, cp, deployment.Namespace, account, options.Dir)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		Namespace: deployment.Namespace,
		Name:      deployment.Name,
		User:      "system:serviceaccount:" + deployment.Namespace + ":" + account,
		grace:     time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second,
		ended:     make(chan struct{}),
	}
	for _, address := range []*string{&m.MetricsAddress, &m.ProbesAddress, &m.StateAddress,
		&m.StatusAddress} {
		if *address, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	args := expandedArgs(deployment, cmp.Or(options.PodIP, "192.0.2.1"))
	m.cmd = exec.Command(options.Program, append(args, "--kubeconfig="+kubeconfig,
		"--health-probe-bind-address="+m.ProbesAddress)...)
	if m.servesMetrics() {
		m.cmd.Args = append(m.cmd.Args, "--metrics-bind-address="+m.MetricsAddress)
	}
	if m.servesStateAPI() {
		m.cmd.Args = append(m.cmd.Args, "--state-api-bind-address="+m.StateAddress)
		if m.isInFleet() {
			peers, err := freeAddress()
			if err != nil {
				return nil, err
			}
			m.cmd.Args = append(m.cmd.Args, "--state-api-peer-bind-address="+peers, "--state-api-peer-address="+peers)
		}
	}
	if m.servesStatusPage() {
		// on loopback the manager makes its own certificate
		m.cmd.Args = append(m.cmd.Args, "--status-address="+m.StatusAddress, "--status-cert-dir=")
	}
	m.cmd.Args = append(m.cmd.Args, options.Args...)
	m.cmd.Env = []string{"HOME=" + options.Dir, "PATH=" + os.Getenv("PATH"), "LATCHKEY_TEST_MAIN=1"}
	m.cmd.Stdout, m.cmd.Stderr = &m.log, &m.log
	if err := m.cmd.Start(); err != nil {
		return nil, errors.Wrap(err, "starting the manager")
	}
	go func() {
		defer close(m.ended)
		_ = m.cmd.Wait()
	}()
	return m, nil
}

// expandedArgs returns the arguments of the only container, with the values that a kubelet would
// put in.
func expandedArgs(deployment appsv1.Deployment, podIP string) (args []string) {
	container := deployment.Spec.Template.Spec.Containers[0]
	var values []string
	for _, env := range container.Env {
		value := env.Value
		if env.ValueFrom != nil && env.ValueFrom.FieldRef != nil {
			value = map[string]string{"metadata.namespace": deployment.Namespace,
				"status.podIP": podIP}[env.ValueFrom.FieldRef.FieldPath]
		}
		values = append(values, "$("+env.Name+")", value)
	}
	for _, arg := range container.Args {
		args = append(args, strings.NewReplacer(values...).Replace(arg))
	}
	return args
}

// writeKubeconfig writes a kubeconfig with a token of the ServiceAccount.
func writeKubeconfig(ctx context.Context, cp *controlplane.ControlPlane, namespace, account, dir string) (string,
	error) {
	token, err := cp.Kubectl(ctx, "create", "token", "-n", namespace, account)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "kubeconfig")
	return file, errors.WithStack(clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters: map[string]*clientcmdapi.Cluster{"it": {
			Server:                   cp.Config().Host,
			CertificateAuthorityData: cp.Config().CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"it": {Token: strings.TrimSpace(token)}},
	}, file))
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", errors.WithStack(err)
	}
	return listener.Addr().String(), errors.WithStack(listener.Close())
}

// Stop ends the manager as a kubelet does, and waits for its end.
func (m *Manager) Stop() {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(m.grace, func() { _ = m.cmd.Process.Kill() })
	defer kill.Stop()
	<-m.ended
}

// Kill ends the manager at once.
func (m *Manager) Kill() {
	_ = m.cmd.Process.Kill()
	<-m.ended
}

// Log returns what the manager has printed.
func (m *Manager) Log() string { return m.log.String() }

// Ready returns nil if the readiness probe of the Deployment succeeds.
func (m *Manager) Ready(ctx context.Context) error {
	_, err := get(ctx, insecure, "http://"+m.ProbesAddress+"/readyz?verbose", "")
	return err
}

// Metrics returns what the manager serves to the owner of the token.
func (m *Manager) Metrics(ctx context.Context, token string) (model.Vector, error) {
	text, err := get(ctx, insecure, "https://"+m.MetricsAddress+"/metrics", token)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, errors.WithStack(err)
	}
	var samples model.Vector
	for _, family := range families {
		vector, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.Now()}, family)
		if err != nil {
			return nil, errors.WithStack(err)
		}
		samples = append(samples, vector...)
	}
	return samples, nil
}

// StatusError is an answer other than 200.
type StatusError struct {
	Code int
	Body string
}

// Error implements error.
func (e *StatusError) Error() string { return http.StatusText(e.Code) + ": " + e.Body }

// insecure verifies no certificates, as the ServiceMonitor without metrics.certificateSecret.
var insecure = &http.Client{Transport: &http.Transport{
	DisableKeepAlives: true,
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
}}

func get(ctx context.Context, httpClient *http.Client, url, token string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", errors.WithStack(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return "", errors.WithStack(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", errors.WithStack(err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", &StatusError{Code: resp.StatusCode, Body: string(body)}
	}
	return string(body), nil
}

// Sum returns the sum of the samples of a metric that have all given labels.
func Sum(samples model.Vector, name string, labels model.LabelSet) (sum float64) {
	for _, sample := range samples {
		matches := string(sample.Metric[model.MetricNameLabel]) == name
		for label, value := range labels {
			matches = matches && sample.Metric[label] == value
		}
		if matches {
			sum += float64(sample.Value)
		}
	}
	return sum
}

func (m *Manager) hasFlag(prefix string) bool {
	for _, arg := range m.cmd.Args {
		if strings.HasPrefix(arg, prefix) {
			return true
		}
	}
	return false
}

// flag returns the value of a flag, "" if it is not set.
func (m *Manager) flag(name string) string {
	for _, arg := range m.cmd.Args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}

func (m *Manager) servesMetrics() bool    { return m.hasFlag("--metrics-secure") }
func (m *Manager) servesStateAPI() bool   { return m.hasFlag("--state-api-group") }
func (m *Manager) isInFleet() bool        { return m.hasFlag("--state-api-peer-bind-address") }
func (m *Manager) servesStatusPage() bool { return m.hasFlag("--status-address") }

// Pod returns a Pod of the only Deployment of the objects.
func Pod(objects []*unstructured.Unstructured) (*corev1.Pod, error) {
	var deployment appsv1.Deployment
	if err := find(objects, "Deployment", &deployment); err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: deployment.Spec.Template.ObjectMeta,
		Spec:       deployment.Spec.Template.Spec,
	}
	pod.Namespace, pod.Name = deployment.Namespace, deployment.Name
	return pod, nil
}
