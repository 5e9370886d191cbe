package stateapi

import (
	"context"
	cryptox509 "crypto/x509"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/stateapi/internal/peers"
	"github.com/latchkey-dev/latchkey/stateapi/internal/trust"
)

// fleetOptions returns options that suffice.
func fleetOptions() Options {
	return Options{
		Config:  &rest.Config{Host: "https://127.0.0.1:1"},
		Service: ServiceOptions{Namespace: "ns", Name: "state"},
		Fleet: FleetOptions{
			Name:      "team",
			Namespace: "ns",
			Secret:    "authority",
			Identity:  "me",
			Address:   netip.MustParseAddrPort("192.0.2.1:6444"),
		},
	}
}

// New refuses what could never serve, and says what to set.
func TestFleetOptions(t *testing.T) {
	cache := fake.NewFakeCache(fakeclient.NewClientBuilder().Build(), client.ObjectKey{Name: "red"})
	t.Cleanup(cache.Close)
	named := func(name string) func(*Options) { return func(o *Options) { o.Fleet.Name = name } }
	for text, change := range map[string]func(*Options){
		`Options.Fleet: Name "Team"`:      named("Team"),
		`Options.Fleet: Name "a/b"`:       named("a/b"),
		`Options.Fleet: Name "-team"`:     named("-team"),
		`of at most 63 characters: `:      named(strings.Repeat("a", 64)),
		"Options.Config is missing":       func(o *Options) { o.Config = nil },
		"Options.Fleet: Name is missing":  named(""),
		`Identity: "a\x1bb" must be prin`: func(o *Options) { o.Fleet.Identity = "a\x1bb" },
		"and have 1 to 253 bytes":         func(o *Options) { o.Fleet.Identity = strings.Repeat("a", 254) },
		"Namespace and Secret":            func(o *Options) { o.Fleet.Secret = "" },
		"Address is missing":              func(o *Options) { o.Fleet.Address = netip.AddrPort{} },
		"Server.Listener must not be":     func(o *Options) { o.Server.Listener = &net.TCPListener{} },
		"Options.Service needs a Namesp":  func(o *Options) { o.Service.Namespace = "" },
		"Options.Fleet: no replica could serve the view: set Options.Service, and the replicas make a certificate " +
			"for it, or set Options.Server.Certificate": func(o *Options) { o.Service = ServiceOptions{} },
	} {
		options := fleetOptions()
		change(&options)
		_, err := New(cache, options)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(text)))
	}
	g := NewWithT(t)
	authority, err := certs.NewAuthority("test")
	g.Expect(err).NotTo(HaveOccurred())
	certificate, key, err := authority.Issue(certs.Request{Hosts: []string{"localhost"}})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := dynamiccertificates.NewStaticCertKeyContent("test", certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	for name, change := range map[string]func(*Options){
		"with a Service":     func(*Options) {},
		"a name with a dot":  named("team.example.com"),
		"the longest name":   named(strings.Repeat("a", 63)),
		"with a certificate": func(o *Options) { o.Service, o.Server.Certificate = ServiceOptions{}, content },
	} {
		options := fleetOptions()
		change(&options)
		api, err := New(cache, options)
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(api.NeedLeaderElection()).To(BeFalse())
	}
}

// waiter is an engine that waits until a test lets it begin.
type waiter struct {
	ownership.Engine
	begun atomic.Bool
}

func (w *waiter) Waiting() bool { return !w.begun.Load() }

// While a leader from before may serve the state API, no replica of the fleet does.
func TestFleetAwaitsItsEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		engine := &waiter{}
		f := &fleet{options: FleetOptions{Engine: engine}}
		result := make(chan bool, 1)
		go func() { result <- f.awaitEngine(t.Context()) }()
		time.Sleep(time.Hour)
		g.Expect(result).NotTo(Receive())
		engine.begun.Store(true)
		time.Sleep(servingTimes.RetryPeriod)
		synctest.Wait()
		g.Expect(result).To(Receive(BeTrue()))
		g.Expect(f.awaitEngine(t.Context())).To(BeTrue())

		engine.begun.Store(false)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(f.awaitEngine(ctx)).To(BeFalse())

		// What ends the fleet meanwhile is its error.
		f.api = &StateAPI{options: Options{Config: &rest.Config{}}}
		failed := make(chan error, 1)
		failed <- errors.New("the port is taken")
		g.Expect(f.serveInTurn(t.Context(), failed)).To(MatchError("the port is taken"))
	})
}

// Members may read, while this replica is one itself. What else the fleet's authority has issued
// certificates for is no member.
func TestWhoMayAskAReplica(t *testing.T) {
	g := NewWithT(t)
	team, other := peers.Options{Name: "team", Namespace: "ns"}, peers.Options{Name: "other", Namespace: "ns"}
	all := team
	all.Identity, all.Authority = "me", trust.New(nil, trust.Options{Times: trust.DefaultTimes()})
	following, err := peers.New(fleetOptions().Config, all, nil)
	g.Expect(err).NotTo(HaveOccurred())
	f := &fleet{peers: following}
	for name, tc := range map[string]struct {
		names  []string
		member bool
	}{
		"a member":         {[]string{team.ServerName("you")}, true},
		"of another fleet": {[]string{other.ServerName("you")}, false},
		"the view of all":  {[]string{"state.ns.svc"}, false},
		"of two names":     {[]string{team.ServerName("you"), team.ServerName("else")}, false},
		"without any name": {nil, false},
	} {
		response, ok, err := f.memberOf([]*cryptox509.Certificate{{DNSNames: tc.names}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(ok).To(Equal(tc.member), name)
		if ok {
			g.Expect(response.User.GetGroups()).To(ConsistOf(memberGroup, user.AllAuthenticated))
		}
	}
	decides := func(verb string) authorizer.Decision {
		decision, _, err := f.authorize(t.Context(), authorizer.AttributesRecord{Verb: verb})
		g.Expect(err).NotTo(HaveOccurred())
		return decision
	}
	g.Expect(decides("list")).To(Equal(authorizer.DecisionDeny), "before its first term")
	lock, joined := fence.ForLeaderElection(heldLock{}, time.Minute)
	g.Expect(lock.Create(t.Context(), resourcelock.LeaderElectionRecord{
		HolderIdentity:       "me",
		LeaseDurationSeconds: 60,
	})).To(Succeed())
	f.term.set(joined.Term())
	for verb, want := range map[string]authorizer.Decision{
		"get": authorizer.DecisionAllow, "list": authorizer.DecisionAllow, "watch": authorizer.DecisionAllow,
		"delete": authorizer.DecisionDeny, "create": authorizer.DecisionDeny, "patch": authorizer.DecisionDeny,
	} {
		g.Expect(decides(verb)).To(Equal(want), verb)
	}
	_, _, _ = lock.Get(t.Context()) // another one has it
	g.Expect(decides("list")).To(Equal(authorizer.DecisionDeny))
}

// heldLock is a lock that can be taken, and that another replica has then.
type heldLock struct{ resourcelock.Interface }

func (heldLock) Identity() string                                                { return "me" }
func (heldLock) Create(context.Context, resourcelock.LeaderElectionRecord) error { return nil }
func (heldLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: "you"}, nil, nil
}
