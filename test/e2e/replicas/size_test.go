package replicas

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// measured is how long BenchmarkReplicas looks at a fleet that does nothing but hold its
// connections.
const measured = time.Minute

// ticksPerSecond is the unit of the times in /proc/<pid>/stat.
const ticksPerSecond = 100

// BenchmarkReplicas shows what a fleet costs on one replica and on three: memory and cores of the
// largest replica and of all, and writes to the Leases of buckets. Choose the size with
// -extensions, and use -benchtime=1x.
func BenchmarkReplicas(b *testing.B) {
	for _, count := range []int{1, 3} {
		b.Run(fmt.Sprintf("replicas=%d", count), func(b *testing.B) {
			g := NewWithT(b)
			name := fmt.Sprintf("size%d", count)
			tenants := manyExtensions(b, name, *size)
			f := newFleet(b, name, options{Buckets: 64, Lease: 15 * time.Second})
			begun := time.Now()
			for range count {
				f.start()
			}
			f.settle(len(tenants), count)
			served := time.Since(begun)
			for b.Loop() {
				before, writes := map[*replica]float64{}, len(leaseWrites(name))
				for _, r := range f.replicas {
					before[r] = cpuSeconds(g, r)
				}
				from := time.Now()
				<-time.After(measured)
				passed := time.Since(from).Seconds()
				var largest, sum, cores, busiest float64
				for _, r := range f.replicas {
					memory := residentMiB(g, r)
					largest, sum = max(largest, memory), sum+memory
					used := (cpuSeconds(g, r) - before[r]) / passed
					cores, busiest = cores+used, max(busiest, used)
				}
				b.ReportMetric(largest, "MiB/largest")
				b.ReportMetric(sum, "MiB/all")
				b.ReportMetric(busiest, "cores/busiest")
				b.ReportMetric(cores, "cores/all")
				b.ReportMetric(float64(len(leaseWrites(name))-writes)/passed, "lease-writes/s")
			}
			b.ReportMetric(served.Seconds(), "s/to-serve-all")
		})
	}
}

// residentMiB returns the memory of a replica.
func residentMiB(g Gomega, r *replica) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	g.Expect(err).NotTo(HaveOccurred())
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	g.Expect(err).NotTo(HaveOccurred())
	return float64(kib) / 1024
}

// cpuSeconds returns how long a replica has used cores.
func cpuSeconds(g Gomega, r *replica) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	g.Expect(err).NotTo(HaveOccurred())
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	g.Expect(err).NotTo(HaveOccurred())
	system, err := strconv.Atoi(fields[12])
	g.Expect(err).NotTo(HaveOccurred())
	return float64(user+system) / ticksPerSecond
}
