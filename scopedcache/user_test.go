package scopedcache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
)

// A read that waits for an informer ends with the life of its user, while others wait on.
func TestWaitingUsersEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		env := &environment{}
		entries := newEntrySet(env)
		e := entries.newEntry(&kind{}, Scope{})
		life, end := context.WithCancelCause(t.Context())
		newUse := func(timeout time.Duration, life context.Context) *use {
			u := newUser(timeout, nil, nil)
			u.begin(life, func() {})
			return &use{user: u, entry: e}
		}
		first, second := newUse(time.Minute, t.Context()), newUse(time.Hour, life)
		results := map[*use]chan error{first: make(chan error, 2), second: make(chan error, 2)}
		for of, result := range results {
			go func() {
				_, err := of.awaitReading(t.Context())
				result <- err
			}()
			go func() { result <- of.awaitSettled(t.Context()) }()
		}
		synctest.Wait()
		ended := errors.New("their connection has ended")
		end(ended)
		synctest.Wait()
		for range 2 {
			g.Expect(results[second]).To(Receive(MatchError(ended)))
			g.Expect(results[first]).NotTo(Receive())
		}
		first.gone.Open()
		for range 2 {
			g.Expect(<-results[first]).To(MatchError(ErrReleased))
		}
	})
}
