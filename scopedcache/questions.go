package scopedcache

import (
	"context"

	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/access"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// displayError returns an error of an informer, or of discovery, in the form in which users see it.
// The text is shortened. With hideText it is without the API server's text.
func displayError(err error, hideText bool) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if status, ok := untrusted.StatusText(err); ok && hideText && access.FromServer(err) {
		text = "the API server answered " + status
	}
	if untrusted.Shorten(text) != err.Error() {
		return untrusted.Show(text, err)
	}
	return err
}

// review asks whether the identity has access with all verbs. If access is denied and OrListOnly is
// set, review asks whether the identity may list.
func (r *run) review(ctx context.Context, e monitor.AskReview) (answer monitor.Reviewed) {
	ctx, span := r.startSpan(ctx, tracing.AccessReview)
	defer func() { tracing.End(span, reviewResults[answer.Verdict], answer.Verdict != monitor.Allowed) }()
	q := r.entry.selection.question(e.Mapping)
	q.Hint = !r.entry.env.options.noHints && !r.entry.isTried()
	verdict, err := r.entry.env.reviewer.Review(ctx, q, e.Verbs...)
	if verdict.IsDenial() && e.OrListOnly {
		if v, err := r.entry.env.reviewer.Review(ctx, q, "list"); !v.IsDenial() {
			return monitor.Reviewed{Question: e.Question, Verdict: v, ListOnly: true, Err: err}
		}
	}
	return monitor.Reviewed{Question: e.Question, Verdict: verdict, Err: err}
}

// reviewResults are the results of reviews in spans.
var reviewResults = map[monitor.Verdict]string{monitor.Allowed: "Allowed", monitor.Denied: "Denied",
	monitor.DeniedReadinessUnknown: "Denied", monitor.DeniedUnready: "DeniedUnready", monitor.Unaskable: "Unaskable",
	monitor.Unanswered: "Unanswered"}

// startSpan starts a span about the scope.
func (r *run) startSpan(ctx context.Context, name string) (context.Context, trace.Span) {
	ctx, span := r.entry.env.tracer.Start(ctx, name)
	if span.IsRecording() {
		span.SetAttributes(tracing.Kind.String(r.entry.selection.kind.gvk.String()),
			tracing.Scope.String(r.entry.selection.scope.String()),
			tracing.Username.String(r.entry.env.options.Username))
	}
	return ctx, span
}

// discover returns the kind's resource. discover sends a request if the resource is not known, or
// if e.Distrust is set. A mapper that forgets knows better than this cache.
func (r *run) discover(ctx context.Context, e monitor.AskMapping) (*meta.RESTMapping, error) {
	known := r.entry.selection.kind.mapping.Load()
	if known != nil && !e.Distrust && !r.entry.env.discovery.mapperForgets() {
		return known, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, discoveryTimeout, errDiscovery)
	defer cancel()
	find := r.entry.env.discovery.mapping
	if e.Distrust {
		find = r.entry.env.discovery.mappingAnew
	}
	mapping, err := find(ctx, r.entry.selection.kind.gvk)
	denied := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	if denied && e.Distrust && !e.Sure {
		mapping, err = r.entry.env.discovery.mapping(ctx, r.entry.selection.kind.gvk) // as others found it, or as it was
	}
	if err == nil {
		r.entry.selection.kind.mapping.Store(mapping)
	}
	return mapping, err
}
