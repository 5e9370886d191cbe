// Package fencedconn has TCP connections that look at the terms of the requests on them once more
// before each system call that writes: a process that was suspended after it began a request must
// not send it when the term of its lease is over. See package fence for the promise.
//
// A transport dials with the context from [WithGuard], wraps the TCP connection with [Wrap], and
// tells the [Guard] of each request: [Guard.Begin], [Use.WroteRequest], [Use.HasReturned].
// [GuardHTTP1] does so for a transport of net/http, whose connections are dialed with [Mark].
package fencedconn
