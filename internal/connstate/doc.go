// Package connstate declares the state of a connection: its phase, the reason why it is not
// connected, the error that carries the reason, its health, and the identity that it acts as.
//
// The packages healthprobe, accessor and clustercache export these types to their users. The
// lifecycle machine works on them, so no code here does I/O, takes a lock or reads a clock.
package connstate
