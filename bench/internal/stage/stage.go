// Package stage measures a peer in a process of its own.
package stage

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"k8s.io/client-go/rest"

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
	name    string // of the peer
	config  *rest.Config
	n       int // tenants
	values  Values
	patient time.Duration // how long TCP connections are given to settle
}

// stages are the stages by name, with the scenarios that each measures.
var stages = map[string]struct {
	run       func(context.Context, *env) error
	scenarios []string
}{
	"connect":   {connect, []string{"connect_1000", "idle_heap", "idle_goroutines", "getclient", "getclient_spread"}},
	"objects":   {objects, []string{"same_objects_1000"}},
	"informers": {informers, []string{"empty_informer", "tcp_connections"}},
	"reads":     {reads, []string{"first_read_100", "warm_get", "warm_list", "event_latency"}},
}

// Of returns the stage that measures a scenario.
func Of(scenario string) (string, error) {
	for name, s := range stages {
		for _, one := range s.scenarios {
			if one == scenario {
				return name, nil
			}
		}
	}
	return "", errors.Errorf("no such scenario: %q", scenario)
}

// Run runs a stage with n tenants.
func Run(ctx context.Context, name, peerName string, config *rest.Config, n int,
	patient time.Duration) (Values, error) {
	s, ok := stages[name]
	if !ok {
		return nil, errors.Errorf("no such stage: %q", name)
	}
	p, err := peer.New(peerName, config)
	if err != nil {
		return nil, err
	}
	e := &env{peer: p, name: peerName, config: config, n: n, values: Values{}, patient: patient}
	return e.values, s.run(ctx, e)
}
