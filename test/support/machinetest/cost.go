package machinetest

import (
	"runtime"
	"testing"
	"time"
)

// Cost bounds what a whole exploration may take of the machine it runs on. It is processor time,
// because other processes make an exploration slower, and hardly more expensive.
type Cost struct {
	CPU    time.Duration
	Memory uint64 // bytes
}

// Within calls explore, logs its cost, and reports one that exceeds c.
func (c Cost) Within(t *testing.T, explore func()) {
	before := cpuTime(t)
	explore()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	used := Cost{CPU: cpuTime(t) - before, Memory: memory.Sys}
	t.Logf("%.1f s of CPU, %d MiB", used.CPU.Seconds(), used.Memory>>20)
	if used.CPU > c.CPU || used.Memory > c.Memory {
		t.Errorf("the exploration takes %v of CPU and %d bytes, more than %v and %d", used.CPU, used.Memory, c.CPU, c.Memory)
	}
}
