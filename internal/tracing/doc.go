// Package tracing has the OpenTelemetry spans of latchkey.
//
// # Setup
//
// [New] returns a Tracer for the provider of the host operator; without a provider it does nothing.
//
// # Usage
//
//	ctx, span := tracer.Start(ctx, tracing.Connect, tracing.Extension.String("red"))
//	...
//	tracing.End(span, "Unreachable", true)
//
// # Considerations
//
//   - Attributes are names, reasons and numbers of ours. No span has an error's text: it may be a
//     server's, or contain a secret.
//   - docs/operations.md lists the spans; a test compares the lists.
//   - latchkey sends no trace context to API servers, because tenants choose some of them.
package tracing
