// Package monitor makes all decisions about one scope of a cache:
//
//   - when to discover its kind,
//   - when to review the identity's access,
//   - when an informer starts and stops,
//   - and which state the scope is in.
//
// A [Machine] is pure: it does no I/O, holds no lock, starts no goroutine and reads no clock. Its
// driver passes events to [Machine.Step], one at a time, and executes the effects that Step
// returns, in order. The same events at the same times, with the same jitter, always have the same
// effects.
//
// Machine has the state of the scope (consecutive denials, backoffs, the pace of reviews after RBAC
// events). life has the state of one informer's life (its check, its refusals). A late answer, or a
// late report of a stopped informer, has the ID of a question or life that is not current. Such an
// event has no effect.
package monitor
