package demo

import (
	"net"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/statuspage"
)

// addStatusPage serves the content operator's status page.
func addStatusPage(mgr manager.Manager, connections clustercache.ClusterCache, listener net.Listener) error {
	page := statuspage.New(connections, statuspage.Options{Name: "Content operator"})
	if err := mgr.Add(page); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/status/", statuspage.Local(page))
	return mgr.Add(&manager.Server{
		Name:            "status page",
		Listener:        listener,
		ShutdownTimeout: new(time.Second),
		Server:          &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second},
	})
}
