package stateapi_test

import (
	"net/netip"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi"
)

func ExampleNew() {
	serve := func(mgr ctrl.Manager, connections clustercache.ClusterCache, podIP netip.Addr) error {
		api, err := stateapi.New(connections, stateapi.Options{
			Config:  mgr.GetConfig(),
			Service: stateapi.ServiceOptions{Namespace: "team-system", Name: "team-state", Address: podIP},
			Group:   "state.team.example.com",
		})
		if err != nil {
			return err
		}
		return mgr.Add(api)
	}
	_ = serve
}
