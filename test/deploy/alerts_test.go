package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/deployment"
)

const observability = "../../deploy/observability"

// The rules are valid, and fire and resolve as rules_test.yaml says.
func TestRules(t *testing.T) {
	g := NewWithT(t)
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		program, err := filepath.Abs("../../bin/promtool")
		g.Expect(err).NotTo(HaveOccurred())
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir = observability
		out, err := cmd.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	}
}

// ruleFile is a file of rules.
type ruleFile struct {
	Groups []struct {
		Name  string           `json:"name"`
		Rules []map[string]any `json:"rules"`
	} `json:"groups"`
}

func readRules(t *testing.T) (rules ruleFile) {
	t.Helper()
	g := NewWithT(t)
	content, err := os.ReadFile(observability + "/rules.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.Unmarshal(content, &rules)).To(Succeed())
	return rules
}

// fired has the alerts that the end-to-end tests of this process have seen fire and resolve.
var fired sync.Map

// prometheus is a running Prometheus.
type prometheus struct {
	address string
	targets string // the file with the addresses to scrape
}

// inSeconds returns a rule whose minutes are seconds, so that a test needs not wait for minutes.
func inSeconds(rule map[string]any) map[string]any {
	durations := regexp.MustCompile(`\b(\d+)([mh])\b`)
	for _, field := range []string{"expr", "for"} {
		if text, ok := rule[field].(string); ok {
			rule[field] = durations.ReplaceAllStringFunc(text, func(duration string) string {
				n, _ := strconv.Atoi(duration[:len(duration)-1])
				if strings.HasSuffix(duration, "h") {
					n *= 60
				}
				return strconv.Itoa(n) + "s"
			})
		}
	}
	if rule["record"] == "latchkey:pool_wait_seconds:p90" {
		// Attempts at servers that hang come in waves, as far apart as a timeout, which remains 5 s.
		rule["expr"] = strings.Replace(rule["expr"].(string), "[5s]", "[10s]", 1)
	}
	if text, ok := rule["expr"].(string); ok && strings.Contains(text, "_oldest_seconds") {
		rule["expr"] = strings.Replace(text, "> 120", "> 10", 1) // a move takes its seconds, in a test too
	}
	return rule
}

// startPrometheus starts a Prometheus that scrapes nothing yet.
func startPrometheus(t *testing.T, scheme, tokenFile string, more ...map[string]any) *prometheus {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	rules := readRules(t)
	for _, group := range rules.Groups {
		for i := range group.Rules {
			group.Rules[i] = inSeconds(group.Rules[i])
		}
	}
	content, err := yaml.Marshal(rules)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(dir, "rules.yaml"), content, 0o600)).To(Succeed())
	p := &prometheus{address: freeAddress(t), targets: filepath.Join(dir, "targets.json")}
	p.scrape(t)
	scrape := map[string]any{"job_name": "latchkey", "scheme": scheme,
		"tls_config":      map[string]any{"insecure_skip_verify": true},
		"file_sd_configs": []any{map[string]any{"files": []string{p.targets}, "refresh_interval": "1s"}}}
	if tokenFile != "" {
		scrape["authorization"] = map[string]any{"credentials_file": tokenFile}
	}
	config, err := yaml.Marshal(map[string]any{
		"global": map[string]any{"scrape_interval": "500ms", "scrape_timeout": "500ms",
			"evaluation_interval": "500ms"},
		"rule_files":     []string{"rules.yaml"},
		"scrape_configs": append([]map[string]any{scrape}, more...),
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(dir, "prometheus.yml"), config, 0o600)).To(Succeed())
	var log strings.Builder
	program, err := filepath.Abs("../../bin/prometheus")
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command(program, "--config.file=prometheus.yml", "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.address, "--log.level=warn")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	g.Eventually(func() error { _, err := p.query(t, "vector(1)"); return err }).WithTimeout(patience).Should(Succeed())
	return p
}

// scrape makes Prometheus scrape these addresses from now on.
func (p *prometheus) scrape(t *testing.T, addresses ...string) {
	t.Helper()
	g := NewWithT(t)
	content, err := json.Marshal([]any{map[string]any{"targets": append([]string{}, addresses...)}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(p.targets+".new", content, 0o600)).To(Succeed())
	g.Expect(os.Rename(p.targets+".new", p.targets)).To(Succeed())
}

// sample is a result of a query.
type sample struct {
	Metric map[string]string
	Value  []any
}

func (p *prometheus) query(t *testing.T, expr string) ([]sample, error) {
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet,
		"http://"+p.address+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []sample }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%w: %s", err, body)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("query %s: %s", expr, answer.Error)
	}
	return answer.Data.Result, nil
}

// firing returns the names of the alerts that fire.
func (p *prometheus) firing(t *testing.T) func() ([]string, error) {
	return func() (names []string, err error) {
		samples, err := p.query(t, `ALERTS{alertstate="firing"}`)
		for _, s := range samples {
			names = append(names, s.Metric["alertname"])
		}
		slices.Sort(names)
		return slices.Compact(names), err
	}
}

// alertTimeout bounds the wait for an alert: the slowest one fires after 60 s, and resolves as
// long after its repair, which latchkey notices within 30 s.
const alertTimeout = 3 * time.Minute

// fires checks that the alert does not fire, that it fires after its cause, and no longer after the
// repair. No other alert fires at the same time, but for those that the same cause concerns, or a
// cause before.
func (p *prometheus) fires(t *testing.T, alert string, cause, repair func(g Gomega), also ...string) {
	t.Run(alert, func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(p.firing(t)).WithTimeout(alertTimeout).ShouldNot(ContainElement(alert)) // for an earlier cause
		begun := time.Now()
		cause(g)
		g.Eventually(p.firing(t)).WithTimeout(alertTimeout).WithPolling(250 * time.Millisecond).
			Should(ContainElement(alert))
		firedAt := time.Now()
		firing, err := p.firing(t)()
		g.Expect(err).NotTo(HaveOccurred())
		for _, name := range firing {
			g.Expect(append(also, alert)).To(ContainElement(name), "fires besides")
		}
		repair(g)
		repaired := time.Now()
		g.Eventually(p.firing(t)).WithTimeout(alertTimeout).WithPolling(250 * time.Millisecond).
			ShouldNot(ContainElement(alert))
		t.Logf("fired after %s, resolved after %s", firedAt.Sub(begun).Round(time.Second),
			time.Since(repaired).Round(time.Second))
		fired.Store(alert, true)
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer listener.Close()
	return listener.Addr().String()
}

// installed is a control plane with the chart, and a Prometheus that scrapes its manager.
type installed struct {
	*prometheus
	cp      *controlplane.ControlPlane
	manager *deployment.Manager
	start   func(g Gomega)
}

func (i *installed) kubectl(t *testing.T, g Gomega, args ...string) {
	t.Helper()
	_, err := i.cp.Kubectl(context.WithoutCancel(t.Context()), args...)
	g.Expect(err).NotTo(HaveOccurred())
}

// install installs the chart and starts its manager and Prometheus.
func install(t *testing.T, prepare func(cp *controlplane.ControlPlane), args ...string) *installed {
	t.Helper()
	g := NewWithT(t)
	i := &installed{cp: start(t)}
	prepare(i.cp)
	manifests, err := render(t, append(args, withoutMonitors...)...)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = i.cp.KubectlInput(t.Context(), manifests, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := deployment.Decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(deployment.CreateExtensions(t.Context(), i.cp)).To(Succeed())
	token, err := i.cp.Kubectl(t.Context(), "create", "token", "-n", "monitoring", "prometheus")
	g.Expect(err).NotTo(HaveOccurred())
	tokenFile := filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(tokenFile, []byte(token), 0o600)).To(Succeed())
	i.prometheus = startPrometheus(t, "https", tokenFile, scrapeAPIServer(t, i.cp))
	options := deployment.Options{Program: program(t), Dir: t.TempDir()}
	i.start = func(g Gomega) {
		m, err := deployment.Start(context.WithoutCancel(t.Context()), i.cp, objects, options)
		g.Expect(err).NotTo(HaveOccurred())
		i.manager = m
		i.scrape(t, i.manager.MetricsAddress)
	}
	i.start(g)
	t.Cleanup(func() {
		i.manager.Stop()
		if t.Failed() {
			t.Log(i.manager.Log())
		}
	})
	g.Eventually(func() ([]sample, error) { return i.query(t, `sum(latchkey_connections{phase="Connected"}) >= 5`) }).
		WithTimeout(patience).Should(HaveLen(1))
	g.Eventually(i.firing(t)).WithTimeout(patience).Should(BeEmpty())
	// Most alerts wait for 15 minutes, which are 15 s here.
	g.Consistently(i.firing(t)).WithTimeout(20*time.Second).WithPolling(time.Second).Should(BeEmpty(), "a healthy fleet")
	return i
}

// scrapeAPIServer returns how Prometheus reads the metric of kube-apiserver that an alert is about.
func scrapeAPIServer(t *testing.T, cp *controlplane.ControlPlane) map[string]any {
	t.Helper()
	g := NewWithT(t)
	address, err := url.Parse(cp.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	files := map[string][]byte{"tls.crt": cp.Config().CertData, "tls.key": cp.Config().KeyData}
	for name, content := range files {
		g.Expect(content).NotTo(BeEmpty())
		g.Expect(os.WriteFile(filepath.Join(dir, name), content, 0o600)).To(Succeed())
	}
	return map[string]any{"job_name": "apiserver", "scheme": "https", "scrape_interval": "2s", "scrape_timeout": "2s",
		"tls_config": map[string]any{"insecure_skip_verify": true, "cert_file": filepath.Join(dir, "tls.crt"),
			"key_file": filepath.Join(dir, "tls.key")},
		"static_configs": []any{map[string]any{"targets": []string{address.Host}}},
		"metric_relabel_configs": []any{map[string]any{"source_labels": []string{"__name__"}, "action": "keep",
			"regex": "aggregator_unavailable_apiservice"}}}
}

// The alerts about tokens, permissions and replicas fire on their faults, and resolve.
func TestAlertsOfTheManager(t *testing.T) {
	p := install(t, func(*controlplane.ControlPlane) {}, "-f", "testdata/tokens.values.yaml", "--set",
		"recordPermissions=true") // which a panel shows
	t.Run("dashboard", func(t *testing.T) {
		p.checkDashboard(t, func(expr string) bool { // the others are about replicas that share
			return !strings.Contains(expr, "latchkey_ownership_") && !strings.Contains(expr, "latchkey_fleet_")
		})
	})

	account := func(verb, name string) func(g Gomega) {
		return func(g Gomega) { p.kubectl(t, g, verb, "serviceaccount", name, "-n", deployment.TenantNamespace) }
	}
	role := func(op string, rule string) func(g Gomega) {
		return func(g Gomega) {
			p.kubectl(t, g, "patch", "role", "latchkey", "-n", deployment.TenantNamespace, "--type=json", "-p",
				fmt.Sprintf(`[{"op": %q, "path": "/rules/%s}]`, op, rule))
		}
	}
	refuseTokens := func(name string) func(g Gomega) {
		return func(g Gomega) {
			role("remove", `1"`)(g)
			account("delete", name)(g)
			account("create", name)(g) // whose token is a new one
		}
	}
	issueTokens := role("add",
		`1", "value": {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}`)
	const mayNot, disconnected = "LatchkeyMayNotRequestTokens", "LatchkeyTenantsDisconnected"
	p.fires(t, mayNot, refuseTokens("green"), issueTokens, disconnected)
	p.fires(t, disconnected, refuseTokens("blue"), issueTokens, mayNot)

	t.Run("what tenants have to repair fires no alert", func(t *testing.T) {
		g := NewWithT(t)
		account("delete", "red")(g)
		g.Eventually(func() ([]sample, error) {
			return p.query(t, `latchkey_connections{reason="ServiceAccountNotFound"} == 1`)
		}).WithTimeout(patience).Should(HaveLen(1))
		g.Eventually(p.firing(t)).WithTimeout(alertTimeout).Should(BeEmpty()) // what fired before
		g.Consistently(p.firing(t)).WithTimeout(20 * time.Second).WithPolling(time.Second).Should(BeEmpty())
		account("create", "red")(g)
	})

	p.fires(t, "LatchkeyStateAPIUnavailable", func(g Gomega) {
		_, err := p.cp.KubectlInput(context.WithoutCancel(t.Context()),
			`{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": {"name": "v1alpha1.state.latchkey.dev"}, "spec": {"group": "state.latchkey.dev", "version": "v1alpha1",
			"groupPriorityMinimum": 1000, "versionPriority": 15, "insecureSkipTLSVerify": true,
			"service": {"namespace": "latchkey-system", "name": "nothing"}}}`, "create", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}, func(g Gomega) { p.kubectl(t, g, "delete", "apiservice", "v1alpha1.state.latchkey.dev") })

	extension := func(verb string) func(g Gomega) {
		return func(g Gomega) {
			_, err := p.cp.KubectlInput(context.WithoutCancel(t.Context()),
				`{"apiVersion": "latchkey.dev/v1alpha1", "kind": "ClusterExtension", "metadata": {"name": "new"},
				"spec": {"namespace": "team-blue", "serviceAccount": {"name": "blue"}}}`, verb, "-f", "-")
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	p.fires(t, "LatchkeyOperatorForbidden", func(g Gomega) {
		role("remove", `0"`)(g)
		g.Eventually(func() error { return p.manager.Ready(t.Context()) }).WithTimeout(patience).
			ShouldNot(Succeed()) // when it has noticed; until then a new extension would be connected
		extension("create")(g)
	}, func(g Gomega) {
		role("add", `0", "value": {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["list", "watch"]}`)(g)
	}, disconnected)

	p.fires(t, "LatchkeyNoMetrics", func(Gomega) { p.manager.Stop() }, p.start)
	p.fires(t, "LatchkeyNoLeader", func(g Gomega) {
		g.Eventually(func() ([]sample, error) { return p.query(t, "latchkey_leading == 1") }).
			WithTimeout(patience).Should(HaveLen(1))
		p.manager.Kill() // and so it keeps the lease for 15 s
		p.start(g)
	}, func(Gomega) {})
}

// checkDashboard runs the queries of the dashboard that have samples in this test.
func (p *prometheus) checkDashboard(t *testing.T, has func(expr string) bool) {
	g := NewWithT(t)
	content, err := os.ReadFile(observability + "/dashboard.json")
	g.Expect(err).NotTo(HaveOccurred())
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	g.Expect(json.Unmarshal(content, &dashboard)).To(Succeed())
	variables := strings.NewReplacer("$job", ".*", "$cache", ".*", "$namespace", ".*", "$name", "blue",
		"$__rate_interval", "10s")
	queries, waited := 0, map[string]string{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries++
			_, err := p.query(t, variables.Replace(target.Expr))
			g.Expect(err).NotTo(HaveOccurred(), target.Expr)
			// There are no faults, no informers, and no reads.
			if panel.Title != "Not connected, by reason" && !strings.HasPrefix(panel.Title, "Informers") &&
				!strings.HasPrefix(panel.Title, "Gets") && !strings.Contains(target.Expr, "> 0") && has(target.Expr) {
				waited[target.Expr] = panel.Title
			}
		}
	}
	g.Eventually(func(g Gomega) map[string]string { // those without samples
		for expr := range waited {
			samples, err := p.query(t, variables.Replace(expr))
			if g.Expect(err).NotTo(HaveOccurred(), expr); len(samples) > 0 {
				delete(waited, expr)
			}
		}
		return waited
	}).WithTimeout(patience).Should(BeEmpty())
	g.Expect(queries).To(BeNumerically(">", 20))
}

// The alert about replicas that share the extensions fires when no replica has a bucket, and
// resolves.
func TestAlertsOfSharing(t *testing.T) {
	p := install(t, func(*controlplane.ControlPlane) {}, "-f", "testdata/tokens.values.yaml", "--set",
		"sharing.buckets=1,replicas=1")
	t.Run("dashboard", func(t *testing.T) {
		p.checkDashboard(t, func(expr string) bool { return strings.Contains(expr, "latchkey_ownership_") })
	})
	hold := func(holder string) func(g Gomega) {
		return func(g Gomega) {
			p.kubectl(t, g, "patch", "lease", "latchkey-bucket-0", "-n", namespace, "--type=merge", "-p",
				`{"spec": {"holderIdentity": "`+holder+`", "leaseDurationSeconds": 3600}}`)
		}
	}
	p.fires(t, "LatchkeyExtensionsWithoutReplica", hold("a-stranger"), hold(""))
}

// hangingServer returns the address of a server whose connections are made, and which never
// answers.
func hangingServer(t *testing.T) net.Addr {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr()
}

// The alerts about kubeconfigs and servers that hang fire on their faults, and resolve.
func TestAlertsOfKubeconfigs(t *testing.T) {
	// At one API server that hangs, one extension tries on behalf of all. 300 servers are six times as
	// many as have a place in the pool.
	const many = 300
	names := slices.Clone(deployment.Tenants)
	for n := range many {
		names = append(names, fmt.Sprintf("hanging-%d", n))
	}
	p := install(t, func(cp *controlplane.ControlPlane) { createKubeconfigs(t, cp) }, "-f",
		"testdata/kubeconfigs.values.yaml", "--set", "tenants[0].names={"+strings.Join(names, "-kubeconfig,")+"-kubeconfig}",
		"--set", "metrics.readers[0].namespace=monitoring,metrics.readers[0].name=prometheus")

	var before string
	p.fires(t, "LatchkeyCredentialNotUsed", func(g Gomega) {
		var err error
		before, err = p.cp.Kubectl(t.Context(), "get", "secret", "blue-kubeconfig", "-n", deployment.TenantNamespace, "-o",
			"jsonpath={.data.value}")
		g.Expect(err).NotTo(HaveOccurred())
		p.kubectl(t, g, "patch", "secret", "blue-kubeconfig", "-n", deployment.TenantNamespace, "-p",
			`{"stringData": {"value": "no kubeconfig"}}`)
	}, func(g Gomega) {
		p.kubectl(t, g, "patch", "secret", "blue-kubeconfig", "-n", deployment.TenantNamespace, "-p",
			`{"data": {"value": "`+before+`"}}`)
	}, "LatchkeyExtensionsDegraded")

	p.fires(t, "LatchkeyPoolIsFull", func(g Gomega) {
		var manifests strings.Builder
		for n := range many {
			kubeconfig := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "it",
				"contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
				"clusters": [{"name": "it", "cluster": {"server": "https://%s"}}],
				"users": [{"name": "it", "user": {"token": "token-%d"}}]}`, hangingServer(t), n)
			fmt.Fprintf(&manifests, "---\napiVersion: v1\nkind: Secret\n"+
				"metadata: {namespace: %s, name: hanging-%d-kubeconfig}\n"+
				"stringData: {value: %q}\n---\napiVersion: latchkey.dev/v1alpha1\nkind: ClusterExtension\n"+
				"metadata: {name: hanging-%d, labels: {hanging: \"\"}}\nspec: {namespace: %s, serviceAccount: {name: blue}}\n",
				deployment.TenantNamespace, n, kubeconfig, n, deployment.TenantNamespace)
		}
		_, err := p.cp.KubectlInput(t.Context(), manifests.String(), "create", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}, func(g Gomega) {
		p.kubectl(t, g, "delete", "clusterextensions.latchkey.dev", "-l", "hanging", "--wait=false")
	}, "LatchkeyTenantsDisconnected")
}

// The alerts about controllers of a host operator fire on their faults, and resolve.
func TestAlertsOfAHostOperator(t *testing.T) {
	g := NewWithT(t)
	cp := start(t)
	manifests, err := render(t, "--set", "allNamespaces=true")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), manifests, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
	address := freeAddress(t)
	mgr, err := ctrl.NewManager(cp.Config(), ctrl.Options{Metrics: metricsserver.Options{BindAddress: address}})
	g.Expect(err).NotTo(HaveOccurred())
	cc, err := clustercache.SetupWithManager(t.Context(), mgr, clustercache.Options{
		AllowIdentity: clustercache.GuardedByAdmission,
		Client:        clustercache.ClientOptions{UserAgent: "host"},
		Cache:         clustercache.CacheOptions{WatchRBAC: true},
	}, controller.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	c, err := controller.New("host", mgr, controller.Options{
		Reconciler: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		}),
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
	p := startPrometheus(t, "http", "")
	p.scrape(t, address)
	blue := client.ObjectKey{Name: "blue"}
	g.Eventually(func() error { _, err := cc.GetClient(t.Context(), blue); return err }).WithTimeout(patience).
		Should(Succeed())
	kubectl := func(g Gomega, args ...string) {
		_, err := cp.Kubectl(context.WithoutCancel(t.Context()), args...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	watch := func(g Gomega, name string, selector fields.Selector, h handler.EventHandler) {
		g.Expect(cc.Watch(t.Context(), blue, clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:         name,
			Watcher:      c,
			Kind:         &corev1.ConfigMap{},
			EventHandler: h,
			Scope:        clustercache.Scope{Namespace: deployment.TenantNamespace, FieldSelector: selector},
		}))).To(Succeed())
	}

	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: deployment.TenantNamespace, Name: "written"}}
	allow := func(g Gomega) {
		kubectl(g, "create", "role", "reader", "-n", deployment.TenantNamespace, "--verb=get,list,watch",
			"--resource=configmaps")
		kubectl(g, "create", "rolebinding", "reader", "-n", deployment.TenantNamespace, "--role=reader",
			"--serviceaccount="+deployment.TenantNamespace+":blue")
	}
	p.fires(t, "LatchkeyTenantsAreRefused", func(g Gomega) {
		watch(g, "configmaps", nil, clustercache.EnqueueFor(blue))
	}, allow, "LatchkeyExtensionsDegraded")
	p.fires(t, "LatchkeyExtensionsDegraded", func(g Gomega) { // a write, which no informer needs
		c, err := cc.GetClient(t.Context(), blue)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(apierrors.IsForbidden(c.Create(t.Context(), configMap.DeepCopy()))).To(BeTrue())
	}, func(g Gomega) {
		kubectl(g, "create", "role", "writer", "-n", deployment.TenantNamespace, "--verb=create", "--resource=configmaps")
		kubectl(g, "create", "rolebinding", "writer", "-n", deployment.TenantNamespace, "--role=writer",
			"--serviceaccount="+deployment.TenantNamespace+":blue")
		c, err := cc.GetClient(t.Context(), blue)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() error { return c.Create(t.Context(), configMap.DeepCopy()) }).WithTimeout(patience).
			Should(Succeed())
	})
	p.fires(t, "LatchkeyInformersFail", func(g Gomega) {
		watch(g, "unknown", fields.OneTermEqualSelector("data.unknown", "a"), clustercache.EnqueueFor(blue))
	}, func(Gomega) { cc.Unwatch(t.Context(), blue, "unknown") }, "LatchkeyExtensionsDegraded")
	p.fires(t, "LatchkeyHandlerPanics", func(g Gomega) {
		watch(g, "panics", fields.OneTermEqualSelector("metadata.name", "bomb"), handler.Funcs{CreateFunc: func(
			context.Context, event.CreateEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			panic("boom")
		}})
		kubectl(g, "create", "configmap", "bomb", "-n", deployment.TenantNamespace)
	}, func(Gomega) {})
}
