package stateapi

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/internal/certs"
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
		`Options.Fleet: Name "Team"`:     named("Team"),
		`Options.Fleet: Name "a/b"`:      named("a/b"),
		`Options.Fleet: Name "-team"`:    named("-team"),
		`of at most 63 characters: `:     named(strings.Repeat("a", 64)),
		"Options.Config is missing":      func(o *Options) { o.Config = nil },
		"Namespace and Secret":           func(o *Options) { o.Fleet.Secret = "" },
		"Address is missing":             func(o *Options) { o.Fleet.Address = netip.AddrPort{} },
		"Server.Listener must not be":    func(o *Options) { o.Server.Listener = &net.TCPListener{} },
		"Options.Service needs a Namesp": func(o *Options) { o.Service.Namespace = "" },
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
