package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// recorder records spans.
type recorder struct{ *tracetest.SpanRecorder }

// newRecorder returns a recorder and its provider.
func newRecorder() (recorder, *sdktrace.TracerProvider) {
	r := recorder{tracetest.NewSpanRecorder()}
	return r, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
}

// tree returns the ended spans of a name with their attributes, and below each the spans that it
// contains.
func (r recorder) tree(name string) (lines []string) {
	ended := r.Ended()
	slices.SortFunc(ended, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	var add func(span sdktrace.ReadOnlySpan, indent string)
	add = func(span sdktrace.ReadOnlySpan, indent string) {
		line := indent + span.Name()
		for _, a := range span.Attributes() {
			if a.Key != "latchkey.pool.wait" && a.Key != "latchkey.target" { // which differ from run to run
				line += fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(a.Key), "latchkey."), a.Value.String())
			}
		}
		if span.Status().Code == codes.Error {
			line += " (error)"
		}
		lines = append(lines, line)
		for _, child := range ended {
			if child.Parent().SpanID() == span.SpanContext().SpanID() {
				add(child, indent+"  ")
			}
		}
	}
	for _, span := range ended {
		if span.Name() == name && !span.Parent().IsValid() {
			add(span, "")
		}
	}
	return lines
}

// checkSecrets checks that no span contains one of the secrets, or any token of a ServiceAccount.
func (r recorder) checkSecrets(t *testing.T, secrets ...string) {
	t.Helper()
	g := NewWithT(t)
	for _, span := range r.Ended() {
		text := fmt.Sprintf("%v %v %v %v", span.Name(), span.Attributes(), span.Events(), span.Status())
		for _, secret := range append(secrets, "eyJ") { // how a token in base64 begins
			g.Expect(text).NotTo(ContainSubstring(secret))
		}
	}
}

// exemplars returns the IDs of the traces that a histogram has as exemplars.
func exemplars(t *testing.T, name string) (ids []string) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, bucket := range metric.GetHistogram().GetBucket() {
				for _, label := range bucket.GetExemplar().GetLabel() {
					if label.GetName() == "trace_id" {
						ids = append(ids, label.GetValue())
					}
				}
			}
		}
	}
	return ids
}

// With a TracerProvider, connects, reconnects, probes, informers and reviews are spans, with what
// came of them, and without secrets. docs/operations.md shows the trace of a connect.
func TestTraces(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, serviceAccount(ns, "red"))
	create(t, extension(ns, "red"))
	grantTo(t, ns, "Group", "system:serviceaccounts:"+ns)
	spans, provider := newRecorder()
	o := startOperator(t, clustercache.Options{TracerProvider: provider})
	o.waitConnected(t, "red")
	connect := []string{
		"latchkey.connect cache=clustercache extension=red epoch=1 result=Valid",
		"  latchkey.token_request cache=clustercache serviceaccount=" + ns + "/red result=Issued",
		"  latchkey.review cache=clustercache result=Valid",
	}
	g.Eventually(func() []string { return spans.tree("latchkey.connect") }).WithTimeout(patience).Should(Equal(connect))
	ids := map[string]bool{}
	for _, span := range spans.Ended() {
		ids[span.SpanContext().TraceID().String()] = true
	}
	g.Expect(exemplars(t, "latchkey_connect_duration_seconds")).To(ContainElement(BeKeyOf(ids)))
	g.Expect(exemplars(t, "latchkey_pool_wait_seconds")).To(ContainElement(BeKeyOf(ids)))
	page, err := os.ReadFile("../../docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(page)).To(ContainSubstring("```\n" +
		strings.ReplaceAll(strings.Join(connect, "\n"), ns+"/red", "team-red/red") + "\n```\n"))

	watcher := newFakeController(t)
	g.Expect(o.Watch(t.Context(), key("red"),
		clustercache.NewWatcher(watcher.watch("content", &corev1.ConfigMap{}, ns)))).To(Succeed())
	username := "system:serviceaccount:" + ns + ":red"
	about := " kind=/v1, Kind=ConfigMap scope=namespace " + ns + " username=" + username
	g.Eventually(func() []string { return spans.tree("latchkey.informer") }).WithTimeout(patience).
		Should(Equal([]string{"latchkey.informer" + about + " result=Synced"}))
	g.Eventually(func() []string { return spans.tree("latchkey.access_review") }).WithTimeout(patience).
		Should(ContainElement("latchkey.access_review" + about + " result=Allowed"))

	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "red"))).To(Succeed())
	o.waitFor(t, "red", func(s clustercache.ConnectionState) bool {
		return s.Reason == clustercache.ReasonServiceAccountNotFound
	})
	create(t, serviceAccount(ns, "red"))
	o.waitConnected(t, "red")
	g.Eventually(func() []string { return spans.tree("latchkey.connect") }).WithTimeout(patience).
		Should(ContainElement("latchkey.connect cache=clustercache extension=red epoch=2 result=Valid"))
	g.Eventually(func() []string { return spans.tree("latchkey.probe") }).WithTimeout(patience).
		Should(ContainElements("latchkey.probe cache=clustercache extension=red epoch=2 result=Valid",
			"  latchkey.review cache=clustercache result=Valid"))
	spans.checkSecrets(t)
}

// Spans of credentials that are refused have an error, and no text of a server or of a credential.
func TestTracesOfKubeconfigs(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, serviceAccount(ns, "red"))
	create(t, extension(ns, "red"))
	secret := kubeconfigSecret(ns, "red", kubeconfigOf(t, clientcmdapi.AuthInfo{Token: "refused-token"}))
	create(t, secret)
	grantOperatorSecrets(t, ns, "red")
	spans, provider := newRecorder()
	o := startOperator(t, clustercache.Options{
		TracerProvider: provider,
		Credentials: credential.KubeconfigSecrets(credential.KubeconfigOptions{
			Namespace: ns,
			Allow:     credential.SecretsGuardedByAdmission,
		}),
	})
	refused := []string{"latchkey.connect cache=clustercache extension=red epoch=1 result=Unauthorized (error)",
		"  latchkey.review cache=clustercache result=Unauthorized (error)"}
	g.Eventually(func() []string { return spans.tree("latchkey.connect") }).WithTimeout(patience).
		Should(ContainElements(refused))

	update := func(info clientcmdapi.AuthInfo) {
		changed := kubeconfigSecret(ns, "red", kubeconfigOf(t, info))
		g.Expect(admin.Update(t.Context(), changed)).To(Succeed())
	}
	update(clientcmdapi.AuthInfo{Token: token(t, ns, "red")})
	o.waitConnected(t, "red")
	update(clientcmdapi.AuthInfo{Token: token(t, ns, "red")})
	g.Eventually(func() []string { return spans.tree("latchkey.rotate") }).WithTimeout(patience).
		Should(ContainElements(HavePrefix("latchkey.rotate cache=clustercache extension=red"),
			"  latchkey.review cache=clustercache result=Valid"))
	spans.checkSecrets(t, "refused-token")
}
