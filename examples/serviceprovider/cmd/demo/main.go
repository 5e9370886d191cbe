// Command demo shows the example provider on control planes of its own: it orders a Mailbox, waits
// until it is ready, damages and deletes it. "make run-serviceprovider" runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func main() {
	once := flag.Bool("once", false, "end after the tour")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *once)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run shows everything. Unless once is set, it then stays up until ctx is done.
func run(ctx context.Context, out io.Writer, once bool) (err error) {
	log, err := os.CreateTemp("", "latchkey-serviceprovider-*.log")
	if err != nil {
		return fmt.Errorf("creating the log file: %w", err)
	}
	defer log.Close()
	defer func() {
		if err == nil {
			_ = os.Remove(log.Name())
		} else {
			fmt.Fprintln(out, "The provider's log:", log.Name())
		}
	}()
	logger := zap.New(zap.WriteTo(log))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	fmt.Fprintln(out, "a service provider on three real API servers: onboarding, platform, and a tenant's")
	fmt.Fprintln(out)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := time.Now()
	w, err := startWorld(ctx)
	defer func() {
		cancel()
		if stopErr := w.stop(); err == nil {
			err = stopErr
		}
	}()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the clusters, a stand-in for the platform, and the provider are up (%s)\n\n", since(start))
	tour := tour{world: w, out: out}
	if err := tour.walk(ctx); err != nil {
		return err
	}
	if once {
		return nil
	}
	fmt.Fprintf(out, `Look around, and end with Ctrl-C:

  kubectl --kubeconfig %s apply -f examples/serviceprovider/config/sample.yaml
  kubectl --kubeconfig %s get mailboxes -w
  kubectl --kubeconfig %s get accessrequests,clusterrequests -A
  kubectl --kubeconfig %s get configmaps -n mailboxes
`, w.onboarding.cp.Kubeconfig(), w.onboarding.cp.Kubeconfig(), w.platform.cp.Kubeconfig(), w.tenant.cp.Kubeconfig())
	<-ctx.Done()
	return nil
}

func since(start time.Time) time.Duration { return time.Since(start).Round(100 * time.Millisecond) }
