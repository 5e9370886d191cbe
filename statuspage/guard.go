package statuspage

import (
	"context"
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/strangers"
)

const (
	// maxReviews is how many requests with known tokens are reviewed at the same time, and how many
	// with unknown ones. A token is known when it was accepted before. Further requests wait.
	maxReviews = 4
	// reviewsPerSecond and reviewBurst limit the reviews of unknown tokens: a flood of invalid tokens
	// does not become a flood at the API server.
	reviewsPerSecond, reviewBurst = 20, 40
	// reviewTimeout bounds the reviews of a request, and the wait for a review.
	reviewTimeout = 10 * time.Second
	// verdictTime is how long a verdict counts for the same token and path. Streams and the details of
	// an extension ask for the same path again and again. maxVerdicts is how many verdicts are kept.
	verdictTime = 10 * time.Second
	maxVerdicts = 1024
	// maxToken is the largest size of a token in bytes.
	maxToken = 16 << 10
)

// Guard returns a handler that serves the page to users who may "get" the nonResourceURLs below
// path: for path /status/ these are /status/*. Path must end in a slash. Guard asks about that path
// wherever the handler is mounted.
//
// A request carries a token that the API server accepts. Without a valid token the answer is 401,
// and a browser shows a form for a token, which the page keeps in memory only. A user without the
// permission gets 403. Serve the handler with TLS and a certificate that browsers can verify,
// because people enter their tokens.
//
// The client's user needs "create" on tokenreviews and subjectaccessreviews, as ClusterRole
// system:auth-delegator grants. A verdict counts for 10 s, and for a stream for five minutes.
//
// Guard limits the reviews, and answers 429 beyond the limits. An accepted token may cause 5
// reviews a second. All tokens that were not accepted within the last hour together may cause 20 a
// second, 10 of them from one address. So a flood of invalid tokens locks out no user who has
// signed in.
func (p *Page) Guard(c client.Client, path string) http.Handler {
	reviews := &reviews{
		client:        c,
		strangerSlots: make(chan struct{}, maxReviews),
		knownSlots:    make(chan struct{}, maxReviews),
		gate:          strangers.New(reviewsPerSecond, reviewBurst),
		verdicts:      cache.NewLRUExpireCache(maxVerdicts),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		if refusesBody(w, r) {
			return
		}
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
		verdict := reviews.of(r.Context(), token, path+lastElement(r.URL.Path), r.RemoteAddr)
		if verdict.status != http.StatusOK {
			if verdict.status == http.StatusTooManyRequests || verdict.status == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", retryAfter)
			}
			http.Error(w, verdict.text, verdict.status)
			return
		}
		p.ServeHTTP(w, r)
	})
}

// reviews asks the API server about tokens, and remembers the answers for a while. Its methods may
// be called from any goroutine.
type reviews struct {
	client client.Client
	gate   *strangers.Gate
	// each has a value for each request that is being reviewed
	strangerSlots, knownSlots chan struct{}
	verdicts                  *cache.LRUExpireCache // verdict by question
	flight                    singleflight.Group    // by question
}

// question is the hash of a token and a path. The token itself is not kept.
type question [sha256.Size]byte

// verdict is the answer to a request: http.StatusOK if it is allowed, or else a status and a text.
type verdict struct {
	status int
	text   string
}

// isFinal reports whether the verdict is about the token: the same question would get it again.
func (v verdict) isFinal() bool {
	return v.status == http.StatusOK || v.status == http.StatusUnauthorized || v.status == http.StatusForbidden
}

// of returns the verdict about a request from an address, for path, with the token.
func (r *reviews) of(ctx context.Context, token, path, address string) verdict {
	if len(token) > maxToken {
		return verdict{http.StatusUnauthorized, "the token is too long"}
	}
	key := question(sha256.Sum256([]byte(path + "\x00" + token)))
	if known, ok := r.verdicts.Get(key); ok {
		return known.(verdict)
	}
	answer := r.flight.DoChan(string(key[:]), func() (result any, _ error) {
		defer func() { // on a goroutine of its own, where net/http does not recover
			if cause := recover(); cause != nil {
				klog.FromContext(ctx).Error(errors.Errorf("%v", cause), "A review panicked", "stack", string(debug.Stack()))
				result = verdict{http.StatusInternalServerError, "the review failed: see the log"}
			}
		}()
		// not the request's context, because several requests may wait for the answer
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		v := r.ask(ctx, token, path, address)
		if v.isFinal() {
			r.verdicts.Add(key, v, verdictTime)
		}
		return v, nil
	})
	select {
	case result := <-answer:
		return result.Val.(verdict)
	case <-ctx.Done(): // another request may still wait for the answer
		return verdict{http.StatusServiceUnavailable, "the request was cancelled"}
	}
}

// ask asks the API server, unless too many others ask.
func (r *reviews) ask(ctx context.Context, token, path, address string) verdict {
	known, ok := r.gate.Allow(token, address)
	if !ok {
		return verdict{http.StatusTooManyRequests, "too many requests with different tokens; try again"}
	}
	slots := r.strangerSlots
	if known {
		slots = r.knownSlots
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return verdict{http.StatusServiceUnavailable, "too many requests wait for their review; try again"}
	}
	status, text := review(ctx, r.client, token, path)
	switch status {
	case http.StatusOK: // a user without the permission stays a stranger
		r.gate.Accepted(token)
	case http.StatusUnauthorized:
		r.gate.Refused(token)
	}
	return verdict{status, text}
}

// review asks the API server whose the token is, and whether that user may get the path. The
// answers contain nothing of the token.
func review(ctx context.Context, c client.Client, token, path string) (status int, text string) {
	// client-go logs the bodies of requests and answers at high verbosity, and these have the token.
	ctx = klog.NewContext(ctx, logr.Discard())
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
		User:                  user.Username,
		UID:                   user.UID,
		Groups:                user.Groups,
		Extra:                 extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}
	if err := c.Create(ctx, may); err != nil {
		return reviewFailed(err, "subjectaccessreviews")
	}
	if !may.Status.Allowed || may.Status.Denied {
		return http.StatusForbidden, "user " + user.Username + " may not \"get\" the nonResourceURL " + path
	}
	return http.StatusOK, ""
}

// reviewFailed returns the answer when a review itself failed. The error of a review could contain
// the token, so the answer has nothing of it.
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
