package stage

import (
	"bufio"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// usage is what the process uses after garbage collection.
type usage struct{ heap, stacks, goroutines float64 }

func measure() usage {
	for range 5 { // later rounds free what finalizers and pools hold, and shrink stacks further
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return usage{
		heap:       float64(stats.HeapAlloc),
		stacks:     float64(stats.StackInuse),
		goroutines: float64(runtime.NumGoroutine()),
	}
}

// per returns what was added since before, for each of n.
func (u usage) per(before usage, n int) usage {
	d := float64(n)
	return usage{(u.heap - before.heap) / d, (u.stacks - before.stacks) / d, (u.goroutines - before.goroutines) / d}
}

// resident returns how much memory of the process is in RAM, in MiB.
func resident() (float64, error) { return memory("VmRSS") }

// memory returns a field of the process's status, in MiB.
func memory(field string) (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, errors.WithStack(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, errors.WithStack(err)
		}
	}
	return 0, errors.Errorf("the kernel does not report %s", field)
}

// reportSize sets the memory and goroutines of the process. What is neither heap nor stacks, the Go
// runtime keeps for later, or uses itself.
func (e *env) reportSize(scenario, suffix string) error {
	rss, err := resident()
	if err != nil {
		return err
	}
	peak, err := memory("VmHWM")
	if err != nil {
		return err
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	for name, value := range map[string]float64{"rss_mib": rss, "peak_rss_mib": peak,
		"goroutines": float64(runtime.NumGoroutine()),
		"heap_mib":   float64(stats.HeapInuse) / (1 << 20), "stacks_mib": float64(stats.StackInuse) / (1 << 20),
		"kept_mib": float64(stats.HeapIdle-stats.HeapReleased) / (1 << 20)} {
		e.values.set(scenario, name+suffix, value)
	}
	return e.profile(scenario + suffix)
}

// profile writes a heap profile, if the driver was asked for profiles.
func (e *env) profile(name string) error {
	if e.profiles == "" {
		return nil
	}
	file, err := os.Create(filepath.Join(e.profiles, name+"-"+e.name+".heap"))
	if err != nil {
		return errors.WithStack(err)
	}
	if err := pprof.Lookup("heap").WriteTo(file, 0); err != nil {
		_ = file.Close()
		return errors.WithStack(err)
	}
	return errors.WithStack(file.Close())
}

// cpu returns the time that the process has used on all cores.
func cpu() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, errors.WithStack(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

// connections returns the number of established TCP connections of this process to the host of a
// URL.
func connections(host string) (n int, err error) {
	server, err := url.Parse(host)
	if err != nil {
		return 0, errors.WithStack(err)
	}
	port, err := strconv.Atoi(server.Port())
	if err != nil {
		return 0, errors.Wrapf(err, "the port of %s", host)
	}
	own := map[string]bool{}
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return 0, errors.WithStack(err)
	}
	for _, file := range files {
		target, err := os.Readlink(file)
		if err == nil && strings.HasPrefix(target, "socket:[") {
			own[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	table, err := os.Open("/proc/self/net/tcp")
	if err != nil {
		return 0, errors.WithStack(err)
	}
	defer func() { _ = table.Close() }()
	remote := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(table); lines.Scan(); {
		// sl local_address rem_address st … inode; state 01 is ESTABLISHED
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && strings.HasSuffix(fields[2], remote) && fields[3] == "01" && own[fields[9]] {
			n++
		}
	}
	return n, nil
}
