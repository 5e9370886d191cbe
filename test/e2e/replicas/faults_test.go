package replicas

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/sharding"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// faultBuckets is the number of buckets in TestRandomFaults.
const faultBuckets = 4

// bucketsOf returns the bucket of each extension, by the documented rule.
func bucketsOf(t *testing.T, fleet string, extensions []string, n int) map[string]int {
	t.Helper()
	g := NewWithT(t)
	c, buckets := admin(t), map[string]int{}
	for _, name := range extensions {
		extension := newExtension(fleet, name)
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(extension), extension)).To(Succeed())
		hash, err := strconv.ParseUint(strings.TrimPrefix(sharding.HashField(string(extension.GetUID())), "0x"), 16, 64)
		g.Expect(err).NotTo(HaveOccurred())
		buckets[name] = int(hash / (math.MaxUint64/uint64(n) + 1)) //nolint:gosec // n is a power of two
	}
	return buckets
}

// faulty is a fleet to which random things happen. Each replica reaches its Leases through a proxy
// of its own.
type faulty struct {
	*fleet
	random  *rand.Rand
	paths   map[*replica]*proxy
	running []*replica
	done    []string // what has happened
}

func (f *faulty) join() {
	p := startProxy(f.t)
	f.options.LeaseHost = p.url()
	r := f.start()
	f.paths[r] = p
	f.running = append(f.running, r)
}

// act does something at random, and returns how it is undone.
func (f *faulty) act() (undo func()) {
	undo = func() {}
	if len(f.running) == 0 || len(f.running) < 4 && f.random.IntN(5) == 0 {
		f.note("join")
		f.join()
		return undo
	}
	r := f.running[f.random.IntN(len(f.running))]
	path := f.paths[r]
	switch f.random.IntN(5) {
	case 0:
		f.note("kill " + r.name)
		f.kill(r)
		f.ended(r)
	case 1:
		f.note("pause " + r.name)
		r.signal(syscall.SIGSTOP)
		return func() { r.signal(syscall.SIGCONT) }
	case 2:
		f.note("cut " + r.name)
		path.set(true, true)
		return func() { path.set(false, true) }
	case 3:
		f.note("delay " + r.name)
		path.set(false, false)
		return func() { path.set(false, true) }
	default:
		f.note("leave " + r.name)
		r.signal(syscall.SIGTERM)
		f.ended(r)
		if f.random.IntN(2) == 0 {
			<-r.ended
		}
	}
	return undo
}

// pass lets time pass, in which something may happen.
func (f *faulty) pass(duration time.Duration) {
	select {
	case <-time.After(duration):
	case <-f.t.Context().Done():
	}
}

func (f *faulty) note(what string) { f.done = append(f.done, what) }

func (f *faulty) ended(r *replica) {
	f.running = slices.DeleteFunc(f.running, func(other *replica) bool { return other == r })
}

// Whatever happens to replicas, no two of them send requests for one extension in turns, what a
// replica reads has all that the one before wrote, and in the end every extension is served.
func TestRandomFaults(t *testing.T) {
	for n := range *sequences {
		seed := *seed + uint64(n)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			testRandomFaults(t, seed)
		})
	}
}

func testRandomFaults(t *testing.T, seed uint64) {
	g := NewWithT(t)
	name := fmt.Sprintf("faults-%d", seed)
	accounts, updates := 6, seed%2 == 1
	if updates { // three extensions for each ServiceAccount, with caches
		accounts = 2
	}
	tenants := extensionsOf(t, name, 6, accounts)
	f := &faulty{
		random: rand.New(rand.NewPCG(seed, 0)),
		paths:  map[*replica]*proxy{}, //nolint:gosec // not a secret
		fleet: newFleet(t, name, options{
			Extensions: tenants,
			Buckets:    faultBuckets,
			Lease:      time.Second,
			WritePause: 20 * time.Millisecond,
			Updates:    updates,
		}),
	}
	defer func() {
		if t.Failed() {
			t.Logf("what happened: %s", strings.Join(f.done, ", "))
		}
	}()
	for range 1 + f.random.IntN(3) {
		f.join()
	}
	var undoing sync.WaitGroup
	for range 2 + f.random.IntN(4) {
		f.pass(time.Duration(f.random.IntN(1200)) * time.Millisecond)
		undo, later := f.act(), time.Duration(f.random.IntN(2500))*time.Millisecond
		undoing.Go(func() {
			f.pass(later)
			undo()
		})
	}
	undoing.Wait()
	if len(f.running) == 0 {
		f.join()
	}
	now := time.Now()
	g.Eventually(func() int {
		served := map[string]bool{}
		for _, request := range tenantRequests(name) {
			if !updates && request.at.After(now) {
				served[request.extension] = true
			}
		}
		for _, update := range tenantUpdates(name) {
			if update.code == http.StatusOK && update.at.After(now) {
				served[update.extension] = true
			}
		}
		return len(served)
	}).WithTimeout(patience).WithPolling(50*time.Millisecond).Should(Equal(len(tenants)),
		"extensions that are served in the end")
	for _, r := range f.running {
		r.signal(syscall.SIGTERM)
	}
	for _, r := range f.replicas {
		g.Eventually(r.ended).WithTimeout(patience).Should(BeClosed())
		status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if status.Signaled() { // killed, or ended before it had set up its signals
			g.Expect(status.Signal()).To(Or(Equal(syscall.SIGKILL), Equal(syscall.SIGTERM)), "signal of %s", r.name)
		} else {
			g.Expect(status.ExitStatus()).To(Equal(0), "exit code of %s", r.name)
		}
	}
	expectHolders(t, name, tenants)
	if updates {
		expectNoConflict(t, name)
	}
}

// expectNoConflict checks that each update was of what the replica before had written. What that
// one had under way when its lease ended may come later: an update that was answered after the
// other replica connected.
func expectNoConflict(t *testing.T, fleet string) {
	t.Helper()
	updates, requests, made := tenantUpdates(fleet), tenantRequests(fleet), 0
	for _, update := range updates {
		switch update.code {
		case http.StatusOK:
			made++
		case http.StatusConflict:
			connected := update.at
			for _, request := range requests {
				if request.replica == update.replica && request.extension == update.extension && request.at.Before(update.at) &&
					strings.Contains(request.uri, "selfsubjectreviews") {
					connected = request.at
				}
			}
			if !slices.ContainsFunc(updates, func(other tenantUpdate) bool {
				return other.extension == update.extension && other.replica != update.replica && other.answered.After(connected)
			}) {
				t.Errorf("the cache lacked what the replica before had written: %+v", update)
			}
		}
	}
	t.Logf("%d updates", made)
}

// expectHolders checks that each request for an extension is of the replica that wrote the Lease of
// the extension's bucket last: that no two replicas act for one extension in turns, except one
// after the other with the Lease.
func expectHolders(t *testing.T, fleet string, tenants []string) {
	t.Helper()
	g := NewWithT(t)
	bucket := bucketsOf(t, fleet, tenants, faultBuckets)
	writes := map[int][]leaseWrite{}
	for _, write := range leaseWrites(fleet) {
		writes[write.bucket] = append(writes[write.bucket], write)
	}
	moves, requests := 0, tenantRequests(fleet)
	for b, all := range writes {
		for i := range all[1:] {
			if all[i].replica != all[i+1].replica {
				moves++
			}
		}
		g.Expect(b).To(BeNumerically("<", faultBuckets))
	}
	for _, request := range requests {
		of := writes[bucket[request.extension]]
		next := sort.Search(len(of), func(i int) bool { return of[i].at.After(request.at) })
		if next == 0 || of[next-1].replica != request.replica {
			holder := "no replica"
			if next > 0 {
				holder = of[next-1].replica
			}
			t.Errorf("%s sent %s for %s at %s, when %s held its bucket", request.replica, request.uri, request.extension,
				request.at.Format(time.StampMicro), holder)
		}
	}
	t.Logf("%d requests, %d moves of buckets", len(requests), moves)
}
