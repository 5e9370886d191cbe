package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	serverspdy "k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// oldToken is the age after which a refused token is replaced, with a margin.
const oldToken = 11 * time.Second

// waitOld waits until tokens that were issued before since are older than oldToken.
func waitOld(t *testing.T, since time.Time) {
	t.Helper()
	NewWithT(t).Eventually(func() time.Duration { return time.Since(since) }).WithTimeout(patience).
		Should(BeNumerically(">", oldToken))
}

// startFaultyOperator starts a host operator that reaches the API server through f, and returns its
// token too.
func startFaultyOperator(t *testing.T, f *faults, options clustercache.Options) (o *operator, operatorToken string) {
	t.Helper()
	config, operatorToken := f.operatorConfig(t)
	options.AllowIdentity = clustercache.GuardedByAdmission
	o = newOperatorAt(t, config, options)
	o.also = append(o.also, f.quiet)
	return o.start(t), operatorToken
}

// tokensIssued counts the tokens of a ServiceAccount that the API server issued to the operator.
func tokensIssued(events []auditEvent, namespace, name string) (n int) {
	for _, event := range events {
		if event.Stage == "ResponseComplete" && event.what() == "create serviceaccounts/token" &&
			event.ObjectRef.Namespace == namespace && event.ObjectRef.Name == name &&
			event.ResponseStatus.Code == http.StatusCreated && event.User.Username != adminUser {
			n++
		}
	}
	return n
}

// answered notes the status of an answer.
type answered struct {
	http.ResponseWriter
	status int
}

func (a *answered) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// TestFiveHundredAtOnce sends 500 writes at once. In one round the API server refuses the current
// token for one write, and in the next round for all. Each round leads to one TokenRequest, and
// every write is applied once.
func TestFiveHundredAtOnce(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "busy")
	f := newFaults(t)
	o, operatorToken := startFaultyOperator(t, f,
		clustercache.Options{
			Client: clustercache.ClientOptions{UserAgent: userAgent, QPS: 10000, Burst: 10000, Timeout: patience},
		})
	o.waitConnected(t, "busy")
	begin := time.Now()
	c, err := o.GetUncachedClient(t.Context(), key("busy"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { return c.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)) }).
		WithTimeout(patience).Should(Succeed())

	post := func(round string) {
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				object := configMap(ns, fmt.Sprintf("%s-%d", round, i))
				object.Labels = map[string]string{"round": round}
				if err := c.Create(t.Context(), object); err != nil {
					t.Errorf("%s: %v", object.Name, err)
				}
			})
		}
		wg.Wait()
		list := &corev1.ConfigMapList{}
		g.Expect(admin.List(t.Context(), list, client.InNamespace(ns), client.MatchingLabels{"round": round})).To(Succeed())
		g.Expect(list.Items).To(HaveLen(500), round)
	}

	waitOld(t, begin)
	once := time.Now()
	var forced, posts atomic.Int32
	one := func(req *http.Request) int {
		if isPost(req, "configmaps") {
			posts.Add(1)
			if forced.CompareAndSwap(0, 1) {
				return http.StatusUnauthorized
			}
		}
		return 0
	}
	// client-go sends a write again that a busy API server put off.
	var putOff atomic.Int32
	count := func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		answer := &answered{ResponseWriter: w}
		next.ServeHTTP(answer, req)
		if isPost(req, "configmaps") && answer.status == http.StatusTooManyRequests {
			putOff.Add(1)
		}
	}
	f.pass.Store(&count)
	f.answer.Store(&one)
	post("one")
	g.Expect(posts.Load()-putOff.Load()).To(BeEquivalentTo(501), "one request was sent again; the server put off %d",
		putOff.Load())
	g.Expect(tokensIssued(auditLog(t, once), ns, "busy")).To(Equal(1))
	f.answer.Store(nil)

	waitOld(t, time.Now())
	all := time.Now()
	f.revoke(operatorToken)
	post("all")
	g.Expect(tokensIssued(auditLog(t, all), ns, "busy")).To(Equal(1))
	g.Expect(o.state("busy").Epoch).To(BeEquivalentTo(1), "the refusals disconnect no extension")
}

// TestAggregatedAPIThatRefusesEveryone covers an aggregated API that refuses every caller. Such a
// refusal proves nothing about a token. No extension is disconnected, and there is no storm of
// TokenRequests or probes.
func TestAggregatedAPIThatRefusesEveryone(t *testing.T) {
	g := NewWithT(t)
	var refusals atomic.Int32
	quiet := aggregate(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refusals.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	ns := namespace(t)
	names := []string{"ann", "bob"}
	lasts := testenv.Long(12*time.Second, 25*time.Second)
	for _, name := range names {
		tenant(t, ns, name)
	}
	o := startOperator(t,
		clustercache.Options{
			Client: clustercache.ClientOptions{UserAgent: userAgent, QPS: 50, Burst: 50},
			HealthProbe: healthprobe.Options{
				Interval:         2 * time.Second,
				IdentityInterval: time.Hour,
				Timeout:          2 * time.Second,
				FailureThreshold: 2,
			},
		})
	o.also = append(o.also, quiet)
	before := map[string]clustercache.ConnectionState{}
	for _, name := range names {
		before[name] = o.waitConnected(t, name)
	}
	begin := time.Now()
	var wg sync.WaitGroup
	for _, name := range names {
		c, err := o.GetUncachedClient(t.Context(), key(name))
		g.Expect(err).NotTo(HaveOccurred())
		for range 4 {
			wg.Go(func() {
				for time.Since(begin) < lasts {
					list := &unstructured.UnstructuredList{}
					list.SetGroupVersionKind(thing)
					if err := c.List(t.Context(), list, client.InNamespace("default")); !apierrors.IsUnauthorized(err) {
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	g.Expect(refusals.Load()).To(BeNumerically(">", 200))
	probes := map[string]int{}
	events := auditLog(t, begin)
	took := time.Since(begin)
	for _, event := range events {
		if event.Stage == "ResponseComplete" && event.ObjectRef.Resource == "selfsubjectreviews" {
			_, name, _ := strings.Cut(event.UserAgent, " extension/")
			probes[name]++
		}
	}
	for _, name := range names {
		after := o.state(name)
		g.Expect(after.Phase).To(Equal(clustercache.PhaseConnected), name)
		g.Expect(after.Since).To(Equal(before[name].Since), name)
		g.Expect(tokensIssued(events, ns, name)).
			To(And(BeNumerically(">=", 1), BeNumerically("<=", int(took/(10*time.Second))+1)), name+": refreshes")
		g.Expect(probes[name]).To(And(BeNumerically(">=", 1), BeNumerically("<=", int(took/(2*time.Second))+1)),
			name+": probes")
	}
	t.Logf("%d requests refused in %s", refusals.Load(), took)
}

// TestRESTConfigInOtherHands checks the clients that a caller creates from a connection's config.
// Each client acts as the connection's identity, and continues when the token is replaced. The
// clients are a clientset, a dynamic client, a plain HTTP client, and one that upgrades its TCP
// connection. exec and port-forward upgrade in this way.
func TestRESTConfigInOtherHands(t *testing.T) {
	g := NewWithT(t)
	quiet := aggregate(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		conn := serverspdy.NewResponseUpgrader().UpgradeResponse(w, req, func(httpstream.Stream, <-chan struct{}) error {
			return nil
		})
		if conn != nil {
			<-conn.CloseChan()
		}
	}))
	f := newFaults(t)
	ns := namespace(t)
	ways := map[string]func(*rest.Config) error{
		"clientset": func(config *rest.Config) error {
			clientset, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			defer closeIdle(clientset.CoreV1().RESTClient())
			_, err = clientset.CoreV1().ConfigMaps(ns).Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}}, metav1.CreateOptions{})
			return err
		},
		"dynamic": func(config *rest.Config) error {
			c, err := dynamic.NewForConfigAndClient(config, httpClientFor(t, config))
			if err != nil {
				return err
			}
			_, err = c.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(ns).
				List(t.Context(), metav1.ListOptions{})
			return err
		},
		"plain": func(config *rest.Config) error {
			resp, err := httpClientFor(t, config).Get(config.Host + "/api/v1/namespaces/" + ns + "/configmaps")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("status %s", resp.Status)
			}
			return nil
		},
		"upgrade": func(config *rest.Config) error {
			transport, upgrader, err := spdy.RoundTripperFor(config)
			if err != nil {
				return err
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, config.Host+things, nil)
			if err != nil {
				return err
			}
			conn, _, err := spdy.Negotiate(upgrader, &http.Client{Transport: transport}, req, "v4.channel.k8s.io")
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}
	for way := range ways {
		tenant(t, ns, way)
	}
	o, operatorToken := startFaultyOperator(t, f, clustercache.Options{})
	o.also = append(o.also, quiet)
	uids := map[string]types.UID{}
	for way := range ways {
		uids[way] = o.waitConnected(t, way).Identity.UID
	}
	begin := time.Now()
	use := func(way string) {
		config, err := o.GetRESTConfig(t.Context(), key(way))
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() error { return ways[way](config) }).WithTimeout(patience).Should(Succeed(), way)
	}
	for way := range ways {
		use(way)
	}
	waitOld(t, begin)
	revoked := time.Now()
	f.revoke(operatorToken)
	for way, try := range ways {
		config, err := o.GetRESTConfig(t.Context(), key(way))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(try(config)).To(Succeed(), way+", at the first attempt")
		// A caller's changes to a config do not affect other callers.
		config.Host, config.UserAgent, config.WrapTransport, config.Timeout = "https://elsewhere.invalid", "changed", nil,
			time.Nanosecond
		clear(config.CAData)
		use(way)
		g.Expect(tokensIssued(auditLog(t, revoked), ns, way)).To(Equal(1), way)
		g.Expect(o.state(way).Epoch).To(BeEquivalentTo(1), way)
	}
	served := map[string]int{}
	for _, event := range auditLog(t, begin) {
		_, way, isConnection := strings.Cut(event.UserAgent, userAgent+" extension/")
		if !isConnection || event.Stage != "ResponseComplete" && event.Stage != "ResponseStarted" {
			continue
		}
		g.Expect(event.User.Username).To(Equal("system:serviceaccount:"+ns+":"+way), event.String())
		g.Expect(event.User.UID).To(Equal(uids[way]), event.String())
		g.Expect(event.ImpersonatedUser).To(BeNil(), event.String())
		if event.ObjectRef.Resource == "configmaps" || event.ObjectRef.Resource == "things" {
			served[way]++
		}
	}
	for way := range ways {
		g.Expect(served[way]).To(BeNumerically(">=", 3), way)
	}
}
