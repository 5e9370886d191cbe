package stateapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
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
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/certs"
	"github.com/latchkey-dev/latchkey/stateapi"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// operator is a host operator with a state API behind the API server.
type operator struct {
	*served
	connections clustercache.ClusterCache
}

// startOperator starts a manager with a ClusterCache and its state API.
func startOperator(t *testing.T, changes ...func(*clustercache.Options)) *operator {
	t.Helper()
	return startOperatorAs(t, cp.Config(), changes...)
}

// startOperatorAs is startOperator for an operator with other permissions.
func startOperatorAs(t *testing.T, config *rest.Config, changes ...func(*clustercache.Options)) *operator {
	t.Helper()
	g := NewWithT(t)
	s := newServed(t)
	s.allow(t)
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	skip := true
	options := clustercache.Options{
		AllowIdentity: clustercache.GuardedByAdmission,
		Client:        clustercache.ClientOptions{UserAgent: "state-test"},
		HealthProbe: healthprobe.Options{
			Interval:         100 * time.Millisecond,
			IdentityInterval: 300 * time.Millisecond,
		},
	}
	for _, change := range changes {
		change(&options)
	}
	connections, err := clustercache.SetupWithManager(t.Context(), mgr, options,
		controller.Options{SkipNameValidation: &skip})
	g.Expect(err).NotTo(HaveOccurred())
	clients, err := kubernetes.NewForConfig(s.config)
	g.Expect(err).NotTo(HaveOccurred())
	certificate, key, err := s.authority.Issue(certs.Request{Hosts: []string{"rooms.rooms.svc"}, ValidFor: time.Hour})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := dynamiccertificates.NewStaticCertKeyContent("state", certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	api, err := stateapi.New(connections, stateapi.Options{
		Server: apiserver.ExtensionAPIServerOptions{Client: clients, Listener: s.listener, Certificate: content}})
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
// fullName is the full name of the resource: another program's state API can have the short ones.
const fullName = "connections.state.latchkey.dev"

func TestConnections(t *testing.T) {
	g := NewWithT(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	account := deployer(t, "a")
	o := startOperator(t)
	tenant(t, "team-a", "a")
	teamB := tenant(t, "team-b", "b")
	table := func(args ...string) func() string {
		return func() string { return tryKubectl(t, append([]string{"get", fullName}, args...)...) }
	}
	eventually(t, table()).Should(And(
		MatchRegexp(`^NAME +IDENTITY +STATE +REASON +PROBED +SCOPES +AGE\n`),
		MatchRegexp(`\nteam-a +system:serviceaccount:a:deployer +Connected +\d+s +0 +\d+s\n`),
		MatchRegexp(`\nteam-b +system:serviceaccount:b:deployer +Disconnected +ServiceAccountNotFound +(\d+s +)?0 +\d+s\n`)))
	g.Expect(table("-o", "wide")()).To(MatchRegexp(`\nteam-a .* https://127.0.0.1:\d+/? .*serviceaccount a/deployer +\d+s +1 `))
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
		eventually(t, wait("--for=condition=Connected", fullName+"/team-a").done).Should(Receive(BeNil()), "true already")
		eventually(t, wait("--for=condition=Connected=false", fullName+"/team-b").done).Should(Receive(BeNil()))
		later := wait("--for=condition=Connected", fullName+"/team-b")
		accountB := deployer(t, "b")
		eventually(t, later.done).Should(Receive(BeNil()), later.output.String)
		g.Expect(admin.Delete(t.Context(), accountB)).To(Succeed())
		eventually(t, wait("--for=condition=Connected=false", fullName+"/team-b").done).Should(Receive(BeNil()))
	}

	watchBegan := watchesSince(t)
	one := kubectlBackground(t, nil, "get", fullName, "team-a", "-w", "--no-headers")
	eventually(t, one.lines).Should(HaveExactElements(ContainSubstring(" Connected ")))
	eventually(t, watchBegan("/connections?")).Should(BeNumerically(">=", 1))
	g.Expect(admin.Delete(t.Context(), account)).To(Succeed())
	eventually(t, one.lines).Should(ContainElement(MatchRegexp(` Disconnected +ServiceAccountNotFound `)))
	g.Expect(kubectl(t, "get", "connection", "team-a", "-o",
		`jsonpath={.status.conditions[?(@.type=="Healthy")].reason}`)).To(Equal("NotConnected"))

	gone := kubectlBackground(t, nil, "wait", "--for=delete", "--timeout=60s", fullName+"/team-b")
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
	watcher := clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "content",
		Kind:         &corev1.ConfigMap{},
		Scope:        clustercache.Scope{Namespace: "scoped"},
		Watcher:      fake.NewController(t),
		EventHandler: &handler.EnqueueRequestForObject{},
	})
	eventually(t, func() error { return o.connections.Watch(t.Context(), key, watcher) }).Should(Succeed())
	scopes := func(selector string) func() string {
		return func() string {
			return tryKubectl(t, "get", "scopes.state.latchkey.dev", "--no-headers", "--field-selector="+selector)
		}
	}
	eventually(t, scopes("status.state=Forbidden")).
		Should(MatchRegexp(`^scoped-[0-9a-f]{10} +scoped +ConfigMap +scoped +Forbidden +Forbidden `))
	name := strings.Fields(scopes("status.extension=scoped")())[0]
	g.Expect(scopes("status.reason=Forbidden,status.extension=other")()).To(BeEmpty())
	g.Expect(kubectl(t, "get", "connection", "scoped", "-o",
		"jsonpath={.status.forbiddenScopes} {.status.watches[0].name}")).To(Equal("1 content"))

	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "scoped", Name: "reader"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}}},
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "scoped", Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "scoped", Name: "deployer"}},
	})
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
	g.Expect(kubectl(t, "explain", "connections.status", "--api-version=state.latchkey.dev/v1alpha1")).
		To(ContainSubstring("probe"))
	paths := slices.Concat(fieldPaths("connection", reflect.TypeFor[v1alpha1.Connection]()),
		fieldPaths("scope", reflect.TypeFor[v1alpha1.Scope]()))
	g.Expect(len(paths)).To(BeNumerically(">", 50))
	for _, path := range paths {
		g.Expect(kubectl(t, "explain", path)).
			To(And(MatchRegexp(`(?s)FIELD: \S+ <.*DESCRIPTION:\s+\S`), Not(ContainSubstring("<empty>"))), path)
	}
}

// fieldPaths returns the paths of all fields of a type, but for those of metadata.
func fieldPaths(prefix string, of reflect.Type) (paths []string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[metav1.Time]() || of == reflect.TypeFor[metav1.ObjectMeta]() {
		return nil
	}
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" { // inline
			paths = append(paths, fieldPaths(prefix, field.Type)...)
			continue
		}
		paths = append(append(paths, prefix+"."+name), fieldPaths(prefix+"."+name, field.Type)...)
	}
	return paths
}

// jwt is the beginning of a token.
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10}`)

// No answer and no event of a watch has a token, a key or a kubeconfig: neither the
// ServiceAccount's token, nor what is in the Secret of a tenant that has its own kubeconfig, in any
// encoding.
func TestNoSecretIsShown(t *testing.T) {
	g := NewWithT(t)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "secretive"}})
	deployer(t, "secretive")
	o := startOperator(t, func(o *clustercache.Options) {
		o.Credentials = credential.Choose(func(object client.Object) (string, error) {
			return map[bool]string{true: "kubeconfigs", false: "tokens"}[object.GetName() == "remote"], nil
		}, map[string]credential.Provider{
			"tokens": credential.ServiceAccountTokens(credential.ServiceAccountOptions{}),
			"kubeconfigs": credential.KubeconfigSecrets(credential.KubeconfigOptions{
				Namespace: "secretive",
				Allow:     credential.SecretsGuardedByAdmission,
			}),
		})
	})
	watch := kubectlBackground(t, nil, "get", "connections", "-w", "-o", "yaml")
	user, err := cp.UserConfig("remote-user")
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig := kubeconfigOf(t, user)
	secrets := []string{strings.TrimSpace(kubectl(t, "create", "token", "deployer", "-n", "secretive")), kubeconfig,
		string(user.KeyData), string(user.CertData)}
	create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "secretive", Name: "remote-kubeconfig"},
		StringData: map[string]string{"value": kubeconfig},
	})
	tenant(t, "secretive", "secretive")
	tenant(t, "remote", "secretive")
	eventually(t, func() string { return tryKubectl(t, "get", "connections") }).
		Should(And(MatchRegexp(`\nsecretive +\S+ +Connected `), MatchRegexp(`\nremote +remote-user +Connected `)))
	eventually(t, watch.output.String).Should(And(ContainSubstring("username: remote-user"),
		ContainSubstring("username: system:serviceaccount:secretive:deployer")))
	for _, name := range []string{"secretive", "remote"} {
		g.Expect(o.connections.Watch(t.Context(), client.ObjectKey{Name: name}, clustercache.NewWatcher(
			clustercache.WatcherOptions{
				Name:         "content",
				Kind:         &corev1.Secret{},
				Watcher:      fake.NewController(t),
				EventHandler: &handler.EnqueueRequestForObject{},
			}))).To(Succeed())
	}
	eventually(t, func() int { return strings.Count(tryKubectl(t, "get", "scopes", "-o", "yaml"), "state: Forbidden") }).
		Should(Equal(2))
	answers := []string{watch.output.String()}
	for _, args := range [][]string{{"get", "connections", "-o", "yaml"}, {"get", "connection", "secretive", "-o", "json"},
		{"get", "connection", "remote", "-o", "json"},
		{"get", "scopes", "-o", "yaml"}, {"get", "--raw", "/apis/state.latchkey.dev/v1alpha1/connections"},
		{"get", "connections", "-o", "wide"}, {"describe", "connections"}} {
		answers = append(answers, kubectl(t, args...))
	}
	for _, answer := range answers {
		g.Expect(shown(answer, secrets)).To(BeEmpty(), answer)
	}
	for _, leak := range []string{"Bearer " + secrets[0], base64.StdEncoding.EncodeToString(user.KeyData),
		string(user.KeyData), base64.StdEncoding.EncodeToString([]byte(kubeconfig)), "eyJhbGciOiJSUzI1NiIs.x"} {
		g.Expect(shown("text\n  "+leak+"\n", secrets)).NotTo(BeEmpty(), "the check detects it")
	}
}

// shown returns what of the secrets is in a text: any token, and parts of the secrets, as they are
// and in base64.
func shown(text string, secrets []string) (found []string) {
	if jwt.MatchString(text) {
		found = append(found, "a token")
	}
	for _, secret := range secrets {
		encoded := base64.StdEncoding.EncodeToString([]byte(secret))
		for _, form := range []string{secret, encoded} {
			middle := form[len(form)/2:][:30]
			if strings.Contains(text, middle) {
				found = append(found, middle)
			}
		}
	}
	return found
}

// kubeconfigOf returns a kubeconfig of a user with a client certificate.
func kubeconfigOf(t *testing.T, config *rest.Config) string {
	t.Helper()
	content, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "it",
		"contexts": []any{map[string]any{"name": "it", "context": map[string]any{"cluster": "it", "user": "it"}}},
		"clusters": []any{map[string]any{"name": "it", "cluster": map[string]any{"server": config.Host,
			"certificate-authority-data": config.CAData}}},
		"users": []any{map[string]any{"name": "it", "user": map[string]any{"client-certificate-data": config.CertData,
			"client-key-data": config.KeyData}}},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}
