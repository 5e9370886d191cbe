package extension

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// The ConfigMap in which an API server publishes how it authenticates to servers behind it.
const (
	authenticationNamespace = "kube-system"
	authenticationConfigMap = "extension-apiserver-authentication"
	frontProxyCA            = "requestheader-client-ca-file"
)

const (
	reviewTimeout = 10 * time.Second
	// The caches of answers are short, so that a permission that is granted or revoked counts soon.
	tokenTTL, allowTTL, denyTTL = 10 * time.Second, 10 * time.Second, 5 * time.Second
)

// reviewBackoff is how reviews that fail are sent again.
func reviewBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
}

// frontProxy is what the API server in front publishes: the certificate authority of its client
// certificate, and the headers that name users. It is kept up to date while run runs.
type frontProxy struct {
	client  kubernetes.Interface
	ca      *dynamiccertificates.ConfigMapCAController
	headers *headerrequest.RequestHeaderAuthRequestController
}

func newFrontProxy(client kubernetes.Interface) (*frontProxy, error) {
	ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController("front-proxy", authenticationNamespace,
		authenticationConfigMap, frontProxyCA, client)
	if err != nil {
		return nil, errors.Wrap(err, "preparing the certificate authority of the front proxy")
	}
	return &frontProxy{client: client, ca: ca, headers: headerrequest.NewRequestHeaderAuthRequestController(
		authenticationConfigMap, authenticationNamespace, client, "requestheader-username-headers",
		"requestheader-uid-headers", "requestheader-group-headers", "requestheader-extra-headers-prefix",
		"requestheader-allowed-names")}, nil
}

// authenticator returns the authenticator of requests that come through the API server in front, and
// of requests with tokens. A request without a credential gets 401.
func (p *frontProxy) authenticator() (authenticator.Request, error) {
	request, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient:  p.client.AuthenticationV1(),
		TokenAccessReviewTimeout: reviewTimeout,
		WebhookRetryBackoff:      reviewBackoff(),
		CacheTTL:                 tokenTTL,
		RequestHeaderConfig: &authenticatorfactory.RequestHeaderConfig{
			CAContentProvider:   p.ca,
			UsernameHeaders:     headerrequest.StringSliceProviderFunc(p.headers.UsernameHeaders),
			UIDHeaders:          headerrequest.StringSliceProviderFunc(p.headers.UIDHeaders),
			GroupHeaders:        headerrequest.StringSliceProviderFunc(p.headers.GroupHeaders),
			ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(p.headers.ExtraHeaderPrefixes),
			AllowedClientNames:  headerrequest.StringSliceProviderFunc(p.headers.AllowedClientNames),
		},
	}.New()
	return request, errors.Wrap(err, "preparing the authentication")
}

// delegatedAuthorizer returns the authorizer that asks the API server in front. As in every API
// server, the group system:masters may do everything; the API server in front checks whether we are
// available as a member of it.
func delegatedAuthorizer(client kubernetes.Interface) (authorizer.Authorizer, error) {
	reviews, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(),
		AllowCacheTTL:             allowTTL,
		DenyCacheTTL:              denyTTL,
		WebhookRetryBackoff:       reviewBackoff(),
	}.New()
	if err != nil {
		return nil, errors.Wrap(err, "preparing the authorization")
	}
	both, err := union.New(
		union.NamedAuthorizer{AuthorizerName: "masters",
			Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		union.NamedAuthorizer{AuthorizerName: "reviews", Authorizer: reviews})
	return both, errors.Wrap(err, "preparing the authorization")
}

// check returns an error if the ConfigMap cannot be read, or says that there is no front proxy.
func (p *frontProxy) check(ctx context.Context) error {
	found, err := p.client.CoreV1().ConfigMaps(authenticationNamespace).Get(ctx, authenticationConfigMap,
		metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		err = errors.WithMessagef(err, "bind Role extension-apiserver-authentication-reader in namespace %s",
			authenticationNamespace)
	}
	if err != nil {
		return errors.Wrapf(err, "reading ConfigMap %s/%s, which says how the API server authenticates to this one",
			authenticationNamespace, authenticationConfigMap)
	}
	if found.Data[frontProxyCA] == "" {
		return errors.Errorf("ConfigMap %s/%s has no %s: the API server's aggregation layer is off (see its flag "+
			"--requestheader-client-ca-file)", authenticationNamespace, authenticationConfigMap, frontProxyCA)
	}
	return errors.Wrapf(p.headers.RunOnce(ctx), "reading ConfigMap %s/%s", authenticationNamespace,
		authenticationConfigMap)
}

// awaitCA returns when the certificate authority is known.
func (p *frontProxy) awaitCA(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		return len(p.ca.CurrentCABundleContent()) > 0, nil
	})
}

// frontProxyCAContent is the certificate authority for the library, which adds listeners and starts
// whatever it can start. The controller is started by us, before its first listener of the library,
// so the listeners are kept here.
type frontProxyCAContent struct {
	dynamiccertificates.CAContentProvider

	mu        sync.Mutex
	listeners []dynamiccertificates.Listener // guarded by mu
}

func newFrontProxyCAContent(ca *dynamiccertificates.ConfigMapCAController) *frontProxyCAContent {
	c := &frontProxyCAContent{CAContentProvider: ca}
	ca.AddListener(c)
	return c
}

// AddListener implements dynamiccertificates.CAContentProvider.
func (c *frontProxyCAContent) AddListener(listener dynamiccertificates.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, listener)
}

// Enqueue implements dynamiccertificates.Listener.
func (c *frontProxyCAContent) Enqueue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, listener := range c.listeners {
		listener.Enqueue()
	}
}
