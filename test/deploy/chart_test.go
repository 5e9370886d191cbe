package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/test/support/deployment"
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
	err := cmd.Run() // the error has no arguments, whose texts a test may look for
	return stdout.String(), errors.Wrapf(err, "helm %s: %s", args[0], stderr.String())
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

// The values of docs/install.md work, alone and together, and the extension of that page is one.
func TestValuesOfThePage(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/install.md")
	g.Expect(err).NotTo(HaveOccurred())
	var all []string
	extensions := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if !strings.HasPrefix(block[1], "# values.yaml\n") {
			var extension map[string]any
			g.Expect(yaml.Unmarshal([]byte(block[1]), &extension)).To(Succeed())
			g.Expect(extension["kind"]).To(Equal("ClusterExtension"))
			extensions++
			continue
		}
		file := filepath.Join(t.TempDir(), "values.yaml")
		g.Expect(os.WriteFile(file, []byte(block[1]), 0o600)).To(Succeed())
		all = append(all, "-f", file)
		_, err := render(t, "-f", file)
		g.Expect(err).NotTo(HaveOccurred(), block[1])
	}
	g.Expect(extensions).To(Equal(1))
	g.Expect(len(all)).To(Equal(6))
	_, err = render(t, all...)
	g.Expect(err).NotTo(HaveOccurred())
}

// Values that cannot work are refused, with what is wrong with them.
func TestRefusedValues(t *testing.T) {
	for value, want := range map[string]string{
		"replica=3":                       "additional properties 'replica' not allowed",
		"replicas=-1":                     "minimum",
		"image.repository=":               "image/repository",
		"credentials.type=token":          "credentials/type",
		"credentials.type=kubeconfigs":    "at '/admission': value must be one of 'external', 'none'",
		"extensions.group=example.com":    "at '/admission': value must be one of", // its policy is for another kind
		"admission=olm":                   "at '/admission': value must be one of",
		"tenants[0].names[0]=blue":        "missing property 'namespace'",
		"tenants[0].namespace=Team":       "tenants/0/namespace",
		"probes.interval=ten":             "probes/interval",
		"metrics.port=0":                  "metrics/port",
		"metrics.podMonitor.enabled=true": "metrics/podMonitor/tokenSecret/name",
		"stateAPI.group=state":            "stateAPI/group",
		"tenants[0].namespace=a":          "'oneOf' failed",
		"tenants[0].namespace=a,tenants[0].names[0]=b," +
			"tenants[0].allNames=true": "'oneOf' failed",
		"extensions.kind=Other":                "at '/admission'",
		"extensions.resource=secrets":          "at '/admission'",
		"admission=none,extensions.group=":     "extensions/group",
		"admission=none,extensions.group=*":    "extensions/group",
		"priorityClassName=a b":                "priorityClassName",
		"networkPolicy.apiServer.cidrs[0]=x/8": "cidrs/0",
		"log.level=8":                          "log/level",
		"metrics.serviceMonitor.enabled=true":  "metrics.certificateSecret: name a Secret",
		"metrics.prometheusRule.enabled=true," +
			"metrics.prometheusRule.disabledAlerts[0]=LatchkeyNothing": "there is no alert LatchkeyNothing",
		"extraArgs[0]=v=1":            "extraArgs/0",
		"serviceAccount.create=false": "serviceAccount.name: name the existing ServiceAccount",
		"admission=external,credentials.type=kubeconfigs," +
			"tenants[0].namespace=a,tenants[0].allNames=true": "missing property 'names'",
		"admission=external,credentials.type=kubeconfigs," +
			"allNamespaces=true": "allNamespaces",
		"metrics.port=8081":                                     "metrics.port: 8081 is the port of the probes",
		"stateAPI.enabled=true,stateAPI.port=8443":              "stateAPI.port: 8443 is the port of metrics",
		"statusPage.enabled=true,statusPage.port=8443":          "statusPage.port: 8443 is the port of metrics",
		"statusPage.enabled=true,statusPage.secure=true":        "statusPage/certificateSecret",
		"statusPage.secure=true,statusPage.certificateSecret=a": "statusPage.secure: also set statusPage.enabled",
		"extraEnv[0].name=POD_IP,extraEnv[0].value=a":           "extraEnv/0/name",
		"extraEnv[0].name=HTTPS_PROXY":                          "'oneOf' failed",
		"topologySpreadConstraints[0].maxSkew=1":                "missing properties 'topologyKey', 'whenUnsatisfiable'",
		`podLabels.app\.kubernetes\.io/name=x`:                  "invalid propertyName 'app.kubernetes.io/name'",
		"extraArgs[0]=--leader-elect=false":                     "extraArgs/0",
		"extraArgs[0]=--status-address=:80":                     "extraArgs/0",
		"extraArgs[0]=--shard=all-the-same":                     "extraArgs/0",
		"sharing.buckets=2,replicas=3":                          "3 replicas cannot share 2 buckets",
		"sharing.buckets=1025":                                  "maximum",
		"sharing.buckets=2,sharing.ring=a":                      "buckets and ring exclude each other",
		"sharing.ring=a":                                        "cluster-scoped kinds, such as ClusterExtension",

		"sharing.buckets=2,stateAPI.enabled=true,stateAPI.peerPort=6443": "stateAPI.peerPort: 6443 is the port of stateAPI",

		"allNamespaces=true,tenants[0].namespace=a," +
			"tenants[0].allNames=true": "got 1, want 0",
		"tenants[0].namespace=a,tenants[0].names[0]=b,tenants[1].namespace=a," +
			"tenants[1].names[0]=b": "namespace a is listed twice",
	} {
		t.Run(value, func(t *testing.T) {
			_, err := render(t, "--set", value)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(want)))
		})
	}
	for version, value := range map[string]string{"1.33": "stateAPI.enabled=true",
		"1.35": "credentials.type=constrained-impersonation"} {
		_, err := helm(t.Context(), "", "template", "latchkey", chart, "--kube-version", version, "--set", value)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("Kubernetes v" + version + " is older than")))
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
			if object.GetKind() != "PrometheusRule" {
				g.Expect(string(content)).To(And(ContainSubstring(`"relabelings":[{"sourceLabels"`),
					ContainSubstring(`"metricRelabelings":[{"action"`)))
			}
		}
	}
	g.Expect(found).To(Equal(3))
}

// Ports that are not the defaults are the same everywhere, and what the kubelet, kube-apiserver and
// Prometheus reach is not bound to loopback. The status page is.
func TestPorts(t *testing.T) {
	g := NewWithT(t)
	manifests, err := render(t, "-f", "testdata/other-names.values.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := deployment.Decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	pod, err := deployment.Pod(objects)
	g.Expect(err).NotTo(HaveOccurred())
	container := pod.Spec.Containers[0]
	g.Expect(container.Args).To(ContainElements("--health-probe-bind-address=:8081", "--metrics-bind-address=:9443",
		"--state-api-bind-address=:7443", "--status-address=127.0.0.1:9082"))
	ports := map[string]int32{}
	for _, port := range container.Ports {
		ports[port.Name] = port.ContainerPort
	}
	g.Expect(ports).To(Equal(map[string]int32{"probes": 8081, "metrics": 9443, "state-api": 7443}))
	g.Expect(container.LivenessProbe.HTTPGet.Port.String()).To(Equal("probes"))
	g.Expect(container.ReadinessProbe.HTTPGet.Port.String()).To(Equal("probes"))
	services := 0
	for _, object := range objects {
		if object.GetKind() != "Service" {
			continue
		}
		services++
		list, _, err := unstructured.NestedSlice(object.Object, "spec", "ports")
		g.Expect(err).NotTo(HaveOccurred())
		target := list[0].(map[string]any)["targetPort"]
		g.Expect(target).To(Or(Equal("metrics"), BeEquivalentTo(7443)), object.GetName())
	}
	g.Expect(services).To(Equal(2))
	g.Expect(manifests).NotTo(ContainSubstring("latchkey-state"))
	g.Expect(manifests).NotTo(ContainSubstring("state.latchkey.dev"))
}

// The secure status page listens on the network, behind a Service, with the certificate of the
// Secret. The manager may ask who reads, and the readers may read. Without "secure" nothing of that
// is there.
func TestStatusPage(t *testing.T) {
	g := NewWithT(t)
	manifests, err := render(t, "-f", "testdata/status-page.values.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := deployment.Decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	pod, err := deployment.Pod(objects)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(pod.Spec.Containers[0].Args).To(ContainElements("--status-address=:8444", "--status-secure",
		"--status-cert-dir="+pod.Spec.Containers[0].VolumeMounts[0].MountPath))
	g.Expect(pod.Spec.Volumes[0].Secret.SecretName).To(Equal("latchkey-status"))
	permissions, others, err := deployment.Permissions(objects, "system:serviceaccount:latchkey-system:latchkey")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(others).To(BeEmpty())
	var reviews []string
	for _, permission := range permissions {
		if strings.HasSuffix(permission.Resource, "reviews") {
			reviews = append(reviews, permission.Verb+" "+permission.Resource)
		}
	}
	g.Expect(reviews).To(ConsistOf("create tokenreviews", "create subjectaccessreviews"))
	var ofPage []string
	for _, object := range objects {
		if strings.HasPrefix(object.GetName(), "latchkey-status") {
			ofPage = append(ofPage, object.GetKind()+" "+object.GetName())
		}
	}
	g.Expect(ofPage).To(ConsistOf("Service latchkey-status", "ClusterRole latchkey-status-reader",
		"ClusterRoleBinding latchkey-status-reader"))

	with, err := render(t, "-f", "testdata/status-page.values.yaml", "--set", "stateAPI.enabled=true")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(with).NotTo(ContainSubstring("tokenreviews"), "system:auth-delegator has the rules")
	without, err := render(t, "-f", "testdata/status-page.values.yaml", "--set", "statusPage.secure=false")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(without).To(ContainSubstring("--status-address=127.0.0.1:8444"))
	g.Expect(without).NotTo(Or(ContainSubstring("latchkey-status"), ContainSubstring("reviews"),
		ContainSubstring("--status-secure"), ContainSubstring("name: status")))
}

// A constraint without a labelSelector is for the manager's Pods, and the environment is the
// chart's and that of the values.
func TestPodValues(t *testing.T) {
	g := NewWithT(t)
	manifests, err := render(t, "-f", "testdata/everything.values.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := deployment.Decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	pod, err := deployment.Pod(objects)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(*pod.Spec.SecurityContext.RunAsNonRoot).To(BeTrue(), "what a value adds replaces nothing")
	g.Expect(*pod.Spec.SecurityContext.FSGroup).To(BeEquivalentTo(65532))
	constraints := pod.Spec.TopologySpreadConstraints
	g.Expect(constraints).To(HaveLen(2))
	g.Expect(constraints[0].TopologyKey).To(Equal("topology.kubernetes.io/zone"))
	for name, value := range constraints[0].LabelSelector.MatchLabels {
		g.Expect(pod.Labels).To(HaveKeyWithValue(name, value))
	}
	g.Expect(constraints[0].LabelSelector.MatchLabels).To(HaveLen(2))
	g.Expect(constraints[1].LabelSelector.MatchLabels).To(Equal(map[string]string{"a": "b"}))
	var names []string
	for _, env := range pod.Spec.Containers[0].Env {
		names = append(names, env.Name)
	}
	g.Expect(names).To(Equal([]string{"POD_NAMESPACE", "POD_IP", "HTTPS_PROXY", "GOMEMLIMIT"}))
}
