package stateapi

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/internal/aggregation"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// Options configure a state API.
type Options struct {
	// Group of the kinds. Defaults to state.latchkey.dev. Two programs in one cluster need
	// different groups.
	Group string
	// Namespaced must be set if the extensions are namespaced. Then connections and scopes are,
	// too.
	Namespaced bool
	// Config is how the program that serves acts at the API server in front, as in mgr.GetConfig().
	// Required for Service, and unless Server.Client is set, which New otherwise creates from it.
	Config *rest.Config
	// Service, if it has a name, is kept up to date: it leads to the leader.
	Service ServiceOptions
	// Server configures the server. GetOpenAPIDefinitions must not be set. Certificate is not
	// needed with a Service.
	Server apiserver.ExtensionAPIServerOptions
	// Fleet, if it has a name, lets replicas that share the extensions serve one view of all of
	// them. Needs Config. Server.Listener must not be set, because a replica may serve again.
	Fleet FleetOptions
}

// ServiceOptions name the Service by which the API server in front reaches the leader. The leader
// writes an EndpointSlice for it. Unless Server.Certificate is set, the leader also makes a
// certificate and puts its authority into the APIService <version>.<group>, which must exist and
// lead to the Service. What cannot be written is logged and tried again. With Options.Fleet, the
// leader is the replica that serves the view of all, and the authority is that of the fleet.
type ServiceOptions struct {
	// Namespace and Name of the Service, which has no selector.
	Namespace, Name string
	// Address of this process, as the API server in front reaches it: the IP of the Pod. Without an
	// address no EndpointSlice is written.
	Address netip.Addr
}

// StateAPI serves the connections of a ClusterCache. Add it to the manager of the ClusterCache.
type StateAPI struct {
	connections clustercache.ClusterCache
	options     Options
	version     schema.GroupVersion
	server      *apiserver.ExtensionAPIServer // of the states of this process
	publisher   *aggregation.Publisher        // nil without a Service
	states      *connectionStore
	scopes      *scopeStore
	scopeNames  map[client.ObjectKey]map[string]bool // of each extension; used by the subscriber, or with merged.mu
	fleet       *fleet                               // nil if this process has all extensions
}

type (
	connectionStore = apiserver.MemoryStore[*v1alpha1.Connection, *v1alpha1.ConnectionList]
	scopeStore      = apiserver.MemoryStore[*v1alpha1.Scope, *v1alpha1.ScopeList]
)

var (
	_ manager.Runnable               = (*StateAPI)(nil)
	_ manager.LeaderElectionRunnable = (*StateAPI)(nil)
)

// New returns a state API of the connections. New sends no request.
func New(connections clustercache.ClusterCache, options Options) (*StateAPI, error) {
	if connections == nil {
		return nil, errors.New("the ClusterCache is missing")
	}
	if options.Server.GetOpenAPIDefinitions != nil {
		return nil, errors.New("Options.Server.GetOpenAPIDefinitions must not be set")
	}
	options.Server.GetOpenAPIDefinitions = v1alpha1.GetOpenAPIDefinitions
	version := schema.GroupVersion{
		Group:   cmp.Or(options.Group, v1alpha1.GroupVersion.Group),
		Version: v1alpha1.GroupVersion.Version,
	}
	s := &StateAPI{
		connections: connections,
		options:     options,
		version:     version,
		scopeNames:  map[client.ObjectKey]map[string]bool{},
	}
	s.states, s.scopes = s.newStores(s.refresh, s.refreshAndCount, s.countObjects, 0)
	if options.Fleet != (FleetOptions{}) {
		if err := s.setUpFleet(); err != nil {
			return nil, errors.WithMessage(err, "Options.Fleet")
		}
	}
	var err error
	if s.publisher, err = s.options.complete(version, s.fleet); err != nil {
		return nil, err
	}
	if s.fleet != nil {
		s.server, err = s.fleet.newServer()
	} else {
		s.server, err = s.newServer(s.options.Server, s.states, s.scopes)
	}
	return s, err
}

// newServer returns a server of the stores.
func (s *StateAPI) newServer(options apiserver.ExtensionAPIServerOptions, states, scopes any,
) (*apiserver.ExtensionAPIServer, error) {
	scheme := runtime.NewScheme()
	if err := apiserver.AddToScheme(scheme); err != nil {
		return nil, errors.Wrap(err, "preparing the scheme")
	}
	server, err := apiserver.NewExtensionAPIServer(scheme, serializer.NewCodecFactory(scheme), options)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Server")
	}
	return server, s.install(server, states, scopes)
}

// The limit of the client that reviews requests: a request of a new user costs two reviews.
const reviewQPS, reviewBurst = 200, 400

// complete fills in what follows from Config and Service. The result is nil without a Service.
func (o *Options) complete(version schema.GroupVersion, fleet *fleet) (*aggregation.Publisher, error) {
	if o.Server.Client == nil && o.Config != nil {
		config := rest.CopyConfig(o.Config)
		config.QPS, config.Burst, config.RateLimiter = reviewQPS, reviewBurst, nil
		clients, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, errors.Wrap(err, "Options.Config")
		}
		o.Server.Client = clients
	}
	if o.Service.Name == "" {
		return nil, nil
	}
	if o.Config == nil || o.Service.Namespace == "" {
		return nil, errors.New("Options.Service needs a Namespace, and Options.Config")
	}
	address := cmp.Or(o.Server.BindAddress, defaultBindAddress)
	if o.Server.Listener != nil {
		address = o.Server.Listener.Addr().String()
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Wrap(err, "Options.Server.BindAddress")
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, errors.Errorf("Options.Server.BindAddress %q: Service needs a port number", address)
	}
	o.Server.BindAddress = address
	publishing := aggregation.Options{
		APIService:     version.Version + "." + version.Group,
		Service:        client.ObjectKey{Namespace: o.Service.Namespace, Name: o.Service.Name},
		Address:        o.Service.Address,
		Port:           int32(number),
		OwnCertificate: o.Server.Certificate != nil,
	}
	if fleet != nil && !publishing.OwnCertificate {
		// One authority for all replicas: nothing changes for the API server in front when another
		// one serves.
		o.Server.Certificate = fleet.authority.NewLeaf("state-api", false, aggregation.ServerName(publishing.Service))
		publishing.Authority = fleet.authority.CurrentCABundleContent
	}
	publisher, err := aggregation.New(o.Config, publishing)
	if err != nil {
		return nil, errors.WithMessage(err, "Options.Service")
	}
	if o.Server.Certificate == nil {
		o.Server.Certificate = publisher.Certificate()
	}
	return publisher, nil
}

// defaultBindAddress is the default of ExtensionAPIServerOptions.BindAddress.
const defaultBindAddress = ":6443"

// newStores returns empty stores.
func (s *StateAPI) newStores(onRead, onGet func(*v1alpha1.Connection), onGetScope func(*v1alpha1.Scope),
	bookmarks time.Duration) (*connectionStore, *scopeStore) {
	return apiserver.NewMemoryStore[*v1alpha1.Connection, *v1alpha1.ConnectionList](
			apiserver.MemoryStoreOptions[*v1alpha1.Connection]{
				Resource:         s.version.WithResource("connections").GroupResource(),
				Fields:           connectionFields,
				OnRead:           onRead,
				OnGet:            onGet,
				BookmarkInterval: bookmarks,
			}), apiserver.NewMemoryStore[*v1alpha1.Scope, *v1alpha1.ScopeList](
			apiserver.MemoryStoreOptions[*v1alpha1.Scope]{
				Resource:         s.version.WithResource("scopes").GroupResource(),
				Fields:           scopeFields,
				OnGet:            onGetScope,
				BookmarkInterval: bookmarks,
			})
}

// install installs the stores.
func (s *StateAPI) install(server *apiserver.ExtensionAPIServer, states, scopes any) error {
	var both []apiserver.StoreOption
	if s.options.Namespaced {
		both = append(both, apiserver.Namespaced())
	}
	if err := apiserver.InstallStore(server, &v1alpha1.Connection{}, &v1alpha1.ConnectionList{}, "connections",
		"connection", s.version.WithKind("Connection"), states, append(both, apiserver.ShortNames("conn"),
			apiserver.FieldSelectors("status.state", "status.reason"), connectionColumns())...); err != nil {
		return err
	}
	return apiserver.InstallStore(server, &v1alpha1.Scope{}, &v1alpha1.ScopeList{}, "scopes", "scope",
		s.version.WithKind("Scope"), scopes, append(both,
			apiserver.FieldSelectors("status.state", "status.reason", "status.extension"), scopeColumns())...)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the leader has connections,
// unless the replicas are a fleet.
func (s *StateAPI) NeedLeaderElection() bool { return s.fleet == nil }

// Start serves until ctx is done, and returns when the last request has ended. What the program
// lacks to serve, such as a permission, is logged and tried again. Start begins to serve when every
// extension has been reconciled once. So a client that comes from the leader before does not take
// an extension for deleted that this process has not seen yet.
func (s *StateAPI) Start(ctx context.Context) error {
	subscribed, stop := context.WithCancel(ctx)
	filled := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		fill := sync.OnceFunc(func() { close(filled) })
		s.connections.SubscribeStates(subscribed, func(extensions []client.ObjectKey) {
			for _, key := range extensions {
				s.update(ctx, key)
			}
			fill()
		})
	})
	if s.fleet != nil {
		return s.fleet.run(ctx, filled)
	}
	select {
	case <-ctx.Done():
		return s.server.Run(ctx) // which closes the listener
	case <-filled:
	}
	if !awaitCheck(ctx, s.server) {
		return s.server.Run(ctx)
	}
	if s.publisher != nil {
		running.Go(func() {
			select {
			case <-s.server.Listening():
				s.publisher.Run(subscribed)
			case <-subscribed.Done():
			}
			s.publisher.Withdraw(context.WithoutCancel(ctx))
		})
	}
	return errors.WithMessage(s.server.Run(ctx), "state API")
}

// firstCheck and checkInterval are the shortest and the longest pause between tries to serve.
const firstCheck, checkInterval = 100 * time.Millisecond, 5 * time.Second

// awaitCheck returns true when the server can serve. What it lacks is logged: a host operator does
// not end because of it.
func awaitCheck(ctx context.Context, server *apiserver.ExtensionAPIServer) bool {
	logged := ""
	pauses := wait.Backoff{Duration: firstCheck, Factor: 2, Jitter: 0.2, Steps: 1 << 20, Cap: checkInterval}
	for {
		err := server.Check(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err() == nil
		}
		if err.Error() != logged {
			logged = err.Error()
			log.FromContext(ctx).Info("Cannot serve the state API yet", "reason", logged)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pauses.Step()):
		}
	}
}

// update brings what is stored about an extension up to date.
func (s *StateAPI) update(ctx context.Context, key client.ObjectKey) {
	state, known := s.connections.GetConnectionState(ctx, key)
	if ctx.Err() != nil { // the manager ends the connections, and not because the extensions are gone
		return
	}
	var other clustercache.NotOwnedExtension
	if s.fleet != nil && !known {
		if other, known = s.connections.GetNotOwned(ctx, key); !known { // it may have come from there to here
			state, known = s.connections.GetConnectionState(ctx, key)
		} else {
			known = false
		}
	}
	var row *v1alpha1.Connection
	var scopes []*v1alpha1.Scope
	if known {
		row, scopes = connectionOf(state), scopesOf(state)
	}
	if s.fleet == nil {
		s.store(key, row, scopes)
	} else {
		s.fleet.update(key, row, scopes, &state, other)
	}
}

// refresh fills in what changes all the time.
func (s *StateAPI) refresh(c *v1alpha1.Connection) {
	key := client.ObjectKeyFromObject(c)
	refreshProbe(&c.Status.Probe, s.connections.GetHealthCheckingState(context.Background(), key))
	if c.Status.Refused != nil {
		state, _ := s.connections.GetConnectionState(context.Background(), key)
		c.Status.Refused = refusedOf(state.Permissions)
	}
}

// refreshAndCount also counts the objects, and has the whole record of permissions.
func (s *StateAPI) refreshAndCount(c *v1alpha1.Connection) {
	key := client.ObjectKeyFromObject(c)
	refreshProbe(&c.Status.Probe, s.connections.GetHealthCheckingState(context.Background(), key))
	state, _ := s.connections.GetConnectionState(context.Background(), key)
	c.Status.Permissions, c.Status.Refused = permissionsOf(state.Permissions), refusedOf(state.Permissions)
	total := int64(0)
	for _, scope := range state.Scopes {
		total += int64(scope.Objects)
	}
	c.Status.Objects = &total
}

// countObjects counts the objects of one scope.
func (s *StateAPI) countObjects(scope *v1alpha1.Scope) {
	key := client.ObjectKey{Namespace: scope.Namespace, Name: scope.Status.Extension}
	state, _ := s.connections.GetConnectionState(context.Background(), key)
	for _, found := range state.Scopes {
		if scopeName(key.Name, found) == scope.Name {
			count := int64(found.Objects)
			scope.Status.Objects = &count
		}
	}
}

var connectionFields = map[string]func(*v1alpha1.Connection) string{
	"status.state":  func(c *v1alpha1.Connection) string { return c.Status.State },
	"status.reason": func(c *v1alpha1.Connection) string { return c.Status.Reason },
}

var scopeFields = map[string]func(*v1alpha1.Scope) string{
	"status.state":     func(s *v1alpha1.Scope) string { return s.Status.State },
	"status.reason":    func(s *v1alpha1.Scope) string { return s.Status.Reason },
	"status.extension": func(s *v1alpha1.Scope) string { return s.Status.Extension },
}
