package stateapi

import (
	"context"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fake"
)

// A tenant says that nothing happens. For each cause, the first command of the runbook says how it
// is and the reason, and the second one names the cause, and says what to do.
func TestRunbook(t *testing.T) {
	g := NewWithT(t)
	r := newRunbook(t)
	thing := &unstructured.Unstructured{}
	thing.SetGroupVersionKind(schema.GroupVersionKind{Group: "none.example.com", Version: "v1", Kind: "Thing"})
	cases := []runbookCase{
		{"names-nothing", "Disconnected", "InvalidReference", "spec.serviceAccount.name", "Correct the field",
			func(t *testing.T, name string) { r.of(t, name, "Not A Name") }, nil},
		{"missing-account", "Disconnected", "ServiceAccountNotFound", "serviceaccount runbook/none", "Create it",
			func(t *testing.T, name string) { r.of(t, name, "none") }, nil},
		{"not-allowed", "Disconnected", "NotAllowed", "team-x may not use it", "otherwise name another",
			func(t *testing.T, name string) { r.of(t, name, "deployer") }, nil},
		{"no-token", "Disconnected", "TokenRequestFailed", `resourceNames: ["no-token"], verbs: ["create"]`,
			"grant the host operator the rule that the message names", func(t *testing.T, name string) {
				create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: runbookNamespace, Name: "no-token"}})
				r.of(t, name, "no-token")
			}, nil},
		{"kubeconfig-garbage", "Disconnected", "InvalidCredential", "cannot be parsed as a kubeconfig",
			"Correct the Secret", func(t *testing.T, name string) {
				r.secret(t, name, []byte("garbage"))
				r.of(t, name, "unused")
			}, nil},
		{"kubeconfig-unreadable", "Disconnected", "OperatorForbidden",
			"the host operator needs list and watch on that secret", "Grant the rule that the message names",
			func(t *testing.T, name string) { r.of(t, name, "unused") }, nil},
		{"server-rejects", "Disconnected", "Unauthorized", "Unauthorized", "Do the clocks agree?",
			func(t *testing.T, name string) {
				r.server(t, name, always(func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }))
			}, nil},
		{"impersonation-ignored", "Disconnected", "IdentityMismatch", "system:serviceaccount:runbook:deployer",
			"another server answers in the API server's place", func(t *testing.T, name string) {
				r.server(t, name, func(w http.ResponseWriter, req *http.Request, pass http.Handler) {
					req.Header.Del("Impersonate-User")
					pass.ServeHTTP(w, req)
				})
			}, nil},
		{"server-gone", "Disconnected", "Unreachable", "connection refused", "the network path to it",
			func(t *testing.T, name string) {
				gone, _ := r.listen(t, name, nil)
				gone.Close()
				r.of(t, name, "unused")
			}, nil},
		{"server-confused", "Disconnected", "ProbeFailed", "Internal Server Error", "Look at the API server",
			func(t *testing.T, name string) {
				r.server(t, name, always(func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }))
			}, nil},
		{"server-busy", "Disconnected", "Throttled", "Too Many Requests", "what overloads the API server",
			func(t *testing.T, name string) {
				r.server(t, name, always(func(w http.ResponseWriter) {
					w.Header().Set("Retry-After", "7")
					w.WriteHeader(http.StatusTooManyRequests)
				}))
			}, nil},
		{"server-hangs", "Connecting", "NotStarted", "", "Check the replica that leads",
			func(t *testing.T, name string) {
				release := make(chan struct{})
				r.server(t, name, func(_ http.ResponseWriter, req *http.Request, _ http.Handler) {
					select {
					case <-release:
					case <-req.Context().Done():
					}
				})
				t.Cleanup(func() { close(release) })
			}, nil},
		{"server-half-dead", "Degraded", "ProbesFailing", "Service Unavailable", "the network path to it",
			func(t *testing.T, name string) {
				change := r.server(t, name, nil)
				r.connected(t, name)
				change(always(func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }))
			}, nil},
		{"server-partial", "Degraded", "ScopesFailing", "ConfigMap in namespace runbook: ", "Read the message",
			func(t *testing.T, name string) {
				r.server(t, name, func(w http.ResponseWriter, req *http.Request, pass http.Handler) {
					if strings.HasSuffix(req.URL.Path, "/configmaps") {
						w.WriteHeader(http.StatusInternalServerError)
						return
					}
					pass.ServeHTTP(w, req)
				})
				r.connected(t, name)
				r.watch(t, name, &corev1.ConfigMap{})
			}, nil},
		{"kubeconfig-rotated", "Degraded", "CredentialNotUsed", "cannot be parsed as a kubeconfig", "Correct the Secret",
			func(t *testing.T, name string) {
				r.server(t, name, nil)
				r.connected(t, name)
				r.secret(t, name, []byte("garbage"))
			}, nil},
		{"may-not-watch", "Degraded", "ScopesForbidden", "Pod in namespace runbook: ", "role EXTENSION --missing",
			func(t *testing.T, name string) {
				r.of(t, name, "deployer")
				r.watch(t, name, &corev1.Pod{})
			}, []string{"- pods\n", "- watch\n"}},
		{"may-not-write", "Degraded", "RequestsRefused", "may not create configmaps in namespace runbook",
			"Grant the ServiceAccount what the message names", func(t *testing.T, name string) {
				r.of(t, name, "deployer")
				eventually(t, func() error {
					c, err := r.connections.GetClient(t.Context(), client.ObjectKey{Name: name})
					if err != nil {
						return err
					}
					return c.Create(t.Context(),
						&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: runbookNamespace, Name: "a"}})
				}).Should(Satisfy(apierrors.IsForbidden))
			}, []string{"- configmaps\n", "- create\n"}},
		{"no-such-kind", "Degraded", "KindsNotServed", "Thing.none.example.com in namespace runbook: ",
			"Install the CustomResourceDefinition", func(t *testing.T, name string) {
				r.of(t, name, "deployer")
				r.watch(t, name, thing)
			}, nil},
		{"fine", "Connected", "", "It is connected, and may read all that is asked for.", "",
			func(t *testing.T, name string) { r.of(t, name, "deployer") }, nil},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) { r.follow(t, test) })
	}
	g.Expect(reasonsTried(cases)).To(ConsistOf(reasonsOnPage(t)))
	g.Expect(tryKubectl(t, "get", fullName, "unknown")).To(ContainSubstring("not found"))
}

// runbookCase is a cause, and what the commands of the runbook say about it.
type runbookCase struct {
	name, state, reason, cause, advice string
	prepare                            func(t *testing.T, name string)
	role                               []string // what is in the role that is missing
}

// elsewhereTried are reasons that TestRunbook does not try, and why.
var elsewhereTried = map[string]string{
	"Stale":      "only errors of For have it",
	"Filtered":   "only handles from before have it",
	"Deleted":    "only handles from before have it",
	"NotLeading": "the state API is served by the replica that leads",
	"NotOwned":   "where replicas share, the view of all has other reasons",
	"NoReplica":  "TestAlertsOfTheView, in test/deploy",

	"ReplicaSilent": "TestView, in test/e2e/replicas",
}

func reasonsTried(cases []runbookCase) []string {
	all := slices.Collect(maps.Keys(elsewhereTried))
	for _, test := range cases {
		if test.reason != "" {
			all = append(all, test.reason)
		}
	}
	return all
}

// reasonsOnPage returns the reasons in the tables of docs/operations.md.
func reasonsOnPage(t *testing.T) (all []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/operations.md")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, table, _ := strings.Cut(string(page), "\n## Reasons\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(table, -1) {
		all = append(all, row[1])
	}
	return all
}

const runbookNamespace = "runbook"

// runbook is an operator with few permissions, whose extensions act as ServiceAccounts; or, if
// their names begin so, with kubeconfigs, at a server that may answer otherwise than the API
// server.
type runbook struct {
	*operator
	plugin func(args ...string) (string, error)
	token  string // of ServiceAccount deployer
}

// kubeconfigs are the extensions whose Secrets the operator may read.
var kubeconfigs = []string{"kubeconfig-garbage", "kubeconfig-rotated", "server-rejects", "server-gone",
	"server-confused", "server-busy", "server-hangs", "server-half-dead", "server-partial", "impersonation-ignored"}

func newRunbook(t *testing.T) *runbook {
	t.Helper()
	g := NewWithT(t)
	r := &runbook{plugin: buildPlugin(t)}
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: runbookNamespace}})
	account := deployer(t, runbookNamespace)
	allow(t, "readers", rbacv1.Subject{Kind: "ServiceAccount", Namespace: runbookNamespace, Name: account.Name},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}})
	request := &authenticationv1.TokenRequest{}
	g.Expect(admin.SubResource("token").Create(t.Context(), account, request)).To(Succeed())
	r.token = request.Status.Token
	const user = "runbook-operator"
	allowRunbook(t, user)
	config, err := cp.UserConfig(user)
	g.Expect(err).NotTo(HaveOccurred())
	r.operator = startOperatorAs(t, config, func(options *clustercache.Options) {
		options.Permissions.Record = true
		options.HealthProbe.FailureThreshold = 1 << 20
		options.AllowIdentity = func(_ context.Context, extension client.Object, _ types.NamespacedName) error {
			if extension.GetName() == "not-allowed" {
				return apierrors.NewBadRequest("team-x may not use it")
			}
			return nil
		}
		secrets := credential.KubeconfigOptions{
			Namespace: runbookNamespace,
			Allow:     credential.SecretsGuardedByAdmission,
		}
		impersonate := secrets
		impersonate.Impersonate = func(client.Object) (types.NamespacedName, error) {
			return types.NamespacedName{Namespace: runbookNamespace, Name: "other"}, nil
		}
		impersonate.AllowImpersonate = func(context.Context, client.Object, types.NamespacedName) error { return nil }
		options.Credentials = credential.Choose(func(object client.Object) (string, error) {
			prefix, _, _ := strings.Cut(object.GetName(), "-")
			switch prefix {
			case "kubeconfig", "server":
				return "kubeconfig", nil
			case "impersonation":
				return prefix, nil
			default:
				return "token", nil
			}
		}, map[string]credential.Provider{
			"token":         credential.ServiceAccountTokens(credential.ServiceAccountOptions{}),
			"kubeconfig":    credential.KubeconfigSecrets(secrets),
			"impersonation": credential.KubeconfigSecrets(impersonate),
		})
	})
	return r
}

// allowRunbook grants the operator what it needs, except a token of ServiceAccount no-token, and a
// Secret.
func allowRunbook(t *testing.T, user string) {
	t.Helper()
	subjects := []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}
	create(t, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups: []string{"latchkey.dev"},
				Resources: []string{"clusterextensions"},
				Verbs:     []string{"list", "watch"},
			},
			{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, Verbs: []string{"list", "watch"}},
		},
	})
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects:   subjects,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	})
	var names []string
	for _, name := range kubeconfigs {
		names = append(names, name+"-kubeconfig")
	}
	allow(t, user, subjects[0],
		rbacv1.PolicyRule{
			APIGroups:     []string{""},
			Resources:     []string{"secrets"},
			ResourceNames: names,
			Verbs:         []string{"list", "watch"},
		},
		rbacv1.PolicyRule{
			APIGroups:     []string{""},
			Resources:     []string{"serviceaccounts/token"},
			ResourceNames: []string{"deployer"},
			Verbs:         []string{"create"},
		})
}

// allow grants permissions in the namespace.
func allow(t *testing.T, role string, subject rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	t.Helper()
	in := metav1.ObjectMeta{Namespace: runbookNamespace, Name: role}
	create(t, &rbacv1.Role{ObjectMeta: in, Rules: rules})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: in,
		Subjects:   []rbacv1.Subject{subject},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	})
}

// follow takes the first two steps of the runbook.
func (r *runbook) follow(t *testing.T, test runbookCase) {
	g := NewWithT(t)
	test.prepare(t, test.name)
	eventually(t, func() []string {
		return strings.Fields(tryKubectl(t, "get", fullName, test.name, "--no-headers"))
	}).Should(ContainElements(strings.Fields(test.state + " " + test.reason)))
	text, err := r.plugin("why", test.name)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(And(ContainSubstring(test.state), ContainSubstring(test.cause), ContainSubstring(test.advice)))
	if test.reason != "" {
		g.Expect(text).To(MatchRegexp("Reason: +" + test.reason + "\n"))
	}
	for _, line := range test.role { // the third command
		text, err := r.plugin("role", test.name, "--missing")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(text).To(And(ContainSubstring("kind: Role\n"), ContainSubstring(line)))
	}
}

// of creates an extension that names a ServiceAccount.
func (r *runbook) of(t *testing.T, name, account string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"namespace": runbookNamespace,
		"serviceAccount": map[string]any{"name": account}}}}
	object.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	object.SetName(name)
	create(t, object)
}

// connected waits until the extension is connected.
func (r *runbook) connected(t *testing.T, name string) {
	t.Helper()
	eventually(t, func() error {
		_, err := r.connections.GetClient(t.Context(), client.ObjectKey{Name: name})
		return err
	}).Should(Succeed())
}

// watch lets a controller watch a kind for the extension.
func (r *runbook) watch(t *testing.T, name string, kind client.Object) {
	t.Helper()
	r.connected(t, name)
	NewWithT(t).Expect(r.connections.Watch(t.Context(), client.ObjectKey{Name: name},
		clustercache.NewWatcher(clustercache.WatcherOptions{
			Name:         "w",
			Watcher:      fake.NewController(t),
			Kind:         kind,
			EventHandler: &handler.EnqueueRequestForObject{},
			Scope:        clustercache.Scope{Namespace: runbookNamespace},
		}))).To(Succeed())
}

// secret creates or changes the extension's kubeconfig.
func (r *runbook) secret(t *testing.T, name string, kubeconfig []byte) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: runbookNamespace, Name: name + "-kubeconfig"},
		Data:       map[string][]byte{"value": kubeconfig},
	}
	if err := admin.Update(t.Context(), secret); !apierrors.IsNotFound(err) {
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return
	}
	create(t, secret)
}

// answer answers a request in the API server's place, which pass asks.
type answer func(w http.ResponseWriter, req *http.Request, pass http.Handler)

// always is an answer to all requests.
func always(f func(http.ResponseWriter)) answer {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { f(w) }
}

// server creates an extension with a kubeconfig for a server that answers so. The function that it
// returns changes the answer.
func (r *runbook) server(t *testing.T, name string, begin answer) (change func(answer)) {
	t.Helper()
	_, change = r.listen(t, name, begin)
	r.of(t, name, "unused")
	return change
}

// listen starts a server and creates the kubeconfig for it.
func (r *runbook) listen(t *testing.T, name string, begin answer) (s *httptest.Server, change func(answer)) {
	t.Helper()
	g := NewWithT(t)
	target, err := url.Parse(cp.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	tlsConfig, err := rest.TLSConfigFor(rest.AnonymousClientConfig(cp.Config()))
	g.Expect(err).NotTo(HaveOccurred())
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	pass := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // for watches
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	var answers atomic.Pointer[answer]
	change = func(to answer) { answers.Store(&to) }
	if begin == nil {
		begin = func(w http.ResponseWriter, req *http.Request, pass http.Handler) { pass.ServeHTTP(w, req) }
	}
	change(begin)
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		(*answers.Load())(w, req, pass)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		transport.CloseIdleConnections()
	})
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: s.URL, CertificateAuthorityData: authority}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": {Token: r.token}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	r.secret(t, name, kubeconfig)
	return s, change
}
