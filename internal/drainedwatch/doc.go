// Package drainedwatch stops watches that would otherwise leave a goroutine behind.
package drainedwatch
