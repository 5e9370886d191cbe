package accessor

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

func notLeading(err error) bool {
	var notConnected *connstate.NotConnectedError
	return errors.As(err, &notConnected) && notConnected.Reason == connstate.ReasonNotLeading &&
		errors.Is(err, fence.ErrClosed)
}

// Connections end with the lease, and their handles for ever. The next term brings new ones.
func TestConnectionsEndWithTheLease(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	l, f := testutil.NewLease()
	defer l.Release()
	d := driveFenced(t, r.URL, rareProbes, noRetry, f)
	red := client.ObjectKey{Name: "red"}
	d.extension("red", "red")
	_, err := d.At(red).GetClient(t.Context())
	g.Expect(err).To(Satisfy(notLeading), "before the first term")
	g.Expect(r.reviews.Load()).To(BeZero())

	l.Renew(3600)
	d.eventually("red", connectedAs("user-of-red"))
	c, err := d.At(red).GetClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	config, err := d.At(red).GetRESTConfig(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	reviewsBefore, changes := r.reviews.Load(), len(d.changed())

	l.Release()
	for name, use := range map[string]func() error{
		"a cached read": func() error { return c.Get(t.Context(), client.ObjectKey{Name: "x"}, &corev1.ConfigMap{}) },
		"a write":       func() error { return c.Create(t.Context(), &corev1.ConfigMap{}) },
		"a client of the config": func() error {
			roundTripper := config.WrapTransport(http.DefaultTransport)
			_, err := roundTripper.RoundTrip(httptest.NewRequest(http.MethodGet, r.URL+"/api", nil)) //nolint:bodyclose // none
			return err
		},
	} {
		err := use()
		g.Expect(err).To(Satisfy(notLeading), name)
		g.Expect(err).NotTo(MatchError(fence.ErrOutcomeUnknown), name)
	}
	g.Eventually(func() error { _, err := d.At(red).GetClient(t.Context()); return err }).WithTimeout(patience).
		Should(Satisfy(notLeading))
	g.Eventually(func() int { return len(d.changed()) }).WithTimeout(patience).
		Should(BeNumerically(">", changes), "controllers are notified")
	g.Expect(d.Keys()).To(BeEmpty())
	g.Expect(r.reviews.Load()).To(Equal(reviewsBefore))

	l.Renew(3600)
	old := d.eventually("red", connectedAs("user-of-red"))
	g.Expect(c.Create(t.Context(), &corev1.ConfigMap{})).To(Satisfy(notLeading), "a handle of an earlier term")
	l.Release()
	l.Renew(3600) // most often before the reconciler has noticed
	d.wake <- red
	g.Eventually(func() bool {
		state, _ := d.At(red).State()
		return state.Phase == connstate.PhaseConnected && state.Since.After(old.Since)
	}).WithTimeout(patience).Should(BeTrue(), "another term, another connection")
}

// A connection without a term, as an engine may give it, ends when the reconciler says that this
// replica does not lead: no lease ends it.
func TestLeaseEndedWithoutATerm(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := driveFenced(t, r.URL, rareProbes, noRetry, nil)
	d.extension("red", "red")
	d.eventually("red", connectedAs("user-of-red"))
	red := client.ObjectKey{Name: "red"}
	c, err := d.At(red).GetClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	d.LeaseEnded(red)
	g.Expect(c.Create(t.Context(), &corev1.ConfigMap{})).To(Satisfy(notLeading))
}

// A write under way when the lease ends is cut then, and its error says that its outcome is
// unknown.
func TestWriteWhenTheLeaseEnds(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	hold, arrived := make(chan struct{}), make(chan string, 10)
	r.hold.Store(new(func(req *http.Request) {
		if req.URL.Path == "/hold" {
			arrived <- req.Method
			<-hold
		}
	}))
	t.Cleanup(sync.OnceFunc(func() { close(hold) }))
	l, f := testutil.NewLease()
	d := driveFenced(t, r.URL, rareProbes, noRetry, f)
	d.extension("red", "red")
	l.Renew(3600)
	d.eventually("red", connectedAs("user-of-red"))
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	conn := a.published.Load().conn
	results := map[string]chan error{http.MethodGet: make(chan error, 1), http.MethodPut: make(chan error, 1)}
	for method, result := range results {
		req, err := http.NewRequestWithContext(t.Context(), method, r.URL+"/hold", http.NoBody)
		g.Expect(err).NotTo(HaveOccurred())
		go func() {
			resp, err := conn.HTTPClient().Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			result <- err
		}()
		<-arrived
	}
	begun := time.Now()
	l.Release()
	read, write := <-results[http.MethodGet], <-results[http.MethodPut]
	g.Expect(time.Since(begun)).To(BeNumerically("<", 4*time.Second), "by the lease, not by Client.Timeout")
	g.Expect(read).To(Satisfy(notLeading))
	g.Expect(read).NotTo(MatchError(fence.ErrOutcomeUnknown))
	g.Expect(write).To(Satisfy(notLeading))
	g.Expect(write).To(MatchError(fence.ErrOutcomeUnknown))
	g.Expect(write.Error()).To(ContainSubstring("its outcome is unknown"))
}

// bodyThen is a body that ends the lease before it returns its only part.
type bodyThen struct {
	text string
	then func()
}

func (b *bodyThen) Read(p []byte) (int, error) {
	if b.text == "" {
		return 0, io.EOF
	}
	b.then()
	n := copy(p, b.text)
	b.text = b.text[n:]
	return n, nil
}

// Clients of GetRESTConfig use a TCP connection that looks at the time before each write, as the
// connection's own clients do.
func TestClientsOfTheConfigLookBeforeTheyWrite(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	var whole atomic.Int32
	r.hold.Store(new(func(req *http.Request) {
		if req.URL.Path == "/write" {
			if body, err := io.ReadAll(req.Body); err == nil && len(body) > 0 {
				whole.Add(1)
			}
		}
	}))
	l, f := testutil.NewLease()
	defer l.Release()
	d := driveFenced(t, r.URL, rareProbes, noRetry, f)
	d.extension("red", "red")
	red := client.ObjectKey{Name: "red"}
	for n := range 10 {
		l.Renew(3600)
		term := f.Term()
		g.Eventually(func() bool {
			a, known := d.byKey.Load(red)
			return known && a.lease == term && a.published.Load().conn != nil
		}).WithTimeout(patience).Should(BeTrue())
		config, err := d.At(red).GetRESTConfig(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		httpClient, err := rest.HTTPClientFor(config)
		g.Expect(err).NotTo(HaveOccurred())
		post := func(body io.Reader) error {
			resp, err := httpClient.Post(r.URL+"/write", "text/plain", body)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		g.Expect(post(strings.NewReader("in time"))).To(Succeed())
		g.Expect(whole.Load()).To(BeEquivalentTo(n + 1))
		g.Expect(post(&bodyThen{text: "late", then: l.Release})).To(MatchError(fence.ErrOutcomeUnknown))
		g.Consistently(whole.Load).WithTimeout(20 * time.Millisecond).Should(BeEquivalentTo(n + 1))
	}
}

// A connect under way when the lease ends says nothing about the API server.
func TestConnectWhenTheLeaseEnds(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	hold, asked := make(chan struct{}), make(chan struct{}, 10)
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		asked <- struct{}{}
		<-hold
		return http.StatusCreated, authenticationv1.UserInfo{Username: token}
	})
	l, f := testutil.NewLease()
	defer l.Release()
	d := driveFenced(t, r.URL, rareProbes, noRetry, f)
	d.extension("red", "red")
	l.Renew(3600)
	<-asked
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	a.mu.Lock()
	membership := a.membership
	a.mu.Unlock()
	l.Release()
	g.Eventually(d.Keys).WithTimeout(patience).Should(BeEmpty())
	d.attempts.Close() // returns when the connect has ended
	g.Expect(membership.Reachability()).NotTo(Equal(connstate.Unresponsive))
	g.Expect(d.disconnectReasons()).NotTo(ContainElement(string(connstate.ReasonUnreachable)))
}

// driveLeased returns a driver with a lease for that time, and red connected.
func driveLeased(t *testing.T, seconds int) (*driver, *testutil.Lease) {
	t.Helper()
	l, f := testutil.NewLease()
	d := driveFenced(t, newReviewer(t).URL, rareProbes, noRetry, f)
	d.extension("red", "red")
	l.Renew(seconds)
	d.eventually("red", connectedAs("user-of-red"))
	return d, l
}

// A lease that runs out ends the connection although no request is sent.
func TestLeaseRunsOut(t *testing.T) {
	g := NewWithT(t)
	begun := time.Now()
	d, _ := driveLeased(t, 2)
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	conn := a.published.Load().conn
	<-conn.Life().Done()
	g.Expect(time.Since(begun)).To(BeNumerically(">", 1900*time.Millisecond))
	g.Expect(context.Cause(conn.Life())).To(Satisfy(notLeading))
	g.Eventually(func() error { _, err := d.At(client.ObjectKey{Name: "red"}).GetClient(t.Context()); return err }).
		WithTimeout(patience).Should(Satisfy(notLeading))
}

// The state says that there is no connection as soon as the lease has ended, although no Reconcile
// follows: the workers may all be busy.
func TestStateWhenTheLeaseEnds(t *testing.T) {
	g := NewWithT(t)
	d, l := driveLeased(t, 3600)
	a, _ := d.byKey.Load(red)
	conn := a.published.Load().conn

	var reconciles atomic.Int64
	block, blocked := make(chan struct{}), make(chan struct{}, 1)
	d.mu.Lock()
	d.tokens["busy"], d.newToken = "", func(name string) string {
		if name == "busy" && reconciles.Add(1) == 1 {
			blocked <- struct{}{}
			d.mu.Unlock()
			<-block
			d.mu.Lock()
		}
		return name
	}
	d.mu.Unlock()
	defer close(block)
	d.wake <- client.ObjectKey{Name: "busy"}
	g.Eventually(blocked).WithTimeout(patience).Should(Receive())

	l.Release()
	g.Eventually(func() error { _, err := d.At(red).GetClient(t.Context()); return err }).WithTimeout(patience).
		Should(Satisfy(notLeading))
	g.Expect(a.state()).To(Satisfy(disconnectedFor(connstate.ReasonNotLeading)))
	g.Expect(a.state().Healthy).To(BeFalse())
	g.Expect(conn.Err()).To(Satisfy(notLeading))
	g.Expect(d.changed()).To(ContainElement("red"))
}
