package credential

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// sharedToken is the credential of one extension: a reference to a token that several extensions
// may share.
type sharedToken struct {
	token  *token
	all    *tokens
	closed atomic.Bool
}

var _ Credential = (*sharedToken)(nil)

func (*sharedToken) sealed() {}

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

func (s *sharedToken) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &bearer{tokens: s, next: next}
}

func (s *sharedToken) TransportRequirement() TransportRequirement { return TransportRequirement{} }

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
