// Package stage measures a peer in a process of its own.
package stage

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
)

// Namespaces with the objects that tenants read.
const (
	Shared  = "bench-shared"  // 1,000 ConfigMaps of 1 KiB
	Hundred = "bench-hundred" // 100 LimitRanges
)

// Values are what a stage measures, by scenario and unit.
type Values map[string]map[string]float64

func (v Values) set(scenario, unit string, value float64) {
	if v[scenario] == nil {
		v[scenario] = map[string]float64{}
	}
	v[scenario][unit] = value
}

// env is what a stage has.
type env struct {
	peer    peer.Peer
	fleet   peer.Fleet
	name    string // of the peer
	config  *rest.Config
	admin   client.Client
	n       int // tenants
	values  Values
	patient time.Duration // how long what comes and goes is given to settle
	idle    time.Duration // how long a fleet is watched
	outage  func(time.Duration) error
	// profiles is the folder for heap profiles; empty for none.
	profiles string
}

// stages are the stages by name, with the scenarios that each measures.
var stages = map[string]struct {
	run       func(context.Context, *env) error
	scenarios []string
}{
	"connect":    {connect, []string{"connect_1000", "idle_heap", "idle_goroutines", "getclient", "getclient_spread"}},
	"size_10":    {size, []string{"idle_heap_10"}},
	"size_100":   {size, []string{"idle_heap_100"}},
	"objects":    {objects, []string{"same_objects_1000"}},
	"disjoint":   {disjoint, []string{"disjoint_objects"}},
	"informers":  {informers, []string{"empty_informer", "tcp_connections"}},
	"reads":      {reads, []string{"first_read_100", "warm_get", "warm_list", "event_latency"}},
	"churn":      {churn, []string{"getclient_churn", "delete_1000"}},
	"restart":    {restart, []string{"restart"}},
	"owned":      {owned("informers_10x1000", 10), []string{"informers_10x1000"}},
	"watchers":   {owned("informers_5x10000", 5), []string{"informers_5x10000"}},
	"siblings":   {siblings, []string{"shared_identity"}},
	"rbac":       {rbacEdit, []string{"rbac_edit"}},
	"fleet_10k":  {fleet("idle_10k"), []string{"idle_10k"}},
	"fleet_100k": {fleet("idle_100k"), []string{"idle_100k"}},
}

// Of returns the stage that measures a scenario.
func Of(scenario string) (string, error) {
	for name, s := range stages {
		if slices.Contains(s.scenarios, scenario) {
			return name, nil
		}
	}
	return "", errors.Errorf("no such scenario: %q", scenario)
}

// FleetOf returns the tenants that a stage connects.
func FleetOf(stage string) peer.Fleet {
	switch stage {
	case "siblings":
		return peer.Siblings
	case "watchers":
		return peer.Watchers
	}
	return peer.Alone
}

// Options are what a stage is run with.
type Options struct {
	Stage, Peer string
	Config      *rest.Config // of the host operator
	N           int          // tenants
	Patient     time.Duration
	Idle        time.Duration
	Profiles    string // a folder; empty for no profiles
	// Outage stops the API server, and starts it again after that time.
	Outage func(time.Duration) error
}

// Run runs a stage.
func Run(ctx context.Context, o Options) (Values, error) {
	s, ok := stages[o.Stage]
	if !ok {
		return nil, errors.Errorf("no such stage: %q", o.Stage)
	}
	fleet := FleetOf(o.Stage)
	p, err := peer.New(o.Peer, o.Config, fleet)
	if err != nil {
		return nil, err
	}
	scheme, err := peer.NewScheme()
	if err != nil {
		return nil, err
	}
	admin, err := client.New(o.Config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, errors.WithStack(err)
	}
	e := &env{
		peer:     p,
		fleet:    fleet,
		name:     o.Peer,
		config:   o.Config,
		admin:    admin,
		n:        o.N,
		values:   Values{},
		patient:  o.Patient,
		idle:     o.Idle,
		profiles: o.Profiles,
		outage:   o.Outage,
	}
	return e.values, s.run(ctx, e)
}

// each calls f for the tenants, 16 at a time.
func (e *env) each(ctx context.Context, f func(ctx context.Context, tenant int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for tenant := range e.n {
		group.Go(func() error { return errors.WithMessagef(f(ctx, tenant), "tenant %d", tenant) })
	}
	return group.Wait()
}

// until waits until nothing is left. It asks rarely, so that the question costs next to nothing.
func until(ctx context.Context, every time.Duration, what string, left func() int) error {
	began, shown := time.Now(), time.Now()
	for {
		n := left()
		switch {
		case n == 0:
			return nil
		case time.Since(began) > 10*time.Minute:
			return errors.Errorf("waited 10 minutes until %s: %d are left", what, n)
		case time.Since(shown) > 30*time.Second:
			shown = time.Now()
			fmt.Fprintf(os.Stderr, "Waiting until %s: %d are left\n", what, n)
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.WithStack(context.Cause(ctx))
	case <-time.After(d):
		return nil
	}
}
