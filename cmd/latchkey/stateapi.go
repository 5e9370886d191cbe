package main

import (
	"cmp"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/stateapi"
)

// namespaceFile has the namespace of a Pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// stateFlags are the flags of the state API.
type stateFlags struct {
	enabled                   bool
	group, namespace, service string
	bindAddress, address      string
	certificates              string

	peerBindAddress, peerAddress string
	authority                    string
	authorityReadOnly            bool
}

func (s *stateFlags) bind(flags *flag.FlagSet) {
	flags.BoolVar(&s.enabled, "state-api", false,
		"serve the connections as a Kubernetes API; see docs/stateapi.md and \"latchkey state-api manifests\"")
	flags.StringVar(&s.group, "state-api-group", "state.latchkey.dev", "group of the API")
	flags.StringVar(&s.namespace, "state-api-namespace", "", "namespace of the Service; empty means that of the Pod")
	flags.StringVar(&s.service, "state-api-service", "latchkey-state",
		"name of the Service, which has no selector, because one replica serves")
	flags.StringVar(&s.bindAddress, "state-api-bind-address", ":6443", "address that the API is served on")
	flags.StringVar(&s.address, "state-api-address", os.Getenv("POD_IP"),
		"IP address at which the API server reaches this process, written into the Service's EndpointSlice "+
			"(default $POD_IP)")
	flags.StringVar(&s.certificates, "state-api-cert-dir", "",
		"directory with tls.crt and tls.key for <service>.<namespace>.svc, whose authority the APIService has; empty "+
			"means that the replica that serves makes a certificate and writes its authority into the APIService")
	flags.StringVar(&s.peerBindAddress, "state-api-peer-bind-address", ":6444",
		"with --buckets or --ring: address on which this replica serves its own states to the others")
	flags.StringVar(&s.peerAddress, "state-api-peer-address", "", "with --buckets or --ring: IP address and port at "+
		"which the others reach --state-api-peer-bind-address; empty means --state-api-address and the port of that")
	flags.StringVar(&s.authority, "state-api-authority", "", "with --buckets or --ring: name of the Secret with the "+
		"certificate authority that the replicas share, in --leader-election-namespace; empty means the Service's name "+
		"and \"-authority\"")
	flags.BoolVar(&s.authorityReadOnly, "state-api-authority-read-only", false,
		"another program, such as cert-manager, keeps the Secret of --state-api-authority")
}

// fleet returns how this replica is part of the fleet, whose Leases are in the namespace.
func (s *stateFlags) fleet(name, namespace, identity string) (stateapi.FleetOptions, error) {
	options := stateapi.FleetOptions{
		Name:           name,
		Namespace:      namespace,
		Identity:       identity,
		Secret:         cmp.Or(s.authority, s.service+"-authority"),
		SecretReadOnly: s.authorityReadOnly,
		BindAddress:    s.peerBindAddress,
	}
	if s.peerAddress != "" {
		var err error
		options.Address, err = netip.ParseAddrPort(s.peerAddress)
		return options, errors.Wrap(err, "--state-api-peer-address")
	}
	address, err := netip.ParseAddr(s.address)
	if err != nil {
		return options, errors.Wrap(err, "--state-api-address")
	}
	_, port, err := net.SplitHostPort(s.peerBindAddress)
	if err != nil {
		return options, errors.Wrap(err, "--state-api-peer-bind-address")
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return options, errors.Errorf("--state-api-peer-bind-address %q needs a port number", s.peerBindAddress)
	}
	options.Address = netip.AddrPortFrom(address, uint16(number))
	return options, nil
}

// setUpStateAPI adds the state API to the manager, if it is enabled; else the result is nil. Its
// errors name the flag to change.
func (m *managerFlags) setUpStateAPI(mgr manager.Manager, connections clustercache.ClusterCache,
	kind schema.GroupVersionKind) (*stateapi.StateAPI, error) {
	s := &m.state
	if !s.enabled {
		return nil, nil
	}
	options := stateapi.Options{
		Group:   s.group,
		Config:  mgr.GetConfig(),
		Service: stateapi.ServiceOptions{Namespace: s.namespace, Name: s.service},
	}
	if s.namespace == "" {
		content, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, errors.New("--state-api outside of a cluster needs --state-api-namespace for the Service")
		}
		options.Service.Namespace = strings.TrimSpace(string(content))
	}
	if s.address == "" {
		return nil, errors.New("--state-api needs --state-api-address, or the environment variable POD_IP from the field " +
			"status.podIP: the Service leads to it")
	}
	var err error
	if options.Service.Address, err = netip.ParseAddr(s.address); err != nil {
		return nil, errors.Wrap(err, "--state-api-address")
	}
	if options.Service.Address.IsLoopback() {
		return nil, errors.Errorf("--state-api-address %s: an EndpointSlice cannot have a loopback address", s.address)
	}
	if s.certificates != "" {
		certificate, err := dynamiccertificates.NewDynamicServingContentFromFiles("state-api",
			filepath.Join(s.certificates, "tls.crt"), filepath.Join(s.certificates, "tls.key"))
		if err != nil {
			return nil, errors.Wrap(err, "--state-api-cert-dir")
		}
		options.Server.Certificate = certificate
	}
	if m.sharing.shares() {
		namespace, err := m.leaseNamespace()
		if err != nil {
			return nil, err
		}
		if options.Fleet, err = s.fleet(m.leaderElectionID, namespace, m.sharing.identity()); err != nil {
			return nil, err
		}
		options.Fleet.IgnoreTerms, options.Fleet.Engine = m.sharing.ring != "", m.sharing.engine
	}
	mapping, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, errors.Wrap(err, "asking for the scope of the extensions")
	}
	options.Namespaced = mapping.Scope.Name() == meta.RESTScopeNameNamespace
	options.Server.BindAddress = s.bindAddress
	api, err := stateapi.New(connections, options)
	if err != nil {
		return nil, errors.WithMessage(err, "--state-api")
	}
	return api, mgr.Add(api)
}

// runStateAPI prints the manifests of the state API.
func runStateAPI(args []string) error {
	var options config.StateAPIOptions
	flags := flag.NewFlagSet("latchkey state-api manifests", flag.ContinueOnError)
	flags.StringVar(&options.Group, "group", "state.latchkey.dev", "group of the API (--state-api-group of the manager)")
	flags.StringVar(&options.Namespace, "namespace", "latchkey-system", "namespace of the manager, which must exist")
	flags.StringVar(&options.Name, "name", "latchkey-state",
		"name of the Service (--state-api-service), and beginning of the names of the roles")
	flags.StringVar(&options.ServiceAccount, "service-account", "latchkey", "ServiceAccount of the manager")
	flags.BoolVar(&options.Shared, "shared", false,
		"the replicas share the extensions (--buckets or --ring of the manager)")
	if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
		args = []string{"manifests", "-h"}
	}
	if len(args) == 0 || args[0] != "manifests" {
		return errors.New(`the command is "latchkey state-api manifests"`)
	}
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		os.Exit(2) // the FlagSet has printed the error
	}
	if flags.NArg() > 0 {
		return errors.Errorf("%s takes no arguments, but got %q", flags.Name(), flags.Args())
	}
	manifests, err := config.StateAPIManifests(options)
	if err == nil {
		fmt.Print(manifests)
	}
	return err
}
