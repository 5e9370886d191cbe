// Package monitor decides everything about one scope of a cache: when to discover its kind, when to
// review the identity's access, when an informer starts and stops, and what state the scope is in.
//
// A [Machine] is pure. It does no I/O, holds no lock, starts no goroutine and reads no clock. Its
// driver passes events to [Machine.Step], one at a time, and carries out the effects that Step
// returns, in order. The same events at the same times, with the same jitter, always have the same
// effects.
//
// What belongs to the scope (denials in a row, backoffs, the pace of reviews after RBAC events) is
// in Machine. What belongs to one informer's life (its check, its refusals) is in life. A late
// answer, or a late word of an informer that was stopped, names a question or a life that is not
// current, and has no effect.
package monitor
