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
	"github.com/latchkey-dev/latchkey/internal/testenv"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

const (
	patience = testenv.Patience
	// often is a AccessReviewInterval with which tests do not wait for the default's minute.
	often = 500 * time.Millisecond
	// never is a AccessReviewInterval that does not come.
	never = time.Hour
)

var (
	env       testenv.Env
	cp        *controlplane.ControlPlane
	admin     client.Client
	adminHTTP *http.Client
)

func TestMain(m *testing.M) {
	verbose := flag.Bool("cache-log", false, "print what the caches log")
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

// user is an identity that may nothing but what a test grants it.
type user struct {
	name   string
	config *rest.Config
	sent   *requests
}

var users atomic.Int64

func newUser(t testing.TB) *user {
	t.Helper()
	u := &user{name: fmt.Sprintf("user-%d", users.Add(1)), sent: &requests{}}
	var err error
	u.config, err = cp.UserConfig(u.name)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	u.config.QPS = -1
	u.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &counting{next: next, sent: u.sent}
	})
	return u
}

// counting notes the requests that it passes on.
type counting struct {
	next http.RoundTripper
	sent *requests
}

func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	c.sent.note(req)
	resp, err := c.next.RoundTrip(req)
	if err == nil {
		c.sent.noteDenial(req, resp)
	}
	return resp, err
}

// WrappedRoundTripper lets idle connections be closed.
func (c *counting) WrappedRoundTripper() http.RoundTripper { return c.next }

// requests count what was sent.
type requests struct {
	mu      sync.Mutex
	lists   map[string]int // guarded by mu; lists by path and selectors, also those that watches begin with
	asked   int            // guarded by mu; access reviews
	denials int            // guarded by mu; 403, and access reviews that say no
}

// noteDenial looks at an answer. That of an access review is short.
func (r *requests) noteDenial(req *http.Request, resp *http.Response) {
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
		r.denials++
	}
}

func (r *requests) denied() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.denials
}

func (r *requests) note(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	query := req.URL.Query()
	switch {
	case strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews"):
		r.asked++
	case req.Method == http.MethodGet && (query.Get("watch") == "" || query.Get("sendInitialEvents") == "true"):
		if r.lists == nil {
			r.lists = map[string]int{}
		}
		r.lists[req.URL.Path+" "+query.Get("labelSelector")]++
	}
}

// of counts the lists of paths that end so.
func (r *requests) of(suffix string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, count := range r.lists {
		if strings.HasSuffix(strings.TrimSuffix(path, " "), suffix) {
			n += count
		}
	}
	return n
}

// grants is a Role or ClusterRole that is bound to a user.
type grants struct{ role, binding client.Object }

// grant lets the user do that with a resource in a namespace, or everywhere if that is empty.
func (u *user) grant(t testing.TB, namespace, resource string, verbs ...string) *grants {
	t.Helper()
	group, resource := splitResource(resource)
	return u.grantRule(t, namespace,
		rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
}

// splitResource splits "widgets.example.com" and "configmaps".
func splitResource(resource string) (group, name string) {
	name, group, _ = strings.Cut(resource, ".")
	return group, name
}

func (u *user) grantRule(t testing.TB, namespace string, rule rbacv1.PolicyRule) *grants {
	t.Helper()
	made := &grants{}
	role := metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", u.name, users.Add(1))}
	subjects := []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: u.name}}
	if namespace == "" {
		made.role = &rbacv1.ClusterRole{ObjectMeta: role, Rules: []rbacv1.PolicyRule{rule}}
		made.binding = &rbacv1.ClusterRoleBinding{ObjectMeta: role,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}, Subjects: subjects}
	} else {
		made.role = &rbacv1.Role{ObjectMeta: role, Rules: []rbacv1.PolicyRule{rule}}
		made.binding = &rbacv1.RoleBinding{ObjectMeta: role,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}, Subjects: subjects}
	}
	g := NewWithT(t)
	g.Expect(admin.Create(context.Background(), made.role)).To(Succeed())
	g.Expect(admin.Create(context.Background(), made.binding)).To(Succeed())
	u.waitUntil(t, true, namespace, rule)
	return made
}

// waitUntil waits until the API server's authorizer has heard of a change.
func (u *user) waitUntil(t testing.TB, allowed bool, namespace string, rule rbacv1.PolicyRule) {
	t.Helper()
	for _, verb := range rule.Verbs {
		attributes := &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: rule.APIGroups[0], Version: "*", Resource: rule.Resources[0],
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

// revoke takes the right away. A grant gives it again.
func (r *grants) revoke(t testing.TB) {
	t.Helper()
	NewWithT(t).Expect(admin.Delete(context.Background(), r.binding)).To(Succeed())
	r.binding.SetResourceVersion("")
	r.binding.SetUID("")
}

// setVerbs changes what the role allows.
func (r *grants) setVerbs(t testing.TB, verbs ...string) {
	t.Helper()
	switch role := r.role.(type) {
	case *rbacv1.Role:
		role.Rules[0].Verbs = verbs
	case *rbacv1.ClusterRole:
		role.Rules[0].Verbs = verbs
	}
	NewWithT(t).Expect(admin.Update(context.Background(), r.role)).To(Succeed())
}

func (r *grants) again(t testing.TB) {
	t.Helper()
	NewWithT(t).Expect(admin.Create(context.Background(), r.binding)).To(Succeed())
}

// started is a cache that runs.
type started struct {
	scopedcache.Cache
	stop func() // and wait
}

// start starts a cache of the user. At the end of the test it is stopped and must leave nothing
// behind.
func (u *user) start(t testing.TB, options scopedcache.Options, opts cache.Options) *started {
	t.Helper()
	return u.startAt(t, u.config, options, opts)
}

// startAt starts a cache with another config.
func (u *user) startAt(t testing.TB, config *rest.Config, options scopedcache.Options, opts cache.Options) *started {
	t.Helper()
	g := NewWithT(t)
	before := testenv.NewGoroutines()
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	opts.HTTPClient = httpClient
	closeIdle = append(closeIdle, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	made, err := scopedcache.NewWithOptions(options)(config, opts)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- made.Start(ctx) }()
	s := &started{Cache: made.(scopedcache.Cache)}
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the cache ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the cache does not end")
		}
	})
	t.Cleanup(func() {
		s.stop()
		leftNothing(t, before)
	})
	g.Expect(made.WaitForCacheSync(ctx)).To(BeTrue())
	return s
}

// closeIdle close the TCP connections that clients of the tests keep.
var closeIdle []func()

func leftNothing(t testing.TB, before []goleak.Option) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		for _, f := range closeIdle {
			f()
		}
		utilnet.CloseIdleConnectionsFor(adminHTTP.Transport)
		return goleak.Find(before...)
	}).WithTimeout(patience).Should(Succeed(), "goroutines were left behind")
}

// namespace makes a namespace. Nothing deletes it: that takes a controller manager.
func namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "scopes-"}}
	NewWithT(t).Expect(admin.Create(context.Background(), ns)).To(Succeed())
	return ns.Name
}

// isFree tells whether nothing keeps an object. It does not return it, for Eventually keeps what it
// is given until the next time.
func isFree(object weak.Pointer[corev1.ConfigMap]) func() bool {
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

// names reads the names of the ConfigMaps in a namespace.
func (s *started) names(ctx context.Context, namespace string) ([]string, error) {
	list := &corev1.ConfigMapList{}
	if err := s.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return namesOf(list), nil
}

func namesOf(list client.ObjectList) []string {
	found := []string{} // not nil: nothing was found
	_ = meta.EachListItem(list, func(item apiruntime.Object) error {
		found = append(found, item.(client.Object).GetName())
		return nil
	})
	return found
}

// refused reads ConfigMaps and reports whether that is forbidden.
func (s *started) refused(ctx context.Context, namespace string) bool {
	_, err := s.names(ctx, namespace)
	return apierrors.IsForbidden(err)
}

// state is that of the scope of ConfigMaps in a namespace, "" if there is none.
func (s *started) state(namespace string) scopedcache.State {
	for _, state := range s.States() {
		if state.GVK.Kind == "ConfigMap" && state.Scope.Equal(scopedcache.Scope{Namespace: namespace}) {
			return state.State
		}
	}
	return ""
}

// reviews is how often the API server was asked what the user may.
func (r *requests) reviews() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}
