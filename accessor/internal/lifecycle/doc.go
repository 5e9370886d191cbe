// Package lifecycle makes every decision about one connection: when to connect, probe, take up a
// newer credential and disconnect, and what to log and report.
//
// A [Machine] is pure. It does no I/O, holds no lock, starts no goroutine and reads no clock. Its
// driver passes events to [Machine.Step] and carries out the effects that Step returns. The same
// events at the same times always have the same effects, so every decision can be tested without a
// server.
//
// The driver carries out effects in two halves, in the order in which Step returns them. First come
// the commit effects, under the driver's lock. They change the driver's own fields; none of them
// blocks, fails or calls back. Then come the after effects, without the lock and one at a time per
// connection. A [Queue] keeps them in order. The driver is package accessor: see
// commitLocked and afterEffectLocked in its effects.go.
//
// The machine starts attempts (connect, probe, verify) only in answer to a [Resolved] event, so no
// attempt relies on a permission that was not checked immediately before. Instead of a tick the
// machine has [Machine.Deadline]. The driver resolves the extension again at that time, or after a
// Wake effect.
//
// The design follows the raft library of etcd: one deterministic step function, which returns the
// required actions as values.
package lifecycle
