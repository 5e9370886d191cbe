package accessor

import (
	"context"
	"net/http"
	"time"

	"github.com/pkg/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/latchkey-dev/latchkey/accessor/credential"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
)

// boundCredential is a credential and what carries its requests to a target. It never changes.
type boundCredential struct {
	id       lifecycle.CredentialID
	resolved credential.Resolved
	cred     credential.Credential
	target   *targets.Target
	carrier  http.RoundTripper // nil if it is what the target's members share
	line     *targets.Line     // under carrier, if it is ours to close
}

// openCredential opens the credential of resolved. Whoever opens it closes or retires it.
func openCredential(id lifecycle.CredentialID, resolved credential.Resolved, t *targets.Target) *boundCredential {
	b := &boundCredential{id: id, resolved: resolved, cred: resolved.Open(), target: t}
	switch carrier := b.cred.Carrier(); {
	case carrier.Transport != nil:
		b.carrier = t.Observe(carrier.Transport)
	case carrier.Certificate != nil:
		b.line = t.Certified(carrier.Certificate())
		b.carrier = b.line.RoundTripper()
	}
	return b
}

// roundTripper sends requests as the credential's identity.
func (b *boundCredential) roundTripper(shared http.RoundTripper) http.RoundTripper {
	if b.carrier != nil {
		shared = b.carrier
	}
	return b.cred.RoundTripper(shared)
}

func (b *boundCredential) close() {
	b.cred.Close()
	if b.line != nil {
		b.line.Close()
	}
}

// retire closes a credential that another took the place of, after a while: a request may be about to use it, and
// what is under way on TCP connections of its own may end. Watches on those begin anew on the others, from where
// they were.
func (b *boundCredential) retire(life context.Context, after time.Duration) {
	ctx, cancel := context.WithTimeout(life, after)
	context.AfterFunc(ctx, func() {
		cancel()
		b.close()
	})
}

// prover is the RoundTripper that adds the connection's identity to requests, by the credential that it uses at that moment.
type prover struct {
	conn *connection
	next http.RoundTripper // reaches the target without a credential
	own  bool              // next dials by itself, so that nothing else can carry its requests
}

func (p *prover) RoundTrip(req *http.Request) (*http.Response, error) {
	now := p.conn.credential.Load()
	if now == nil { // the connection has ended since the guard looked
		return refuse{p.conn.err()}.RoundTrip(req)
	}
	if err := now.target.Accepts(req); err != nil { // before anything is added that is not for others
		return refuse{err}.RoundTrip(req)
	}
	if now.carrier != nil && p.own {
		return refuse{errors.New("clients that dial by themselves, as client-go's exec and port-forward do, cannot act with a client certificate " +
			"or by impersonation; use credentials with a token for them (ServiceAccountTokens, or a kubeconfig with a token)")}.RoundTrip(req)
	}
	return now.roundTripper(p.next).RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the TLS settings below.
func (p *prover) WrappedRoundTripper() http.RoundTripper { return p.next }

// dialsItself reports whether a RoundTripper is none of net/http's, under whatever wraps it.
func dialsItself(next http.RoundTripper) bool {
	for {
		switch wrapped := next.(type) {
		case *http.Transport:
			return false
		case utilnet.RoundTripperWrapper:
			next = wrapped.WrappedRoundTripper()
		default:
			return true
		}
	}
}
