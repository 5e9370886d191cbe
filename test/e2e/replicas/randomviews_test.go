package replicas

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// Whatever happens to replicas, to the network between them, and to their way to the API server, no
// row is absent, none goes back, and none is green that no replica vouches for; at rest the view is
// what they have. An informer and kubectl watch through all of it.
func TestRandomViews(t *testing.T) {
	g := NewWithT(t)
	v := newViewed(t, fmt.Sprintf("views-%d", *seed), *rows)
	if *seed%2 == 1 { // replicas that are not heard have extensions for longer
		v.options.Lease = 4 * leaseDuration
	}
	f := &faultyView{viewed: v, running: []*replica{v.start(), v.start(), v.start()}}
	v.agrees()
	f.watchers = []*watcher{v.watch(), v.watchByKubectl()}
	defer func() {
		if t.Failed() {
			t.Logf("what happened last: %s", strings.Join(f.done, ", "))
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop()
	asking.Go(func() { f.ask(ctx) })
	begun := time.Now()
	for n := range *views {
		f.sequence(t, *seed+uint64(n))
		if *views > 5 {
			t.Logf("%s: sequence %d, by %d replicas: %s", time.Since(begun).Round(time.Second), n, len(f.running),
				strings.Join(f.done, ", "))
		}
	}
	stop()
	asking.Wait()
	for _, r := range f.running {
		r.signal(syscall.SIGTERM)
	}
	for _, r := range v.replicas {
		g.Eventually(r.ended).WithTimeout(patience).Should(BeClosed())
	}
}

// ask lists the view all the time, and notes what must not be.
func (f *faultyView) ask(ctx context.Context) {
	for ctx.Err() == nil {
		begun := time.Now()
		for _, text := range f.check(f.watchers[0]) {
			f.watchers[0].breaks(text)
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(500*time.Millisecond, 10*time.Since(begun))):
		}
	}
}

// faultyView is a fleet to which random things happen.
type faultyView struct {
	*viewed
	running  []*replica
	watchers []*watcher
	done     []string // in this sequence
}

// sequence lets some things happen, and waits until the view agrees.
func (f *faultyView) sequence(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not a secret
	f.done = nil
	var undoing sync.WaitGroup
	defer undoing.Wait()
	later := func(least time.Duration, undo func()) {
		after := time.Duration(random.IntN(9000)) * time.Millisecond
		if random.IntN(4) == 0 {
			after *= 2
		}
		after += least
		undoing.Go(func() {
			select {
			case <-time.After(after):
			case <-t.Context().Done():
			}
			undo()
		})
	}
	for range 2 + random.IntN(4) {
		f.step(random, later)
		select {
		case <-time.After(time.Duration(random.IntN(4000)) * time.Millisecond):
		case <-t.Context().Done():
		}
		f.expectWhole(t)
	}
	undoing.Wait()
	for len(f.running) < 2 {
		f.join()
	}
	f.agrees()
	for _, w := range f.watchers {
		f.follows(w)
	}
	f.expectWhole(t)
}

func (f *faultyView) expectWhole(t *testing.T) {
	t.Helper()
	NewWithT(t).Expect(f.check(f.watchers...)).To(BeEmpty())
}

// follows waits until a watcher has seen what the view has at rest.
func (v *viewed) follows(w *watcher) {
	v.t.Helper()
	NewWithT(v.t).Eventually(func(g Gomega) {
		rows, err := v.rows()
		g.Expect(err).NotTo(HaveOccurred())
		seen := w.seen()
		g.Expect(seen).To(HaveLen(len(rows)))
		for name, row := range rows {
			g.Expect(textOf(seen[name])).To(Equal(textOf(row)), name)
		}
	}).WithTimeout(patience).Should(Succeed())
}

// textOf returns what must agree of two views of a row.
func textOf(row v1alpha1.Connection) string {
	return fmt.Sprint(row.Status.State, " ", row.Status.Term, "/", row.Status.Epoch, " of ", row.Status.Replica)
}

func (f *faultyView) join() {
	f.done = append(f.done, "join")
	f.running = append(f.running, f.start())
}

func (f *faultyView) deaf(r *replica, is bool) {
	for _, w := range f.watchers {
		w.deaf(r, is)
	}
}

// farBehind is how long a replica falls behind at least: then no read waits for it any more.
const farBehind = 15 * time.Second

// step lets one thing happen. later undoes it.
func (f *faultyView) step(random *rand.Rand, later func(least time.Duration, undo func())) {
	if len(f.running) < 2 || len(f.running) < 5 && random.IntN(5) == 0 {
		f.join()
		return
	}
	r := f.running[random.IntN(len(f.running))]
	did := func(what string) { f.done = append(f.done, what+" "+r.name) }
	ends := func() { f.running = slices.DeleteFunc(f.running, func(other *replica) bool { return other == r }) }
	cut := func(paths ...*proxy) {
		for _, path := range paths {
			path.set(true, true)
		}
		later(0, func() {
			for _, path := range paths {
				path.set(false, true)
			}
		})
	}
	switch random.IntN(9) {
	case 0:
		did("kill")
		f.kill(r)
		f.deaf(r, true)
		ends()
	case 1:
		did("pause")
		r.signal(syscall.SIGSTOP)
		f.deaf(r, true)
		later(0, func() {
			if !r.hasEnded() { // it may have been killed
				f.deaf(r, false)
			}
			r.signal(syscall.SIGCONT)
		})
	case 2:
		did("cut the others from")
		cut(f.paths[r])
	case 3:
		did("delay")
		path := f.paths[r]
		path.set(false, false)
		later(0, func() { path.set(false, true) })
	case 4:
		did("cut off the API server from")
		cut(f.ways[r])
	case 5:
		f.done = append(f.done, "API server away")
		var ways []*proxy
		for _, one := range f.running {
			ways = append(ways, f.ways[one])
		}
		cut(ways...)
	case 6: // some of the others hear it later than the rest
		did("lag of")
		later(0, f.paths[r].lag(random))
	case 7: // so much later that they do not wait for it
		did("behind")
		conns := f.paths[r].connections()
		later(farBehind, f.paths[r].fallBehind(slices.DeleteFunc(conns, func(*proxied) bool { return random.IntN(2) == 0 })))
	default:
		did("leave")
		r.signal(syscall.SIGTERM)
		ends()
	}
}

// watchByKubectl lets kubectl watch the view until the test ends. It begins again when its watch
// ends, and notes what must not be.
func (v *viewed) watchByKubectl() *watcher {
	v.t.Helper()
	w := newWatcher()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	v.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	var lines atomic.Int64
	running.Go(func() {
		for ctx.Err() == nil {
			v.kubectlOnce(ctx, w, &lines)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	NewWithT(v.t).Eventually(lines.Load).WithTimeout(patience).Should(BeNumerically(">=", len(v.names)))
	return w
}

// kubectlOnce runs kubectl until its watch ends.
func (v *viewed) kubectlOnce(ctx context.Context, w *watcher, lines *atomic.Int64) {
	cmd := exec.CommandContext(ctx, filepath.Join(cp.Programs(), "kubectl"), "--kubeconfig", cp.Kubeconfig(), "get",
		"connections."+v.group, "--chunk-size=0", "--watch", "--output-watch-events", "-o", `jsonpath={.type} {.object.metadata.name} `+
			`{.object.status.state} {.object.status.term} {.object.status.epoch} {.object.status.replica}{"\n"}`)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return
	}
	if cmd.Start() != nil {
		return
	}
	listed, whole := map[string]bool{}, false // the list comes first, by events that add
	list := func() {
		if whole = true; len(listed) != len(v.names) {
			w.breaks(fmt.Sprintf("kubectl lists %d of %d", len(listed), len(v.names)))
		}
	}
	for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
		fields := strings.Split(scanner.Text(), " ")
		if len(fields) != 6 {
			w.breaks("kubectl prints " + scanner.Text())
			continue
		}
		switch fields[0] {
		case "DELETED":
			w.breaks(fields[1] + " is absent for kubectl")
		case "ERROR": // the watch ends
			continue
		}
		if again := listed[fields[1]] || fields[0] != "ADDED"; again && !whole {
			list()
		}
		listed[fields[1]] = true
		lines.Add(1)
		var row v1alpha1.Connection
		row.Name, row.Status.State, row.Status.Replica = fields[1], fields[2], fields[5]
		row.Status.Term, _ = strconv.ParseInt(fields[3], 10, 64)
		row.Status.Epoch, _ = strconv.ParseInt(fields[4], 10, 64)
		w.see(row)
	}
	_ = cmd.Wait() // with an error while no replica serves
	if len(listed) > 0 && !whole && ctx.Err() == nil {
		list()
	}
}

func (w *watcher) breaks(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.broken, text) {
		w.broken = append(w.broken, text)
	}
}

// seen returns the rows as they were seen last.
func (w *watcher) seen() map[string]v1alpha1.Connection {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.rows)
}
