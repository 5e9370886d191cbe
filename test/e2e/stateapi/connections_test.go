package stateapi

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/extension"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// operator is a host operator with a state API behind the API server.
type operator struct {
	*served
	connections clustercache.ClusterCache
}

// startOperator starts a manager with a ClusterCache and its state API.
func startOperator(t *testing.T) *operator {
	t.Helper()
	g := NewWithT(t)
	s := newServed(t)
	s.allow(t)
	mgr, err := ctrl.NewManager(cp.Config(), ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	skip := true
	connections, err := clustercache.SetupWithManager(t.Context(), mgr, clustercache.Options{
		AllowIdentity: clustercache.GuardedByAdmission, Client: clustercache.ClientOptions{UserAgent: "state-test"},
		HealthProbe: healthprobe.Options{Interval: 100 * time.Millisecond,
			IdentityInterval: 300 * time.Millisecond},
	}, controller.Options{SkipNameValidation: &skip})
	g.Expect(err).NotTo(HaveOccurred())
	clients, err := kubernetes.NewForConfig(s.config)
	g.Expect(err).NotTo(HaveOccurred())
	certificate, key, err := s.authority.Issue(certs.Request{Hosts: []string{"rooms.rooms.svc"}, ValidFor: time.Hour})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := dynamiccertificates.NewStaticCertKeyContent("state", certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	api, err := stateapi.New(connections, stateapi.Options{Server: extension.ExtensionAPIServerOptions{Client: clients,
		Listener: s.listener, Certificate: content}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mgr.Add(api)).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	s.ended = ended
	go func() {
		defer close(ended)
		s.err = mgr.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		NewWithT(t).Expect(s.err).NotTo(HaveOccurred())
	})
	s.service, s.group = "v1alpha1.state.latchkey.dev", v1alpha1.GroupVersion.Group
	s.register(t)
	return &operator{served: s, connections: connections}
}

// tenant creates an extension that names the ServiceAccount deployer in the namespace.
func tenant(t *testing.T, name, namespace string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"namespace": namespace,
		"serviceAccount": map[string]any{"name": "deployer"}}}}
	object.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	object.SetName(name)
	create(t, object)
	return object
}

func deployer(t *testing.T, namespace string) *corev1.ServiceAccount {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "deployer"}}
	create(t, account)
	return account
}

// What people on call ask: who is connected as whom, who is not and why, and since when.
func TestConnections(t *testing.T) {
	g := NewWithT(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	account := deployer(t, "a")
	o := startOperator(t)
	tenant(t, "team-a", "a")
	teamB := tenant(t, "team-b", "b")
	table := func(args ...string) func() string {
		return func() string { return tryKubectl(t, append([]string{"get", "connections"}, args...)...) }
	}
	eventually(t, table()).Should(And(
		MatchRegexp(`^NAME +IDENTITY +STATE +REASON +PROBED +SCOPES +AGE\n`),
		MatchRegexp(`\nteam-a +system:serviceaccount:a:deployer +Connected +\d+s +0 +\d+s\n`),
		MatchRegexp(`\nteam-b +system:serviceaccount:b:deployer +Disconnected +ServiceAccountNotFound +(\d+s +)?0 +\d+s\n`)))
	g.Expect(table("-o", "wide")()).To(MatchRegexp(`\nteam-a .* https://127.0.0.1:\d+/? .*serviceaccount a/deployer +1 `))
	g.Expect(table("--field-selector=status.state=Disconnected", "-o", "name")()).
		To(Equal("connection.state.latchkey.dev/team-b\n"))
	g.Expect(table("--field-selector=status.reason=ServiceAccountNotFound", "-o", "name")()).To(ContainSubstring("team-b"))
	g.Expect(table("-l", v1alpha1.ExtensionUIDLabel+"="+string(teamB.GetUID()), "-o", "name")()).
		To(Equal("connection.state.latchkey.dev/team-b\n"))
	g.Expect(kubectlFails(t, "get", "conn", "--field-selector=status.epoch=1")).To(ContainSubstring("BadRequest"))
	g.Expect(strings.Fields(kubectl(t, "api-resources", "--api-group=state.latchkey.dev", "-o", "wide", "--no-headers"))).
		To(Equal([]string{"connections", "conn", "state.latchkey.dev/v1alpha1", "false", "Connection", "get,list,watch",
			"scopes", "state.latchkey.dev/v1alpha1", "false", "Scope", "get,list,watch"}))

	for _, feature := range []string{"true", "false"} {
		environment := []string{"KUBE_FEATURE_WatchListClient=" + feature}
		wait := func(args ...string) *background {
			return kubectlBackground(t, environment, append([]string{"wait", "--timeout=60s"}, args...)...)
		}
		eventually(t, wait("--for=condition=Connected", "connection/team-a").done).Should(Receive(BeNil()), "true already")
		eventually(t, wait("--for=condition=Connected=false", "connection/team-b").done).Should(Receive(BeNil()))
		later := wait("--for=condition=Connected", "connection/team-b")
		accountB := deployer(t, "b")
		eventually(t, later.done).Should(Receive(BeNil()), later.output.String)
		g.Expect(admin.Delete(t.Context(), accountB)).To(Succeed())
		eventually(t, wait("--for=condition=Connected=false", "connection/team-b").done).Should(Receive(BeNil()))
	}

	watchBegan := watchesSince(t)
	one := kubectlBackground(t, nil, "get", "connection", "team-a", "-w", "--no-headers")
	eventually(t, one.lines).Should(HaveExactElements(ContainSubstring(" Connected ")))
	eventually(t, watchBegan("/connections?")).Should(BeNumerically(">=", 1))
	g.Expect(admin.Delete(t.Context(), account)).To(Succeed())
	eventually(t, one.lines).Should(ContainElement(MatchRegexp(` Disconnected +ServiceAccountNotFound `)))
	g.Expect(kubectl(t, "get", "connection", "team-a", "-o",
		`jsonpath={.status.conditions[?(@.type=="Healthy")].reason}`)).To(Equal("NotConnected"))

	gone := kubectlBackground(t, nil, "wait", "--for=delete", "--timeout=60s", "connection/team-b")
	g.Expect(admin.Delete(t.Context(), teamB)).To(Succeed())
	eventually(t, gone.done).Should(Receive(BeNil()))
	g.Expect(o.connections.ListConnectionStates(t.Context())).To(HaveLen(1))
}

// Probes show their time, and make no new versions.
func TestProbesAreNoChanges(t *testing.T) {
	g := NewWithT(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "probed"}})
	deployer(t, "probed")
	startOperator(t)
	tenant(t, "probed", "probed")
	get := func() (c v1alpha1.Connection) {
		g.Expect(json.Unmarshal([]byte(kubectl(t, "get", "connection", "probed", "-o", "json")), &c)).To(Succeed())
		return c
	}
	eventually(t, func() string { out, _ := cp.Kubectl(t.Context(), "get", "connections", "-o", "wide"); return out }).
		Should(ContainSubstring(" Connected "))
	first := get()
	g.Expect(first.Status.Probe.LastTime).NotTo(BeNil())
	g.Expect(*first.Status.Objects).To(BeZero())
	eventually(t, func() time.Time { return get().Status.Probe.LastTime.Time }).
		Should(BeTemporally(">", first.Status.Probe.LastTime.Time))
	later := get()
	g.Expect(later.ResourceVersion).To(Equal(first.ResourceVersion))
	g.Expect(later.Status.Conditions).To(Equal(first.Status.Conditions))
}

// Scopes show which kind a tenant may not read, and that a Role ends it.
func TestScopes(t *testing.T) {
	g := NewWithT(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "scoped"}})
	deployer(t, "scoped")
	o := startOperator(t)
	tenant(t, "scoped", "scoped")
	key := client.ObjectKey{Name: "scoped"}
	watcher := clustercache.NewWatcher(clustercache.WatcherOptions{Name: "content", Kind: &corev1.ConfigMap{},
		Scope: clustercache.Scope{Namespace: "scoped"}, Watcher: fake.NewController(t),
		EventHandler: &handler.EnqueueRequestForObject{}})
	eventually(t, func() error { return o.connections.Watch(t.Context(), key, watcher) }).Should(Succeed())
	scopes := func(selector string) func() string {
		return func() string { return tryKubectl(t, "get", "scopes", "--no-headers", "--field-selector="+selector) }
	}
	eventually(t, scopes("status.state=Forbidden")).
		Should(MatchRegexp(`^scoped-[0-9a-f]{10} +scoped +ConfigMap +scoped +Forbidden +Forbidden `))
	name := strings.Fields(scopes("status.extension=scoped")())[0]
	g.Expect(scopes("status.reason=Forbidden,status.extension=other")()).To(BeEmpty())
	g.Expect(kubectl(t, "get", "connection", "scoped", "-o",
		"jsonpath={.status.forbiddenScopes} {.status.watches[0].name}")).To(Equal("1 content"))

	create(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "scoped", Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}}}})
	create(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "scoped", Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "scoped", Name: "deployer"}}})
	eventually(t, scopes("status.state=Synced")).WithTimeout(2*time.Minute).Should(HavePrefix(name+" "), "the same name")
	eventually(t, func() string {
		return tryKubectl(t, "get", "scope", name, "-o", "jsonpath={.status.objects} {.status.dependents[0]}")
	}).Should(Equal("1 content"), "the ConfigMap kube-root-ca.crt")
	o.connections.Unwatch(t.Context(), key, "content")
	eventually(t, scopes("status.extension=scoped")).Should(BeEmpty())

	eventually(t, func() error { _, err := cp.Kubectl(t.Context(), "explain", "connection"); return err }).
		WithTimeout(2 * time.Minute).Should(Succeed())
	for path, says := range map[string]string{
		"connection.status.identity.username": "Name of the user",
		"connection.status.probe.failures":    "since the last success",
		"connection.status.watches.namespace": "Empty for all namespaces", "scope.status.dependents": "Who holds the scope",
		"connection.status.conditions.lastTransitionTime": "last time the condition transitioned",
	} {
		g.Expect(kubectl(t, "explain", path)).To(ContainSubstring(says), path)
	}
}

// jwt is the beginning of a token.
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10}`)

// No answer has a token, a key or a kubeconfig.
func TestNoSecretIsShown(t *testing.T) {
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "secretive"}})
	deployer(t, "secretive")
	startOperator(t)
	tenant(t, "secretive", "secretive")
	eventually(t, func() string { out, _ := cp.Kubectl(t.Context(), "get", "connections"); return out }).
		Should(ContainSubstring(" Connected "))
	for _, args := range [][]string{{"get", "connections", "-o", "yaml"}, {"get", "connection", "secretive", "-o", "json"},
		{"get", "scopes", "-o", "yaml"}, {"get", "--raw", "/apis/state.latchkey.dev/v1alpha1/connections"},
		{"get", "connections", "-o", "wide"}, {"describe", "connections"}} {
		NewWithT(t).Expect(kubectl(t, args...)).NotTo(Or(MatchRegexp(jwt.String()), ContainSubstring("PRIVATE KEY")),
			strings.Join(args, " "))
	}
	NewWithT(t).Expect("Bearer eyJhbGciOiJSUzI1NiIs").To(MatchRegexp(jwt.String()), "the check detects a token")
}
