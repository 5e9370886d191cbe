package statuspage

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxReviews is how many requests are reviewed at the same time. Others wait.
	maxReviews = 8
	// reviewTimeout bounds the reviews of a request, and the wait for them.
	reviewTimeout = 10 * time.Second
)

// Guard returns a handler that serves the page to the users who may "get" what is below path as a
// nonResourceURL: for path /status/ that is /status/*. Path must end in a slash, and counts for every
// request, wherever the handler is. A request proves its user with a token that the API server takes.
// Without one the answer is 401, and for others 403; a browser then receives a form for a token, which
// the page keeps in its memory only. Serve the handler with TLS.
//
// The client's user needs "create" on tokenreviews and subjectaccessreviews, as ClusterRole
// system:auth-delegator grants it. Each request is reviewed; streams again after five minutes.
func (p *Page) Guard(c client.Client, path string) http.Handler {
	reviews := make(chan struct{}, maxReviews)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token = strings.TrimSpace(token); !isBearer || token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			if lastElement(r.URL.Path) == "" {
				p.writeDocument(w, http.StatusUnauthorized, true)
				return
			}
			http.Error(w, "a token is needed: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
		defer cancel()
		select {
		case reviews <- struct{}{}:
		case <-ctx.Done():
			http.Error(w, "too many requests wait for their review; try again", http.StatusServiceUnavailable)
			return
		}
		status, text := review(ctx, c, token, path+lastElement(r.URL.Path))
		<-reviews
		if status != http.StatusOK {
			http.Error(w, text, status)
			return
		}
		p.ServeHTTP(w, r)
	})
}

// review asks the API server whose the token is, and whether that user may get the path. The answers
// contain nothing of the token.
func review(ctx context.Context, c client.Client, token, path string) (status int, text string) {
	whose := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := c.Create(ctx, whose); err != nil {
		return reviewFailed(err, "tokenreviews")
	}
	if !whose.Status.Authenticated {
		return http.StatusUnauthorized, "the API server does not take this token: it is invalid, has expired, " +
			"or is for another audience"
	}
	user := whose.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"}}}
	if err := c.Create(ctx, may); err != nil {
		return reviewFailed(err, "subjectaccessreviews")
	}
	if !may.Status.Allowed || may.Status.Denied {
		return http.StatusForbidden, "user " + user.Username + " may not \"get\" the nonResourceURL " + path
	}
	return http.StatusOK, ""
}

// reviewFailed returns the answer when a review itself failed. The error of a review could contain the
// token, so the answer has nothing of it.
func reviewFailed(err error, resource string) (status int, text string) {
	if apierrors.IsForbidden(err) {
		return http.StatusInternalServerError, "this program may not create " + resource +
			": bind ClusterRole system:auth-delegator to it"
	}
	return http.StatusServiceUnavailable, "the API server did not answer a review (" + resource + "); try again"
}

// Local returns a handler that serves only requests to a name of this machine: localhost, or an
// address of the loopback interface. Without that check, any web site could give its own name the
// address 127.0.0.1 and read the page through a browser on this machine.
func Local(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.Host) {
			http.Error(w, "this page is served without authentication, and so to localhost only: open it under that name",
				http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// isLocal reports whether a host, with or without a port, is this machine.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(host)
	if err != nil && len(host) > 2 && host[0] == '[' {
		address, err = netip.ParseAddr(host[1 : len(host)-1])
	}
	return err == nil && address.IsLoopback()
}
