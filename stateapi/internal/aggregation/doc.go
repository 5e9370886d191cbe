// Package aggregation makes the API server in front reach this one: by an APIService and a Service
// that lead to the leader.
//
// # Setup
//
// [New] returns a [Publisher] for an APIService and a Service that exist or will exist. Serve with
// [Publisher.Certificate].
//
// # Usage
//
// [Publisher.Run] runs while this process serves. It keeps the certificate authority in the
// APIService and the address in an EndpointSlice of the Service, and renews the certificate.
//
// # Considerations
//
//   - The key of the authority is in memory only. The next leader has an authority of its own, and
//     puts it into the APIService.
//   - An APIService is never created here, so one that was deleted, to uninstall, stays deleted.
//     One that leads to another Service is left alone.
package aggregation
