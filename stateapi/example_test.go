package stateapi_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
	"github.com/latchkey-dev/latchkey/statuspage"
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

// Replicas that share the extensions: each serves its states to the others at port 6444, and one of
// them the view of all to the API server in front. The Secret exists, and is empty at first.
func ExampleNew_replicas() {
	serve := func(mgr ctrl.Manager, connections clustercache.ClusterCache, engine ownership.Engine, replica string,
		podIP netip.Addr) error {
		api, err := stateapi.New(connections, stateapi.Options{
			Config:  mgr.GetConfig(),
			Service: stateapi.ServiceOptions{Namespace: "team-system", Name: "team-state", Address: podIP},
			Group:   "state.team.example.com",
			Fleet: stateapi.FleetOptions{
				Name:      "team",
				Namespace: "team-system",
				Secret:    "team-state-authority",
				Identity:  replica, // the Identity of the engine, too
				Engine:    engine,
				Address:   netip.AddrPortFrom(podIP, 6444),
			},
		})
		if err != nil {
			return err
		}
		return mgr.Add(api)
	}
	_ = serve
}

// The status page of each replica shows the extensions of all of them.
func ExampleStateAPI_Replicas() {
	serve := func(mgr ctrl.Manager, connections clustercache.ClusterCache, api *stateapi.StateAPI) (http.Handler, error) {
		options := statuspage.Options{Name: "team-operator"}
		if replicas, ok := api.Replicas(); ok {
			options.Replicas = replicas
		}
		page := statuspage.New(connections, options)
		if err := mgr.Add(api); err != nil {
			return nil, err
		}
		return statuspage.Local(page), mgr.Add(page)
	}
	_ = serve
}

// A manager on the machine of the API server. The Service latchkey-state is an alias of localhost;
// docs/stateapi.md has its YAML.
func ExampleNew_outsideACluster() {
	serve := func(mgr ctrl.Manager, connections clustercache.ClusterCache) error {
		listener, err := net.Listen("tcp", "127.0.0.1:7443")
		if err != nil {
			return err
		}
		api, err := stateapi.New(connections, stateapi.Options{
			Config:  mgr.GetConfig(),
			Service: stateapi.ServiceOptions{Namespace: "latchkey-system", Name: "latchkey-state"},
			Server:  apiserver.ExtensionAPIServerOptions{Listener: listener},
		})
		if err != nil {
			return err
		}
		return mgr.Add(api)
	}
	_ = serve
}

// Another program reads which extensions are not connected, and why.
func Example_client() {
	show := func(ctx context.Context, config *rest.Config) error {
		scheme := runtime.NewScheme()
		scheme.AddKnownTypes(v1alpha1.GroupVersion, &v1alpha1.Connection{}, &v1alpha1.ConnectionList{})
		metav1.AddToGroupVersion(scheme, v1alpha1.GroupVersion)
		c, err := client.New(config, client.Options{Scheme: scheme})
		if err != nil {
			return err
		}
		broken := &v1alpha1.ConnectionList{}
		if err := c.List(ctx, broken, client.MatchingFields{"status.state": v1alpha1.StateDisconnected}); err != nil {
			return err
		}
		for _, connection := range broken.Items {
			fmt.Println(connection.Name, connection.Status.Reason, connection.Status.Message)
		}
		return nil
	}
	_ = show
}
