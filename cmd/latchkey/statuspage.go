package main

import (
	"context"
	"crypto/tls"
	"flag"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/pkg/errors"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/statuspage"
)

// statusPath is where the status page is. Users who may "get" the nonResourceURL /status/* may read
// it, with --status-secure.
const statusPath = "/status/"

// statusFlags are the flags of the status page.
type statusFlags struct {
	address      string
	secure       bool
	certificates string
}

func (s *statusFlags) bind(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "status-address", "0",
		"address that serves the status page at /status/, such as 127.0.0.1:8082; an address that is not on loopback "+
			"needs --status-secure; 0 disables it. With --state-api and --buckets or --ring, the page has the extensions of "+
			"all replicas")
	flags.BoolVar(&s.secure, "status-secure", false,
		"serve the status page with TLS, to users who may \"get\" the nonResourceURL /status/*; this program then needs "+
			"\"create\" on tokenreviews and subjectaccessreviews")
	flags.StringVar(&s.certificates, "status-cert-dir", "",
		"with --status-secure: directory with tls.crt and tls.key, read again when they change; required for an "+
			"address that is not on loopback, where empty means a self-signed certificate")
}

func (s *statusFlags) enabled() bool { return s.address != "0" && s.address != "" }

// validate checks the flags. Its errors name the flag to change.
func (s *statusFlags) validate() error {
	if !s.enabled() {
		if s.secure || s.certificates != "" {
			return errors.New("--status-secure and --status-cert-dir need --status-address")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(s.address)
	if err != nil {
		return errors.Wrap(err, "--status-address must be host:port")
	}
	if !s.secure && !isLoopback(host) {
		return errors.Errorf("--status-address %s is not on loopback: set --status-secure, because the page names "+
			"all tenants' identities, or use 127.0.0.1 and kubectl port-forward", s.address)
	}
	if s.certificates != "" && !s.secure {
		return errors.New("--status-cert-dir needs --status-secure")
	}
	if s.secure && s.certificates == "" && !isLoopback(host) {
		return errors.Errorf("--status-address %s is not on loopback: set --status-cert-dir, because people sign in with "+
			"a token, and no browser can verify a self-signed certificate", s.address)
	}
	return nil
}

// isLoopback reports whether a host is this machine only.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// setUp adds the status page to the manager, if it is enabled. api is the state API, or nil.
func (s *statusFlags) setUp(ctx context.Context, mgr manager.Manager, connections clustercache.ClusterCache,
	api *stateapi.StateAPI) error {
	if !s.enabled() {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address)
	if err != nil {
		return errors.Wrap(err, "--status-address")
	}
	var options statuspage.Options
	if api != nil {
		if replicas, ok := api.Replicas(); ok {
			options.Replicas = replicas
		}
	}
	page := statuspage.New(connections, options)
	handler := statuspage.Local(page)
	var tlsConfig *tls.Config
	if s.secure {
		handler = page.Guard(mgr.GetClient(), statusPath)
		if tlsConfig, err = s.tlsConfig(mgr); err != nil {
			_ = listener.Close() // its error would hide the one to report
			return err
		}
		listener = tls.NewListener(listener, tlsConfig)
	}
	mux := http.NewServeMux()
	mux.Handle(statusPath, handler)
	mux.Handle("/{$}", http.RedirectHandler(statusPath, http.StatusFound))
	if err := mgr.Add(page); err != nil {
		return err
	}
	return mgr.Add(&manager.Server{
		Name:            "status page",
		Listener:        listener,
		ShutdownTimeout: new(time.Second),
		Server: &http.Server{
			Handler:           mux,
			TLSConfig:         tlsConfig,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       90 * time.Second,
			MaxHeaderBytes:    64 << 10,
		},
	})
}

func (s *statusFlags) tlsConfig(mgr manager.Manager) (*tls.Config, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if s.certificates != "" {
		watcher, err := certwatcher.New(filepath.Join(s.certificates, "tls.crt"), filepath.Join(s.certificates, "tls.key"))
		if err != nil {
			return nil, errors.Wrap(err, "--status-cert-dir")
		}
		tlsConfig.GetCertificate = watcher.GetCertificate
		return tlsConfig, mgr.Add(watcher)
	}
	certificate, key, err := certutil.GenerateSelfSignedCertKeyWithFixtures("localhost", []net.IP{{127, 0, 0, 1}}, nil, "")
	if err != nil {
		return nil, errors.Wrap(err, "making a self-signed certificate")
	}
	pair, err := tls.X509KeyPair(certificate, key)
	tlsConfig.Certificates = []tls.Certificate{pair}
	return tlsConfig, errors.Wrap(err, "making a self-signed certificate")
}
