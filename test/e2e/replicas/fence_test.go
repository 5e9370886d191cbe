package replicas

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// leader waits until one of the replicas writes for its tenants, and returns it and the other one.
func leader(t *testing.T, replicas ...*replica) (leads, waits *replica) {
	t.Helper()
	NewWithT(t).Eventually(func() *replica {
		for i, r := range replicas {
			if r.requests() > 0 {
				leads, waits = r, replicas[1-i]
				return r
			}
		}
		return nil
	}).WithTimeout(patience).ShouldNot(BeNil())
	return leads, waits
}

// A leader that is suspended for longer than its lease, and continues when another one leads, sends
// nothing more for its tenants. It was writing when it was suspended, and is in the middle of a
// request.
func TestSuspendedLeader(t *testing.T) {
	g := NewWithT(t)
	tenants := extensions(t, "suspended", 5)
	start := func(n int) *replica {
		return startReplica(t, options{Name: fmt.Sprintf("suspended-replica-%d", n), Extensions: tenants})
	}
	leads, waits := leader(t, start(0), start(1))
	for n := range *rounds {
		leads.writes(t, 50+7*n)
		leads.signal(syscall.SIGSTOP)
		waits.writes(t, 20)
		leads.signal(syscall.SIGCONT)
		g.Eventually(leads.ended).WithTimeout(patience).Should(BeClosed(), "it notices that it has lost its lease")
		waits.writes(t, 20)
		leads, waits = waits, start(2+n)
	}
	g.Expect(expectNoOverlap(t, "suspended")).To(HaveLen(*rounds + 1))
}

// A leader whose path to its lease is cut goes on until its lease ends, and no longer, although it
// reaches the API server as its tenants all the time.
func TestLeasePathIsCut(t *testing.T) {
	for name, set := range map[string]func(*proxy){
		"cut":   func(p *proxy) { p.set(true, true) },
		"hangs": func(p *proxy) { p.set(false, false) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			prefix := "lease-path-" + name
			tenants := extensions(t, prefix, 5)
			p := startProxy(t)
			leads := startReplica(t, options{Name: prefix + "-replica-0", Extensions: tenants, LeaseHost: p.url()})
			leads.writes(t, 20)
			waits := startReplica(t, options{Name: prefix + "-replica-1", Extensions: tenants})
			leads.writes(t, 20)
			set(p)
			waits.writes(t, 50)
			p.set(false, true) // what waited in the path arrives now
			g.Eventually(leads.ended).WithTimeout(patience).Should(BeClosed(), "it notices that it has lost its lease")
			waits.writes(t, 20)
			g.Expect(expectNoOverlap(t, prefix)).To(Equal([]string{leads.name, waits.name}))
		})
	}
}

// A leader that gets hardly any CPU sends nothing for its tenants after another one leads.
func TestStarvedLeader(t *testing.T) {
	g := NewWithT(t)
	tenants := extensions(t, "starved", 5)
	start := func(n int) *replica {
		return startReplica(t, options{Name: fmt.Sprintf("starved-replica-%d", n), Extensions: tenants})
	}
	leads, waits := leader(t, start(0), start(1))
	leads.writes(t, 50)
	g.Expect(syscall.Setpriority(syscall.PRIO_PROCESS, leads.cmd.Process.Pid, 19)).To(Succeed())
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", leads.cmd.Process.Pid))
	g.Expect(err).NotTo(HaveOccurred())
	for _, thread := range threads { // the priority is a thread's
		var id int
		_, err := fmt.Sscan(thread.Name(), &id)
		g.Expect(err).NotTo(HaveOccurred())
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, 19) // the thread may have ended
	}
	program, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	var busy []*exec.Cmd
	idle := sync.OnceFunc(func() {
		for _, cmd := range busy {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	t.Cleanup(idle)
	// What keeps the cores busy has a lower priority than all but the leader, so that the other
	// replica and the API server get their share.
	for range 32 {
		cmd := exec.Command("nice", "-n", "10", program)
		cmd.Env = append(os.Environ(), busyVariable+"=1")
		g.Expect(cmd.Start()).To(Succeed())
		busy = append(busy, cmd)
	}
	// Whether it loses its lease so, and ends, depends on the machine. If not, it is suspended in
	// addition.
	select {
	case <-leads.ended:
		t.Log("it lost its lease for lack of CPU")
	case <-time.After(4 * leaseDuration):
		t.Log("it has not ended, and is suspended")
		leads.signal(syscall.SIGSTOP)
	}
	waits.writes(t, 5)
	leads.signal(syscall.SIGCONT)
	g.Eventually(leads.ended).WithTimeout(patience).Should(BeClosed())
	idle()
	waits.writes(t, 20)
	g.Expect(expectNoOverlap(t, "starved")).To(Equal([]string{leads.name, waits.name}))
}

// A leader that ends gives its lease up after its last request, and the next one follows at once.
func TestGracefulEnd(t *testing.T) {
	g := NewWithT(t)
	tenants := extensions(t, "graceful", 5)
	start := func(n int) *replica {
		return startReplica(t, options{Name: fmt.Sprintf("graceful-replica-%d", n), Extensions: tenants})
	}
	leads, waits := leader(t, start(0), start(1))
	leads.writes(t, 50)
	leads.signal(syscall.SIGTERM)
	waits.writes(t, 20)
	g.Eventually(leads.ended).WithTimeout(patience).Should(BeClosed())
	waits.writes(t, 20)
	g.Expect(expectNoOverlap(t, "graceful")).To(Equal([]string{leads.name, waits.name}))
}
