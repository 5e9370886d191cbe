package apiserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	restclient "k8s.io/client-go/rest"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// drainTimeout is how long a server that ends waits for the watches of its clients.
const drainTimeout = 2 * time.Second

// ExtensionAPIServer is an API server behind another one. Its methods may be called from any
// goroutine.
type ExtensionAPIServer struct {
	scheme  *runtime.Scheme
	codecs  serializer.CodecFactory
	options ExtensionAPIServerOptions
	// whether the API server in front says who sends requests, and what they may do
	asksWho, asksWhat bool

	mu        sync.Mutex
	started   bool                                            // guarded by mu
	resources map[schema.GroupVersion]map[string]rest.Storage // guarded by mu
	versions  []schema.GroupVersion                           // guarded by mu; the keys of resources, as installed
	kinds     map[schema.GroupKind]bool                       // guarded by mu; of resources

	handler atomic.Pointer[http.Handler]
	listens chan struct{} // closed when Run listens
	watches *watchLimit
}

// AddToScheme adds the types that every API server answers with. Call it for the scheme of
// NewExtensionAPIServer.
func AddToScheme(scheme *runtime.Scheme) error {
	version := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, version)
	scheme.AddUnversionedTypes(version, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	return nil
}

// NewExtensionAPIServer returns a server without resources. It sends no request. scheme must have
// the types of AddToScheme, and codecs must be serializer.NewCodecFactory(scheme).
func NewExtensionAPIServer(scheme *runtime.Scheme, codecs serializer.CodecFactory,
	options ExtensionAPIServerOptions) (*ExtensionAPIServer, error) {
	if scheme == nil {
		return nil, errors.New("the scheme is nil")
	}
	if err := options.complete(); err != nil {
		return nil, errors.WithMessage(err, "ExtensionAPIServerOptions")
	}
	if !scheme.Recognizes(schema.GroupVersionKind{Version: "v1", Kind: "Status"}) {
		return nil, errors.New("the scheme lacks the types that every API server answers with: call AddToScheme")
	}
	s := &ExtensionAPIServer{
		scheme:    scheme,
		codecs:    codecs,
		listens:   make(chan struct{}),
		watches:   &watchLimit{perUser: options.MaxWatchesPerUser, total: options.MaxWatches},
		resources: map[schema.GroupVersion]map[string]rest.Storage{},
		kinds:     map[schema.GroupKind]bool{},
	}
	s.asksWho, s.asksWhat = options.Authenticator == nil, options.Authorizer == nil
	var err error
	if options.Authorizer == nil {
		if options.Authorizer, err = delegatedAuthorizer(options.Client); err != nil {
			return nil, err
		}
	}
	s.options = options
	return s, nil
}

// install adds a resource, by a function that is called if there is none of that name or kind yet.
// A kind has one version, because there is no conversion between versions.
func (s *ExtensionAPIServer) install(kind schema.GroupVersionKind, resource string, add func()) error {
	version := kind.GroupVersion()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return errors.WithStack(ErrStarted)
	}
	if s.resources[version][resource] != nil || s.kinds[kind.GroupKind()] {
		return errors.Wrapf(ErrDuplicateStore, "%s", kind)
	}
	s.kinds[kind.GroupKind()] = true
	if s.resources[version] == nil {
		s.resources[version] = map[string]rest.Storage{}
		s.versions = append(s.versions, version)
	}
	add()
	return nil
}

// Run serves until ctx is done, and returns when the last request has ended. Watches end at once,
// so that their clients turn to another server; watches by WebSocket end a little later, when their
// connection is closed. Run fails after five seconds if it may not read how the API server in front
// authenticates, or may not ask it. A server runs once.
func (s *ExtensionAPIServer) Run(ctx context.Context) error {
	s.mu.Lock()
	started := s.started
	s.started = true
	s.mu.Unlock()
	if started {
		return errors.WithStack(ErrStarted)
	}
	running, cancel := context.WithCancelCause(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel(nil)
	prepared, err := s.prepare(running, &background, cancel)
	if err != nil {
		s.closeListener()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the server was ended before it could start
		}
		return err
	}
	var handler http.Handler = prepared.Handler
	s.handler.Store(&handler)
	close(s.listens)
	err = errors.Wrap(prepared.PrepareRun().RunWithContext(running), "serving")
	if lost := context.Cause(running); err == nil && ctx.Err() == nil && lost != nil {
		err = lost
	}
	return err
}

func (s *ExtensionAPIServer) closeListener() {
	if s.options.Listener != nil {
		_ = s.options.Listener.Close()
	}
}

// Listening returns a channel that is closed when Run listens: requests that come from then on are
// served, or wait to be.
func (s *ExtensionAPIServer) Listening() <-chan struct{} { return s.listens }

// Check returns what would keep Run from serving: what the identity of Client may not read or ask,
// or what the API server in front does not publish. Run checks the same. It tries for half a minute
// while the API server in front does not answer, and for five seconds otherwise, because that API
// server learns of a new binding a little later.
func (s *ExtensionAPIServer) Check(ctx context.Context) error {
	if s.asksWho {
		if err := checkPublished(ctx, s.options.Client); err != nil {
			return err
		}
	}
	return checkReviews(ctx, s.options.Client, s.asksWho, s.asksWhat)
}

// prepare checks what the server needs, and creates the library's server. What goes on in the
// background ends with ctx.
func (s *ExtensionAPIServer) prepare(ctx context.Context, background *sync.WaitGroup,
	lost context.CancelCauseFunc) (*genericapiserver.GenericAPIServer, error) {
	if err := s.awaitCheck(ctx); err != nil {
		return nil, err
	}
	if s.asksWho {
		front, err := startFrontProxy(ctx, s.options.Client, background)
		if err != nil {
			return nil, err
		}
		s.options.ClientCA = front.content
		if s.options.Authenticator, err = front.authenticator(); err != nil {
			return nil, err
		}
	}
	listener, err := s.listen(ctx, lost)
	if err != nil {
		return nil, err
	}
	return s.newServer(listener)
}

// awaitCheck is Check, repeated while the API server in front does not answer, and for grantTimeout
// after it has begun to answer.
func (s *ExtensionAPIServer) awaitCheck(ctx context.Context) error {
	var last error
	var refused time.Time // when the answers began to be refusals
	err := wait.PollUntilContextTimeout(ctx, checkInterval, publishedTimeout, true,
		func(ctx context.Context) (bool, error) {
			switch last = s.Check(ctx); {
			case last == nil:
				return true, nil
			case isTransient(last):
				refused = time.Time{}
				return false, nil
			case refused.IsZero():
				refused = time.Now()
			}
			if time.Since(refused) < grantTimeout {
				return false, nil
			}
			return false, last
		})
	if err != nil && last != nil {
		return last
	}
	return err
}

// listen returns the listener. lost is called if it fails before the server ends.
func (s *ExtensionAPIServer) listen(ctx context.Context, lost context.CancelCauseFunc) (net.Listener, error) {
	if s.options.Listener == nil {
		var config net.ListenConfig
		var err error
		if s.options.Listener, err = config.Listen(ctx, "tcp", s.options.BindAddress); err != nil {
			return nil, errors.Wrap(err, "listening (BindAddress)")
		}
	}
	if _, _, err := net.SplitHostPort(s.options.Listener.Addr().String()); err != nil {
		return nil, errors.Wrap(err, "Listener must have an address of a host and a port")
	}
	return newSteadyListener(s.options.Listener, lost), nil
}

// newServer creates the library's server.
func (s *ExtensionAPIServer) newServer(listener net.Listener) (*genericapiserver.GenericAPIServer, error) {
	config := genericapiserver.NewConfig(s.codecs)
	config.Serializer = onlyText{s.codecs}
	config.SecureServing = &genericapiserver.SecureServingInfo{
		Listener: listener,
		Cert:     s.options.Certificate,
		SNICerts: s.options.SNICertificates,
		ClientCA: s.options.ClientCA,
	}
	config.ExternalAddress = listener.Addr().String()
	config.Authentication.Authenticator = s.options.Authenticator
	config.Authorization.Authorizer = s.options.Authorizer
	config.LoopbackClientConfig = &restclient.Config{} // nothing calls this server by itself
	config.EffectiveVersion = s.options.EffectiveVersion
	if config.EffectiveVersion == nil {
		config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	}
	config.EnableProfiling, config.EnableMetrics, config.EnableIndex = false, false, false
	config.ShutdownWatchTerminationGracePeriod = drainTimeout
	names := newDefinitionNames(s.scheme, s.options.OpenAPIDefinitionNameReplacements)
	definitions := withSharedDefinitions(s.options.GetOpenAPIDefinitions)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, names.namer)
	config.OpenAPIConfig.GetDefinitionName = names.name
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, names.namer)
	config.OpenAPIV3Config.GetDefinitionName = names.name
	config.OpenAPIV3Config.Definitions = definitions(func(name string) spec.Ref {
		short, _ := names.name(name)
		return spec.MustCreateRef("#/components/schemas/" + openapicommon.EscapeJsonPointer(short))
	})
	server, err := config.Complete(nil).New("extension", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, errors.Wrap(err, "creating the server")
	}
	return server, s.installGroups(server)
}

// installGroups installs the resources, a group at a time.
func (s *ExtensionAPIServer) installGroups(server *genericapiserver.GenericAPIServer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := map[string]*genericapiserver.APIGroupInfo{}
	var ordered []*genericapiserver.APIGroupInfo
	for _, version := range s.versions {
		group := groups[version.Group]
		if group == nil {
			info := genericapiserver.NewDefaultAPIGroupInfo(version.Group, s.scheme, runtime.NewParameterCodec(s.scheme),
				s.codecs)
			info.NegotiatedSerializer = onlyText{info.NegotiatedSerializer}
			info.PrioritizedVersions = nil
			group = &info
			groups[version.Group], ordered = group, append(ordered, group)
		}
		group.PrioritizedVersions = append(group.PrioritizedVersions, version)
		group.VersionedResourcesStorageMap[version.Version] = s.resources[version]
		for _, storage := range s.resources[version] {
			storage.(interface{ beginServing() }).beginServing()
		}
	}
	return errors.Wrap(server.InstallAPIGroups(ordered...), "installing the resources")
}

// ServeHTTP serves a request without TLS of its own, for servers that have TLS. The request must
// have the TLS state of its connection, or a token. Before Run the answer is 503.
func (s *ExtensionAPIServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	handler := s.handler.Load()
	if handler == nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the server has not started", http.StatusServiceUnavailable)
		return
	}
	(*handler).ServeHTTP(w, req)
}
