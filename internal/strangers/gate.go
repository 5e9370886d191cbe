package strangers

import (
	"crypto/sha256"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// acceptedTime is how long a token keeps a rate of its own after it was accepted.
	acceptedTime = time.Hour
	// acceptedPerSecond and acceptedBurst are the rate of an accepted token.
	acceptedPerSecond, acceptedBurst = 5, 10
	// maxAccepted and maxAddresses are how many tokens and addresses are remembered.
	maxAccepted, maxAddresses = 1024, 1024
)

// Gate bounds how many tokens are reviewed. Its methods may be called from any goroutine.
type Gate struct {
	strangers *rate.Limiter // of all tokens that were not accepted
	known     *rate.Limiter // of all others together
	perSecond float64
	burst     int

	mu        sync.Mutex            // makes look-up and addition one step
	addresses *cache.LRUExpireCache // *rate.Limiter by network of the address
	accepted  *cache.LRUExpireCache // *rate.Limiter by hash of the token
}

// New returns a gate that lets so many tokens of strangers pass, on average and at once, and twice
// as many of those that were accepted.
func New(perSecond float64, burst int) *Gate {
	return &Gate{
		strangers: rate.NewLimiter(rate.Limit(perSecond), burst),
		known:     rate.NewLimiter(rate.Limit(2*perSecond), 2*burst),
		perSecond: perSecond,
		burst:     burst,
		addresses: cache.NewLRUExpireCache(maxAddresses),
		accepted:  cache.NewLRUExpireCache(maxAccepted),
	}
}

// Allow reports whether the token may be reviewed now, and whether it is known: accepted before.
// address is that of the client, with or without a port; "" if it is not known, which counts as
// any.
func (g *Gate) Allow(token, address string) (known, ok bool) {
	if own, found := g.accepted.Get(sha256.Sum256([]byte(token))); found {
		return true, own.(*rate.Limiter).Allow() && g.known.Allow()
	}
	if of := g.ofAddress(address); of != nil && !of.Allow() {
		return false, false
	}
	return false, g.strangers.Allow()
}

// Accepted remembers that a server takes the token.
func (g *Gate) Accepted(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := sha256.Sum256([]byte(token))
	own, found := g.accepted.Get(key)
	if !found {
		own = rate.NewLimiter(acceptedPerSecond, acceptedBurst)
	}
	g.accepted.Add(key, own, acceptedTime)
}

// Refused forgets a token that no server takes any more.
func (g *Gate) Refused(token string) { g.accepted.Remove(sha256.Sum256([]byte(token))) }

// ofAddress returns the limiter of a client's address, nil if the address is not known.
func (g *Gate) ofAddress(address string) *rate.Limiter {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil
	}
	network := netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen())
	if ip.Unmap().Is6() { // a client has a whole network of these
		network, _ = ip.Prefix(64)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	own, found := g.addresses.Get(network)
	if !found {
		own = rate.NewLimiter(rate.Limit(g.perSecond/2), max(g.burst/2, 1))
		g.addresses.Add(network, own, acceptedTime)
	}
	return own.(*rate.Limiter)
}
