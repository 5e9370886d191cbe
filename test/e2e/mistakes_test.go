package e2e

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// message is what an error must say: what is wrong, where, and what to do.
type message struct{ what, where, advice string }

func (m message) expect(t *testing.T, text string) {
	t.Helper()
	for _, part := range []string{m.what, m.where, m.advice} {
		NewWithT(t).Expect(text).To(ContainSubstring(part))
	}
	NewWithT(t).Expect(text).NotTo(ContainSubstring("panic"))
	NewWithT(t).Expect(len(text)).To(BeNumerically("<", 1200), "a message that people read")
}

// TestLikelyMistakesAtSetup makes the likeliest mistakes of authors, one at a time.
// SetupWithManager returns an error that says what is wrong, where, and what to do.
func TestLikelyMistakesAtSetup(t *testing.T) {
	waitForSchema(t, clustercache.ClusterExtensionGVK)
	guarded := clustercache.Options{AllowIdentity: clustercache.GuardedByAdmission}
	for name, tc := range map[string]struct {
		mistake func(*clustercache.Options)
		want    message
	}{
		"a Name in capitals": {func(o *clustercache.Options) { o.Name = "Tenants" },
			message{"must consist of", `Options.Name "Tenants"`, "lower-case letters"}},
		"no UserAgent": {func(o *clustercache.Options) { o.Client.UserAgent = "" },
			message{"must be set", "Options.Client.UserAgent", "logs of API servers show it for the host operator"}},
		"a UserAgent of two lines": {func(o *clustercache.Options) { o.Client.UserAgent = "a\nb" },
			message{"control characters", "Options.Client.UserAgent", "must be one line"}},
		"nil guard": {func(o *clustercache.Options) { o.AllowIdentity = nil },
			message{"anyone who may write an extension could act as any ServiceAccount", "Options.AllowIdentity",
				"set GuardedByAdmission"}},
		"a guard that nothing calls": {func(o *clustercache.Options) {
			o.Credentials = credential.KubeconfigSecrets(credential.KubeconfigOptions{
				Namespace: "x",
				Allow:     credential.SecretsGuardedByAdmission,
			})
		}, message{"would never be called", "Options.AllowIdentity", "guard in credential.KubeconfigOptions.Allow"}},
		"a kind without a definition": {func(o *clustercache.Options) {
			o.Object = objectOf(corev1.SchemeGroupVersion.WithKind("Gadget"))
		}, message{"does not serve", "Kind=Gadget", "install its CustomResourceDefinition"}},
		"a type that the scheme does not know": {func(o *clustercache.Options) {
			o.Object, o.Cluster = &appsv1.Deployment{}, nil
			o.Scheme = runtime.NewScheme()
			o.Client.Cache.DisableFor = []client.Object{&appsv1.Deployment{}}
		}, message{"no kind is registered", "Options.Client.Cache.DisableFor", "v1.Deployment"}},
		"a typo in a path": {func(o *clustercache.Options) {
			o.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{
				NamePath: "spec.serviceAcount.name",
			})
		}, message{"has no field spec.serviceAcount.name", "Options.Credentials: NamePath", "spec has "}},
		"a short lifetime": {func(o *clustercache.Options) {
			o.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{Lifetime: time.Minute})
		}, message{"Lifetime is 1m0s", "Options.Credentials", "minimum of 10m0s"}},
		"Secrets of a namespace without a guard": {func(o *clustercache.Options) {
			o.AllowIdentity = nil
			o.Credentials = credential.KubeconfigSecrets(credential.KubeconfigOptions{Namespace: "x"})
		}, message{"anyone who may write an extension", "Options.Credentials", "set Allow"}},
		"Secrets of a cluster-scoped kind": {func(o *clustercache.Options) {
			o.AllowIdentity = nil
			o.Credentials = credential.KubeconfigSecrets(credential.KubeconfigOptions{})
		},
			message{"is cluster-scoped", "Options.Credentials",
				"set Namespace to the namespace of its Secrets, or set Reference"}},
		"a provider that is nil": {func(o *clustercache.Options) {
			o.Credentials = credential.Choose(func(client.Object) (string, error) { return "x", nil },
				map[string]credential.Provider{"x": nil})
		}, message{"is nil", "Options.Credentials", `the provider "x" of Choose`}},
		"paths and a function": {func(o *clustercache.Options) {
			o.Credentials = credential.ServiceAccountTokens(credential.ServiceAccountOptions{
				NamePath:  "spec.x",
				Reference: func(client.Object) (client.ObjectKey, error) { return client.ObjectKey{}, nil },
			})
		},
			message{"Reference returns the ServiceAccount", "Options.Credentials",
				"NamespacePath and NamePath must be empty"}},
		"namespaces of a kind": {func(o *clustercache.Options) {
			o.Cache.ByObject = map[client.Object]cache.ByObject{
				&corev1.Secret{}: {Namespaces: map[string]cache.Config{"x": {}, "": {}}},
			}
		}, message{"must not have the empty name", "Options.Cache.ByObject[*v1.Secret]", "leave Namespaces out"}},
		"two indexes of one name": {func(o *clustercache.Options) {
			o.Cache.Indexes = []clustercache.CacheOptionsIndex{
				clustercache.NodeProviderIDIndex, clustercache.NodeProviderIDIndex,
			}
		}, message{"already", "Options.Cache: Indexes", `field "spec.providerID"`}},
		"a negative interval": {func(o *clustercache.Options) { o.HealthProbe.Interval = -1 },
			message{"may be negative", "Options.HealthProbe", "no field"}},
	} {
		t.Run(name, func(t *testing.T) {
			options := quick(guarded)
			tc.mistake(&options)
			err := setUpExactly(t, options, unnamed())
			NewWithT(t).Expect(err).To(HaveOccurred())
			tc.want.expect(t, err.Error())
		})
	}
	t.Run("a second ClusterCache", func(t *testing.T) {
		g := NewWithT(t)
		_ = setUpExactly(t, quick(guarded), controller.Options{}) // the first one in this process takes the name
		err := setUpExactly(t, quick(guarded), controller.Options{})
		g.Expect(err).To(HaveOccurred())
		message{"already exists", "clustercache", "Options.Name"}.expect(t, err.Error())

		o := newOperator(t, guarded)
		defer utilnet.CloseIdleConnectionsFor(o.mgr.GetHTTPClient().Transport)
		_, err = clustercache.SetupWithManager(t.Context(), o.mgr, quick(guarded), unnamed())
		g.Expect(err).To(HaveOccurred())
		message{"already", `"clustercache"`, "Options.Name"}.expect(t, err.Error())
	})
}

// setUpExactly returns the error of SetupWithManager for exactly these options.
func setUpExactly(t *testing.T, options clustercache.Options, controllerOptions controller.Options) error {
	t.Helper()
	restConfig, err := cp.UserConfig(operatorUser)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(restConfig, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport)
	_, err = clustercache.SetupWithManager(t.Context(), mgr, options, controllerOptions)
	return err
}

// TestLikelyMistakesAtRunTime makes the likeliest mistakes of users and authors at run time.
func TestLikelyMistakesAtRunTime(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	tenant(t, ns, "fine")
	c := newFakeController(t)
	o := newOperator(t, clustercache.Options{})

	text := func(err error) string {
		t.Helper()
		NewWithT(t).Expect(err).To(HaveOccurred())
		return err.Error()
	}
	_, err := o.GetClient(ctx, key("fine"))
	message{"not connected (NotStarted)", "extension fine", "not seen yet, deleted, or filtered out"}.expect(t, text(err))
	watcher := clustercache.NewWatcher(c.watch("early", &corev1.ConfigMap{}, ns))
	message{"not connected (NotStarted)", "extension fine", "not seen yet"}.expect(t,
		text(o.Watch(ctx, key("fine"), watcher)))

	o.start(t)
	create(t, extension(ns, "typo"))
	create(t, extension("not_a_namespace", "malformed"))
	o.waitConnected(t, "fine")
	fine, err := o.GetClient(ctx, key("fine"))
	g.Expect(err).NotTo(HaveOccurred())
	message{"not found", ns + "/typo", "serviceaccount"}.expect(t,
		strings.ToLower(o.waitReason(t, "typo", clustercache.ReasonServiceAccountNotFound).Message))
	message{"is not a valid namespace", "spec.namespace", "not_a_namespace"}.expect(t,
		o.waitReason(t, "malformed", clustercache.ReasonInvalidReference).Message)

	message{"cannot list", "deployments", "apps"}.expect(t,
		text(fine.List(ctx, &appsv1.DeploymentList{}, client.InNamespace(ns))))
	for problem, change := range map[string]func(*clustercache.WatcherOptions){
		"a watch needs a Name":                func(o *clustercache.WatcherOptions) { o.Name = "" },
		`watch "x" needs a Watcher`:           func(o *clustercache.WatcherOptions) { o.Watcher = nil },
		`watch "x" needs a Kind`:              func(o *clustercache.WatcherOptions) { o.Kind = nil },
		`watch "x" needs an EventHandler`:     func(o *clustercache.WatcherOptions) { o.EventHandler = nil },
		`watch "x": Object 'Kind' is missing`: func(o *clustercache.WatcherOptions) { o.Kind = metadataOf("") },
	} {
		options := c.watch("x", &corev1.ConfigMap{}, ns)
		change(&options)
		g.Expect(o.Watch(ctx, key("fine"), clustercache.NewWatcher(options))).To(MatchError(ContainSubstring(problem)))
	}
	g.Expect(o.Watch(ctx, key("fine"), clustercache.NewWatcher(c.watch("taken", &corev1.ConfigMap{}, ns)))).To(Succeed())
	conflict := o.Watch(ctx, key("fine"), clustercache.NewWatcher(c.watch("taken", &corev1.Secret{}, ns)))
	g.Expect(conflict).To(MatchError(clustercache.ErrWatchConflict))
	message{"ConfigMap", `"taken"`, "Secret"}.expect(t, conflict.Error())
	for _, name := range []string{"fine", "typo", "unknown"} { // whatever the state: no time heals it
		_, err = o.For(ctx, configMap("", name)).GetClient(ctx)
		message{"the object is a *v1.ConfigMap", "Options.Object", "ClusterExtension"}.expect(t, text(err))
		g.Expect(err).NotTo(MatchError(clustercache.ErrNotConnected))
		_, err = o.GetClient(ctx, client.ObjectKey{Namespace: ns, Name: name})
		message{"has a namespace", "cluster-scoped", "client.ObjectKeyFromObject"}.expect(t, text(err))
		g.Expect(err).NotTo(MatchError(clustercache.ErrNotConnected))
	}
}

// TestLikelyMistakesWithKubeconfigs names Secrets that do not fit.
func TestLikelyMistakesWithKubeconfigs(t *testing.T) {
	ns := namespace(t)
	grantOperatorSecrets(t, ns, "wrongkey", "nosecret", "program", "text")
	o := startRemoteOperator(t, ns)
	wrongKey := kubeconfigSecret(ns, "wrongkey", kubeconfigOf(t, clientcmdapi.AuthInfo{Token: "x"}))
	wrongKey.Data = map[string][]byte{"kubeconfig": wrongKey.Data["value"]}
	create(t, wrongKey)
	create(t, kubeconfigSecret(ns, "program", kubeconfigOf(t, clientcmdapi.AuthInfo{
		Exec: &clientcmdapi.ExecConfig{
			Command:         "login",
			APIVersion:      "client.authentication.k8s.io/v1",
			InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}})))
	create(t, kubeconfigSecret(ns, "text", []byte("hello")))
	for name, want := range map[string]message{
		"wrongkey": {"does not have this key", "secret " + ns + "/wrongkey-kubeconfig", "value"},
		"nosecret": {"does not exist", "secret " + ns + "/nosecret-kubeconfig", "key value"},
		"program":  {"exec", "secret " + ns + "/program-kubeconfig", "key value"},
		"text":     {"kubeconfig", "secret " + ns + "/text-kubeconfig", "key value"},
	} {
		create(t, extension(ns, name))
		want.expect(t, o.waitReason(t, name, clustercache.ReasonInvalidCredential).Message)
	}
}
