// Package permissions tells which permission an HTTP request needs, and keeps a record of those
// that an identity used and was refused.
//
// [Of] has the rules of k8s.io/apiserver's RequestInfoFactory, which cannot be imported here: who
// uses latchkey as a library would download an API server. A test compares both. Unlike the
// factory, Of allocates nothing for the requests that clients usually send.
//
// A [Record] is bounded in memory, whatever the requests name. A request whose permission is on
// record allocates nothing.
package permissions
