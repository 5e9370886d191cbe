package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/internal/deployment"
)

var (
	helmProgram = flag.String("helm", "../../bin/helm", "Helm, as \"make bin/helm\" builds it")
	update      = flag.Bool("update", false, "write testdata/*.golden.yaml")
)

const chart = "../../deploy/helm/latchkey"

// helm runs Helm and returns its standard output.
func helm(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, *helmProgram, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return stdout.String(), errors.Wrapf(err, "helm %s: %s", strings.Join(args, " "), stderr.String())
}

// render returns the manifests for a file of values.
func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helm(t.Context(), "", append([]string{"template", "latchkey", chart, "--namespace", "latchkey-system",
		"--kube-version", "1.36"}, args...)...)
}

// Each file of values in testdata renders to the golden file beside it. "go test -update" writes
// those.
func TestTemplates(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("testdata/*.values.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(files)).To(BeNumerically(">=", 8))
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			got, err := render(t, "-f", file)
			g.Expect(err).NotTo(HaveOccurred())
			golden := strings.TrimSuffix(file, "values.yaml") + "golden.yaml"
			if *update {
				g.Expect(os.WriteFile(golden, []byte(got), 0o600)).To(Succeed())
			}
			want, err := os.ReadFile(golden)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(string(want)))
		})
	}
}

// deploy/kustomize is what the chart renders. "make deploy" writes it.
func TestKustomizeIsRendered(t *testing.T) {
	for folder, args := range map[string][]string{"default": nil, "state-api": {"--set", "stateAPI.enabled=true"}} {
		g := NewWithT(t)
		got, err := render(t, append(args, "--set", "crds.keep=false")...)
		g.Expect(err).NotTo(HaveOccurred())
		want, err := os.ReadFile("../../deploy/kustomize/" + folder + "/latchkey.yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(string(want)), `run "make deploy"`)
	}
}

// Values that cannot work are refused, with what is wrong with them.
func TestRefusedValues(t *testing.T) {
	for value, want := range map[string]string{
		"replica=3":                       "additional properties 'replica' not allowed",
		"replicas=-1":                     "minimum",
		"image.repository=":               "image/repository",
		"credentials.type=token":          "credentials/type",
		"credentials.type=kubeconfigs":    "credentials/type", // with the policy for ServiceAccounts
		"extensions.group=example.com":    "extensions/group", // with the policy for another kind
		"admission=olm":                   "extensions/group",
		"tenants[0].names[0]=blue":        "missing property 'namespace'",
		"tenants[0].namespace=Team":       "tenants/0/namespace",
		"probes.interval=ten":             "probes/interval",
		"metrics.port=0":                  "metrics/port",
		"metrics.podMonitor.enabled=true": "metrics/podMonitor/tokenSecret/name",
		"stateAPI.group=state":            "stateAPI/group",
		"extraArgs[0]=v=1":                "extraArgs/0",
		"serviceAccount.create=false":     "serviceAccount.name: name the existing ServiceAccount",
		"admission=external,credentials.type=kubeconfigs,tenants[0].namespace=a": "missing property 'names'",
		"admission=external,credentials.type=kubeconfigs,allNamespaces=true":     "allNamespaces",
		"metrics.port=8081":                             "metrics.port: 8081 is the port of the probes",
		"stateAPI.enabled=true,stateAPI.port=8443":      "stateAPI.port: 8443 is the port of metrics",
		"statusPage.enabled=true,statusPage.port=8443":  "statusPage.port: 8443 is the port of metrics",
		`podLabels.app\.kubernetes\.io/name=x`:          "podLabels",
		"extraArgs[0]=--leader-elect=false":             "extraArgs/0",
		"extraArgs[0]=--status-address=:80":             "extraArgs/0",
		"allNamespaces=true,tenants[0].namespace=a":     "tenants",
		"tenants[0].namespace=a,tenants[1].namespace=a": "namespace a is listed twice",
	} {
		t.Run(value, func(t *testing.T) {
			_, err := render(t, "--set", value)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(want)))
		})
	}
}

// What the chart renders for the Prometheus Operator has only fields that its kinds have.
func TestMonitors(t *testing.T) {
	g := NewWithT(t)
	found := 0
	for _, file := range []string{"testdata/tokens.values.yaml", "testdata/state-api.values.yaml"} {
		manifests, err := render(t, "-f", file)
		g.Expect(err).NotTo(HaveOccurred())
		objects, err := deployment.Decode(manifests)
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			into := map[string]any{"ServiceMonitor": &monitoringv1.ServiceMonitor{},
				"PodMonitor": &monitoringv1.PodMonitor{}, "PrometheusRule": &monitoringv1.PrometheusRule{}}[object.GetKind()]
			if into == nil {
				continue
			}
			found++
			content, err := json.Marshal(object)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(yaml.UnmarshalStrict(content, into)).To(Succeed())
		}
	}
	g.Expect(found).To(Equal(3))
}
