package replicas

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/ownership/buckets"
)

// fleet is replicas that share extensions by buckets.
type fleet struct {
	t        testing.TB
	name     string
	options  options
	replicas []*replica // also those that have ended
	killed   map[*replica]time.Time
}

func newFleet(t testing.TB, name string, o options) *fleet {
	t.Helper()
	o.Fleet = name
	t.Cleanup(func() { deleteLeases(name) })
	return &fleet{t: t, name: name, options: o, killed: map[*replica]time.Time{}}
}

// start adds a replica.
func (f *fleet) start() *replica {
	f.t.Helper()
	o := f.options
	o.Name = fmt.Sprintf("%s-replica-%d", f.name, len(f.replicas))
	r := startReplica(f.t, o)
	f.replicas = append(f.replicas, r)
	return r
}

// kill ends a replica that has no time to give anything up.
func (f *fleet) kill(r *replica) {
	r.signal(syscall.SIGKILL)
	<-r.ended
	f.killed[r] = time.Now()
}

// changes returns what the replica has reported. Each line is decoded once: there may be very many.
func (r *replica) changes() []change {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.out.String()[r.decoded:]
	text = text[:strings.LastIndexByte(text, '\n')+1] // the last line may not be complete yet
	for line := range strings.Lines(text) {
		var c change
		if json.Unmarshal([]byte(line), &c) == nil {
			r.reported = append(r.reported, c)
		}
	}
	r.decoded += len(text)
	return r.reported
}

// serving returns the extensions that each replica is connected for.
func (f *fleet) serving() map[*replica][]string {
	serving := map[*replica][]string{}
	for _, r := range f.replicas {
		if r.hasEnded() {
			continue
		}
		connected := map[string]bool{}
		for _, c := range r.changes() {
			connected[c.Extension] = c.Connected
		}
		for extension, is := range connected {
			if is {
				serving[r] = append(serving[r], extension)
			}
		}
	}
	return serving
}

// owners returns the replica of each extension that has one.
func (f *fleet) owners() map[string]*replica {
	owners := map[string]*replica{}
	for r, extensions := range f.serving() {
		for _, extension := range extensions {
			owners[extension] = r
		}
	}
	return owners
}

// settle waits until each of n extensions is one replica's, and each of the replicas has a share
// that is within 15 % of an equal one, if there are 2,000 or more: few extensions differ more, by
// chance.
func (f *fleet) settle(n, replicas int) {
	f.t.Helper()
	equal := float64(n) / float64(replicas)
	tolerance := 0.15 * equal * max(1, math.Sqrt(2000/float64(n)))
	NewWithT(f.t).Eventually(func(g Gomega) {
		serving := f.serving()
		g.Expect(len(serving)).To(Equal(replicas), "replicas that serve")
		sum := 0
		for r, extensions := range serving {
			sum += len(extensions)
			g.Expect(float64(len(extensions))).To(BeNumerically("~", equal, tolerance), "share of %s", r.name)
		}
		g.Expect(sum).To(Equal(n))
		g.Expect(len(f.owners())).To(Equal(n), "each has one replica")
		for holder, buckets := range f.holders(g) { // so that none is to move any more
			g.Expect(buckets).To(BeElementOf(f.options.Buckets/replicas, (f.options.Buckets+replicas-1)/replicas),
				"buckets of %s", holder)
		}
	}).WithTimeout(2 * patience).WithPolling(200 * time.Millisecond).Should(Succeed())
}

// holders returns how many buckets each replica holds by the Leases, which must be all buckets.
func (f *fleet) holders(g Gomega) map[string]int {
	var leases coordinationv1.LeaseList
	g.Expect(admin(f.t).List(f.t.Context(), &leases, client.InNamespace("default"),
		client.MatchingLabels{buckets.FleetLabel: f.name, "ownership.latchkey.dev/role": "bucket"})).To(Succeed())
	holders, sum := map[string]int{}, 0
	for _, lease := range leases.Items {
		if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
			holders[*holder]++
			sum++
		}
	}
	g.Expect(sum).To(Equal(f.options.Buckets), "buckets that are held")
	return holders
}

// gaps returns how long each extension had no replica, at most, after that time.
func (f *fleet) gaps(after time.Time) map[string]time.Duration {
	type event struct {
		change
		r *replica
	}
	var events []event
	for _, r := range f.replicas {
		connected := map[string]bool{}
		for _, c := range r.changes() {
			events = append(events, event{c, r})
			connected[c.Extension] = c.Connected
		}
		if r.hasEnded() {
			// A replica that ended may not have reported its last disconnects, which came after its last
			// report.
			at, killed := f.killed[r]
			if all := r.changes(); !killed && len(all) > 0 {
				at = all[len(all)-1].At
			}
			for extension, is := range connected {
				if is {
					events = append(events, event{change{at, extension, false}, r})
				}
			}
		}
	}
	slices.SortFunc(events, func(x, y event) int { return x.At.Compare(y.At) })
	gaps, since, serving := map[string]time.Duration{}, map[string]time.Time{}, map[string]int{}
	for _, e := range events {
		if e.Connected {
			serving[e.Extension]++
			if begin, ok := since[e.Extension]; ok && e.At.After(after) {
				gaps[e.Extension] = max(gaps[e.Extension], e.At.Sub(begin))
			}
			delete(since, e.Extension)
		} else if serving[e.Extension]--; serving[e.Extension] == 0 {
			since[e.Extension] = e.At
		}
	}
	return gaps
}

// Three replicas share a fleet evenly. When one is killed, the others serve its extensions within
// twice the lease; when one joins, no more than a third moves; and when one ends, no extension
// waits for long. "make test" gives it the machine to itself, because it measures how long: where
// others keep all cores busy, a request can take longer than a replica waits for a renewal, and it
// then gives up all that it has, as it should.
func TestBuckets(t *testing.T) {
	g := NewWithT(t)
	tenants := manyExtensions(t, "buckets", *size)
	f := newFleet(t, "buckets", options{Buckets: 64, ReadEvery: 10 * time.Second})
	for range 3 {
		f.start()
	}
	f.settle(len(tenants), 3)
	report := func(what string) {
		for _, r := range f.replicas {
			if n := len(f.serving()[r]); n > 0 {
				t.Logf("%s: %s has %d of %d (%+.1f %% of an equal share)", what, r.name, n, len(tenants),
					100*(float64(n)*float64(len(f.serving()))/float64(len(tenants))-1))
			}
		}
	}
	report("three")

	killed := time.Now()
	f.kill(f.replicas[0])
	f.settle(len(tenants), 2)
	worst := longest(f.gaps(killed))
	t.Logf("killed one: the longest gap was %s, the lease %s", worst, leaseDuration)
	g.Expect(worst).To(BeNumerically("<", 2*leaseDuration))
	report("two")
	f.start()
	f.settle(len(tenants), 3)
	report("three again")

	before := f.owners()
	joined := time.Now()
	f.start()
	f.settle(len(tenants), 4)
	report("four")
	moved, movedBuckets, bucket := 0, map[int]bool{}, bucketsOf(t, "buckets", tenants, f.options.Buckets)
	for extension, owner := range f.owners() {
		if owner != before[extension] {
			moved++
			movedBuckets[bucket[extension]] = true
		}
	}
	t.Logf("a fourth joined: %.1f %% moved, the longest gap was %s", 100*float64(moved)/float64(len(tenants)),
		longest(f.gaps(joined)))
	g.Expect(len(movedBuckets)).To(BeNumerically("<=", f.options.Buckets/3))
	if len(tenants) >= 2000 { // few extensions are spread over the buckets by chance
		g.Expect(moved).To(BeNumerically("<=", len(tenants)/3))
	}

	ended := time.Now()
	f.replicas[1].signal(syscall.SIGTERM)
	g.Eventually(f.replicas[1].ended).WithTimeout(patience).Should(BeClosed())
	g.Expect(f.replicas[1].cmd.ProcessState.ExitCode()).To(Equal(0), "it left nothing behind")
	t.Logf("one ended in %s", time.Since(ended))
	f.settle(len(tenants), 3)
	worst = longest(f.gaps(ended))
	t.Logf("one ended: the longest gap was %s", worst)
	g.Expect(worst).To(BeNumerically("<", 2*time.Second))
	expectNoInterleaving(t, "buckets")
}

func longest(gaps map[string]time.Duration) (longest time.Duration) {
	for _, gap := range gaps {
		longest = max(longest, gap)
	}
	return longest
}
