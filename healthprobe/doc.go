// Package healthprobe probes an API server: whether the server is up, and which identity the server
// states for the connection. The package also decides what the answer means.
//
// # Setup
//
// No setup is required. [Ask] needs a REST config without secrets and an [net/http.Client] that
// authenticates. [Options] has defaults for everything.
//
// # Usage
//
// [Ask] sends one probe and returns an [Answer]. [Classify] returns the [Verdict] that the error of
// any request stands for. [Options] set how often the connections of package clustercache are
// probed, and [State] is what their probes found.
//
// # Considerations
//
//   - A probe is a SelfSubjectReview and not GET /. An unprivileged ServiceAccount gets 403 on /,
//     but system:basic-user grants the review to every authenticated user. The answer proves that
//     the server is up. The name and UID in the answer prove that the identity is the expected one.
//   - A 403 to the review proves that the server answers, and nothing else. An API server denies
//     permitted requests in the first moments after its start. So a denial never counts as
//     "unauthorized".
//   - A target is probed every Interval to learn whether the server is up. An identity is probed
//     every IdentityInterval to learn whether the identity is still valid. With 1,000 identities at
//     one server, probes cost 17 requests a second instead of 100. A server that is down is noticed
//     as fast. MaxIdentityProbesPerSecond bounds the probes of more identities.
package healthprobe
