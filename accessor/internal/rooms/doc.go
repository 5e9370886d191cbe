// Package rooms holds what connections share if they are certainly of the same user at one API
// server. They are the members of a [Room].
//
// What one of them may see, all of them may see, exactly, so the members share what proves the
// identity: a request that the API server served, and a review in which it stated the identity. A
// failure is never shared, because it may be about one connection only. If the API server rejects
// the identity of one member, the others ask for themselves. They also have one cache, whose
// requests go out as one of them.
//
// Equal names do not make two connections members of one room. [KeyOf] says what does: the provider
// of the credential must know that equal keys are one user ([identity.Resolution.Sharable]), and
// the API server must have stated the same user, UID, groups and impersonator. So the requests of
// two members differ in nothing but the extension that User-Agent names.
package rooms
