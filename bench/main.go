// Command bench measures latchkey beside Cluster API's clustercache and plain controller-runtime
// caches, on one real kube-apiserver. Run it with "make bench-peers".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
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

// work runs one stage for one peer and prints what it measured. The API server is the driver's, so
// an outage is asked for by a line on the standard output, and the answer is a line on the standard
// input.
func work(ctx context.Context, args []string) error {
	var o stage.Options
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.StringVar(&o.Stage, "stage", "", "")
	flags.StringVar(&o.Peer, "peer", "", "")
	flags.IntVar(&o.N, "n", 0, "")
	flags.DurationVar(&o.Patient, "patient", 0, "")
	flags.DurationVar(&o.Idle, "idle", 0, "")
	flags.StringVar(&o.Profiles, "profiles", "", "")
	kubeconfig := flags.String("kubeconfig", "", "")
	if err := flags.Parse(args); err != nil {
		return errors.WithStack(err)
	}
	if o.Profiles != "" {
		runtime.MemProfileRate = 4096 // what comes later is profiled more closely
	}
	var err error
	if o.Config, err = clientcmd.BuildConfigFromFlags("", *kubeconfig); err != nil {
		return errors.WithStack(err)
	}
	o.Config.QPS, o.Config.Burst = 1000, 1000
	answers := bufio.NewReader(os.Stdin)
	o.Outage = func(d time.Duration) error {
		fmt.Println(outage, d)
		_, err := answers.ReadString('\n')
		return errors.WithStack(err)
	}
	values, err := stage.Run(ctx, o)
	if err != nil {
		return err
	}
	return errors.WithStack(json.NewEncoder(os.Stdout).Encode(values))
}

// outage is how a worker's request for an outage begins.
const outage = "OUTAGE"

// run is one run of a stage.
type run struct {
	stage string
	n     int
	peers []string
	owned bool // each tenant needs a namespace of its own
	round int
	limit string // GOMEMLIMIT of the peer's process; empty for none
}

var (
	all  = []string{peer.Latchkey, peer.ClusterAPI, peer.Plain}
	ours = []string{peer.Latchkey}
)

// settings are what the driver is called with.
type settings struct {
	quick    bool
	scenario string
	rounds   int
	results  string
	profiles string
	report   bool
	patient  time.Duration
	idle     time.Duration
	build    string // of this program
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&s.quick, "quick", false, "fewer tenants, one round")
	flags.StringVar(&s.scenario, "scenario", "", "only the stage that measures this scenario")
	flags.IntVar(&s.rounds, "rounds", 0, "how often each stage runs; 0 for 3, or 1 with -quick")
	flags.StringVar(&s.results, "results", "results", "folder for the results")
	flags.BoolVar(&s.report, "report", false,
		"measure nothing, report what this build has measured, and without -quick record it for docs/benchmarks.md")
	flags.StringVar(&s.profiles, "profiles", "",
		"existing folder for heap profiles of empty_informer, informers_10x1000, idle_10k and idle_100k")
	if err := flags.Parse(args); err != nil {
		return s, errors.WithStack(err)
	}
	s.patient, s.idle = 30*time.Second, 10*time.Minute
	if s.quick {
		s.patient, s.idle = 5*time.Second, time.Minute
	}
	switch {
	case s.rounds == 0 && s.quick:
		s.rounds = 1
	case s.rounds == 0:
		s.rounds = 3
	}
	if s.build = build(); s.profiles != "" { // which take memory, so they are results of their own
		s.build += time.Now().Format(" with profiles, at " + time.RFC3339)
	}
	return s, errors.WithStack(os.MkdirAll(s.results, 0o750))
}

// runs returns what to run, in order: all, or what one scenario needs. What needs few tenants comes
// first and what needs many comes last, because peers keep copies of all tenants' objects.
func (s settings) runs() ([]run, error) {
	n := 1000
	if s.quick {
		n = 150
	}
	// Copies of 1,000 objects are two megabytes each for some peers, and each of them costs the same.
	few := min(n, 200)
	runs := []run{{stage: "size_10", n: 10, peers: all}, {stage: "size_100", n: 100, peers: all}}
	for round := range s.rounds {
		runs = append(runs,
			run{stage: "connect", n: n, peers: all, round: round},
			run{stage: "objects", n: few, peers: all, round: round},
			run{stage: "disjoint", n: few, peers: []string{peer.Latchkey, peer.Plain}, owned: true, round: round},
			run{stage: "informers", n: n, peers: all, round: round},
			run{stage: "reads", n: 30, peers: all, round: 2 * round}, // twice: it varies most between processes
			run{stage: "churn", n: n, peers: []string{peer.Latchkey, peer.ClusterAPI}, round: round},
			run{stage: "reads", n: 30, peers: all, round: 2*round + 1})
	}
	if s.quick && s.scenario == "" {
		return runs, nil
	}
	runs = append(runs,
		run{stage: "restart", n: few, peers: all},
		run{stage: "siblings", n: 2 * n, peers: all},
		run{stage: "owned", n: n, peers: ours, owned: true},
		run{stage: "rbac", n: n, peers: ours, owned: true},
		// Most of an idle fleet's memory would be garbage that the collector has no reason to look for.
		run{stage: "fleet_10k", n: 10 * n, peers: ours, limit: "160MiB"},
		// The same, and what the goroutines of an outage leave behind.
		run{stage: "watchers", n: 10 * n, peers: ours, limit: "350MiB"})
	if s.scenario == "" {
		return runs, nil
	}
	only, err := stage.Of(s.scenario)
	if err != nil {
		return nil, err
	}
	runs = append(runs, run{stage: "fleet_100k", n: 100 * n, peers: ours, limit: "1400MiB"})
	return slices.DeleteFunc(runs, func(r run) bool { return r.stage != only }), nil
}

// drive measures, and reports what was measured.
func drive(ctx context.Context, args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	runs, err := s.runs()
	if err != nil {
		return err
	}
	if !s.report {
		if err := s.measure(ctx, runs); err != nil {
			return err
		}
	}
	measured := map[string][]stage.Values{}
	for _, r := range runs {
		for _, name := range r.peers {
			if values, known := s.known(r, name); known {
				measured[name] = append(measured[name], values)
			}
		}
	}
	if len(measured) == 0 {
		if s.report && !s.quick {
			fmt.Printf("Nothing in %s was measured by this build (%s): writing what is recorded\n", s.results, s.build)
			return s.record(nil)
		}
		return errors.Errorf("nothing in %s was measured by this build (%s)", s.results, s.build)
	}
	combined := report.Results{}
	for name, values := range measured {
		combined[name] = medians(values)
	}
	if err := combined.Write(s.results); err != nil {
		return err
	}
	if s.report && !s.quick {
		if err := s.record(measured); err != nil {
			return err
		}
	}
	missed := combined.Print(os.Stdout)
	if err := combined.Plot(s.results); err != nil {
		return err
	}
	for _, line := range missed {
		fmt.Println("MISSED", line)
	}
	if len(missed) > 0 {
		return errors.Errorf("%d goals are missed", len(missed))
	}
	return nil
}

// measure starts a control plane and runs the stages for all peers, one after the other in each
// round. What a run of the same build has measured already is not measured again.
func (s settings) measure(ctx context.Context, runs []run) error {
	crds, err := definitions(ctx)
	if err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{CRDs: crds})
	if err != nil {
		return err
	}
	defer func() { _ = cp.Stop() }()
	needed, err := newFixtures(cp.Config())
	if err != nil {
		return err
	}
	for _, r := range runs {
		for _, name := range r.peers {
			if _, known := s.known(r, name); known {
				continue
			}
			if err := needed.prepare(ctx, r); err != nil {
				return err
			}
			fmt.Printf("Round %d: %s with %d tenants, %s\n", r.round+1, r.stage, r.n, name)
			values, err := s.runWorker(ctx, cp, r, name)
			if err != nil {
				return err
			}
			if err := s.remember(r, name, values); err != nil {
				return err
			}
		}
	}
	return nil
}

// runWorker runs a stage in a process of its own.
func (s settings) runWorker(ctx context.Context, cp *controlplane.ControlPlane, r run, peerName string) (
	values stage.Values, err error) {
	defer func() { err = errors.WithMessagef(err, "%s of %s", r.stage, peerName) }()
	self, err := os.Executable()
	if err != nil {
		return nil, errors.WithStack(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 60*time.Minute)
	defer cancel()
	worker := exec.CommandContext(ctx, self, "worker", "-stage", r.stage, "-peer", peerName, "-n", strconv.Itoa(r.n),
		"-patient", s.patient.String(), "-idle", s.idle.String(), "-kubeconfig", cp.Kubeconfig(), "-profiles", s.profiles)
	if r.limit != "" {
		worker.Env = append(os.Environ(), "GOMEMLIMIT="+r.limit)
	}
	worker.Stderr = os.Stderr
	answers, err := worker.StdinPipe()
	if err != nil {
		return nil, errors.WithStack(err)
	}
	out, err := worker.StdoutPipe()
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if err := worker.Start(); err != nil {
		return nil, errors.WithStack(err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		asked, isOutage := strings.CutPrefix(lines.Text(), outage+" ")
		if !isOutage {
			err = json.Unmarshal(lines.Bytes(), &values)
		} else if err = interrupt(ctx, cp, asked); err == nil {
			_, err = fmt.Fprintln(answers)
		}
		if err != nil {
			cancel()
			_ = worker.Wait()
			return nil, errors.WithStack(err)
		}
	}
	return values, errors.WithStack(worker.Wait())
}

// interrupt stops the API server for a time.
func interrupt(ctx context.Context, cp *controlplane.ControlPlane, asked string) error {
	d, err := time.ParseDuration(asked)
	if err != nil {
		return errors.WithStack(err)
	}
	fmt.Println("The API server is down for", d)
	if err := cp.KillAPIServer(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return errors.WithStack(ctx.Err())
	case <-time.After(d):
		return cp.StartAPIServer(ctx)
	}
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
