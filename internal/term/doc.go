// Package term has the terms in which a replica may act: package fence hands them out, and what
// sends requests asks them.
//
// A Lease is a lease that this replica holds, and its Term lasts as long. Join makes a Term of
// several, which lasts while all of them do, or of none. A request carries its Term in its context
// (With, Of), so that a transport far below can look once more before it writes. RoundTripper lets
// requests pass only in their term.
//
// Nothing depends on a goroutine that runs in time: Term.Err compares the time itself. The first
// caller that finds a lease ended ends it for all, so that no term goes on after its end.
package term
