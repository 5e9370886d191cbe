package statuspage

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

const (
	tenants    = "tenants" // the namespace of the ServiceAccounts
	extensions = 120
)

// startControlPlane starts a control plane with extensions, three per ServiceAccount, and a user
// "operator" with the permissions of config/rbac and of --status-secure.
func startControlPlane(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	g := NewWithT(t)
	cp, err := controlplane.Start(t.Context(), controlplane.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cp.Stop()).To(Succeed()) })
	apply := func(manifests string) {
		t.Helper()
		_, err := cp.KubectlInput(t.Context(), manifests, "apply", "-f", "-")
		g.Expect(err).NotTo(HaveOccurred())
	}
	apply(config.Manifests(config.CRD, config.RBAC))
	for _, args := range [][]string{
		{"wait", "--for=condition=Established", "--timeout=60s", "crd/clusterextensions.latchkey.dev"},
		{"create", "namespace", tenants},
		{"create", "clusterrolebinding", "operator", "--clusterrole=latchkey-operator", "--user=operator"},
		{"create", "clusterrolebinding", "reviews", "--clusterrole=system:auth-delegator", "--user=operator"},
		{"create", "serviceaccount", "-n", tenants, "on-call"},
		{"create", "serviceaccount", "-n", tenants, "nobody"},
		{"create", "clusterrole", "status", "--verb=get", "--non-resource-url=/status/*"},
		{"create", "clusterrolebinding", "status", "--clusterrole=status", "--serviceaccount=" + tenants + ":on-call"},
	} {
		_, err := cp.Kubectl(t.Context(), args...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	var manifests strings.Builder
	for n := range extensions {
		if n%3 == 0 {
			fmt.Fprintf(&manifests, "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {namespace: %s, name: team-%03d}\n",
				tenants, n)
		}
		fmt.Fprintf(&manifests, "---\napiVersion: latchkey.dev/v1alpha1\nkind: ClusterExtension\n"+
			"metadata: {name: extension-%03d}\nspec: {namespace: %s, serviceAccount: {name: team-%03d}}\n", n, tenants, n/3*3)
	}
	apply(manifests.String())
	return cp
}

// startManager starts "latchkey manager" and returns the host and port of its status page.
func startManager(t *testing.T, cp *controlplane.ControlPlane, args ...string) string {
	t.Helper()
	g := NewWithT(t)
	program := filepath.Join(t.TempDir(), "latchkey")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/latchkey")
	build.Dir = "../.."
	out, err := build.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)

	user, err := cp.UserConfig("operator")
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: user.Host, CertificateAuthorityData: user.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"it": {
			ClientCertificateData: user.CertData,
			ClientKeyData:         user.KeyData,
		}},
	}, kubeconfig)).To(Succeed())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	address := listener.Addr().String()
	g.Expect(listener.Close()).To(Succeed())

	var printed testutil.Output
	cmd := exec.Command(program, append([]string{"manager", "--kubeconfig", kubeconfig, "--guarded-by-admission",
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--status-address=" + address}, args...)...)
	cmd.Stdout, cmd.Stderr = &printed, &printed
	g.Expect(cmd.Start()).To(Succeed())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		g.Expect(cmd.Process.Signal(syscall.SIGTERM)).To(Succeed())
		g.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()), "%s", &printed)
		g.Expect(printed.String()).NotTo(ContainSubstring("panic"))
	})
	return address
}

// answer is what a request received.
type answer struct {
	status int
	header http.Header
	body   string
}

// get sends a request. The connection of a stream is closed once the stream has sent something.
func get(t *testing.T, url, token, host string) answer {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if host != "" {
		req.Host = host
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // self-signed, on loopback
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	g.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		part := make([]byte, 1<<20)
		n, err := resp.Body.Read(part)
		g.Expect(err).NotTo(HaveOccurred())
		return answer{resp.StatusCode, resp.Header, string(part[:n])}
	}
	body, err := io.ReadAll(resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// anyToken matches the tokens of ServiceAccounts.
var anyToken = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.`)

// An engineer on call filters, sorts, opens an extension with the keyboard, and sees a fault and
// its end without touching anything.
func TestStatusPage(t *testing.T) {
	g := NewWithT(t)
	cp := startControlPlane(t)
	address := startManager(t, cp)
	url := "http://" + address
	g.Eventually(func() error {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			err = connection.Close()
		}
		return err
	}).WithTimeout(patience).Should(Succeed())

	b := openBrowser(t)
	b.run(chromedp.Navigate(url))
	b.eventually("#live", Equal("Live"))
	b.eventually("#summary", MatchRegexp(`^● 120 Connected\s+of 120 extensions`))
	b.eventually("#fine", HavePrefix("None: "))
	b.eventually("#page", Equal("Rows 1 to 50 of 120"))
	g.Expect(b.column(1)).To(And(HaveLen(50), HaveEach(HavePrefix("extension-"))))
	g.Expect(b.column(5)).To(HaveEach(MatchRegexp(`^tenants/team-[0-9]+$`)))

	b.Log("pages")
	b.click("#next")
	b.eventually("#page", Equal("Rows 51 to 100 of 120"))
	b.click("#next")
	b.eventually("#page", Equal("Rows 101 to 120 of 120"))
	g.Expect(b.column(1)).To(And(HaveLen(20), ContainElement("extension-119")))
	b.click("#previous")
	b.eventually("#page", Equal("Rows 51 to 100 of 120"))

	b.Log("sort")
	b.click(`#columns th[data-name="extension"] button`)
	b.eventually("#page", Equal("Rows 1 to 50 of 120"))
	g.Eventually(func() []string { return b.column(1)[:2] }).WithTimeout(patience).
		Should(Equal([]string{"extension-000", "extension-001"}))
	b.click(`#columns th[data-name="extension"] button`)
	g.Eventually(func() []string { return b.column(1)[:2] }).WithTimeout(patience).
		Should(Equal([]string{"extension-119", "extension-118"}))
	g.Expect(evaluate[string](b, `document.querySelector('th[data-name="extension"]').ariaSort`)).To(Equal("descending"))

	b.Log("filter")
	b.typeInto("#q", "TEAM-012")
	b.eventually("#matching", Equal("3 extensions"))
	g.Expect(b.column(1)).To(Equal([]string{"extension-014", "extension-013", "extension-012"}))
	shared := evaluate[string](b, "location.href")
	g.Expect(shared).To(And(ContainSubstring("q=TEAM-012"), ContainSubstring("sort=-extension")))
	b.run(chromedp.Navigate(shared)) // the address has it all
	b.eventually("#matching", Equal("3 extensions"))
	g.Expect(b.column(1)).To(HaveLen(3))

	b.Log("an extension, by keyboard")
	evaluate[chromedp.Void](b, `document.querySelector("#rows button").focus()`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.eventually("#details-heading", Equal("extension-014"))
	g.Expect(evaluate[string](b, "document.activeElement.id")).To(Equal("details-heading"))
	b.eventually("#timeline", MatchRegexp(`Connected connect 1, as system:serviceaccount:tenants:team-012 to https://`))
	b.eventually("#facts", And(ContainSubstring("serviceaccount tenants/team-012"), ContainSubstring("In use since")))

	b.Log("a fault")
	_, err := cp.Kubectl(t.Context(), "delete", "serviceaccount", "-n", tenants, "team-012")
	g.Expect(err).NotTo(HaveOccurred())
	b.eventually("#rows", MatchRegexp(`(?s)extension-014\s.*Disconnected.*ServiceAccountNotFound`))
	b.eventually("#summary", MatchRegexp(`^▲ 3 Disconnected\s+● 117 Connected`))
	b.eventually("#groups", MatchRegexp(`(?s)^▲ ServiceAccountNotFound\n?.*3 extensions.*Create it.*extension-01[234]`))
	b.eventually("#timeline", MatchRegexp(`(?s)^[^\n]*Disconnected \(ServiceAccountNotFound\).*Connected connect 1`))
	b.eventually("#advice", HavePrefix("What to do: "))
	g.Expect(evaluate[string](b, "document.activeElement.id")).To(Equal("details-heading"), "an update moves no focus")
	g.Expect(b.axe()).To(BeEmpty())
	pressed := func() string {
		return evaluate[string](b, `document.querySelector("#groups .title button").ariaPressed`)
	}
	b.typeInto("#q", "extension")
	b.eventually("#matching", Equal("120 extensions"))
	b.click("#groups .title button")
	b.eventually("#matching", Equal("3 extensions"))
	g.Expect(pressed()).To(Equal("true"))
	b.click("#groups .title button")
	b.eventually("#matching", Equal("120 extensions"))
	g.Expect(pressed()).To(Equal("false"))
	state := func(value string) {
		evaluate[chromedp.Void](b, fmt.Sprintf(`{
			const states = document.querySelector("#state");
			states.value = %q;
			states.dispatchEvent(new Event("change"));
		}`, value))
	}
	state("Disconnected")
	b.eventually("#matching", Equal("3 extensions"))
	state("Connected")
	b.eventually("#matching", Equal("117 extensions"))
	state("")
	b.eventually("#matching", Equal("120 extensions"))
	b.click("#problems")
	b.eventually("#matching", Equal("3 extensions"))
	b.click("#problems")
	b.eventually("#matching", Equal("120 extensions"))
	_, err = cp.Kubectl(t.Context(), "create", "serviceaccount", "-n", tenants, "team-012")
	g.Expect(err).NotTo(HaveOccurred())
	b.eventually("#timeline", MatchRegexp(`(?s)^[^\n]*Connected connect 2.*Disconnected .*Connected connect 1`))
	b.eventually("#groups", BeEmpty())
	b.typeInto("#q", "extension-014")
	b.eventually("#matching", Equal("1 extension"))
	b.click("#close")
	g.Eventually(func() bool { return evaluate[bool](b, `document.querySelector("#details").hidden`) }).
		WithTimeout(patience).Should(BeTrue())
	g.Expect(evaluate[string](b, "document.activeElement.innerText")).To(Equal("extension-014"))
	g.Expect(b.consoleErrors()).To(BeEmpty())

	b.Log("pictures")
	_, err = cp.Kubectl(t.Context(), "delete", "serviceaccount", "-n", tenants, "team-018")
	g.Expect(err).NotTo(HaveOccurred())
	b.eventually("#groups", ContainSubstring("3 extensions"))
	b.run(chromedp.Navigate(url + "/status/?extension=extension-018"))
	b.eventually("#timeline", ContainSubstring("ServiceAccountNotFound"))
	b.eventually("#facts", ContainSubstring("serviceaccount tenants/team-018"))
	b.docsPicture("statuspage-light.png")
	b.dark(true)
	b.docsPicture("statuspage-dark.png")
	b.dark(false)

	b.Log("what it serves")
	for _, path := range []string{"", "view?size=500&extension=extension-014", "live?extension=extension-014",
		"connections",
		"connections?format=json"} {
		got := get(t, url+"/status/"+path, "", "")
		g.Expect(got.status).To(Equal(http.StatusOK), path)
		g.Expect(got.body).NotTo(BeEmpty(), path)
		g.Expect(anyToken.FindString(got.body+fmt.Sprint(got.header))).To(BeEmpty(), path)
		g.Expect(got.header.Get("Content-Security-Policy")).To(HavePrefix("default-src 'none'"))
	}
	g.Expect(get(t, url+"/status/view", "", "rebound.example.com").status).To(Equal(http.StatusForbidden))
	token, err := cp.Kubectl(t.Context(), "create", "token", "-n", tenants, "on-call")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(anyToken.MatchString(token)).To(BeTrue(), "the check above can fail")
}

// With --status-secure no reader sees anything without a token that the API server takes, of a user
// who may get the path.
func TestSecureStatusPage(t *testing.T) {
	g := NewWithT(t)
	cp := startControlPlane(t)
	address := startManager(t, cp, "--status-secure")
	url := "https://" + address + "/status/"
	token := func(name string) string {
		token, err := cp.Kubectl(t.Context(), "create", "token", "-n", tenants, name)
		g.Expect(err).NotTo(HaveOccurred())
		return strings.TrimSpace(token)
	}
	g.Eventually(func() error {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			err = connection.Close()
		}
		return err
	}).WithTimeout(patience).Should(Succeed())
	onCall := token("on-call")
	g.Eventually(func() string { return get(t, url+"view", onCall, "").body }).WithTimeout(patience).Should(
		ContainSubstring(`"extension-001"`))
	for _, path := range []string{"", "view", "live", "connections", "other"} {
		for name, want := range map[string]int{"": http.StatusUnauthorized, "x.y.z": http.StatusUnauthorized,
			token("nobody"): http.StatusForbidden} {
			got := get(t, url+path, name, "")
			g.Expect(got.status).To(Equal(want), path)
			g.Expect(got.body).NotTo(ContainSubstring("extension-0"))
		}
	}

	b := openBrowser(t)
	b.run(chromedp.Navigate(url))
	b.run(chromedp.WaitVisible("#token"))
	g.Expect(b.axe()).To(BeEmpty())
	signIn := func(token string) { b.typeInto("#token", token+kb.Enter) }
	signIn("x.y.z")
	b.eventually("#sign-in-error", ContainSubstring("does not know this token"))
	signIn(token("nobody"))
	b.eventually("#sign-in-error", ContainSubstring("may not"))
	signIn(token("on-call"))
	b.eventually("#summary", ContainSubstring("of 120 extensions"))
	b.eventually("#live", Equal("Live"))
	document := evaluate[string](b,
		"document.documentElement.outerHTML + location + JSON.stringify(localStorage) + document.cookie")
	g.Expect(anyToken.FindString(document)).To(BeEmpty(), "the token is in the script's memory only")
	g.Expect(b.consoleErrors()).To(HaveEach(MatchRegexp("status of 40[13]")))
}
