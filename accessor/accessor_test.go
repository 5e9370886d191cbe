package accessor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m)
}

const patience = 30 * time.Second

// A review that the server answers with 403 is not a success, although the server is up.
// EachUnhealthy reports the extension.
func TestNoSuccessWhileReviewsAreDenied(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, noRetry)
	d.extension("red", "red")
	d.eventually("red", connectedAs("user-of-red"))
	unhealthy := func() (since []time.Time) {
		d.EachUnhealthy(func(_ client.Object, last time.Time) { since = append(since, last) })
		return since
	}
	g.Expect(unhealthy()).To(BeEmpty())
	r.status(http.StatusForbidden)
	g.Eventually(unhealthy).WithTimeout(patience).Should(HaveLen(1))
	state, _ := d.At(client.ObjectKey{Name: "red"}).State()
	g.Expect(state.Phase).To(Equal(connstate.PhaseConnected), "a denied review ends no connection")
	g.Expect(state.Health.ConsecutiveFailures).To(BeZero())
	g.Expect(unhealthy()).To(Equal([]time.Time{state.Health.LastProbeSuccessTime}))
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated, authenticationv1.UserInfo{Username: "user-of-" + token, UID: "uid-of-" + token}
	})
	g.Eventually(unhealthy).WithTimeout(patience).Should(BeEmpty())
}

// reviewer is an API server that serves SelfSubjectReviews only. A test can configure answers that
// a real API server returns only briefly. The tests in package test use a real API server.
type reviewer struct {
	*httptest.Server
	reviews  atomic.Int32
	redirect atomic.Pointer[string]              // the URL to redirect to
	hold     atomic.Pointer[func(*http.Request)] // called for each request, if not nil
	echo     atomic.Bool                         // answer with the headers of the request
	nothing  atomic.Bool                         // answer that there is nothing, instead of 401
	refuse   atomic.Pointer[string]              // the extension whose next review is answered 401
	rest     atomic.Pointer[http.HandlerFunc]    // answers everything, if not nil
	// The function returns the status and the user for a token.
	answer atomic.Pointer[func(token string) (int, authenticationv1.UserInfo)]
}

func newReviewer(t testing.TB) *reviewer {
	r := &reviewer{}
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated, authenticationv1.UserInfo{Username: "user-of-" + token, UID: "uid-of-" + token}
	})
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if hold := r.hold.Load(); hold != nil {
			(*hold)(req)
		}
		if handler := r.rest.Load(); handler != nil {
			if strings.HasSuffix(req.URL.Path, "/selfsubjectreviews") {
				r.reviews.Add(1)
			}
			handler.ServeHTTP(w, req)
			return
		}
		if to := r.redirect.Load(); to != nil && req.URL.Path == "/redirected" {
			http.Redirect(w, req, *to, http.StatusFound)
			return
		}
		if r.echo.Load() {
			w.WriteHeader(http.StatusBadGateway)
			_ = req.Header.Write(w)
			return
		}
		if !strings.HasSuffix(req.URL.Path, "/selfsubjectreviews") && r.nothing.Load() {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		if !strings.HasSuffix(req.URL.Path, "/selfsubjectreviews") {
			w.WriteHeader(http.StatusUnauthorized) // an aggregated API that accepts no credential
			return
		}
		r.reviews.Add(1)
		if refused := r.refuse.Load(); refused != nil && strings.HasSuffix(req.UserAgent(), "/"+*refused) &&
			r.refuse.CompareAndSwap(refused, nil) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		status, user := (*r.answer.Load())(strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer secret-"))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if status != http.StatusCreated {
			reason := map[int]metav1.StatusReason{401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden,
				500: metav1.StatusReasonInternalError}[status]
			_ = json.NewEncoder(w).
				Encode(metav1.Status{
					TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
					Status:   metav1.StatusFailure,
					Code:     int32(status),
					Reason:   reason,
				})
			return
		}
		_ = json.NewEncoder(w).Encode(authenticationv1.SelfSubjectReview{
			TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectReview", APIVersion: "authentication.k8s.io/v1"},
			Status:   authenticationv1.SelfSubjectReviewStatus{UserInfo: user},
		})
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *reviewer) answers(f func(token string) (int, authenticationv1.UserInfo)) { r.answer.Store(&f) }

func (r *reviewer) status(status int) {
	r.answers(func(string) (int, authenticationv1.UserInfo) { return status, authenticationv1.UserInfo{} })
}

// denies makes the server answer 403 to reviews of tokens with the prefix.
func (r *reviewer) denies(prefix string) {
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if strings.HasPrefix(token, prefix) {
			return http.StatusForbidden, authenticationv1.UserInfo{}
		}
		return http.StatusCreated, authenticationv1.UserInfo{Username: "user-of-" + token, UID: "uid-of-" + token}
	})
}

// driver calls Reconcile as the reconciler does, for the extensions in tokens.
type driver struct {
	*Set
	t        testing.TB
	resolver identity.Resolver
	wake     chan client.ObjectKey

	mu          sync.Mutex
	fence       *fence.Fence             // nil for none
	others      map[string]bool          // guarded by mu; names of extensions that other replicas have
	tokens      map[string]string        // guarded by mu; tokens of the existing extensions, by name
	uidSuffixes map[string]string        // guarded by mu; distinguish extensions with the same name
	newToken    func(name string) string // guarded by mu; if not nil, returns a token for each Resolve

	untrustedServer, impersonated, sharable bool // guarded by mu; fields of the resolution

	changes []string // guarded by mu; the names that Changed was called for
	// guarded by mu; reasons of disconnects, from the log: the state may have changed before a test
	// reads it
	reasons []string
}

type host struct {
	cluster.Cluster
	config *rest.Config
}

func (h host) GetConfig() *rest.Config { return h.config }

func drive(t testing.TB, url string, probes connstate.ProbeOptions, backoff wait.Backoff,
	changes ...func(*Options)) *driver {
	return driveFenced(t, url, probes, backoff, nil, changes...)
}

func driveFenced(t testing.TB, url string, probes connstate.ProbeOptions, backoff wait.Backoff,
	f *fence.Fence, changes ...func(*Options)) *driver {
	d := &driver{
		t:           t,
		fence:       f,
		wake:        make(chan client.ObjectKey, 1000),
		tokens:      map[string]string{},
		uidSuffixes: map[string]string{},
		others:      map[string]bool{},
	}
	var err error
	d.resolver, err = credential.FromRESTConfigMapper(func(_ context.Context, object client.Object,
		base *rest.Config) (*rest.Config, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		base.BearerToken = "secret-" + d.tokens[object.GetName()]
		if d.newToken != nil {
			base.BearerToken = "secret-" + d.newToken(object.GetName())
		}
		return base, nil
	}).Bind(host{config: &rest.Config{Host: url}}, identity.Kind{}, nil, nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var leads func() bool
	if f != nil {
		leads = f.Open
	}
	options := Options{
		Scheme:         scheme.Scheme,
		Client:         testClient(),
		HealthProbe:    probes.WithDefaults(),
		ConnectBackoff: backoff,
		Logger: funcr.New(func(_, args string) {
			if _, rest, ok := strings.Cut(args, `"msg"="Not connected"`); ok {
				_, reason, _ := strings.Cut(rest, `"reason"="`)
				reason, _, _ = strings.Cut(reason, `"`)
				d.mu.Lock()
				defer d.mu.Unlock()
				d.reasons = append(d.reasons, reason)
			}
		}, funcr.Options{}),
		Wake:  func(key client.ObjectKey) { d.wake <- key },
		Leads: leads,
		Changed: func(object client.Object) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.changes = append(d.changes, object.GetName())
		},
	}
	for _, change := range changes {
		change(&options)
	}
	d.Set = NewSet(options)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	if f != nil {
		running.Go(func() {
			f.Watch(ctx, func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				for name := range d.tokens {
					d.wake <- client.ObjectKey{Name: name}
				}
			})
		})
	}
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case key := <-d.wake:
				if again := d.reconcile(key.Name); again > 0 {
					timer := time.AfterFunc(again, func() { d.wake <- key })
					context.AfterFunc(ctx, func() { timer.Stop() })
				}
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return d
}

func (d *driver) reconcile(name string) time.Duration {
	d.mu.Lock()
	_, exists := d.tokens[name]
	others := d.others[name]
	uid := "uid-" + name + d.uidSuffixes[name]
	d.mu.Unlock()
	if !exists {
		d.Remove(client.ObjectKey{Name: name}, Deleted)
		return 0
	}
	if others {
		d.RemoveNotOwned(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}})
		return 0
	}
	term := d.fence.Term()
	if term.Err() != nil {
		d.LeaseEnded(client.ObjectKey{Name: name})
		return 0
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
	resolution, err := d.resolver.Resolve(d.t.Context(), object)
	d.mu.Lock()
	resolution.UntrustedServer, resolution.Impersonated = d.untrustedServer, d.impersonated
	if d.sharable { // as those of ServiceAccounts
		resolution.Sharable, resolution.Version = true, ""
	}
	d.mu.Unlock()
	return d.Reconcile(object, resolution, err, term)
}

// extension creates an extension, or changes its token.
func (d *driver) extension(name, token string) {
	d.mu.Lock()
	d.tokens[name] = token
	d.mu.Unlock()
	d.wake <- client.ObjectKey{Name: name}
}

// deleteExtension deletes an extension and waits until the set has removed it.
func (d *driver) deleteExtension(name string) {
	d.t.Helper()
	d.mu.Lock()
	delete(d.tokens, name)
	d.mu.Unlock()
	d.wake <- client.ObjectKey{Name: name}
	NewWithT(d.t).Eventually(func() bool { _, known := d.At(client.ObjectKey{Name: name}).State(); return known }).
		WithTimeout(patience).Should(BeFalse())
}

func (d *driver) eventually(name string, matcher any) State {
	d.t.Helper()
	var state State
	NewWithT(d.t).Eventually(func() State {
		state, _ = d.At(client.ObjectKey{Name: name}).State()
		return state
	}).WithTimeout(patience).WithPolling(time.Millisecond).Should(Satisfy(matcher))
	return state
}

func (d *driver) changed() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.changes...)
}

// disconnectReasons returns the reasons of the disconnects so far.
func (d *driver) disconnectReasons() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.reasons...)
}

func testClient() ClientOptions {
	return ClientOptions{Config: rest.Config{Timeout: 5 * time.Second, QPS: 100, Burst: 100, UserAgent: "test"}}
}

// message returns what the state says to people.
func message(s State) string { return connstate.ErrorText(s.Err) }

func connectedAs(user string) func(State) bool {
	return func(s State) bool {
		return s.Phase == connstate.PhaseConnected && s.Identity.Username == user
	}
}

func disconnectedFor(reason connstate.Reason) func(State) bool {
	return func(s State) bool { return s.Phase == connstate.PhaseDisconnected && s.Reason == reason }
}

var errDown = errors.New("down")

var (
	fastProbes = connstate.ProbeOptions{
		Interval:         20 * time.Millisecond,
		IdentityInterval: 20 * time.Millisecond,
		Timeout:          2 * time.Second,
		FailureThreshold: 3,
	}
	rareProbes = connstate.ProbeOptions{
		Interval:         time.Hour,
		IdentityInterval: time.Hour,
		Timeout:          2 * time.Second,
		FailureThreshold: 3,
	}
	noRetry        = wait.Backoff{Duration: time.Hour, Steps: 1}
	immediateRetry = wait.Backoff{Duration: 10 * time.Millisecond, Steps: 1}
)

// The result of a connect that ends after the extension changed its identity must not be published.
func TestLateConnectChangesNothing(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	blocked, release := make(chan struct{}), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	t.Cleanup(unblock) // also if the test fails, so that the server can close
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if token == "old" {
			close(blocked)
			<-release
		}
		return http.StatusCreated, authenticationv1.UserInfo{Username: token}
	})
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "old")
	<-blocked
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	a.mu.Lock()
	late := a.attempt
	a.mu.Unlock()

	d.extension("red", "new")
	state := d.eventually("red", connectedAs("new"))
	unblock()
	// The old connect was cancelled. Pass its answer to the machine as if the answer had been under
	// way.
	conn := connection.New(d.life, &d.tasks, &d.connections, connection.Extension{Key: a.key}, 7,
		late.membership.Target, late.credential, connection.Observers{})
	conn.SetIdentity(connstate.Identity{Username: "old"})
	a.step(lifecycle.AttemptFinished{
		Attempt: late.Attempt,
		Answer:  lifecycle.Answer{Verdict: healthprobe.Valid, Identity: conn.Identity()},
	}, eventPayload{conn: conn})
	g.Eventually(conn.Err).Should(MatchError(connstate.ErrNotConnected), "a connection that is not published is closed")
	current, _ := d.At(a.key).State()
	g.Expect(current.Identity).To(Equal(state.Identity))
	g.Expect(current.Epoch).To(BeEquivalentTo(1))
	g.Expect(current.Since).To(Equal(state.Since))
}

// No extension connects as another identity than expected, even with a valid credential.
func TestUnexpectedIdentity(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid-red"}}
	d.mu.Lock()
	d.tokens["red"] = "token"
	d.mu.Unlock()
	resolution, err := d.resolver.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	resolution.Expected = connstate.Identity{Username: "user-of-token", UID: "another"}
	d.Set.Reconcile(object, resolution, nil, nil)
	g.Eventually(d.disconnectReasons).WithTimeout(patience).Should(Equal([]string{"IdentityMismatch"}))
	state, _ := d.At(client.ObjectKey{Name: "red"}).State()
	g.Expect(state.Epoch).To(BeZero())
}

// A 403 to the review does not end a connection: an API server that has just started denies
// permitted requests.
func TestDeniedReview(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		if r.reviews.Load() < 2 {
			return http.StatusForbidden, authenticationv1.UserInfo{}
		}
		return http.StatusCreated, authenticationv1.UserInfo{Username: "red"}
	})
	d := drive(t, r.URL, fastProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("red"))

	r.status(http.StatusForbidden)
	reviewsBefore := r.reviews.Load()
	g.Eventually(r.reviews.Load).WithTimeout(patience).Should(BeNumerically(">", reviewsBefore+5))
	state := d.eventually("red", connectedAs("red"))
	g.Expect(state.Epoch).To(BeEquivalentTo(1))
	g.Expect(state.Health.ConsecutiveFailures).To(BeZero())
	g.Expect(apierrors.IsForbidden(state.Health.LastError)).
		To(BeTrue(), "the state shows the error: %v", state.Health.LastError)
}

// After a 401 to the review the accessor disconnects at once and connects again at once. If that
// connect fails, the accessor backs off.
func TestUnauthorizedReview(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	old, err := d.At(client.ObjectKey{Name: "red"}).GetClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())

	var rejections atomic.Int32
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		if rejections.Add(1) == 1 {
			return http.StatusUnauthorized, authenticationv1.UserInfo{}
		}
		return http.StatusCreated, authenticationv1.UserInfo{Username: "user-of-" + token, UID: "uid-of-" + token}
	})
	state := d.eventually("red", func(s State) bool {
		return s.Phase == connstate.PhaseConnected && s.Epoch == 2
	})
	g.Expect(state.Health.ConsecutiveFailures).To(BeZero())
	g.Expect(old.Get(t.Context(), client.ObjectKey{Name: "x"}, &corev1.Node{})).To(MatchError(connstate.ErrNotConnected))
	g.Eventually(d.disconnectReasons).WithTimeout(patience).Should(Equal([]string{"Unauthorized"}))

	r.status(http.StatusUnauthorized)
	d.eventually("red", disconnectedFor(connstate.ReasonUnauthorized))
	g.Eventually(func() bool { // the connect that follows at once has failed too
		a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
		a.mu.Lock()
		defer a.mu.Unlock()
		return time.Until(a.machine.Deadline(time.Now(), a.observedLocked())) > time.Minute
	}).WithTimeout(patience).Should(BeTrue())
}

// A user other than the one stated at the connect is another identity: the connection ends, and
// another one begins.
func TestIdentityThatChanges(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated, authenticationv1.UserInfo{Username: "user-of-token", UID: "another"}
	})
	state := d.eventually("red", func(s State) bool {
		return s.Phase == connstate.PhaseConnected && s.Identity.UID == "another"
	})
	g.Expect(state.Epoch).To(BeEquivalentTo(2))
	g.Eventually(d.disconnectReasons).WithTimeout(patience).Should(Equal([]string{"IdentityMismatch"}))
}

// Errors of the server are not the same as Unauthorized: the connection ends after FailureThreshold
// probes.
func TestFailingReviews(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, immediateRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	r.status(http.StatusInternalServerError)
	previous := r.reviews.Load()
	d.eventually("red", func(s State) bool { return s.Phase != connstate.PhaseConnected })
	g.Expect(r.reviews.Load() - previous).To(BeNumerically(">=", fastProbes.FailureThreshold))
	d.eventually("red", disconnectedFor(connstate.ReasonProbeFailed))
	r.answers(func(string) (int, authenticationv1.UserInfo) {
		return http.StatusCreated, authenticationv1.UserInfo{Username: "back"}
	})
	d.eventually("red", connectedAs("back"))
}

// An API that answers every request with 401, as an aggregated one may, ends no connection and
// causes one probe per Interval.
func TestUnauthorizedElsewhere(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL,
		connstate.ProbeOptions{
			Interval:         200 * time.Millisecond,
			IdentityInterval: time.Hour,
			Timeout:          time.Second,
			FailureThreshold: 3,
		}, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	config, err := d.At(client.ObjectKey{Name: "red"}).GetRESTConfig(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections() // the transport that client-go uses without TLS
	begin := time.Now()
	g.Eventually(func() int32 {
		resp, err := httpClient.Get(r.URL + "/apis/metrics.example.test/v1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
		g.Expect(resp.StatusCode).To(Equal(http.StatusUnauthorized))
		return r.reviews.Load()
	}).WithTimeout(patience).WithPolling(time.Millisecond).Should(BeNumerically(">=", 4))
	intervals := int32(time.Since(begin)/(200*time.Millisecond)) + 1
	g.Expect(r.reviews.Load()-1).To(BeNumerically("<=", intervals), "probes, without the review of the connect")
	g.Expect(d.eventually("red", connectedAs("user-of-token")).Epoch).To(BeEquivalentTo(1))
}

// When a target is silent, one member probes on behalf of all, and all members are disconnected
// together. When one member gets an answer, all members connect again, however long their own
// backoff.
func TestSilentTarget(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL,
		connstate.ProbeOptions{
			Interval:         50 * time.Millisecond,
			IdentityInterval: time.Hour,
			Timeout:          100 * time.Millisecond,
			FailureThreshold: 3,
		}, noRetry)
	names := []string{"red", "green", "blue", "yellow", "violet", "grey"}
	for _, name := range names {
		d.extension(name, name)
	}
	for _, name := range names {
		d.eventually(name, connectedAs("user-of-"+name))
	}
	silence := make(chan struct{})
	endSilence := sync.OnceFunc(func() { close(silence) })
	t.Cleanup(endSilence) // also if the test fails, so that the server can close
	reviewsBefore := r.reviews.Load()
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		<-silence
		return http.StatusCreated, authenticationv1.UserInfo{Username: "user-of-" + token}
	})
	for _, name := range names {
		state := d.eventually(name, disconnectedFor(connstate.ReasonUnreachable))
		g.Expect(state.Health.ConsecutiveFailures).To(BeNumerically(">=", 3))
	}
	g.Expect(r.reviews.Load()-reviewsBefore).To(BeNumerically("<=", 5), "one probe per interval, not one per member")

	endSilence()
	d.extension("red", "first") // one connects because its token changed, the others back off for an hour
	d.eventually("red", connectedAs("user-of-first"))
	for _, name := range names[1:] {
		d.eventually(name, connectedAs("user-of-"+name))
	}
}

// A removed extension leaves no target, no state and no usable credential behind.
func TestRemoveLeavesNothing(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	old, err := d.At(client.ObjectKey{Name: "red"}).GetUncachedClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.shared.targets.List()).To(HaveLen(1))
	a, _ := d.byKey.Load(client.ObjectKey{Name: "red"})
	a.mu.Lock()
	cred := a.credentials[0]
	a.mu.Unlock()

	d.deleteExtension("red")
	d.deleteExtension("red") // a second deletion has no effect
	g.Eventually(d.shared.targets.List).WithTimeout(patience).Should(BeEmpty())
	g.Expect(d.States()).To(BeEmpty())
	g.Eventually(d.changed).WithTimeout(patience).Should(Equal([]string{"red", "red"}), "connected, and removed")
	_, err = cred.RoundTripper(http.DefaultTransport).RoundTrip(httptest.NewRequest(http.MethodGet, r.URL, nil))
	g.Expect(err).To(MatchError(credential.ErrInvalidCredential), "the credential is closed")
	err = old.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	g.Expect(err).To(MatchError(connstate.ErrNotConnected))
	g.Expect(err).To(MatchError(ContainSubstring("Deleted")))
}

// Clients that a caller builds from the REST config act as the identity, whatever the caller adds
// to the config. Such clients send requests to the API server of the identity only.
func TestRESTConfigKeepsItsIdentity(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	config := func() *rest.Config {
		config, err := d.At(client.ObjectKey{Name: "red"}).GetRESTConfig(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return config
	}
	var otherServerRequests atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { otherServerRequests.Add(1) }))
	defer other.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections() // the transport that client-go uses without TLS

	// The API server would authenticate a client certificate instead of the token.
	certificate := &tls.Config{Certificates: []tls.Certificate{{}}}
	withCertificate := config().WrapTransport(&http.Transport{TLSClientConfig: certificate})
	_, err := withCertificate.RoundTrip(httptest.NewRequest(http.MethodGet, r.URL, nil))
	g.Expect(err).To(MatchError(ContainSubstring("client certificate")))

	// Another host receives no request.
	movedConfig := config()
	movedConfig.Host = other.URL
	httpClient, err := rest.HTTPClientFor(movedConfig)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = httpClient.Get(other.URL)
	g.Expect(err).To(MatchError(ContainSubstring("is not sent")))

	// The other host receives no request after a redirect either.
	r.redirect.Store(&other.URL)
	httpClient, err = rest.HTTPClientFor(config())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = httpClient.Get(r.URL + "/redirected")
	g.Expect(err).To(MatchError(ContainSubstring("is not sent")))
	entireCluster, err := d.At(client.ObjectKey{Name: "red"}).GetCluster(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	resp, err := entireCluster.GetHTTPClient().Get(r.URL + "/redirected")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
	g.Expect(resp.StatusCode).To(Equal(http.StatusFound), "the caller receives the redirect")
	g.Expect(resp.Request.Header).NotTo(HaveKey("Authorization"), "a response does not carry the token")
	g.Expect(otherServerRequests.Load()).To(BeZero())
}

// The token of a request does not appear in messages if the server echoes the request.
func TestEchoedSecret(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	r.echo.Store(true)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "hunter2-hunter2")
	state := d.eventually("red", disconnectedFor(connstate.ReasonProbeFailed))
	g.Expect(message(state)).To(ContainSubstring("[redacted]"))
	_, err := d.At(client.ObjectKey{Name: "red"}).GetClient(t.Context())
	g.Expect(fmt.Sprintf("%s %+v %v", message(state), err, state)).NotTo(ContainSubstring("hunter2"))
}

// A review without a user name fails.
func TestEmptyIdentity(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	r.answers(func(string) (int, authenticationv1.UserInfo) { return http.StatusCreated, authenticationv1.UserInfo{} })
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	g.Expect(message(d.eventually("red", disconnectedFor(connstate.ReasonProbeFailed)))).
		To(ContainSubstring("stated no user name"))
}

// While a cache cannot be read, a connection continues only if the extension still references the
// same ServiceAccount.
func TestUnreadableServiceAccount(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid-red"}}
	d.Reconcile(object, identity.Resolution{}, errDown, nil)
	d.eventually("red", connectedAs("user-of-token"))
	d.Reconcile(object, identity.Resolution{ServiceAccount: types.NamespacedName{Namespace: "another", Name: "one"}},
		errDown, nil)
	g.Eventually(d.disconnectReasons).WithTimeout(patience).Should(Equal([]string{"Unreachable"}))
	d.eventually("red", func(s State) bool { return s.Epoch == 2 || s.Phase != connstate.PhaseConnected })
}

// An extension that was deleted and created again between two reconciles is another extension. The
// connection of the first one ends.
func TestRecreatedExtension(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, rareProbes, noRetry)
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	old, err := d.At(client.ObjectKey{Name: "red"}).GetUncachedClient(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	d.mu.Lock()
	d.uidSuffixes["red"] = "-again"
	d.mu.Unlock()
	d.wake <- client.ObjectKey{Name: "red"}
	state := d.eventually("red", func(s State) bool {
		return s.Phase == connstate.PhaseConnected && s.UID == "uid-red-again"
	})
	g.Expect(state.Epoch).To(BeEquivalentTo(1))
	err = old.Get(t.Context(), client.ObjectKey{Name: "x"}, &corev1.Node{})
	g.Expect(err).To(MatchError(ContainSubstring("Deleted")))
}

// An extension that appears while the set ends has no connection afterwards.
func TestReconcileDuringShutdown(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	resolver, err := credential.FromRESTConfigMapper(func(_ context.Context, _ client.Object,
		base *rest.Config) (*rest.Config, error) {
		base.BearerToken = "token"
		return base, nil
	}).Bind(host{config: &rest.Config{Host: r.URL}}, identity.Kind{}, nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	var s *Set
	reconcile := func(name string) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		resolution, err := resolver.Resolve(t.Context(), object)
		g.Expect(err).NotTo(HaveOccurred())
		s.Reconcile(object, resolution, nil, nil)
	}
	s = NewSet(Options{
		Scheme:         scheme.Scheme,
		Client:         testClient(),
		HealthProbe:    rareProbes.WithDefaults(),
		ConnectBackoff: noRetry,
		Logger:         logr.Discard(),
		Wake: func(
			client.ObjectKey) {
		},
		Changed: func(object client.Object) {
			if state, _ := s.At(client.ObjectKeyFromObject(object)).State(); object.GetName() == "first" &&
				state.Phase == connstate.PhaseDisconnected {
				reconcile("late") // a worker that still runs while the first extension is removed
			}
		},
	})
	reconcile("first")
	g.Eventually(func() connstate.Phase {
		state, _ := s.At(client.ObjectKey{Name: "first"}).State()
		return state.Phase
	}).
		WithTimeout(patience).Should(Equal(connstate.PhaseConnected))
	ended, end := context.WithCancel(t.Context())
	end()
	g.Expect(s.Run(ended)).To(Succeed())
	g.Expect(context.Cause(s.life)).To(MatchError(connstate.ErrNotConnected), "what requests of a late connection return")
	g.Expect(s.shared.targets.List()).To(BeEmpty())
	reconcile("after")
	g.Expect(s.shared.targets.List()).To(BeEmpty())
	for _, name := range []string{"first", "late", "after"} {
		_, err := s.At(client.ObjectKey{Name: name}).GetClient(t.Context())
		g.Expect(err).To(MatchError(connstate.ErrNotConnected))
		g.Expect(err).To(MatchError(ContainSubstring("extension " + name)))
	}
}

// The machine of a connection knows how many connections use its target, so that their probes
// together are bounded.
func TestMembersAreCounted(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, noRetry)
	members := func() int {
		a, err := d.find(client.ObjectKey{Name: "red"})
		g.Expect(err).NotTo(HaveOccurred())
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.observedLocked().Members
	}
	d.extension("red", "token")
	d.eventually("red", connectedAs("user-of-token"))
	g.Expect(members()).To(Equal(1))
	d.extension("blue", "other")
	d.eventually("blue", connectedAs("user-of-other"))
	g.Expect(members()).To(Equal(2))
	d.deleteExtension("blue")
	g.Eventually(members).WithTimeout(patience).Should(Equal(1))
}

// A getter allocates nothing: host operators ask for the client in each Reconcile.
func TestGettersAllocateNothing(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	d := drive(t, r.URL, fastProbes, noRetry)
	d.extension("red", "red")
	d.eventually("red", connectedAs("user-of-red"))
	red := client.ObjectKey{Name: "red"}
	for name, get := range map[string]func() error{
		"GetClient":         func() error { _, err := d.At(red).GetClient(t.Context()); return err },
		"GetReader":         func() error { _, err := d.At(red).GetReader(t.Context()); return err },
		"GetUncachedClient": func() error { _, err := d.At(red).GetUncachedClient(t.Context()); return err },
	} {
		g.Expect(get()).To(Succeed())
		g.Expect(testing.AllocsPerRun(100, func() { _ = get() })).To(BeZero(), name)
	}
}
