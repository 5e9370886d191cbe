// Package healthprobe asks an API server "are you up, and who do you say I am?" and decides what
// the answer means.
//
// # Setup
//
// There is none. [Ask] needs a REST config without secrets and an [net/http.Client] that
// authenticates; [Options] has defaults for everything.
//
// # Usage
//
// One function does I/O, the others are pure: [Ask] returns an [Answer], [State.After] folds it
// into the health of a connection, [Options.Due] and [Options.Failed] say when to ask again and
// when to give up.
//
// # Considerations
//
//   - The question is a SelfSubjectReview, not GET /: an unprivileged ServiceAccount gets 403 on /,
//     while system:basic-user lets every authenticated user ask who it is. The answer proves both
//     that the server is up and that we are who we should be, by name and UID.
//   - A 403 on the review proves that the server answers and nothing else. An API server in its
//     first moments denies rightful requests, so a denial is never read as "unauthorized".
//   - "Is the server up" is a question about a target and asked every Interval; "am I still valid"
//     is about one identity and asked every IdentityInterval. With 1,000 identities at one server
//     this is 17 requests a second instead of 100, and a server that is down is noticed as fast.
package healthprobe
