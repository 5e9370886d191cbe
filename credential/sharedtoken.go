package credential

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// sharedToken is the credential of one extension: a reference to a token that several extensions
// may share.
type sharedToken struct {
	token  *token
	all    *tokens
	closed atomic.Bool
}

var _ identity.Credential = (*sharedToken)(nil)

func (s *sharedToken) Prepare(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed
	}
	_, err := s.token.get(ctx, true)
	return err
}

// get implements tokenSource.
func (s *sharedToken) get(ctx context.Context) (*issuedToken, error) {
	if s.closed.Load() {
		return nil, errClosed
	}
	return s.token.get(ctx, false)
}

// replacement implements tokenSource.
func (s *sharedToken) replacement(ctx context.Context, used *issuedToken) *issuedToken {
	if s.closed.Load() {
		return nil
	}
	return s.token.replacement(ctx, used)
}

// answered implements tokenSource.
func (*sharedToken) answered(*issuedToken, int) {}

func (s *sharedToken) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &bearer{tokens: s, next: next}
}

func (s *sharedToken) TransportRequirement() identity.TransportRequirement {
	return identity.TransportRequirement{}
}

func (s *sharedToken) Expires() time.Time { return s.token.current.Load().expires() }

func (s *sharedToken) Discard(before time.Time) {
	if current := s.token.current.Load(); current != nil && current.requestedAt.Before(before) {
		s.token.current.CompareAndSwap(current, nil)
	}
}

func (s *sharedToken) Close() {
	if s.closed.CompareAndSwap(false, true) {
		s.all.close(s.token)
	}
}
