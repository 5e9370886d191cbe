// Package targets holds the state that all identities at one API server share.
//
// A [Set] belongs to one ClusterCache. [Set.Join] receives a REST config without any secret, and
// makes a connection a member of that server's [Target]. The last member that leaves closes the
// target's TCP connections.
//
// A connection sends its requests through [Target.RoundTripper], below the RoundTripper that adds
// its identity. A client certificate has a [Target.Certified] transport instead. A [Mapper] per
// connection maps kinds to resources, based on the discovery results of all members of the target.
//
//   - One transport per target. All identities share the cost of TCP and TLS; HTTP/2 carries about
//     100 requests at a time on one connection. The identity is added per request, so the shared
//     transport knows no identity. A config that carries a client certificate is refused.
//   - Discovery results are shared. The connection that needs a discovery runs it, with its own
//     credential. A separate mapper per connection would cost hundreds of KiB and one discovery
//     each.
//   - Any answer to any member proves that the server is up. If no member gets an answer, one of
//     them probes on behalf of all: whether the server is up is a property of the target, not of
//     each identity.
package targets
