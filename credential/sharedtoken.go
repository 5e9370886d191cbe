package credential

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// sharedToken is one extension's hold on a token.
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
func (s *sharedToken) get(ctx context.Context) (*issued, error) {
	if s.closed.Load() {
		return nil, errClosed
	}
	return s.token.get(ctx, false)
}

// refused implements tokenSource.
func (s *sharedToken) refused(ctx context.Context, used *issued) *issued {
	if s.closed.Load() {
		return nil
	}
	return s.token.refused(ctx, used)
}

func (s *sharedToken) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &bearer{tokens: s, next: next}
}

func (s *sharedToken) TransportRequirement() TransportRequirement { return TransportRequirement{} }

func (s *sharedToken) Expires() time.Time { return s.token.current.Load().expires() }

func (s *sharedToken) Discard(before time.Time) {
	if have := s.token.current.Load(); have != nil && have.at.Before(before) {
		s.token.current.CompareAndSwap(have, nil)
	}
}

func (s *sharedToken) Close() {
	if s.closed.CompareAndSwap(false, true) {
		s.all.close(s.token)
	}
}
