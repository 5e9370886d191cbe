package main

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/pkg/errors"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// serveProbes serves /healthz and /readyz at --health-probe-bind-address. The manager would listen
// when it is created, before the options are checked: a port that is taken would hide every other
// mistake.
func (m *managerFlags) serveProbes(ctx context.Context, mgr manager.Manager, ready map[string]healthz.Checker) error {
	if m.probeAddress == "" || m.probeAddress == "0" {
		return nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", m.probeAddress)
	if err != nil {
		return errors.Wrap(err, "--health-probe-bind-address")
	}
	mux := http.NewServeMux()
	for path, checks := range map[string]map[string]healthz.Checker{"/healthz": {"ping": healthz.Ping}, "/readyz": ready} {
		handler := http.StripPrefix(path, &healthz.Handler{Checks: checks})
		mux.Handle(path, handler)
		mux.Handle(path+"/", handler) // for a single check
	}
	return mgr.Add(&manager.Server{
		Name:     "health probe",
		Listener: listener,
		Server:   &http.Server{Handler: mux, ReadHeaderTimeout: 32 * time.Second, IdleTimeout: 90 * time.Second},
	})
}
