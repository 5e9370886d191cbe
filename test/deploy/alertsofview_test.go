package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/test/support/deployment"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// viewed is a control plane with the chart, whose replicas have one view of all, and a Prometheus.
type viewed struct {
	*prometheus
	cp    *controlplane.ControlPlane
	first *deployment.Manager
	start func(g Gomega, args ...string) *deployment.Manager
	token string // of one who may read connections
}

// newViewed installs the chart and starts a replica. No API server is in front of the view: in this
// network it does not reach the address that an EndpointSlice may have.
func newViewed(t *testing.T) *viewed {
	t.Helper()
	g := NewWithT(t)
	v := &viewed{cp: start(t)}
	manifests, err := render(t, append([]string{"-f", "testdata/tokens.values.yaml", "--set",
		"sharing.buckets=2,replicas=2,stateAPI.enabled=true"}, withoutMonitors...)...)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = v.cp.KubectlInput(t.Context(), manifests, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := deployment.Decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(deployment.CreateExtensions(t.Context(), v.cp)).To(Succeed())
	v.kubectl(t, "create", "clusterrolebinding", "on-call", "--clusterrole=latchkey-state-viewer",
		"--serviceaccount=monitoring:prometheus")
	v.token = v.kubectl(t, "create", "token", "-n", "monitoring", "prometheus")
	tokenFile := filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(tokenFile, []byte(v.token), 0o600)).To(Succeed())
	v.prometheus = startPrometheus(t, "https", tokenFile)
	binary := program(t)
	v.start = func(g Gomega, args ...string) *deployment.Manager {
		m, err := deployment.Start(context.WithoutCancel(t.Context()), v.cp, objects,
			deployment.Options{Program: binary, Dir: t.TempDir(), Args: args})
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() {
			m.Stop()
			if t.Failed() {
				t.Log(m.Log())
			}
		})
		return m
	}
	v.first = v.start(g)
	v.scrape(t, v.first.MetricsAddress)
	v.sees(t, `latchkey_fleet_extensions{state="Connected"} == 5 and ignoring (state) latchkey_fleet_serving == 1`)
	g.Eventually(func() ([]sample, error) { // while a fleet starts for the first time, it waits for a Lease
		return v.query(t, `count_over_time(ALERTS{alertstate="firing"}[3s])`)
	}).WithTimeout(patience).Should(BeEmpty())
	return v
}

func (v *viewed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := v.cp.Kubectl(context.WithoutCancel(t.Context()), args...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return out
}

// sees waits until the query has a result.
func (v *viewed) sees(t *testing.T, expr string) {
	t.Helper()
	NewWithT(t).Eventually(func() ([]sample, error) { return v.query(t, expr) }).WithTimeout(patience).
		ShouldNot(BeEmpty(), expr)
}

// runbook returns what the commands of the alert's runbook print. Those that read logs of Pods, of
// which there are none, are left out. The state API is asked without the API server in front.
func (v *viewed) runbook(t *testing.T, alert string) string {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	block := regexp.MustCompile("(?s)\n### " + alert + "\n.*?\n```console\n(.*?)```").FindSubmatch(page)
	g.Expect(block).NotTo(BeEmpty())
	commands := strings.Split(strings.TrimSpace(string(block[1])), "\n")
	g.Expect(len(commands)).To(BeNumerically("<=", 3))
	var out strings.Builder
	for _, command := range commands {
		args := strings.Fields(command)[1:]
		switch {
		case strings.Contains(command, " logs "):
			continue
		case strings.Contains(command, "connections.state.latchkey.dev"):
			args = append(args, "--kubeconfig=/dev/null", "--server=https://"+v.first.StateAddress,
				"--insecure-skip-tls-verify", "--token="+strings.TrimSpace(v.token))
		}
		out.WriteString(v.kubectl(t, args...))
	}
	return out.String()
}

// startStranger starts a program that belongs to the fleet, and does not share: it takes all
// extensions for its own. It ends when end is called.
func (v *viewed) startStranger(t *testing.T) (end func()) {
	t.Helper()
	g := NewWithT(t)
	mgr, err := ctrl.NewManager(v.cp.Config(), ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	cc, err := clustercache.SetupWithManager(t.Context(), mgr, clustercache.Options{
		Name:          "stranger",
		AllowIdentity: clustercache.GuardedByAdmission,
		Client:        clustercache.ClientOptions{UserAgent: "stranger"},
	}, controller.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	peers := freeAddress(t)
	// It may not serve the view: no one asks it for the metrics that the alert takes then.
	config := rest.CopyConfig(mgr.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet && strings.HasSuffix(req.URL.Path, "/leases/latchkey-state") {
				return nil, errors.New("a stranger does not serve")
			}
			return next.RoundTrip(req)
		})
	})
	api, err := stateapi.New(cc, stateapi.Options{
		Config:  config,
		Service: stateapi.ServiceOptions{Namespace: namespace, Name: "latchkey-state"},
		Server:  apiserver.ExtensionAPIServerOptions{BindAddress: freeAddress(t)},
		Fleet: stateapi.FleetOptions{
			Name:        "latchkey",
			Namespace:   namespace,
			Secret:      "latchkey-state-authority",
			Identity:    "stranger",
			BindAddress: peers,
			Address:     netip.MustParseAddrPort(peers),
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mgr.Add(api)).To(Succeed())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
	t.Cleanup(end)
	return end
}

// The alerts about the view of all replicas fire on their faults, and resolve. Extensions that move
// fire none.
func TestAlertsOfTheView(t *testing.T) {
	v := newViewed(t)
	hold := func(holder string, leases ...string) {
		for _, lease := range leases {
			v.kubectl(t, "patch", "lease", lease, "-n", namespace, "--type=merge", "-p",
				`{"spec": {"holderIdentity": "`+holder+`", "leaseDurationSeconds": 3600}}`)
		}
	}

	t.Run("dashboard", func(t *testing.T) {
		v.checkDashboard(t, func(expr string) bool { return strings.Contains(expr, "latchkey_fleet_") })
	})

	t.Run("extensions move", func(t *testing.T) {
		g := NewWithT(t)
		begun := time.Now()
		sinceThen := func() string { return fmt.Sprintf("[%ds]", int(time.Since(begun).Seconds())+1) }
		for range 2 {
			second := v.start(g)
			v.scrape(t, v.first.MetricsAddress, second.MetricsAddress)
			v.sees(t, `count(latchkey_ownership_moves_total{direction="Taken"} > 0) == 2`)
			v.sees(t, `count(latchkey_fleet_replicas == 2) == 2`)
			second.Stop()
			v.scrape(t, v.first.MetricsAddress)
			v.sees(t, `latchkey_fleet_replicas == 1 and latchkey_fleet_unclaimed_extensions == 0`)
		}
		none := func() ([]sample, error) {
			return v.query(t, `count_over_time(ALERTS{alertstate="firing",alertname=~"LatchkeyExtension(Unclaimed|Contested)|`+
				`LatchkeyReplicaSilent|LatchkeyFleetNotServed"}`+sinceThen()+`)`)
		}
		// What lasted would fire by then.
		g.Consistently(none).WithTimeout(15 * time.Second).WithPolling(time.Second).Should(BeEmpty())
		for _, what := range []string{"unclaimed", "contested"} {
			longest, err := v.query(t, `max(max_over_time(latchkey_fleet_`+what+`_oldest_seconds`+sinceThen()+`))`)
			g.Expect(err).NotTo(HaveOccurred())
			t.Logf("%s for %v s at most", what, longest[0].Value[1])
		}
	})

	v.fires(t, "LatchkeyExtensionUnclaimed", func(Gomega) {
		hold("a-stranger", "latchkey-bucket-0", "latchkey-bucket-1")
	}, func(g Gomega) {
		g.Expect(v.runbook(t, "LatchkeyExtensionUnclaimed")).To(And(ContainSubstring("blue"),
			ContainSubstring("NoReplica"), ContainSubstring("a-stranger")))
		hold("", "latchkey-bucket-0", "latchkey-bucket-1")
	}, "LatchkeyExtensionsWithoutReplica")

	var end func()
	v.fires(t, "LatchkeyExtensionContested", func(Gomega) { end = v.startStranger(t) }, func(g Gomega) {
		g.Expect(v.runbook(t, "LatchkeyExtensionContested")).To(MatchRegexp(`blue +\S+ +[1-9]\d* +\[.*stranger.*\]`))
		end()
	}, "LatchkeyExtensionUnclaimed", "LatchkeyExtensionsWithoutReplica")

	var deaf *deployment.Manager
	nowhere := freeAddress(t)
	v.fires(t, "LatchkeyReplicaSilent", func(g Gomega) {
		deaf = v.start(g, "--state-api-peer-address="+nowhere)
		v.scrape(t, v.first.MetricsAddress, deaf.MetricsAddress) // on a busy machine it may serve the view
	}, func(g Gomega) {
		g.Expect(v.runbook(t, "LatchkeyReplicaSilent")).To(ContainSubstring(nowhere))
		g.Eventually(v.first.Log).WithTimeout(patience).
			Should(MatchRegexp(`A replica of the fleet is not heard.*` + regexp.QuoteMeta(nowhere)))
		deaf.Stop()
		v.scrape(t, v.first.MetricsAddress)
		// It has a part of the extensions.
	}, "LatchkeyExtensionUnclaimed", "LatchkeyExtensionsWithoutReplica", "LatchkeyFleetNotServed")

	v.fires(t, "LatchkeyFleetNotServed", func(Gomega) { hold("a-stranger", "latchkey-state") }, func(g Gomega) {
		g.Expect(v.runbook(t, "LatchkeyFleetNotServed")).To(ContainSubstring("a-stranger"))
		hold("", "latchkey-state")
	}, "LatchkeyExtensionUnclaimed", "LatchkeyExtensionsWithoutReplica")
}
