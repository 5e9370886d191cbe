package peer

import (
	"context"
	"net/http"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// PlainPeer has a controller-runtime cache for each tenant, which share a RESTMapper and a
// transport. Their tokens are never renewed, nothing is probed, and no part of it notices a revoked
// permission.
type PlainPeer struct {
	config  *rest.Config
	fleet   Fleet
	caches  []cache.Cache
	clients []client.Client
	// OwnNamespaces restricts each cache to the tenant's own namespace. Set it before Connect.
	OwnNamespaces bool
}

// bearer adds a token to requests.
type bearer struct {
	next  http.RoundTripper
	token string
}

func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(req)
}

// Connect implements Peer.
func (p *PlainPeer) Connect(ctx context.Context, n int) error {
	scheme, err := NewScheme()
	if err != nil {
		return err
	}
	anonymous := rest.AnonymousClientConfig(p.config)
	anonymous.QPS, anonymous.Burst, anonymous.UserAgent = 1000, 1000, "bench-plain"
	shared, err := rest.TransportFor(anonymous)
	if err != nil {
		return errors.WithStack(err)
	}
	admin, err := client.New(p.config, client.Options{Scheme: scheme})
	if err != nil {
		return errors.WithStack(err)
	}
	var mapperHTTP *http.Client
	if mapperHTTP, err = rest.HTTPClientFor(p.config); err != nil {
		return errors.WithStack(err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(p.config, mapperHTTP)
	if err != nil {
		return errors.WithStack(err)
	}
	for tenant := range n {
		token, err := tokenOf(ctx, admin, p.fleet.Name(tenant))
		if err != nil {
			return err
		}
		httpClient := &http.Client{Transport: &bearer{next: shared, token: token}}
		options := cache.Options{HTTPClient: httpClient, Scheme: scheme, Mapper: mapper}
		if p.OwnNamespaces {
			options.DefaultNamespaces = map[string]cache.Config{p.fleet.Name(tenant): {}}
		}
		c, err := cache.New(anonymous, options)
		if err != nil {
			return errors.WithStack(err)
		}
		reading, err := client.New(anonymous, client.Options{
			HTTPClient: httpClient,
			Scheme:     scheme,
			Mapper:     mapper,
			Cache:      &client.CacheOptions{Reader: c},
		})
		if err != nil {
			return errors.WithStack(err)
		}
		go func() { _ = c.Start(ctx) }() // until the process ends
		p.caches, p.clients = append(p.caches, c), append(p.clients, reading)
	}
	return nil
}

// tokenOf returns the token in the tenant's kubeconfig.
func tokenOf(ctx context.Context, admin client.Client, tenant string) (string, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: Namespace, Name: tenant + "-kubeconfig"}
	if err := admin.Get(ctx, key, secret); err != nil {
		return "", errors.WithStack(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		return "", errors.WithStack(err)
	}
	return config.BearerToken, nil
}

// GetClient implements Peer.
func (p *PlainPeer) GetClient(_ context.Context, tenant int) (client.Client, error) {
	return p.clients[tenant], nil
}

// Cache implements Peer.
func (p *PlainPeer) Cache(_ context.Context, tenant int) (cache.Cache, error) {
	return p.caches[tenant], nil
}

// Host implements Peer.
func (*PlainPeer) Host(int) (client.Object, error) { return nil, ErrCannot }
