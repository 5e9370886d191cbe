// Command bench measures latchkey beside Cluster API's clustercache and plain controller-runtime
// caches, on one real kube-apiserver. Run it with "make bench".
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
	"github.com/latchkey-dev/latchkey/bench/internal/report"
	"github.com/latchkey-dev/latchkey/bench/internal/stage"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	var err error
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		err = work(ctx, os.Args[2:])
	} else {
		err = drive(ctx, os.Args[1:])
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// work runs one stage for one peer and prints what it measured.
func work(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	name, peerName := flags.String("stage", "", ""), flags.String("peer", "", "")
	n, patient := flags.Int("n", 0, ""), flags.Duration("patient", 0, "")
	kubeconfig := flags.String("kubeconfig", "", "")
	if err := flags.Parse(args); err != nil {
		return errors.WithStack(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return errors.WithStack(err)
	}
	config.QPS, config.Burst = 1000, 1000
	values, err := stage.Run(ctx, *name, *peerName, config, *n, *patient)
	if err != nil {
		return err
	}
	return errors.WithStack(json.NewEncoder(os.Stdout).Encode(values))
}

// run is one run of a stage.
type run struct {
	stage string
	n     int
	peers []string
}

var all = []string{peer.Latchkey, peer.ClusterAPI, peer.Plain}

// drive starts a control plane and runs the stages for all peers, one after the other in each round.
func drive(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "fewer tenants, one round")
	scenario := flags.String("scenario", "", "only the stage that measures this scenario")
	onlyRounds := flags.Int("rounds", 0, "how often each stage runs; 0 for 3, or 1 with -quick")
	results := flags.String("results", "results", "folder for the results")
	if err := flags.Parse(args); err != nil {
		return errors.WithStack(err)
	}
	n, rounds, patient := 1000, 3, 30*time.Second
	if *quick {
		n, rounds, patient = 150, 1, 5*time.Second
	}
	if *onlyRounds > 0 {
		rounds = *onlyRounds
	}
	// Copies of 1,000 objects are two megabytes each for some peers, and each of them costs the same.
	runs := []run{{"connect", n, all}, {"objects", min(n, 200), all}, {"informers", n, all}, {"reads", 30, all}}
	if *scenario != "" {
		only, err := stage.Of(*scenario)
		if err != nil {
			return err
		}
		runs = slices.DeleteFunc(runs, func(r run) bool { return r.stage != only })
	}
	crds, err := definitions(ctx)
	if err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{CRDs: crds})
	if err != nil {
		return err
	}
	defer func() { _ = cp.Stop() }()
	fmt.Printf("Creating %d tenants\n", n)
	if err := prepare(ctx, cp.Config(), n); err != nil {
		return err
	}
	measured := map[string][]stage.Values{}
	for round := range rounds {
		for _, r := range runs {
			for _, name := range r.peers {
				fmt.Printf("Round %d of %d: %s with %d tenants, %s\n", round+1, rounds, r.stage, r.n, name)
				values, err := runWorker(ctx, cp.Kubeconfig(), r, name, patient)
				if err != nil {
					return err
				}
				measured[name] = append(measured[name], values)
			}
		}
	}
	combined := report.Results{}
	for name, values := range measured {
		combined[name] = medians(values)
	}
	if err := os.MkdirAll(*results, 0o750); err != nil {
		return errors.WithStack(err)
	}
	if err := combined.Write(filepath.Join(*results, "results.json")); err != nil {
		return err
	}
	missed := combined.Print(os.Stdout)
	for _, line := range missed {
		fmt.Println("MISSED", line)
	}
	if len(missed) > 0 {
		return errors.Errorf("%d goals are missed", len(missed))
	}
	return nil
}

// runWorker runs a stage in a process of its own.
func runWorker(ctx context.Context, kubeconfig string, r run, peerName string, patient time.Duration) (stage.Values,
	error) {
	self, err := os.Executable()
	if err != nil {
		return nil, errors.WithStack(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	worker := exec.CommandContext(ctx, self, "worker", "-stage", r.stage, "-peer", peerName, "-n", strconv.Itoa(r.n),
		"-patient", patient.String(), "-kubeconfig", kubeconfig)
	worker.Stderr = os.Stderr
	out, err := worker.Output()
	if err != nil {
		return nil, errors.Wrapf(err, "%s of %s", r.stage, peerName)
	}
	var values stage.Values
	return values, errors.Wrapf(json.Unmarshal(out, &values), "%s of %s", r.stage, peerName)
}

// medians returns the median of each value over the rounds.
func medians(rounds []stage.Values) stage.Values {
	all := map[string]map[string][]float64{}
	for _, values := range rounds {
		for scenario, units := range values {
			if all[scenario] == nil {
				all[scenario] = map[string][]float64{}
			}
			for unit, value := range units {
				all[scenario][unit] = append(all[scenario][unit], value)
			}
		}
	}
	result := stage.Values{}
	for scenario, units := range all {
		result[scenario] = map[string]float64{}
		for unit, values := range units {
			slices.Sort(values)
			result[scenario][unit] = values[len(values)/2]
		}
	}
	return result
}
