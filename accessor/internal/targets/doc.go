// Package targets holds what all identities at one API server share.
//
// A [Set] belongs to one ClusterCache. [Set.Join] takes a REST config without any secret, and makes
// a connection a member of that server's [Target]. The last member that leaves closes the target's
// TCP connections.
//
// A connection sends its requests through [Target.RoundTripper], below the RoundTripper that adds
// its identity. A client certificate has a [Target.Certified] transport instead. Kinds are mapped
// to resources by a [Mapper] per connection, over what the target's members discovered.
//
//   - One transport per target. TCP and TLS are paid once for all identities; HTTP/2 carries about
//     100 requests at a time on one connection. Identities are added per request, so what is shared
//     knows none. A config that carries a client certificate is refused.
//   - Discovery results are shared. Discovery itself is done by the connection that asks, with its
//     own credential. One mapper per connection would cost hundreds of KiB and a discovery each.
//   - Any answer that any member gets proves the server up. Only when all are silent, one of them
//     probes for all: "is the server up" is a question about the target, not about each identity.
package targets
