package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/statuspage"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// capture records log lines while it is on.
type capture struct {
	on    atomic.Bool
	mu    sync.Mutex
	lines []string // guarded by mu
}

// captured holds the log lines of host operators, and of client-go inside them.
var captured = &capture{}

func (c *capture) write(prefix, args string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, prefix+" "+args)
}

// take returns the recorded lines and clears the record.
func (c *capture) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := c.lines
	c.lines = nil
	return lines
}

// tap is a LogSink that drops all lines while captured is off.
type tap struct{ logr.LogSink }

func (t *tap) Enabled(level int) bool            { return captured.on.Load() && t.LogSink.Enabled(level) }
func (t *tap) WithName(name string) logr.LogSink { return &tap{t.LogSink.WithName(name)} }
func (t *tap) WithValues(keysAndValues ...any) logr.LogSink {
	return &tap{t.LogSink.WithValues(keysAndValues...)}
}

// Error checks captured itself, because callers do not call Enabled before Error.
func (t *tap) Error(err error, msg string, keysAndValues ...any) {
	if captured.on.Load() {
		t.LogSink.Error(err, msg, keysAndValues...)
	}
}

// captureLogs records the logs at every verbosity until the test ends.
func captureLogs(t *testing.T) {
	t.Helper()
	verbosity := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	NewWithT(t).Expect(verbosity.Set("v", "10")).To(Succeed())
	captured.on.Store(true)
	t.Cleanup(func() {
		captured.on.Store(false)
		NewWithT(t).Expect(verbosity.Set("v", "0")).To(Succeed())
		captured.take()
	})
}

// formsOf returns the forms in which a secret may appear in a text.
func formsOf(secret string) (forms []string) {
	forms = append(forms, secret, hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))))
	for shift := range 3 {
		// The secret may be part of a longer text that is encoded, at each of the three alignments.
		// The first and last characters depend on the text around the secret, so they are cut off.
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			encoded := encoding.EncodeToString([]byte(strings.Repeat("x", shift) + secret))
			forms = append(forms, encoded[4:len(encoded)-4])
		}
	}
	return forms
}

// shown returns the names of the secrets that the text contains in any form.
func shown(text string, secrets map[string]string) (names []string) {
	for secret, name := range secrets {
		for _, form := range formsOf(secret) {
			if strings.Contains(text, form) {
				names = append(names, name)
				break
			}
		}
	}
	return names
}

// issuedTokens records the tokens in the responses to TokenRequests.
type issuedTokens struct {
	mu     sync.Mutex
	tokens map[string]string // guarded by mu
}

func (i *issuedTokens) wrap(next http.RoundTripper) http.RoundTripper {
	return testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err != nil || !isPost(req, "token") {
			return resp, err
		}
		content, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(content))
		answer := &authenticationv1.TokenRequest{}
		if json.Unmarshal(content, answer) == nil && answer.Status.Token != "" {
			i.note(answer.Status.Token, "issued for "+req.URL.Path)
		}
		return resp, err
	})
}

func (i *issuedTokens) note(secret, name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tokens[secret] = name
}

// TestSecretsAreNotShown checks that no secret of a host operator becomes visible. Secrets must not
// appear in logs at the highest verbosity, in errors, in metrics or in states. Nor may secrets
// appear when fmt formats any value that an operator can obtain.
func TestSecretsAreNotShown(t *testing.T) {
	g := NewWithT(t)
	captureLogs(t)
	secrets := &issuedTokens{tokens: map[string]string{}}
	ns := namespace(t)
	for _, name := range []string{"token", "far", "mapped"} {
		create(t, serviceAccount(ns, name))
		grant(t, ns, name, everythingInCore)
	}
	grantTo(t, ns, "User", "certified")
	grantOperatorSecrets(t, ns, "far", "certified")
	for _, name := range []string{"token", "missing", "mapped", "far", "certified", "worn"} {
		create(t, extension(ns, name))
	}
	create(t, serviceAccount(ns, "worn"))
	mayImpersonate(t, ns, "worn")
	// The host operators of this test are ServiceAccounts.
	for _, role := range []string{"kubeconfigs", "may-impersonate"} {
		binding := roleBinding(ns, role, rbacv1.Subject{Kind: "Group", Name: "system:serviceaccounts"})
		binding.Name = "operators-" + role
		create(t, binding)
	}
	noteSecret := func(name, secret string) string { secrets.note(secret, name); return secret }
	certificate := func() []byte {
		user := certificateOf(t, "certified")
		secrets.note(string(user.ClientKeyData), "client key")
		// Each line of the key counts as a secret too, because an encoder may fold or cut the key.
		for line := range strings.Lines(string(user.ClientKeyData)) {
			if !strings.HasPrefix(line, "---") && len(line) > 40 {
				secrets.note(strings.TrimSpace(line), "line of a client key")
			}
		}
		return kubeconfigOf(t, user)
	}
	f := newFaults(t)
	far := func(name, secret string) []byte {
		return kubeconfigOf(t, clientcmdapi.AuthInfo{Token: noteSecret(name, secret)},
			func(server *clientcmdapi.Cluster) {
				server.Server, server.CertificateAuthorityData = f.URL, f.authorities()
			})
	}
	create(t, kubeconfigSecret(ns, "far", far("kubeconfig token", token(t, ns, "far"))))
	create(t, kubeconfigSecret(ns, "certified", certificate()))
	mapped := noteSecret("mapped token", token(t, ns, "mapped"))

	var texts []string // texts that people may see, apart from logs
	see := func(format string, args ...any) { texts = append(texts, fmt.Sprintf(format, args...)) }
	seeAll := func(values ...any) {
		for _, value := range values {
			for _, verb := range []string{"%v", "%+v", "%#v"} {
				see(verb, value)
			}
		}
	}
	for name, provider := range map[string]struct {
		credentials credential.Provider
		use, broken []string
	}{
		"token": {credential.ServiceAccountTokens(credential.ServiceAccountOptions{}), []string{"token"},
			[]string{"missing"}},
		"kubeconfig": {credential.KubeconfigSecrets(credential.KubeconfigOptions{
			Namespace: ns,
			Allow:     credential.SecretsGuardedByAdmission,
		}), []string{"far", "certified"}, []string{"missing"}},
		"mapper":      {elsewhere(mapped, nil), []string{"mapped"}, nil},
		"impersonate": {credential.Impersonation(credential.ImpersonationOptions{}), []string{"worn"}, []string{"missing"}},
	} {
		config, operatorToken := f.operatorConfig(t)
		secrets.note(operatorToken, "the host operator's token")
		config.WrapTransport = secrets.wrap
		recorder := tracetest.NewSpanRecorder()
		options := clustercache.Options{
			Credentials:    provider.credentials,
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)),
		}
		if name == "token" || name == "impersonate" {
			options.AllowIdentity = clustercache.GuardedByAdmission
		}
		o := newOperatorAt(t, config, options)
		o.also = append(o.also, f.quiet)
		page := statuspage.New(o.ClusterCache, statuspage.Options{})
		g.Expect(o.mgr.Add(page)).To(Succeed())
		o.start(t)
		for _, extension := range provider.broken {
			o.waitFor(t, extension, func(s clustercache.ConnectionState) bool {
				return s.Reason != clustercache.ReasonNotStarted && s.Message != ""
			})
		}
		for _, extension := range provider.use {
			o.waitConnected(t, extension)
			h := handlesOf(t, o, extension)
			uses := h.uses(t, ns)
			clientset, err := kubernetes.NewForConfig(h.config)
			g.Expect(err).NotTo(HaveOccurred())
			for action, use := range uses {
				see("%s: %+v", action, use())
			}
			_, err = clientset.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
			see("%+v", err)
			// The API server refuses requests, fails, or is unreachable.
			for _, status := range []int{http.StatusUnauthorized, http.StatusInternalServerError,
				http.StatusTooManyRequests, http.StatusBadGateway} {
				answer := func(req *http.Request) int {
					if strings.Contains(req.URL.Path, "/configmaps") {
						return status
					}
					return 0
				}
				f.answer.Store(&answer)
				see("%+v", h.live.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)))
				see("%+v", h.client.Create(t.Context(), configMap(ns, "never")))
			}
			f.answer.Store(nil)
			seeAll(h.client, h.reader, h.live, h.config, h.whole, h.whole.GetHTTPClient(),
				h.whole.GetHTTPClient().Transport, h.config.WrapTransport(http.DefaultTransport), clientset)
			state, _ := o.GetConnectionState(t.Context(), key(extension))
			content, err := json.Marshal(state)
			g.Expect(err).NotTo(HaveOccurred())
			seeAll(state, string(content))
		}
		if name == "kubeconfig" { // kubeconfigs that change or are broken
			setKubeconfig(t, ns, "far", far("rotated token", token(t, ns, "far")))
			setKubeconfig(t, ns, "certified", certificate())
			g.Eventually(captured.sees("Took up a newer credential")).WithTimeout(patience).Should(BeNumerically(">=", 2))
			setKubeconfig(t, ns, "far", far("invalid token", "this-one-was-never-issued-by-anybody"))
			setKubeconfig(t, ns, "certified", append(certificate(), "  broken: {"...))
			for _, extension := range provider.use {
				seeAll(o.waitFor(t, extension, func(s clustercache.ConnectionState) bool { return s.Message != "" }))
			}
			// This kubeconfig names the real API server, which does not return the 401 below.
			g.Expect(admin.Delete(t.Context(), kubeconfigSecret(ns, "certified", nil))).To(Succeed())
		}
		// A 401 ends every connection. Then the operator stops.
		all := func(req *http.Request) int {
			if strings.Contains(req.URL.Path, "selfsubjectreviews") {
				return http.StatusUnauthorized
			}
			return 0
		}
		f.answer.Store(&all)
		for _, extension := range provider.use {
			state := o.waitFor(t, extension, func(s clustercache.ConnectionState) bool {
				return s.Phase == clustercache.PhaseDisconnected
			})
			_, err := o.GetClient(t.Context(), key(extension))
			seeAll(state, err, errors.Unwrap(err))
			see("%s", err)
		}
		for _, path := range []string{"view?size=500&extension=" + provider.use[0], "connections",
			"connections?format=json"} {
			answer := httptest.NewRecorder()
			page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/status/"+path, http.NoBody))
			g.Expect(answer.Body.String()).To(ContainSubstring(provider.use[0]))
			see("%s", answer.Body)
		}
		// A visitor of the page on the network sends a token, which is reviewed.
		visitor := httptest.NewRequest(http.MethodGet, "/status/view", http.NoBody)
		visitor.Header.Set("Authorization", "Bearer "+noteSecret("visitor's token", token(t, ns, "token")))
		answer := httptest.NewRecorder()
		page.Guard(admin, "/status/").ServeHTTP(answer, visitor)
		g.Expect(answer.Code).To(Equal(http.StatusForbidden), "%s", answer.Body)
		see("%s", answer.Body)
		f.answer.Store(nil)
		o.end(t)
		spans := recorder.Ended()
		g.Expect(spans).NotTo(BeEmpty())
		for _, span := range spans {
			see("%s %v %v %v", span.Name(), span.Attributes(), span.Status(), span.Events())
			g.Expect(span.Events()).To(BeEmpty(), "an event could have the text of an error")
			g.Expect(span.Status().Description).To(MatchRegexp(`^[A-Za-z]*$`), "a result, and no text of a server")
		}
		options.TracerProvider = nil
		seeAll(o.ClusterCache, options, options.Credentials)
	}
	families, err := metrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	see("%v", families)

	logs := captured.take()
	g.Expect(len(logs)).To(BeNumerically(">", 500), "logs at verbosity 10")
	g.Expect(logs).To(ContainElement(ContainSubstring("/token")),
		"the logs contain the TokenRequests without the responses")
	g.Expect(len(secrets.tokens)).To(BeNumerically(">", 10))
	everything := strings.Join(append(logs, texts...), "\n")
	g.Expect(shown(everything, secrets.tokens)).To(BeEmpty())

	// Check that the search itself finds a secret in each form.
	planted := token(t, ns, "token")
	for _, form := range []string{planted, base64.StdEncoding.EncodeToString([]byte("a" + planted + "b")),
		base64.URLEncoding.EncodeToString([]byte(planted)), hex.EncodeToString([]byte(planted))} {
		klog.Background().V(10).Info("planted", "secret", form)
		g.Expect(shown(strings.Join(captured.take(), "\n"), map[string]string{planted: "planted"})).
			To(Equal([]string{"planted"}))
		g.Expect(shown(fmt.Sprintf("%+v", &rest.Config{Host: form}), map[string]string{planted: "planted"})).
			To(Equal([]string{"planted"}))
	}
	t.Logf("%d secrets, %d lines of logs and %d other texts, %d bytes in all", len(secrets.tokens), len(logs),
		len(texts), len(everything))
}

// sees returns a function that counts the recorded lines that contain the text.
func (c *capture) sees(text string) func() int {
	return func() (n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, line := range c.lines {
			if strings.Contains(line, text) {
				n++
			}
		}
		return n
	}
}
