package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// docs/get-started.md works as it is written, on the demo's control plane: the status page has a
// tenant of one's own, and shows how it is broken and repaired.
func TestGetStarted(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	parts := commandsOf(t, "get-started.md")
	g.Expect(parts).To(HaveLen(5))
	status, run := startDemo(t)
	type view struct {
		Extension struct {
			Row struct {
				State, Username string
				Connects        int
			}
			Timeline []struct{ What, Reason string }
		}
	}
	mine := func() (v view) {
		resp, err := http.Get(status + "view?extension=mine")
		g.Expect(err).NotTo(HaveOccurred())
		defer resp.Body.Close()
		g.Expect(json.NewDecoder(resp.Body).Decode(&v)).To(Succeed())
		return v
	}
	run(parts[0]...)
	// The commands wait for the state API, and the page hears of changes by itself.
	g.Eventually(func() string { return mine().Extension.Row.State }).Should(Equal("Connected"))
	g.Expect(mine().Extension.Row.Username).To(Equal("system:serviceaccount:team-mine:mine"))
	run(parts[1]...)
	g.Eventually(func() int { return mine().Extension.Row.Connects }).Should(Equal(2))
	var reasons []string
	for _, e := range mine().Extension.Timeline {
		reasons = append(reasons, e.What+" "+e.Reason)
	}
	g.Expect(reasons).To(ContainElements("Disconnected ServiceAccountNotFound", "Connected "))
	getStartedWithReplicas(t, parts[2:], run)
}

// getStartedWithReplicas runs the part about two replicas, at other ports than those of the page.
func getStartedWithReplicas(t *testing.T, parts [][]string, run func(...string) string) {
	t.Helper()
	g := NewWithT(t)
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	ports := []string{"LATCHKEY_TEST_MAIN", mainEnv}
	for _, port := range []string{"8100", "8101", "8102", "8200", "8201", "8202"} {
		_, free, err := net.SplitHostPort(freeAddress(t))
		g.Expect(err).NotTo(HaveOccurred())
		ports = append(ports, port, free)
	}
	at := strings.NewReplacer(ports...)
	follow := func(part []string) string {
		return run(append([]string{"export LATCHKEY=" + self + " TMPDIR=" + t.TempDir(), "export " + mainEnv + "=1"},
			strings.Split(at.Replace(strings.Join(part, "\n")), "\n")...)...)
	}
	t.Cleanup(func() { // what a failed test leaves
		for _, port := range []string{"8100", "8200"} {
			_ = exec.Command("pkill", "-9", "-f", "--", at.Replace("--state-api-bind-address=127.0.0.1:"+port)).Run()
		}
	})
	g.Expect(follow(parts[0])).To(ContainSubstring("REPLICA"))
	rows := func(port string) func() map[string]int { // by state and replica
		return func() map[string]int {
			resp, err := http.Get(at.Replace("http://127.0.0.1:" + port + "/status/connections?format=json"))
			if err != nil {
				return nil
			}
			defer resp.Body.Close()
			var rows struct {
				Connections []struct{ State, Replica string }
			}
			_ = json.NewDecoder(resp.Body).Decode(&rows)
			found := map[string]int{}
			for _, row := range rows.Connections {
				found[row.State+" "+row.Replica]++
			}
			return found
		}
	}
	// By chance, one replica may have all: then more tenants come.
	more := 0
	g.Eventually(func(g Gomega) {
		for _, port := range []string{"8102", "8202"} {
			seen, sum := rows(port)(), 0
			for key, n := range seen {
				g.Expect(key).To(HavePrefix("Connected "))
				sum += n
			}
			g.Expect(sum).To(Equal(6 + more))
			if len(seen) == 1 {
				more++
				run(fmt.Sprintf(`sed "s/^  name: mine$/  name: more-%d/" docs/get-started.yaml | kubectl apply -f -`, more))
			}
			g.Expect(seen).To(HaveLen(2), "replicas")
		}
	}).WithTimeout(patience).WithPolling(time.Second).Should(Succeed())
	follow(parts[1])
	g.Eventually(rows("8202")).WithTimeout(patience).Should(HaveKey(HavePrefix("Unknown ")))
	g.Eventually(rows("8202")).WithTimeout(patience).ShouldNot(HaveKey(HavePrefix("Unknown ")))
	g.Eventually(rows("8202")).WithTimeout(patience).Should(And(HaveLen(1), HaveKey(HavePrefix("Connected "))))
	follow(parts[2])
}

// docs/guide-permissions.md works as it is written: the tenant ends up with the permissions that it
// uses, and no others.
func TestGuidePermissions(t *testing.T) {
	testenv.SkipIfShort(t)
	g := NewWithT(t)
	_, run := startDemo(t)
	out := run(slices.Concat(commandsOf(t, "guide-permissions.md")...)...)
	g.Expect(out).To(ContainSubstring("ServiceAccount team-shop/shop used all that it may."))
	g.Expect(run("kubectl auth can-i --as=system:serviceaccount:team-shop:shop --list -n team-shop")).
		To(And(MatchRegexp(`configmaps +\[\] +\[opening-hours\] +\[[a-z ]*create`),
			Not(MatchRegexp(`secrets|delete|\[\*\] `))))
}

// commandsOf returns the lines of each block of commands of a page but the first, which is
// make run.
func commandsOf(t *testing.T, page string) (parts [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)\n```").FindAllStringSubmatch(string(text), -1)[1:] {
		parts = append(parts, strings.Split(block[1], "\n"))
	}
	return parts
}

// startDemo starts the demo. It returns the address of the status page, and what runs commands as
// the page of the demo says.
func startDemo(t *testing.T) (status string, run func(commands ...string) (output string)) {
	t.Helper()
	g := NewWithT(t)
	demo := latchkey(t, "demo")
	out, err := demo.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(demo.Start()).To(Succeed())
	drained := make(chan struct{})
	var draining sync.Once
	drain := func() {
		draining.Do(func() {
			go func() {
				defer close(drained)
				_, _ = io.Copy(io.Discard, out)
			}()
		})
	}
	t.Cleanup(func() {
		g.Expect(demo.Process.Signal(syscall.SIGINT)).To(Succeed())
		drain()
		<-drained
		_ = demo.Wait() // an interrupt is its regular end
	})
	var exports []string
	lines := bufio.NewScanner(out)
	for status == "" || len(exports) < 2 {
		g.Expect(lines.Scan()).To(BeTrue(), "the demo ended")
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "export "):
			exports = append(exports, line)
		case strings.HasPrefix(line, "http://") && strings.HasSuffix(line, "/status/"):
			status = line
		}
	}
	drain()

	return status, func(commands ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // the pages wait for what comes in seconds
		defer cancel()
		script := exec.CommandContext(ctx, "bash", "-eux")
		script.Dir = "../.."
		script.Stdin = strings.NewReader(strings.Join(append(slices.Clone(exports), commands...), "\n"))
		out, err := script.CombinedOutput()
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", out)
		return string(out)
	}
}
