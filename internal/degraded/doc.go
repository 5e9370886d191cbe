// Package degraded decides whether an extension that is connected gets its work done.
//
// A connection that is fine can serve nothing: its identity may not read what controllers ask for,
// or is refused what they write. [Problems] has the reasons why, the worst one first. It is a pure
// function of what the connection knows, so all replicas, and all views of one state, say the same.
package degraded
