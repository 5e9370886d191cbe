package tracing

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// connectSpans makes the spans of a connect.
func connectSpans(ctx context.Context, tracer *Tracer) {
	ctx, connect := tracer.Start(ctx, Connect)
	for _, name := range []string{TokenRequest, Review} {
		_, span := tracer.Start(Detach(ctx, ctx), name)
		End(span, "Valid", false)
	}
	End(connect, "Valid", false)
}

// Without a provider, a connect allocates nothing for its spans.
func TestOff(t *testing.T) {
	g := NewWithT(t)
	tracer := New(nil, "clustercache")
	g.Expect(tracer).To(BeNil())
	g.Expect(tracer.Provider()).To(BeNil())
	ctx := t.Context()
	got, span := tracer.Start(ctx, Probe)
	g.Expect(got == ctx).To(BeTrue(), "the context is the same")
	g.Expect(span.IsRecording()).To(BeFalse())
	g.Expect(testing.AllocsPerRun(1000, func() { connectSpans(ctx, tracer) })).To(BeZero())
}

func TestSpans(t *testing.T) {
	g := NewWithT(t)
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	tracer := New(provider, "clustercache")
	g.Expect(tracer.Provider()).To(BeIdenticalTo(provider))
	connectSpans(t.Context(), tracer)
	_, failed := tracer.Start(t.Context(), Probe)
	End(failed, "Silent", true)
	spans := recorder.Ended()
	g.Expect(spans).To(HaveLen(4))
	g.Expect(spans[0].Name()).To(Equal(TokenRequest))
	g.Expect(spans[0].Parent()).To(Equal(spans[2].SpanContext()))
	g.Expect(spans[2].Attributes()).To(ConsistOf(Cache.String("clustercache"), Result.String("Valid")))
	g.Expect(spans[3].Status().Code).To(Equal(codes.Error))
}

// docs/operations.md lists the spans and their attributes.
func TestOperationsPageListsEverySpan(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(page), "\n## Traces\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n## ")
	source, err := os.ReadFile("tracing.go")
	g.Expect(err).NotTo(HaveOccurred())
	spans := regexp.MustCompile(`= "(latchkey\.\w+)"`).FindAllStringSubmatch(string(source), -1)
	keys := regexp.MustCompile(`attribute\.Key\("latchkey\.([\w.]+)"\)`).FindAllStringSubmatch(string(source), -1)
	g.Expect(len(spans)).To(BeNumerically(">=", 7))
	g.Expect(len(keys)).To(BeNumerically(">=", 10))
	for _, span := range spans {
		g.Expect(section).To(ContainSubstring("| `"+span[1]+"` |"), "a row of the table")
	}
	_, attributes, found := strings.Cut(section, "The attributes begin with `latchkey.`")
	g.Expect(found).To(BeTrue())
	for _, key := range keys {
		g.Expect(attributes).To(ContainSubstring("`" + key[1] + "`"))
	}
}

// BenchmarkConnectSpans is what the spans of one connect cost.
func BenchmarkConnectSpans(b *testing.B) {
	for name, tracer := range map[string]*Tracer{"off": nil, "on": New(sdktrace.NewTracerProvider(), "clustercache")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				connectSpans(context.Background(), tracer)
			}
		})
	}
}
