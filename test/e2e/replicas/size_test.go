package replicas

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
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
				writes, from := len(leaseWrites(name)), time.Now()
				f.measure(b, g)
				b.ReportMetric(float64(len(leaseWrites(name))-writes)/time.Since(from).Seconds(), "lease-writes/s")
			}
			b.ReportMetric(served.Seconds(), "s/to-serve-all")
		})
	}
}

// BenchmarkViews shows what the view of all replicas costs, on three replicas and on six: memory
// and cores, with and without it, and how much later a change is seen that another replica than the
// one that serves has made. Choose the size with -extensions, and use -benchtime=1x.
func BenchmarkViews(b *testing.B) {
	for _, count := range []int{3, 6} {
		for _, with := range []bool{false, true} {
			b.Run(fmt.Sprintf("replicas=%d/view=%t", count, with), func(b *testing.B) {
				g := NewWithT(b)
				v := newViewed(b, fmt.Sprintf("views%d%t", count, with), *size)
				v.options.Buckets, v.options.Lease = 128, 15*time.Second
				for range count {
					if with {
						v.start()
					} else {
						v.fleet.start()
					}
				}
				v.settle(len(v.names), count)
				if with {
					v.agrees()
				}
				for b.Loop() {
					v.measure(b, g)
				}
				if with {
					v.latencies(b, g)
				}
			})
		}
	}
}

// measure reports what the replicas use while nothing happens.
func (f *fleet) measure(b *testing.B, g Gomega) {
	before := map[*replica]float64{}
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
}

// latencies reports how long after the deletion of a ServiceAccount the view says so, in the middle
// of 20: for extensions of the replica that serves, and of others.
func (v *viewed) latencies(b *testing.B, g Gomega) {
	w, c := v.watch(), admin(b)
	rows, err := v.rows()
	g.Expect(err).NotTo(HaveOccurred())
	took := map[bool][]time.Duration{}
	serving := v.serves()
	for name, row := range rows {
		own := row.Status.Replica == serving
		if len(took[own]) == 20 {
			continue
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		g.Expect(c.Delete(b.Context(), account)).To(Succeed())
		begin := time.Now()
		g.Eventually(func() string { return w.state(name) }).WithTimeout(patience).WithPolling(time.Millisecond).
			Should(Equal(v1alpha1.StateDisconnected))
		took[own] = append(took[own], time.Since(begin))
	}
	units := map[bool]string{true: "ms/own", false: "ms/other"}
	for own, list := range took {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, units[own])
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
