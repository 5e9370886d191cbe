package peers

import (
	"context"
	"crypto/tls"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
)

// The times of a connection to a peer, which is near.
const (
	dialTimeout   = 3 * time.Second
	headerTimeout = 10 * time.Second
	getTimeout    = 3 * time.Second
	// firstListTimeout is how long the first lists of a connection may take.
	firstListTimeout = 30 * time.Second
	// renewalSpread is in how much time a replica connects to its peers anew after its certificate was
	// renewed: they verify the certificate of a connection at each request. It has hours, and is
	// less than the time for which an authority is trusted that was removed from the Secret.
	renewalSpread = 5 * time.Minute
	// logInterval is the least time between two messages about one peer.
	logInterval = 10 * time.Second
	// maxReceived is how much memory may be taken by what is received from a peer over one connection,
	// as untrusted.Budget counts it. A replica with 10,000 extensions has a quarter of that. A peer
	// that says more is connected anew, and so its lists replace what it has said before.
	maxReceived = 1 << 30
	// requestsAtOnce is how many requests to a peer may be under way: some wait for changes, the
	// others get what changes all the time.
	requestsAtOnce = 64
	firstBackoff   = 200 * time.Millisecond
	longestBackoff = 2 * time.Second
	// fullPause is how long a peer is left alone that has sent too much in less time.
	fullPause = time.Minute
)

// peer is another replica.
type peer struct {
	peers  *Peers
	member member
	heard  map[string]*atomic.Int64 // when it said something of a resource last, in nanoseconds since began
	began  time.Time
	said   said
	client atomic.Pointer[rest.RESTClient] // nil while not connected
	end    context.CancelFunc
	ended  chan struct{} // closed when it is not followed any more
}

func (p *Peers) startPeer(ctx context.Context, m member) *peer {
	ctx, end := context.WithCancel(ctx)
	one := &peer{
		peers:  p,
		member: m,
		began:  time.Now(),
		end:    end,
		heard:  map[string]*atomic.Int64{},
		ended:  make(chan struct{}),
	}
	for resource := range p.options.Resources {
		one.heard[resource] = &atomic.Int64{}
	}
	p.running.Go(func() {
		defer close(one.ended)
		one.run(ctx)
		p.listener.Gone(m.identity)
	})
	return one
}

func (p *peer) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// heardAt returns when the peer was last heard, of the resource of which it was heard least lately;
// 0 for never.
func (p *peer) heardAt() time.Duration {
	least := time.Duration(math.MaxInt64)
	for _, heard := range p.heard {
		least = min(least, time.Duration(heard.Load()))
	}
	return least
}

// isHeard reports whether the peer said something lately.
func (p *peer) isHeard(now time.Time) bool {
	at := p.heardAt()
	return at > 0 && now.Sub(p.began)-at < p.peers.options.Silence
}

func (p *peer) hear(resource string) {
	p.heard[resource].Store(int64(time.Since(p.began)))
	if p.isHeard(time.Now()) {
		p.peers.listener.Heard(p.member.identity)
	}
}

// run connects the peer until ctx is done, anew when it is silent, or when others are trusted.
func (p *peer) run(ctx context.Context) {
	logger := ctrl.LoggerFrom(ctx).WithValues("replica", p.member.identity, "address", p.member.address.String())
	backoff := newBackoff()
	var mu sync.Mutex
	logged := ""           // guarded by mu
	var loggedAt time.Time // guarded by mu
	failed := func(err error) {
		text := reason(err)
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil && text != logged && (loggedAt.IsZero() || time.Since(loggedAt) >= logInterval) {
			logged, loggedAt = text, time.Now()
			logger.Info("A replica of the fleet is not heard", "reason", text)
		}
	}
	for ctx.Err() == nil {
		heard := p.heardAt()
		var tries atomic.Int32
		begun := time.Now()
		full := p.connect(ctx, func(err error) {
			tries.Add(1)
			failed(err)
		})
		pause := time.Duration(0)
		switch {
		case full && time.Since(begun) < fullPause: // it would go on like that
			failed(errTooMuch)
			pause = fullPause
		case p.heardAt() != heard:
			backoff = newBackoff()
			mu.Lock()
			logged = ""
			mu.Unlock()
		case tries.Load() == 0:
			failed(errSilent)
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(pause, backoff.Step())):
		}
	}
}

// newBackoff returns the pauses between tries.
func newBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: firstBackoff, Factor: 2, Jitter: 0.5, Steps: 1 << 20, Cap: longestBackoff}
}

// errTooMuch is why no more is received over a connection.
var errTooMuch = errors.New("it sends more than a replica has")

// errSilent is why a peer is not heard that gives no answer at all.
var errSilent = errors.New("it gives no answer: look at its Pod, and at the network between the replicas")

// reason returns why a peer is not heard, and what to do about it.
func reason(err error) string {
	text := err.Error()
	var network *net.OpError
	if errors.As(err, &network) && network.Source != nil { // has a port of this process, another one each time
		text = strings.ReplaceAll(text, network.Source.String()+"->", "")
	}
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) {
		text = "what answers there is not that member of the fleet, and got no credential: " + text
	}
	return untrusted.Shorten(text)
}

// connect follows the resources of the peer until ctx is done, it is silent, others are trusted, or
// this replica has another certificate. full reports that it has sent too much.
func (p *peer) connect(ctx context.Context, failed func(error)) (full bool) {
	options := &p.peers.options
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	roots, changed := options.Authority.Pool()
	renewed := p.peers.leaf.Renewed()
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, // the client's certificate is sent after the server's is verified
			RootCAs:    roots,
			ServerName: options.ServerName(p.member.identity),
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return p.peers.leaf.Certificate()
			},
		},
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       time.Minute,
		ForceAttemptHTTP2:     true,
	}
	defer transport.CloseIdleConnections()
	received := untrusted.LimitAll(transport, untrusted.Budget{
		Requests: math.MaxInt64,
		AtOnce:   requestsAtOnce,
		Bytes:    options.MaxReceived,
	})
	client, err := rest.RESTClientForConfigAndClient(&rest.Config{
		Host:    "https://" + p.member.address.String(),
		APIPath: "/apis",
		QPS:     -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &options.Group,
			NegotiatedSerializer: serializer.NewCodecFactory(options.Scheme).WithoutConversion(),
		},
	}, &http.Client{
		Transport:     received,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it leads elsewhere") },
	})
	if err != nil {
		failed(err)
		return false
	}
	p.client.Store(client)
	defer p.client.Store(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	quiet := logr.Discard()
	var missing atomic.Int32
	missing.Store(int32(len(options.Resources)))
	for resource, object := range options.Resources {
		store := &stream{
			peer:     p,
			resource: resource,
			listed:   sync.OnceFunc(func() { missing.Add(-1) }),
		}
		reflector := toolscache.NewReflectorWithOptions(
			toolscache.NewListWatchFromClient(client, resource, "", fields.Everything()), object, store,
			toolscache.ReflectorOptions{
				Logger:  &quiet,
				Name:    "peer " + p.member.identity,
				Backoff: newBackoff(),
			})
		running.Go(func() {
			for backoff := newBackoff(); ctx.Err() == nil; {
				err := reflector.ListAndWatchWithContext(logr.NewContext(ctx, quiet))
				switch {
				case received.Exceeded() != nil:
					cancel()
				case err != nil && ctx.Err() == nil:
					failed(err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(backoff.Step()):
				}
			}
		})
	}
	p.await(ctx, changed, renewed, func() bool { return missing.Load() == 0 })
	return received.Exceeded() != nil
}

// await returns when ctx is done, the peer is silent, others are trusted, or some time after this
// replica has got another certificate. listed reports whether the peer has said all that it has.
func (p *peer) await(ctx context.Context, changed, renewed <-chan struct{}, listed func() bool) {
	begun := time.Now()
	tick := time.NewTicker(p.peers.options.Silence / 4)
	defer tick.Stop()
	var renew <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			return
		case <-renewed:
			renewed, renew = nil, time.After(rand.N(p.peers.options.RenewalSpread))
		case <-renew:
			return
		case now := <-tick.C:
			patience := p.peers.options.Silence
			if !listed() {
				patience = firstListTimeout
			}
			if now.Sub(begun) > patience && !p.isHeard(now) {
				return
			}
		}
	}
}

// stream is the store of a Reflector, which passes on what it receives.
type stream struct {
	peer     *peer
	resource string
	listed   func() // is called when the peer has said all that it has of the resource
}

var (
	_ toolscache.ReflectorStore         = (*stream)(nil)
	_ toolscache.ResourceVersionUpdater = (*stream)(nil)
)

// errOtherType is why nothing is passed on of another type than that of the resource: a list says
// itself what it has.
var errOtherType = errors.New("it sends objects of another type")

// check returns an error for an object of another type.
func (s *stream) check(object any) error {
	if reflect.TypeOf(object) != reflect.TypeOf(s.peer.peers.options.Resources[s.resource]) {
		return errOtherType
	}
	return nil
}

// Add implements toolscache.ReflectorStore.
func (s *stream) Add(object any) error { return s.Update(object) }

// Update implements toolscache.ReflectorStore.
func (s *stream) Update(object any) error {
	if err := s.check(object); err != nil {
		return err
	}
	s.peer.peers.listener.Changed(s.peer.member.identity, s.resource, object.(runtime.Object))
	return nil
}

// Delete implements toolscache.ReflectorStore.
func (s *stream) Delete(object any) error {
	if err := s.check(object); err != nil {
		return err
	}
	s.peer.peers.listener.Removed(s.peer.member.identity, s.resource, object.(runtime.Object))
	return nil
}

// Replace implements toolscache.ReflectorStore.
func (s *stream) Replace(list []any, version string) error {
	objects := make([]runtime.Object, len(list))
	for i, object := range list {
		if err := s.check(object); err != nil {
			return err
		}
		objects[i] = object.(runtime.Object)
	}
	s.peer.peers.listener.Replaced(s.peer.member.identity, s.resource, objects)
	s.listed()
	s.UpdateResourceVersion(version)
	return nil
}

// Resync implements toolscache.ReflectorStore.
func (*stream) Resync() error { return nil }

// UpdateResourceVersion implements toolscache.ResourceVersionUpdater. A bookmark comes here, too.
func (s *stream) UpdateResourceVersion(version string) {
	s.peer.hear(s.resource)
	s.peer.said.set(s.resource, version) // last: what waits for it finds what was heard
}
