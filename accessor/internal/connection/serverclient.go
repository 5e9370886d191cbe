package connection

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
)

// serverClients are the clients of API servers, one for all connections to a server. A client of
// controller-runtime takes 4 KiB for what is the same for each identity: kinds, resources, and how
// objects are written. Whose request it is, the sender in the request's context says.
//
// A client lives as long as a connection has it: connections leave without a call, so the pointers
// are weak. The zero value is ready to use. The methods may be called from any goroutine.
type serverClients struct {
	mu      sync.Mutex
	clients map[serverKey]weak.Pointer[serverClient] // guarded by mu
}

type serverKey struct {
	target  *targets.Target
	timeout time.Duration // of a request; 0 for none
}

// of returns the client of a server. It sends nothing, and is not made before it is needed.
func (s *serverClients) of(key serverKey, scheme *apiruntime.Scheme) *serverClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.clients[key].Value(); known != nil {
		return known
	}
	created := &serverClient{key: key, scheme: scheme}
	if s.clients == nil {
		s.clients = map[serverKey]weak.Pointer[serverClient]{}
	}
	s.clients[key] = weak.Make(created)
	runtime.AddCleanup(created, s.drop, key)
	return created
}

// drop forgets a client that no connection has any more, unless there is another one.
func (s *serverClients) drop(key serverKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[key].Value() == nil {
		delete(s.clients, key)
	}
}

// serverClient is a client of an API server.
type serverClient struct {
	key    serverKey
	scheme *apiruntime.Scheme
	forms  [allForms]formClient
}

// form is how a request's object is written and read, and what its kind means. A client of
// controller-runtime remembers by the kind alone which resource and which codec the first request
// had, whatever form it had: a ConfigMapList as a single object, which an author of objects may
// write, has a resource that is no list's. So each form has a client of its own.
type form int

const (
	formTyped form = iota
	formTypedList
	formUnstructured
	formUnstructuredList
	formApply
	allForms
)

func formOf(object apiruntime.Object) form {
	_, isUnstructured := object.(apiruntime.Unstructured)
	switch isList := meta.IsListType(object); {
	case isUnstructured && isList:
		return formUnstructuredList
	case isUnstructured:
		return formUnstructured
	case isList:
		return formTypedList
	}
	return formTyped
}

// formClient is a client for one form. controller-runtime's remembers the resource and scope of a
// kind for good, so formClient makes another one when a kind has another resource.
type formClient struct {
	current  atomic.Pointer[pinnedClient] // nil before the first request that needs it
	building sync.Mutex
}

// build returns a client that knows the pins, and sends nothing.
func (s *serverClient) build(pins *pins) (*pinnedClient, error) {
	config := s.key.target.Config()
	config.Timeout, config.RateLimiter = s.key.timeout, senderLimiter{}
	built, err := client.New(config, client.Options{
		HTTPClient: &http.Client{Transport: senderRoundTripper{}, Timeout: s.key.timeout, CheckRedirect: neverRedirect},
		Scheme:     s.scheme,
		Mapper:     pins,
	})
	return &pinnedClient{built, pins}, errors.Wrap(err, "creating a client")
}

// newPins returns pins that know no kind. What they do not know, they do not look up: a lookup is
// some identity's request, too.
func newPins() *pins { return &pins{RESTMapper: meta.MultiRESTMapper(nil)} }

// latest returns the client that knows the latest resources.
func (s *serverClient) latest(of form) (*pinnedClient, error) {
	f := &s.forms[of]
	if current := f.current.Load(); current != nil {
		return current, nil
	}
	f.building.Lock()
	defer f.building.Unlock()
	if current := f.current.Load(); current != nil {
		return current, nil
	}
	first, err := s.build(newPins())
	if err != nil {
		return nil, err
	}
	f.current.Store(first)
	return first, nil
}

// renew replaces the client by one for which a kind has another resource, unless another caller has
// done so. The new client knows the other kinds as the last one did, unless these are too many:
// some may be gone.
func (s *serverClient) renew(of form, last *pinnedClient, gvk schema.GroupVersionKind, found *targets.Resolved) error {
	f := &s.forms[of]
	f.building.Lock()
	defer f.building.Unlock()
	if f.current.Load() != last {
		return nil
	}
	pins := newPins()
	if !last.pins.full() {
		last.pins.known.Range(func(other, known any) bool {
			if other != gvk {
				pins.put(other.(schema.GroupVersionKind), known.(*targets.Resolved))
			}
			return true
		})
	}
	pins.put(gvk, found)
	next, err := s.build(pins)
	if err != nil {
		return err
	}
	f.current.Store(next)
	return nil
}

// sender sends the requests of one connection's client, as its identity and within its limits.
type sender struct {
	transport http.RoundTripper
	limiter   flowcontrol.RateLimiter // nil for no limit
}

type senderKey struct{}

// with returns a context whose requests the sender sends, whatever sender ctx has.
func (s *sender) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, senderKey{}, s)
}

var errNoSender = errors.New("a request that no connection sends")

// senderRoundTripper leaves each request to the sender in its context. Without one, it sends
// nothing.
type senderRoundTripper struct{}

func (senderRoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	s, ok := req.Context().Value(senderKey{}).(*sender)
	if !ok {
		return failingRoundTripper{errNoSender}.RoundTrip(req)
	}
	return s.transport.RoundTrip(req)
}

// senderLimiter makes each request wait for the limit of the sender in its context. client-go calls
// only Wait.
type senderLimiter struct{ flowcontrol.RateLimiter }

// Wait implements flowcontrol.RateLimiter.
func (senderLimiter) Wait(ctx context.Context) error {
	if s, ok := ctx.Value(senderKey{}).(*sender); ok && s.limiter != nil {
		return s.limiter.Wait(ctx)
	}
	return nil
}
