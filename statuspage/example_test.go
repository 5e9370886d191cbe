package statuspage_test

import (
	"context"
	"net"
	"net/http"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/statuspage"
)

// A page on the loopback interface, for kubectl port-forward.
func ExampleLocal() {
	serve := func(ctx context.Context, mgr ctrl.Manager, connections clustercache.ClusterCache) error {
		page := statuspage.New(connections, statuspage.Options{Name: "team-operator"})
		if err := mgr.Add(page); err != nil {
			return err
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:8082")
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle("/status/", statuspage.Local(page))
		return mgr.Add(&manager.Server{
			Name:     "status page",
			Listener: listener,
			Server:   &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second},
		})
	}
	_ = serve
}

// A page on the network, for users with a token.
func ExamplePage_Guard() {
	serve := func(mgr ctrl.Manager, connections clustercache.ClusterCache, listener net.Listener) error { // with TLS
		page := statuspage.New(connections, statuspage.Options{Name: "team-operator"})
		if err := mgr.Add(page); err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle("/status/", page.Guard(mgr.GetClient(), "/status/"))
		return mgr.Add(&manager.Server{
			Name:     "status page",
			Listener: listener,
			Server:   &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second},
		})
	}
	_ = serve
}
