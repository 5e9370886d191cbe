package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// The names of spans.
const (
	Connect      = "latchkey.connect"
	Probe        = "latchkey.probe"
	Rotate       = "latchkey.rotate"
	TokenRequest = "latchkey.token_request"
	Review       = "latchkey.review"
	Informer     = "latchkey.informer"
	AccessReview = "latchkey.access_review"
)

// CachedRead is the event, in the caller's span, of a read that the cache answers.
const CachedRead = "latchkey.cached_read"

// The keys of attributes.
const (
	// Cache is the name of the ClusterCache.
	Cache = attribute.Key("latchkey.cache")
	// Extension is namespace/name of the extension.
	Extension = attribute.Key("latchkey.extension")
	// ServiceAccount is namespace/name.
	ServiceAccount = attribute.Key("latchkey.serviceaccount")
	// Epoch is the number of the connect: one that is greater than 1 is a reconnect.
	Epoch = attribute.Key("latchkey.epoch")
	// Target is the API server.
	Target = attribute.Key("latchkey.target")
	// Username is whom the requests are sent as.
	Username = attribute.Key("latchkey.username")
	// Kind is the kind of the objects of a scope.
	Kind = attribute.Key("latchkey.kind")
	// Scope restricts the objects of the kind: namespace and selectors.
	Scope = attribute.Key("latchkey.scope")
	// Wait is how long the span's work waited for its turn in the pool, in seconds.
	Wait = attribute.Key("latchkey.pool.wait")
	// Result is what came of it, in the words of the metrics.
	Result = attribute.Key("latchkey.result")
)

// Tracer starts spans. A nil *Tracer starts none.
type Tracer struct {
	tracer   trace.Tracer
	provider trace.TracerProvider
	cache    string
}

// New returns a Tracer for the ClusterCache of that name, nil if the provider is nil.
func New(provider trace.TracerProvider, cache string) *Tracer {
	if provider == nil {
		return nil
	}
	return &Tracer{tracer: provider.Tracer("github.com/latchkey-dev/latchkey"), provider: provider, cache: cache}
}

// Provider returns the provider of the spans, nil for none.
func (t *Tracer) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Start starts a span below that of ctx. The caller ends it with [End].
func (t *Tracer) Start(ctx context.Context, name string) (context.Context, trace.Span) {
	if t == nil {
		return ctx, noop.Span{}
	}
	ctx, span := t.tracer.Start(ctx, name)
	if t.cache != "" {
		span.SetAttributes(Cache.String(t.cache))
	}
	return ctx, span
}

// Detach returns base with the span of ctx: for work that outlives the one who began it.
func Detach(base, ctx context.Context) context.Context {
	span := trace.SpanFromContext(ctx)
	if !span.SpanContext().IsValid() {
		return base
	}
	return trace.ContextWithSpan(base, span)
}

// End ends a span with its result.
func End(span trace.Span, result string, failed bool) {
	if span.IsRecording() {
		span.SetAttributes(Result.String(result))
		if failed {
			span.SetStatus(codes.Error, result)
		}
	}
	span.End()
}
