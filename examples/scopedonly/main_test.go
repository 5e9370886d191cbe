package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// The operator counts what it may read, says what it may not read, and counts that too once it may.
func TestOperator(t *testing.T) {
	g := NewWithT(t)
	cp := testenv.Start(t, controlplane.Options{})
	kubectl := func(args ...string) {
		_, err := cp.Kubectl(t.Context(), args...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	grant := func(resource string) {
		kubectl("create", "clusterrole", resource, "--verb=list,watch", "--resource="+resource)
		kubectl("create", "clusterrolebinding", resource, "--clusterrole="+resource, "--user=operator")
	}
	grant("configmaps")
	kubectl("create", "configmap", "one")
	kubectl("create", "secret", "generic", "two")
	config, err := cp.UserConfig("operator")
	g.Expect(err).NotTo(HaveOccurred())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	address := listener.Addr().String()
	g.Expect(listener.Close()).To(Succeed())

	var mu sync.Mutex
	counts := map[string]int{}
	counted := func(kind string) func() int {
		return func() int {
			mu.Lock()
			defer mu.Unlock()
			return counts["default "+kind]
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	skip := true
	go func() {
		ended <- run(ctx, config, manager.Options{
			HealthProbeBindAddress: address,
			Metrics:                metricsserver.Options{BindAddress: "0"},
		}, controller.Options{SkipNameValidation: &skip},
			func(_ context.Context, namespace, kind string, n int) {
				mu.Lock()
				defer mu.Unlock()
				counts[namespace+" "+kind] = n
			})
	}()
	t.Cleanup(func() {
		stop()
		g.Expect(<-ended).To(Succeed())
	})
	ready := func() string {
		resp, err := http.Get("http://" + address + "/readyz/permissions")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return fmt.Sprintf("%d %s", resp.StatusCode, body)
	}
	g.Eventually(counted("configmaps")).WithTimeout(patience).Should(BeNumerically(">=", 1))
	g.Eventually(ready).WithTimeout(patience).
		Should(And(HavePrefix("500"), ContainSubstring(`cannot list resource "secrets"`)))
	g.Expect(counted("secrets")()).To(BeZero())
	grant("secrets")
	g.Eventually(counted("secrets")).WithTimeout(2*patience).Should(Equal(1), "within AccessReviewInterval")
	g.Eventually(ready).WithTimeout(patience).Should(HavePrefix("200"))
}
