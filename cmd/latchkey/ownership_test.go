package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// ownedSeries are the values of latchkey_ownership_extensions{owned="true"}.
var ownedSeries = regexp.MustCompile(`latchkey_ownership_extensions\{cache="clustercache",owned="true"\} (\d+)`)

// Two managers with --buckets share the extensions. When one ends, the other one has all. One that
// counts to another number of buckets does not start.
func TestManagersShare(t *testing.T) {
	g := NewWithT(t)
	cp := startControlPlane(t)
	const extensions = 16
	var manifests strings.Builder
	for i := range extensions {
		fmt.Fprintf(&manifests, `---
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: default, name: shared-%[1]d}}
---
apiVersion: latchkey.dev/v1alpha1
kind: ClusterExtension
metadata: {name: shared-%[1]d}
spec: {namespace: default, serviceAccount: {name: shared-%[1]d}}
`, i)
	}
	_, err := cp.KubectlInput(t.Context(), manifests.String(), "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())

	start := func(more ...string) (m *runningManager, owned func() int) {
		address := freeAddress(t)
		m = startManager(t, append([]string{"--kubeconfig", cp.Kubeconfig(), "--health-probe-bind-address=0",
			"--leader-election-namespace=default", "--metrics-bind-address=" + address}, more...)...)
		t.Cleanup(func() {
			_ = m.process.Kill()
			if t.Failed() {
				t.Log(m.printed)
			}
		})
		return m, func() int {
			resp, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return 0
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			match := ownedSeries.FindSubmatch(body)
			if match == nil {
				return 0
			}
			n, _ := strconv.Atoi(string(match[1]))
			return n
		}
	}
	one, ofOne := start("--buckets=16")
	g.Eventually(ofOne).WithTimeout(patience).Should(Equal(extensions))
	_, ofTwo := start("--buckets=16")
	g.Eventually(ofTwo).WithTimeout(patience).Should(BeNumerically(">", 0))
	g.Eventually(func() int { return ofOne() + ofTwo() }).WithTimeout(patience).Should(Equal(extensions))

	holder, err := cp.Kubectl(t.Context(), "get", "lease", "latchkey-manager", "-n", "default", "-o",
		"jsonpath={.spec.holderIdentity}")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(holder).To(Equal("replicas that share by 16 buckets"), "no manager with --leader-elect can take it")

	other, _ := start("--buckets=8")
	g.Eventually(other.ended).WithTimeout(patience).Should(Receive(HaveOccurred()))
	g.Expect(other.printed.String()).To(And(ContainSubstring(`has ownership.latchkey.dev/buckets "16"`),
		ContainSubstring(`this replica has "8"`)))

	begun := time.Now()
	g.Expect(one.process.Signal(syscall.SIGTERM)).To(Succeed())
	g.Eventually(one.ended).WithTimeout(patience).Should(Receive(Not(HaveOccurred())), "%s", one.printed)
	t.Logf("ended in %s", time.Since(begun))
	g.Eventually(ofTwo).WithTimeout(patience).Should(Equal(extensions))
}
