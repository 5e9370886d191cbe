package aggregation

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/netip"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi/internal/trust"
)

const (
	// checkInterval is how often the objects in the cluster are compared with what they should be.
	checkInterval = 10 * time.Second
	// firstRetry is the first pause after a failure.
	firstRetry = 100 * time.Millisecond
	// withdrawTimeout is how long the withdrawal may take, after the end of Run's context.
	withdrawTimeout = 2 * time.Second
)

// Options say which objects lead to this process.
type Options struct {
	// APIService is the name of the APIService.
	APIService string
	// Service of the APIService.
	Service client.ObjectKey
	// Address of this process. Without an address no EndpointSlice is written.
	Address netip.Addr
	// Port that this process listens on.
	Port int32
	// OwnCertificate: the certificate is not that of the Publisher, and the APIService has its
	// authority already.
	OwnCertificate bool
	// Authority returns the authority of a certificate that is not that of the Publisher, in PEM.
	// The APIService gets it.
	Authority func() []byte
}

// Publisher keeps an APIService and an EndpointSlice up to date.
type Publisher struct {
	options     Options
	client      client.Client
	authority   func() []byte // in PEM
	certificate *trust.Leaf   // nil if it is not the Publisher's
}

// New returns a Publisher that acts by config. New sends no request.
func New(config *rest.Config, options Options) (*Publisher, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, errors.Wrap(err, "preparing the scheme")
		}
	}
	cl, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, errors.Wrap(err, "creating a client")
	}
	p := &Publisher{options: options, client: cl, authority: options.Authority}
	if p.authority != nil || options.OwnCertificate {
		return p, nil
	}
	authority, err := certs.NewAuthority("latchkey-state-api")
	if err != nil {
		return nil, err
	}
	p.authority = authority.PEM
	p.certificate, err = trust.NewLeaf("state-api", authority, ServerName(options.Service))
	return p, err
}

// ServerName returns the name by which the API server in front knows a Service.
func ServerName(service client.ObjectKey) string {
	return service.Name + "." + service.Namespace + ".svc"
}

// Certificate returns a serving certificate for the name of the Service, unless the Publisher has
// none of its own. It is renewed while Run runs.
func (p *Publisher) Certificate() dynamiccertificates.CertKeyContentProvider { return p.certificate }

// Run keeps the objects up to date until ctx is done. What cannot be done is logged, and tried
// again.
func (p *Publisher) Run(ctx context.Context) {
	logged, pauses := "", retries()
	for {
		text, pause := "", checkInterval
		if err := p.publishInTime(ctx, time.Now()); err != nil {
			text, pause = err.Error(), pauses.Step()
		} else {
			pauses = retries()
		}
		if text != logged && ctx.Err() == nil {
			logger := log.FromContext(ctx).WithValues("apiService", p.options.APIService, "service", p.options.Service)
			if logged = text; text != "" {
				logger.Info("The API server in front may not reach the state API", "reason", text)
			} else {
				logger.Info("The API server in front reaches the state API again")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// retries returns the pauses after failures. Another replica writes the same objects when it ends,
// and no replica is reached until this one has written them.
func retries() *wait.Backoff {
	return &wait.Backoff{Duration: firstRetry, Factor: 2, Jitter: 0.2, Steps: 1 << 20, Cap: checkInterval}
}

// publishInTime is publish, but a request that hangs ends.
func (p *Publisher) publishInTime(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, checkInterval)
	defer cancel()
	return p.publish(ctx, now)
}

// publish compares everything once. Each part is tried, whatever becomes of the others.
func (p *Publisher) publish(ctx context.Context, now time.Time) error {
	var err error
	if p.certificate != nil {
		err = p.certificate.RenewIfDue(now)
	}
	for _, part := range []func(context.Context) error{p.publishAuthority, p.publishAddress} {
		if failed := part(ctx); err == nil {
			err = failed
		}
	}
	return err
}

// apiServices is the kind of APIServices, whose Go types are in a module of their own.
var apiServices = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}

// publishAuthority puts the certificate authority into the APIService.
func (p *Publisher) publishAuthority(ctx context.Context) error {
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(apiServices)
	err := p.client.Get(ctx, client.ObjectKey{Name: p.options.APIService}, service)
	if apierrors.IsNotFound(err) {
		return errors.Errorf("there is no APIService %s: apply the output of \"latchkey state-api manifests\"",
			p.options.APIService)
	}
	if err != nil {
		return errors.Wrap(err, "reading the APIService")
	}
	var authority []byte
	if p.authority != nil {
		authority = p.authority()
	}
	patch, err := authorityPatch(service.Object, p.options.Service, authority)
	if patch == nil || err != nil || len(authority) == 0 {
		return err
	}
	return errors.Wrap(p.client.Patch(ctx, service, client.RawPatch("application/merge-patch+json", patch)),
		"writing the certificate authority into the APIService")
}

// authorityPatch returns the patch that puts an authority into an APIService, or nil if it is
// there.
func authorityPatch(apiService map[string]any, service client.ObjectKey, authority []byte) ([]byte, error) {
	namespace, _, _ := unstructured.NestedString(apiService, "spec", "service", "namespace")
	name, _, _ := unstructured.NestedString(apiService, "spec", "service", "name")
	if namespace != service.Namespace || name != service.Name {
		return nil, errors.Errorf("the APIService leads to Service %s/%s, not to %s", namespace, name, service)
	}
	if skip, _, _ := unstructured.NestedBool(apiService, "spec", "insecureSkipTLSVerify"); skip {
		return nil, errors.New("the APIService has insecureSkipTLSVerify: remove it, so that the certificate is verified")
	}
	encoded, _, _ := unstructured.NestedString(apiService, "spec", "caBundle")
	if current, err := base64.StdEncoding.DecodeString(encoded); err == nil && bytes.Equal(current, authority) {
		return nil, nil
	}
	return []byte(`{"spec":{"caBundle":"` + base64.StdEncoding.EncodeToString(authority) + `"}}`), nil
}

// publishAddress writes the EndpointSlice.
func (p *Publisher) publishAddress(ctx context.Context) error {
	if !p.options.Address.IsValid() {
		return nil
	}
	service := &corev1.Service{}
	if err := p.client.Get(ctx, p.options.Service, service); err != nil {
		return errors.Wrap(err, "reading the Service")
	}
	if len(service.Spec.Selector) > 0 {
		return errors.Errorf("Service %s has a selector, so it leads to every replica: only the leader serves",
			p.options.Service)
	}
	wanted := endpointSlice(service, p.options.Address, p.options.Port)
	found := &discoveryv1.EndpointSlice{}
	err := p.client.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	switch {
	case apierrors.IsNotFound(err):
		return errors.Wrap(p.client.Create(ctx, wanted), "creating the EndpointSlice")
	case err != nil:
		return errors.Wrap(err, "reading the EndpointSlice")
	case found.AddressType != wanted.AddressType: // which never changes
		if err := p.client.Delete(ctx, found, client.Preconditions{UID: &found.UID}); err != nil {
			return errors.Wrap(err, "deleting the EndpointSlice of another address type")
		}
		return errors.Wrap(p.client.Create(ctx, wanted), "creating the EndpointSlice")
	case equality.Semantic.DeepEqual(found.Endpoints, wanted.Endpoints) &&
		equality.Semantic.DeepEqual(found.Ports, wanted.Ports) &&
		equality.Semantic.DeepEqual(found.Labels, wanted.Labels) &&
		equality.Semantic.DeepEqual(found.OwnerReferences, wanted.OwnerReferences):
		return nil
	}
	wanted.ResourceVersion = found.ResourceVersion
	return errors.Wrap(p.client.Update(ctx, wanted), "updating the EndpointSlice")
}

// Leads reports whether the EndpointSlice leads to this process. An error says that it is not
// known.
func (p *Publisher) Leads(ctx context.Context) (bool, error) {
	if !p.options.Address.IsValid() {
		return false, nil
	}
	found := &discoveryv1.EndpointSlice{}
	err := p.client.Get(ctx, client.ObjectKey{
		Namespace: p.options.Service.Namespace,
		Name:      sliceName(p.options.Service.Name),
	}, found)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && leadsTo(found, p.options.Address, p.options.Port), errors.Wrap(err, "reading the EndpointSlice")
}

// Withdraw takes the address out of the EndpointSlice, unless another leader's is there already.
// Requests then fail at once until there is another leader.
func (p *Publisher) Withdraw(ctx context.Context) {
	if !p.options.Address.IsValid() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	found := &discoveryv1.EndpointSlice{}
	err := p.client.Get(ctx, client.ObjectKey{
		Namespace: p.options.Service.Namespace,
		Name:      sliceName(p.options.Service.Name),
	}, found)
	if err == nil && leadsTo(found, p.options.Address, p.options.Port) {
		found.Endpoints = nil
		err = p.client.Update(ctx, found)
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		log.FromContext(ctx).Error(err, "Cannot withdraw this process from the EndpointSlice", "service",
			p.options.Service)
	}
}
