// Package targets holds what all identities at one API server share.
//
// # Setup
//
// A [Set] belongs to one ClusterCache. [Set.Acquire] takes a REST config without any secret and returns the
// [Target] of that server, a new one or the one that others hold already; [Target.Release] gives it back, and
// the last one to do so closes its TCP connections.
//
// # Usage
//
// A connection sends its requests through [Target.RoundTripper], below the RoundTripper that adds its
// identity, or through a [Target.Certified] line where that identity is a client certificate, and maps kinds to resources with a [Mapper] of its own over what the target's members discovered.
//
// # Considerations
//
//   - One transport per target. TCP and TLS are paid once however many identities there are; HTTP/2 carries
//     about 100 requests at a time on one connection. Identities are added per request, so what is shared knows none:
//     a config that carries a client certificate is refused. Certificates have TCP connections of their own.
//   - Discovery results are shared, discovery itself is done by who asks, with its own credential. One mapper
//     per connection would cost hundreds of KiB and a discovery each.
//   - Any answer that any member gets proves the server up. Only when all are silent is one of them asked to
//     probe: "is the server up" is a question about the target, not about each identity.
package targets
