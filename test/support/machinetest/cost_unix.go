//go:build unix

package machinetest

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime returns how long this process has kept processors busy.
func cpuTime(t *testing.T) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
