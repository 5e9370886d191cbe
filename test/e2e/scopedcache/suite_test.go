package scopedcache_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

const (
	patience = testenv.Patience
	// shortInterval is an AccessReviewInterval that saves tests the default wait of one minute.
	shortInterval = 500 * time.Millisecond
	// endlessInterval is an AccessReviewInterval that does not elapse during a test.
	endlessInterval = time.Hour
)

var (
	env       testenv.Env
	cp        *controlplane.ControlPlane
	admin     client.Client
	adminHTTP *http.Client
)

func TestMain(m *testing.M) {
	verbose := flag.Bool("cache-log", false, "print the log messages of the caches")
	flag.Parse()
	log := logr.Discard()
	if *verbose {
		log = zap.New(zap.UseDevMode(true))
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	os.Exit(testenv.Run(m, controlplane.Options{}, &env, func(context.Context) error {
		cp, admin, adminHTTP = env.ControlPlane, env.Admin, env.AdminHTTP
		return nil
	}))
}

// user is an identity. Its only permissions are those that a test grants.
type user struct {
	name     string
	config   *rest.Config
	requests *requestCounter
}

var users atomic.Int64

func newUser(t testing.TB) *user {
	t.Helper()
	u := &user{name: fmt.Sprintf("user-%d", users.Add(1)), requests: &requestCounter{}}
	var err error
	u.config, err = cp.UserConfig(u.name)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	u.config.QPS = -1
	u.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &countingTransport{next: next, requests: u.requests}
	})
	return u
}

// countingTransport counts the requests that it forwards, and the denials among the responses.
type countingTransport struct {
	next     http.RoundTripper
	requests *requestCounter
}

func (c *countingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	c.requests.countRequest(req)
	resp, err := c.next.RoundTrip(req)
	if err == nil {
		c.requests.countDenial(req, resp)
	}
	return resp, err
}

// WrappedRoundTripper returns the wrapped transport, so that callers can close its idle
// connections.
func (c *countingTransport) WrappedRoundTripper() http.RoundTripper { return c.next }

// requestCounter counts the requests of a user.
type requestCounter struct {
	mu sync.Mutex
	// listCounts has the number of list requests, by path and selectors, including those that begin
	// a watch. Guarded by mu.
	listCounts  map[string]int
	reviewCount int // guarded by mu; access reviews
	denialCount int // guarded by mu; responses with status 403, and access reviews that deny
}

// countDenial counts a response that denies access. countDenial reads the whole body of an access
// review's response, which is short.
func (r *requestCounter) countDenial(req *http.Request, resp *http.Response) {
	denied := resp.StatusCode == http.StatusForbidden
	if strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews") && resp.StatusCode == http.StatusCreated {
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(body))
		if err == nil {
			object, _, _ := clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
			review, ok := object.(*authorizationv1.SelfSubjectAccessReview)
			denied = ok && !review.Status.Allowed
		}
	}
	if denied {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.denialCount++
	}
}

func (r *requestCounter) denials() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.denialCount
}

func (r *requestCounter) countRequest(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	query := req.URL.Query()
	switch {
	case strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews"):
		r.reviewCount++
	case req.Method == http.MethodGet && (query.Get("watch") == "" || query.Get("sendInitialEvents") == "true"):
		if r.listCounts == nil {
			r.listCounts = map[string]int{}
		}
		r.listCounts[req.URL.Path+" "+query.Get("labelSelector")]++
	}
}

// lists returns the number of list requests whose path ends with suffix.
func (r *requestCounter) lists(suffix string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, count := range r.listCounts {
		if strings.HasSuffix(strings.TrimSuffix(path, " "), suffix) {
			n += count
		}
	}
	return n
}

// roleGrant is a Role or ClusterRole that is bound to a user.
type roleGrant struct{ role, binding client.Object }

// grant allows the user the verbs on a resource in a namespace. An empty namespace means all
// namespaces.
func (u *user) grant(t testing.TB, namespace, resource string, verbs ...string) *roleGrant {
	t.Helper()
	group, resource := splitResource(resource)
	return u.grantRule(t, namespace,
		rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
}

// splitResource splits a resource such as "widgets.example.com" or "configmaps" into group and
// name.
func splitResource(resource string) (group, name string) {
	name, group, _ = strings.Cut(resource, ".")
	return group, name
}

func (u *user) grantRule(t testing.TB, namespace string, rule rbacv1.PolicyRule) *roleGrant {
	t.Helper()
	created := &roleGrant{}
	role := metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", u.name, users.Add(1))}
	subjects := []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: u.name}}
	if namespace == "" {
		created.role = &rbacv1.ClusterRole{ObjectMeta: role, Rules: []rbacv1.PolicyRule{rule}}
		created.binding = &rbacv1.ClusterRoleBinding{
			ObjectMeta: role,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   subjects,
		}
	} else {
		created.role = &rbacv1.Role{ObjectMeta: role, Rules: []rbacv1.PolicyRule{rule}}
		created.binding = &rbacv1.RoleBinding{
			ObjectMeta: role,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
			Subjects:   subjects,
		}
	}
	g := NewWithT(t)
	g.Expect(admin.Create(context.Background(), created.role)).To(Succeed())
	g.Expect(admin.Create(context.Background(), created.binding)).To(Succeed())
	u.waitForAccess(t, true, namespace, rule)
	return created
}

// waitForAccess waits until the API server's authorizer has processed a change of permissions:
// until it allows, or denies, each verb of the rule.
func (u *user) waitForAccess(t testing.TB, allowed bool, namespace string, rule rbacv1.PolicyRule) {
	t.Helper()
	for _, verb := range rule.Verbs {
		attributes := &authorizationv1.ResourceAttributes{
			Namespace: namespace,
			Verb:      verb,
			Group:     rule.APIGroups[0],
			Version:   "*",
			Resource:  rule.Resources[0],
		}
		if len(rule.ResourceNames) > 0 {
			attributes.Name = rule.ResourceNames[0]
		}
		NewWithT(t).Eventually(func() (bool, error) {
			review := &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: u.name, ResourceAttributes: attributes},
			}
			err := admin.Create(context.Background(), review)
			return review.Status.Allowed, err
		}).WithTimeout(patience).WithPolling(5 * time.Millisecond).Should(Equal(allowed))
	}
}

// revoke deletes the binding.
func (r *roleGrant) revoke(t testing.TB) {
	t.Helper()
	NewWithT(t).Expect(admin.Delete(context.Background(), r.binding)).To(Succeed())
	r.binding.SetResourceVersion("")
	r.binding.SetUID("")
}

// setVerbs changes the verbs that the role allows.
func (r *roleGrant) setVerbs(t testing.TB, verbs ...string) {
	t.Helper()
	switch role := r.role.(type) {
	case *rbacv1.Role:
		role.Rules[0].Verbs = verbs
	case *rbacv1.ClusterRole:
		role.Rules[0].Verbs = verbs
	}
	NewWithT(t).Expect(admin.Update(context.Background(), r.role)).To(Succeed())
}

// restore creates the binding again, after revoke has deleted it.
func (r *roleGrant) restore(t testing.TB) {
	t.Helper()
	NewWithT(t).Expect(admin.Create(context.Background(), r.binding)).To(Succeed())
}

// runningCache is a started cache.
type runningCache struct {
	scopedcache.Cache
	stop func() // stops the cache and waits until it has ended
}

// start starts a cache of the user. At the end of the test it stops the cache, and fails the test
// if the cache leaves a goroutine behind.
func (u *user) start(t testing.TB, options scopedcache.Options, opts cache.Options) *runningCache {
	t.Helper()
	return u.startWithConfig(t, u.config, options, opts)
}

// startWithConfig is start with another config than the user's.
func (u *user) startWithConfig(t testing.TB, config *rest.Config, options scopedcache.Options,
	opts cache.Options) *runningCache {
	t.Helper()
	g := NewWithT(t)
	before := testenv.NewGoroutines()
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	opts.HTTPClient = httpClient
	idleClosers = append(idleClosers, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	runnable, err := scopedcache.NewWithOptions(options)(config, opts)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runnable.Start(ctx) }()
	s := &runningCache{Cache: runnable.(scopedcache.Cache)}
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the cache ended with an error: %v", err)
			}
		case <-time.After(patience):
			t.Error("the cache does not end after stop")
		}
	})
	t.Cleanup(func() {
		s.stop()
		expectNoLeakedGoroutines(t, before)
	})
	g.Expect(runnable.WaitForCacheSync(ctx)).To(BeTrue())
	return s
}

// idleClosers are functions that close the idle TCP connections of the tests' clients.
var idleClosers []func()

func expectNoLeakedGoroutines(t testing.TB, before []goleak.Option) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		for _, f := range idleClosers {
			f()
		}
		utilnet.CloseIdleConnectionsFor(adminHTTP.Transport)
		return goleak.Find(before...)
	}).WithTimeout(patience).Should(Succeed(), "goroutines were left behind")
}

// createNamespace creates a namespace with a generated name and returns that name. Tests do not
// delete namespaces, because the deletion needs a controller manager.
func createNamespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "scopes-"}}
	NewWithT(t).Expect(admin.Create(context.Background(), ns)).To(Succeed())
	return ns.Name
}

// isCollected returns a function that reports whether the garbage collector has freed the object.
// The function does not return the object, because Eventually keeps a returned value until the next
// call.
func isCollected(object weak.Pointer[corev1.ConfigMap]) func() bool {
	return func() bool {
		runtime.GC()
		return object.Value() == nil
	}
}

func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func create(t testing.TB, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		NewWithT(t).Expect(admin.Create(context.Background(), object)).To(Succeed())
	}
}

func remove(t testing.TB, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		NewWithT(t).Expect(admin.Delete(context.Background(), object)).To(Succeed())
	}
}

// names lists the ConfigMaps in a namespace and returns their names.
func (s *runningCache) names(ctx context.Context, namespace string) ([]string, error) {
	list := &corev1.ConfigMapList{}
	if err := s.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return namesOf(list), nil
}

func namesOf(list client.ObjectList) []string {
	found := []string{} // not nil, even if the list is empty
	_ = meta.EachListItem(list, func(item apiruntime.Object) error {
		found = append(found, item.(client.Object).GetName())
		return nil
	})
	return found
}

// isForbidden lists the ConfigMaps in a namespace and reports whether the cache returns Forbidden.
func (s *runningCache) isForbidden(ctx context.Context, namespace string) bool {
	_, err := s.names(ctx, namespace)
	return apierrors.IsForbidden(err)
}

// state returns the state of the scope of ConfigMaps in a namespace, "" if there is none.
func (s *runningCache) state(namespace string) scopedcache.State {
	for _, state := range s.States() {
		if state.GVK.Kind == "ConfigMap" && state.Scope.Equal(scopedcache.Scope{Namespace: namespace}) {
			return state.State
		}
	}
	return ""
}

// reviews returns the number of access reviews that the user sent.
func (r *requestCounter) reviews() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reviewCount
}
