package stateapi

import (
	"cmp"
	"context"
	cryptox509 "crypto/x509"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/internal/peers"
	"github.com/latchkey-dev/latchkey/stateapi/internal/trust"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// FleetOptions let replicas that share the extensions serve one view of all of them. Each replica
// serves its own states to the others, by mutual TLS, and has the states of all. One of them serves
// that view to the API server in front. Set Options.Service: without it, and with
// Options.Server.Certificate, you lead the API server to the holder of the Lease <Name>-state
// yourself, and a replica that ends hands nothing over.
//
// A replica that ends serves on until another one does, for up to 8 s: manager.Options needs a
// GracefulShutdownTimeout of more than that, and the Pod a longer terminationGracePeriodSeconds.
//
// The program needs get, list, watch, create, update and delete on leases in Namespace, and get on
// the Secret, and update unless SecretReadOnly is set.
type FleetOptions struct {
	// Name of the fleet, such as "team": a name of Kubernetes objects of at most 63 characters. The
	// names of its Leases begin with it, and it is the value of a label. Replicas of one fleet have
	// the same FleetOptions but for Identity and the addresses, and the same Group and Namespaced;
	// other programs in the Namespace have another Name.
	Name string
	// Namespace of the Leases and of the Secret.
	Namespace string
	// Secret has the certificate authority that the replicas share. It must exist, and may be
	// empty: the replicas make an authority, and follow it with another one in time. Who may
	// read the Secret can pass for a replica.
	Secret string
	// SecretReadOnly: another program, such as cert-manager, keeps the Secret. Its tls.crt and
	// tls.key are a certificate authority. Everyone for whom that authority issues a certificate with
	// the name of a member is one, so let nothing else use it. ca.crt is not read.
	SecretReadOnly bool
	// IgnoreTerms: each replica has one Lease for all its extensions, as with controllersharding. Then
	// the terms of two replicas say nothing about which one is later, and the later claim is shown.
	IgnoreTerms bool
	// Identity of this replica, unique to the process: printable, and of at most 253 bytes. Give it
	// that of the engine (buckets.Options.Identity), so that status.replica and the holders of Leases
	// can be compared. Defaults to the host's name and a random suffix.
	Identity string
	// Engine is that of clustercache.Options.Ownership. If it is a Waiter, as that of
	// ownership.WithLeaderLease is, a replica does not serve the view while a leader from before may
	// serve its own.
	Engine ownership.Engine
	// BindAddress is where this replica serves the others. Defaults to ":6444".
	BindAddress string
	// Address is how the others reach that: the IP of the Pod, and the port.
	Address netip.AddrPort
	// LeaseDuration is how long a replica that has ended counts as a member, in whole seconds.
	// RenewDeadline and RetryPeriod are those of its Lease. They default to 15 s, two thirds and a
	// seventh of it.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

const (
	// bookmarkInterval is how often a replica says to the others that it is there.
	bookmarkInterval = time.Second
	// silence is how long a replica is heard after it said something last.
	silence = 5 * time.Second
	// forgetTerms is after how long a term that no replica claims any more is forgotten.
	forgetTerms = time.Minute
	// memberGroup is the group of the replicas of a fleet.
	memberGroup = "fleet"
)

// fleet is this replica among the others.
type fleet struct {
	api       *StateAPI
	options   FleetOptions
	authority *trust.Authority
	peers     *peers.Peers
	merged    *merged
	term      currentTerm // in which this replica is a member
	serves    atomic.Bool // the view of all
}

// setUpFleet creates what the replicas say to each other with. It sends no request.
func (s *StateAPI) setUpFleet() error {
	o := s.options.Fleet
	switch {
	case o.Name == "":
		return errors.New("Name is missing")
	case len(validation.IsDNS1123Subdomain(o.Name)) > 0 || len(o.Name) > validation.LabelValueMaxLength:
		return errors.Errorf("Name %q must be a name of Kubernetes objects (lower-case letters, digits, dashes and dots, "+
			"a letter or a digit at the ends) of at most %d characters: names of Leases begin with it, and it is the value "+
			"of a label", o.Name, validation.LabelValueMaxLength)
	case s.options.Service.Name == "" && s.options.Server.Certificate == nil:
		return errors.New("no replica could serve the view: set Options.Service, and the replicas make a certificate for " +
			"it, or set Options.Server.Certificate")
	case s.options.Config == nil:
		return errors.New("Options.Config is missing")
	case o.Namespace == "" || o.Secret == "":
		return errors.New("Namespace and Secret are required")
	case !o.Address.IsValid() || o.Address.Port() == 0 || o.Address.Addr().IsUnspecified():
		return errors.New("Address is missing: how the other replicas reach this one, an IP address and a port")
	case s.options.Server.Listener != nil:
		return errors.New("Options.Server.Listener must not be set: set BindAddress")
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return errors.Wrap(err, "finding an Identity")
		}
		o.Identity = host + "_" + rand.String(8)
	}
	if err := peers.CheckIdentity(o.Identity); err != nil {
		return errors.WithMessage(err, "Identity")
	}
	o.BindAddress = cmp.Or(o.BindAddress, ":6444")
	config, clock := rest.CopyConfig(s.options.Config), &trust.Clock{}
	config.Wrap(clock.RoundTripper)
	secrets, err := corev1client.NewForConfig(config)
	if err != nil {
		return errors.Wrap(err, "creating a client")
	}
	f := &fleet{api: s, options: o}
	f.authority = trust.New(secrets, trust.Options{
		Namespace: o.Namespace,
		Name:      o.Secret,
		ReadOnly:  o.SecretReadOnly,
		Clock:     clock,
		Times:     trust.DefaultTimes(),
	})
	f.merged = newMerged(s, o.Identity)
	scheme := runtime.NewScheme()
	if err := apiserver.AddToScheme(scheme); err != nil {
		return errors.Wrap(err, "preparing the scheme")
	}
	scheme.AddKnownTypeWithName(s.version.WithKind("Connection"), &v1alpha1.Connection{})
	scheme.AddKnownTypeWithName(s.version.WithKind("ConnectionList"), &v1alpha1.ConnectionList{})
	scheme.AddKnownTypeWithName(s.version.WithKind("Scope"), &v1alpha1.Scope{})
	scheme.AddKnownTypeWithName(s.version.WithKind("ScopeList"), &v1alpha1.ScopeList{})
	f.peers, err = peers.New(s.options.Config, peers.Options{
		Name:      o.Name,
		Namespace: o.Namespace,
		Identity:  o.Identity,
		Address:   o.Address,
		Group:     s.version,
		Resources: map[string]runtime.Object{connectionsResource: &v1alpha1.Connection{}, scopesResource: &v1alpha1.Scope{}},
		Scheme:    scheme,
		Authority: f.authority,
		Silence:   silence,
		Times: holding.Times{
			LeaseDuration: o.LeaseDuration,
			RenewDeadline: o.RenewDeadline,
			RetryPeriod:   o.RetryPeriod,
		},
	}, f.merged)
	if err != nil {
		return err
	}
	f.merged.get, f.merged.catchUp, f.merged.checkMembers = f.peers.Get, f.peers.CatchUp, f.peers.CheckMembers
	s.fleet = f
	s.states, s.scopes = s.newStores(s.refresh, s.refreshAndCount, s.countObjects, bookmarkInterval)
	return nil
}

// newServer returns the server of this replica's own states, for the others.
func (f *fleet) newServer() (*apiserver.ExtensionAPIServer, error) {
	return f.api.newServer(apiserver.ExtensionAPIServerOptions{
		GetOpenAPIDefinitions: v1alpha1.GetOpenAPIDefinitions,
		EffectiveVersion:      f.api.options.Server.EffectiveVersion,
		BindAddress:           f.options.BindAddress,
		Certificate:           f.peers.Leaf(),
		ClientCA:              f.authority,
		Authenticator:         x509.NewDynamic(f.authority.VerifyOptions, x509.UserConversionFunc(f.memberOf)),
		Authorizer:            authorizer.AuthorizerFunc(f.authorize),
	}, &ownStore[*v1alpha1.Connection, *v1alpha1.ConnectionList]{f.api.states, f.merged},
		&ownStore[*v1alpha1.Scope, *v1alpha1.ScopeList]{f.api.scopes, f.merged})
}

// memberOf returns the user of a certificate that the fleet's authority has issued for a member of
// this fleet. An authority that another program keeps may have issued other ones.
func (f *fleet) memberOf(chain []*cryptox509.Certificate) (*authenticator.Response, bool, error) {
	if len(chain) == 0 || len(chain[0].DNSNames) != 1 || !f.peers.IsMember(chain[0].DNSNames[0]) {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name:   chain[0].DNSNames[0],
		Groups: []string{memberGroup, user.AllAuthenticated},
	}}, true, nil
}

// authorize lets members read, while this replica is one itself.
func (f *fleet) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := f.term.get().Err(); err != nil {
		return authorizer.DecisionDeny, "this replica is no member: " + err.Error(), nil
	}
	if a.IsReadOnly() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "members only read", nil
}

// currentTerm is the term in which a replica is a member. Before the first one, it is over.
type currentTerm struct {
	mu   sync.Mutex
	term *fence.Term
}

func (c *currentTerm) set(term *fence.Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term = term
}

func (c *currentTerm) get() *fence.Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term == nil {
		return (&fence.Fence{}).Term()
	}
	return c.term
}

// run keeps this replica in the fleet, and serves the view of all when it is this replica's turn,
// until ctx is done. filled is closed when every extension has been reconciled once.
func (f *fleet) run(ctx context.Context, filled <-chan struct{}) error {
	defer metrics.ExportFleet(f.options.Name, func() metrics.Fleet {
		values := f.merged.gauges(time.Now())
		values.Serves = f.serves.Load()
		return values
	})()
	var running sync.WaitGroup
	defer running.Wait()
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	running.Go(func() { f.authority.Run(background) })
	running.Go(func() { f.merged.run(background) })
	select {
	case <-ctx.Done():
		return nil
	case <-filled:
	}
	running.Go(func() { f.merged.begin(background) })
	if !f.awaitCertificate(ctx) {
		return nil
	}
	failed := make(chan error, 1)
	serving, stop := context.WithCancel(background)
	defer stop()
	running.Go(func() {
		if err := f.api.server.Run(serving); err != nil {
			failed <- errors.WithMessage(err, "serving the other replicas")
		}
	})
	running.Go(func() { f.peers.Run(serving, f.term.set) })
	return f.serveInTurn(ctx, failed)
}

// awaitCertificate returns true when this replica has a certificate.
func (f *fleet) awaitCertificate(ctx context.Context) bool {
	for {
		_, changed := f.authority.Bundle()
		if _, err := f.peers.Leaf().Certificate(); err == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-time.After(time.Second): // the certificate is issued a little later than the authority changes
		}
	}
}
