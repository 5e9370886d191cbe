package apiserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
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
	"k8s.io/client-go/util/cert"
)

// The ConfigMap in which an API server publishes how it authenticates to servers behind it.
const (
	authenticationNamespace = "kube-system"
	authenticationConfigMap = "extension-apiserver-authentication"
	frontProxyCA            = "requestheader-client-ca-file"

	published = "ConfigMap " + authenticationNamespace + "/" + authenticationConfigMap
)

const (
	reviewTimeout    = 10 * time.Second
	publishedTimeout = 30 * time.Second
	checkInterval    = 500 * time.Millisecond
	// grantTimeout is how long another answer than success is not final: an API server learns of a
	// new binding a little later, and denies what it should not in its first moments.
	grantTimeout = 5 * time.Second
	// The caches of answers are short, so that a permission that is granted or revoked counts soon.
	tokenTTL, allowTTL, denyTTL = 10 * time.Second, 10 * time.Second, 5 * time.Second
)

// reviewBackoff is how reviews that fail are sent again.
func reviewBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
}

// frontProxy is what the API server in front publishes: the certificate authority of its client
// certificate, and the headers that name users. It is kept up to date.
type frontProxy struct {
	client  kubernetes.Interface
	ca      *dynamiccertificates.ConfigMapCAController
	content *frontProxyCAContent // of ca
	headers *headerrequest.RequestHeaderAuthRequestController
}

// startFrontProxy returns what the API server in front publishes, and keeps it up to date until ctx
// is done.
func startFrontProxy(ctx context.Context, client kubernetes.Interface,
	background *sync.WaitGroup) (*frontProxy, error) {
	p := &frontProxy{
		client: client,
		headers: headerrequest.NewRequestHeaderAuthRequestController(
			authenticationConfigMap, authenticationNamespace, client, "requestheader-username-headers",
			"requestheader-uid-headers", "requestheader-group-headers", "requestheader-extra-headers-prefix",
			"requestheader-allowed-names"),
	}
	background.Go(func() { p.headers.Run(ctx, 1) })
	var err error
	if p.ca, err = dynamiccertificates.NewDynamicCAFromConfigMapController("front-proxy", authenticationNamespace,
		authenticationConfigMap, frontProxyCA, client); err != nil {
		return nil, errors.Wrap(err, "preparing the certificate authority of the front proxy")
	}
	p.content = newFrontProxyCAContent(p.ca)
	background.Go(func() { p.ca.Run(ctx, 1) })
	if err := p.headers.RunOnce(ctx); err != nil {
		return nil, errors.Wrapf(err, "reading %s", published)
	}
	return p, errors.Wrapf(p.awaitCA(ctx), "waiting for the certificate authority in %s", published)
}

// authenticator returns the authenticator of requests that come through the API server in front,
// and of requests with tokens. A request without a credential gets 401.
func (p *frontProxy) authenticator() (authenticator.Request, error) {
	front, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		RequestHeaderConfig: &authenticatorfactory.RequestHeaderConfig{
			CAContentProvider:   p.ca,
			UsernameHeaders:     headerrequest.StringSliceProviderFunc(p.headers.UsernameHeaders),
			UIDHeaders:          headerrequest.StringSliceProviderFunc(p.headers.UIDHeaders),
			GroupHeaders:        headerrequest.StringSliceProviderFunc(p.headers.GroupHeaders),
			ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(p.headers.ExtraHeaderPrefixes),
			AllowedClientNames:  headerrequest.StringSliceProviderFunc(p.headers.AllowedClientNames),
		},
	}.New()
	if err != nil {
		return nil, errors.Wrap(err, "preparing the authentication")
	}
	request, err := withTokens(front, p.client.AuthenticationV1())
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
		union.NamedAuthorizer{
			AuthorizerName: "masters",
			Authorizer:     authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
		},
		union.NamedAuthorizer{AuthorizerName: "reviews", Authorizer: reviews})
	return both, errors.Wrap(err, "preparing the authorization")
}

// checkPublished returns an error if the ConfigMap cannot be read or followed, or names no
// certificate authority.
func checkPublished(ctx context.Context, client kubernetes.Interface) error {
	configMaps := client.CoreV1().ConfigMaps(authenticationNamespace)
	found, err := configMaps.Get(ctx, authenticationConfigMap, metav1.GetOptions{})
	if err == nil {
		_, err = configMaps.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + authenticationConfigMap})
	}
	if apierrors.IsForbidden(err) {
		err = errors.WithMessagef(err, "bind Role extension-apiserver-authentication-reader in namespace %s",
			authenticationNamespace)
	}
	if err != nil {
		return errors.Wrapf(err, "reading %s, which says how the API server authenticates to this one", published)
	}
	if found.Data[frontProxyCA] == "" {
		return errors.Errorf("%s has no %s: the API server's aggregation layer is off (see its flag "+
			"--requestheader-client-ca-file)", published, frontProxyCA)
	}
	_, err = cert.ParseCertsPEM([]byte(found.Data[frontProxyCA]))
	return errors.Wrapf(err, "%s of %s", frontProxyCA, published)
}

// isTransient reports whether an error is that of an API server that does not answer now.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code >= http.StatusInternalServerError || status.Status().Code == http.StatusTooManyRequests
	}
	var network net.Error // also of a URL that was not reached
	return errors.As(err, &network)
}

// checkReviews returns an error if the identity of client may not create the reviews that it needs.
func checkReviews(ctx context.Context, client kubernetes.Interface, tokens, access bool) error {
	for _, review := range []struct {
		needed          bool
		group, resource string
	}{
		{tokens, "authentication.k8s.io", "tokenreviews"}, {access, "authorization.k8s.io", "subjectaccessreviews"},
	} {
		if !review.needed {
			continue
		}
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb:     "create",
					Group:    review.group,
					Resource: review.resource,
				},
			}}, metav1.CreateOptions{})
		if err != nil {
			return errors.Wrap(err, "asking the API server in front")
		}
		if !answer.Status.Allowed {
			return errors.Errorf("the identity of Client may not create %s.%s, by which it asks about requests: bind "+
				"ClusterRole system:auth-delegator", review.resource, review.group)
		}
	}
	return nil
}

// awaitCA returns when the certificate authority is known.
func (p *frontProxy) awaitCA(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, publishedTimeout, true,
		func(context.Context) (bool, error) { return len(p.ca.CurrentCABundleContent()) > 0, nil })
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
