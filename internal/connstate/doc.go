// Package connstate declares what is said about a connection: its phase, the reason why it is not
// connected, the error that carries the reason, its health, and the identity that it acts as.
//
// The packages healthprobe, accessor and clustercache give these names to their users. The
// lifecycle machine works on them, so nothing here does I/O, takes a lock or reads a clock.
package connstate
