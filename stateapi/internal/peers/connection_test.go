package peers

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi/internal/trust"
)

// says is a member that has one object, and sends bookmarks.
type says struct {
	lists atomic.Int32
	list  func(ctx context.Context) // called before a list is answered; nil for nothing
	hang  atomic.Bool               // no bookmarks
}

// ServeHTTP implements http.Handler.
func (s *says) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if req.URL.Query().Get("sendInitialEvents") != "" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	if req.URL.Query().Get("watch") == "" {
		s.lists.Add(1)
		if s.list != nil {
			s.list(req.Context())
		}
		_, _ = fmt.Fprint(w, `{"kind": "ConfigMapList", "apiVersion": "state.latchkey.dev/v1alpha1", "metadata":
			{"resourceVersion": "1"}, "items": [{"metadata": {"name": "red", "uid": "1"}}]}`)
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if !s.hang.Load() {
			_, _ = fmt.Fprint(w, `{"type": "BOOKMARK", "object": {"kind": "ConfigMap",
				"apiVersion": "state.latchkey.dev/v1alpha1", "metadata": {"resourceVersion": "2"}}}`+"\n")
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-req.Context().Done():
			return
		case <-tick.C:
		}
	}
}

func count(notes []string, note string) (n int) {
	for _, one := range notes {
		if one == note {
			n++
		}
	}
	return n
}

// The lists of each connection may take longer than the time for which a replica is heard, and not
// only those of the first one.
func TestSlowLists(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	member := &says{list: func(ctx context.Context) {
		select {
		case <-time.After(2 * p.options.Silence):
		case <-ctx.Done():
		}
	}}
	follow(t, p, "you", memberAt(t, p, authority, "you", member.ServeHTTP))
	lists := func() int { return count(p.listener.(*heard).all(), "you has 1 connections") }
	for n := range 2 {
		g.Eventually(lists).WithTimeout(patience).Should(Equal(n + 1))
		member.hang.Store(true)
		begun := member.lists.Load()
		g.Eventually(member.lists.Load).WithTimeout(patience).Should(BeNumerically(">", begun), "it is connected anew")
		member.hang.Store(false)
	}
	g.Eventually(lists).WithTimeout(patience).Should(BeNumerically(">=", 3))
}

// A connection is verified by the certificate that it began with. So there is another one before
// that has expired, and nothing is silent meanwhile.
func TestRenewedCertificate(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	lasting, err := certs.NewAuthorityFor("another", 30*24*time.Hour) // the member takes any
	g.Expect(err).NotTo(HaveOccurred())
	p.leaf, err = trust.NewLeaf("peer", lasting, p.options.ServerName("me"))
	g.Expect(err).NotTo(HaveOccurred())
	member := &says{}
	server := memberOfAnyClient(t, p, authority, member)
	follow(t, p, "you", server.Listener.Addr().String())
	g.Eventually(member.lists.Load).WithTimeout(patience).Should(BeEquivalentTo(1))
	g.Expect(p.leaf.RenewIfDue(time.Now().Add(23 * time.Hour))).To(Succeed())
	g.Eventually(member.lists.Load).WithTimeout(patience).Should(BeEquivalentTo(2))
	g.Expect(p.listener.(*heard).all()).NotTo(ContainElement("gone you"))
}

// memberOfAnyClient starts a member that asks for a certificate, and takes any.
func memberOfAnyClient(t *testing.T, p *Peers, authority *certs.Authority, handler http.Handler) *httptest.Server {
	t.Helper()
	g := NewWithT(t)
	certificate, key, err := authority.Issue(certs.Request{
		Hosts:    []string{p.options.ServerName("you")},
		ValidFor: time.Hour,
	})
	g.Expect(err).NotTo(HaveOccurred())
	return serve(t, certificate, key, handler)
}

// A peer whose Lease has expired, as while the API server is away, is followed as long as it is
// heard. One at another address is connected there.
func TestMeet(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	p.observed = observed{longest: 15 * time.Second, leases: map[string]observation{}}
	first, second := &says{}, &says{}
	lease := p.options.leaseName("you")
	at := func(address string) {
		p.observed.see(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: lease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("you " + address)},
		}, time.Now())
	}
	ctx, cancel := context.WithCancel(logr.NewContext(context.Background(), logr.Discard()))
	t.Cleanup(func() {
		cancel()
		p.running.Wait()
	})
	notes := p.listener.(*heard).all
	at(memberAt(t, p, authority, "you", first.ServeHTTP))
	p.meet(ctx, time.Now())
	g.Eventually(notes).WithTimeout(patience).Should(ContainElement("heard you"))
	delete(p.observed.leases, lease)
	p.meet(ctx, time.Now())
	heardTimes := func() int { return count(notes(), "heard you") }
	before := heardTimes()
	g.Eventually(heardTimes).WithTimeout(patience).Should(BeNumerically(">", before+3))
	p.meet(ctx, time.Now())
	g.Expect(notes()).NotTo(ContainElement("gone you"))

	at(memberAt(t, p, authority, "you", second.ServeHTTP))
	p.meet(ctx, time.Now())
	g.Eventually(notes).WithTimeout(patience).Should(ContainElement("gone you"))
	g.Eventually(func() int32 {
		p.meet(ctx, time.Now())
		return second.lists.Load()
	}).WithTimeout(patience).Should(BeEquivalentTo(1))

	second.hang.Store(true)
	delete(p.observed.leases, lease)
	g.Eventually(func() []string {
		p.meet(ctx, time.Now())
		return notes()
	}).WithTimeout(patience).Should(WithTransform(func(n []string) int { return count(n, "gone you") }, Equal(2)),
		"not heard, and not a member")
}

// When others are trusted, each peer is connected anew: what is not trusted any more has no
// connection.
func TestOthersAreTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		one := &peer{
			peers: &Peers{options: Options{Silence: 5 * time.Second, RenewalSpread: time.Minute}},
			heard: map[string]*atomic.Int64{"connections": {}},
		}
		listed := func() bool { return false }
		awaits := func(changed, renewed <-chan struct{}) time.Duration {
			begun := time.Now()
			one.await(t.Context(), changed, renewed, listed)
			return time.Since(begun)
		}
		closed := make(chan struct{})
		close(closed)
		g.Expect(awaits(closed, nil)).To(BeZero())
		g.Expect(awaits(nil, nil)).To(BeNumerically("~", firstListTimeout, 2*time.Second))
		listed = func() bool { return true }
		one.began = time.Now()
		g.Expect(awaits(nil, nil)).To(BeNumerically("~", one.peers.options.Silence, 2*time.Second))
		one.peers.options.Silence = time.Hour
		g.Expect(awaits(nil, closed)).To(BeNumerically("<", time.Minute))
	})
}

// A connection ends when the authority that verified it is not trusted any more, and there is none
// until it is again.
func TestConnectionsFollowTheSecret(t *testing.T) {
	g := NewWithT(t)
	p, authority, secrets := fleetWithSecret(t, "fleet")
	another, err := certs.NewAuthorityFor("another", time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	trusts := func(authority *certs.Authority) {
		secret, err := secrets.Get(t.Context(), "authority", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		secret.Data["tls.crt"] = authority.PEM()
		secret.Data["tls.key"], err = authority.KeyPEM()
		g.Expect(err).NotTo(HaveOccurred())
		_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	member := &says{}
	logged := follow(t, p, "you", memberOfAnyClient(t, p, authority, member).Listener.Addr().String())
	g.Eventually(member.lists.Load).WithTimeout(patience).Should(BeEquivalentTo(1))
	trusts(another)
	g.Eventually(logged).WithTimeout(patience).Should(ContainSubstring("certificate signed by unknown authority"))
	g.Expect(member.lists.Load()).To(BeEquivalentTo(1))
	trusts(authority)
	g.Eventually(member.lists.Load).WithTimeout(patience).Should(BeEquivalentTo(2))
}

// A peer cannot fill the log: it is cut, and there is one message in a time.
func TestLogOfAPeer(t *testing.T) {
	g := NewWithT(t)
	p, authority := fleetOf(t, "fleet")
	var requests atomic.Int32
	logged := follow(t, p, "you", memberAt(t, p, authority, "you", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
			"message": "%d %s"}`, requests.Add(1), strings.Repeat("x", 1<<16))
	}))
	g.Eventually(requests.Load).WithTimeout(patience).Should(BeNumerically(">=", 6))
	lines := strings.Split(logged(), "\n")
	g.Expect(lines).To(HaveLen(1))
	g.Expect(len(lines[0])).To(And(BeNumerically(">", 1<<10), BeNumerically("<", 2<<10)))
}
