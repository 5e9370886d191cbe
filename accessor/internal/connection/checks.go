package connection

import (
	"context"
	"net/http"
	"time"

	"github.com/pkg/errors"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/latchkey-dev/latchkey/internal/permissioncheck"
	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// NoteReviews records what reviews said: what is missing as if a request had been refused, because
// the request is not sent for that reason.
func (c *Connection) NoteReviews(answer *permissioncheck.Answer) {
	now := time.Now()
	for _, allowed := range answer.Allowed {
		c.Granted(allowed)
	}
	for _, missing := range answer.Missing {
		c.record.Note(missing.Permission, true, now)
		c.refusalsFor(http.StatusForbidden).Note(missing.Permission, now)
	}
	if len(answer.Missing) > 0 && c.refused != nil {
		c.refused()
	}
}

// Granted forgets that a permission was refused.
func (c *Connection) Granted(p permissions.Permission) {
	c.record.Granted(p)
	c.refusals.Load().Served(p)
}

// Allowed returns which of the permissions the identity has by now. What was not answered within
// Client.Timeout is not among them.
func (c *Connection) Allowed(asked []permissions.Permission) []permissions.Permission {
	checker, err := c.Checker()
	if err != nil {
		return nil
	}
	ctx, cancel := c.bind(context.Background())
	defer cancel()
	return checker.Allowed(ctx, asked)
}

// OnRBACChange calls f when the permissions of the identity may have changed, until stop is called.
// Without a watcher of RBAC in its cluster it never does. f must not block.
func (c *Connection) OnRBACChange(f func()) (stop func()) {
	if c.resolution.UntrustedServer || c.options.RBACWatcher == nil {
		return func() {}
	}
	return c.options.RBACWatcher.OnChange(c.statedIdentity.Username, c.statedIdentity.Groups, func(string) { f() })
}

// Checker returns what asks the API server about permissions of the identity, outside of its rate
// limit. It is made on first use: few connections need it.
func (c *Connection) Checker() (*permissioncheck.Checker, error) {
	if checker := c.checker.Load(); checker != nil {
		return checker, nil
	}
	clients, err := c.Clients()
	if err != nil {
		return nil, err
	}
	config := c.config()
	config.RateLimiter, config.QPS, config.Burst = nil, -1, 0
	reviews, err := authorizationv1client.NewForConfigAndClient(config, c.httpClient)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for access reviews")
	}
	checker := permissioncheck.New(clients.Uncached, func(ctx context.Context,
		spec authorizationv1.SelfSubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
		if err := c.Err(); err != nil {
			return authorizationv1.SubjectAccessReviewStatus{}, err
		}
		ctx, cancel := c.bind(ctx)
		defer cancel()
		review, err := reviews.SelfSubjectAccessReviews().Create(ctx,
			&authorizationv1.SelfSubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return authorizationv1.SubjectAccessReviewStatus{}, err
		}
		return review.Status, nil
	})
	if !c.checker.CompareAndSwap(nil, checker) {
		return c.checker.Load(), nil
	}
	return checker, nil
}
