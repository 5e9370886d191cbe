package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// kubeconfigOf returns a kubeconfig that reaches the API server of the tests as that user. Each
// function in change edits the cluster entry.
func kubeconfigOf(t *testing.T, user clientcmdapi.AuthInfo, change ...func(*clientcmdapi.Cluster)) []byte {
	t.Helper()
	server := clientcmdapi.Cluster{Server: cp.Config().Host, CertificateAuthorityData: cp.Config().CAData}
	for _, f := range change {
		f(&server)
	}
	content, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": &server},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": &user},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return content
}

// certificateOf returns a new client certificate of a user.
func certificateOf(t *testing.T, user string) clientcmdapi.AuthInfo {
	t.Helper()
	config, err := cp.UserConfig(user)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
}

func kubeconfigSecret(namespace, extension string, kubeconfig []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: extension + "-kubeconfig"},
		Data:       map[string][]byte{"value": kubeconfig},
	}
}

func setKubeconfig(t *testing.T, namespace, extension string, kubeconfig []byte) {
	t.Helper()
	NewWithT(t).Expect(admin.Update(t.Context(), kubeconfigSecret(namespace, extension, kubeconfig))).To(Succeed())
}

// grantOperatorSecrets allows the host operator to read the extensions' kubeconfig Secrets, and no
// other Secret.
func grantOperatorSecrets(t *testing.T, namespace string, extensions ...string) {
	t.Helper()
	var names []string
	for _, extension := range extensions {
		names = append(names, extension+"-kubeconfig")
	}
	create(t,
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubeconfigs"},
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"secrets"},
					ResourceNames: names,
					Verbs:         []string{"get", "list", "watch"},
				},
			},
		})
	create(t, roleBinding(namespace, "kubeconfigs", rbacv1.Subject{Kind: "User", Name: operatorUser}))
}

// remote creates an extension with a kubeconfig.
func remote(t *testing.T, namespace, name string, kubeconfig []byte) {
	t.Helper()
	create(t, kubeconfigSecret(namespace, name, kubeconfig))
	create(t, extension(namespace, name))
}

func startRemoteOperator(t *testing.T, namespace string) *operator {
	t.Helper()
	return startOperator(t,
		clustercache.Options{
			Credentials: credential.KubeconfigSecrets(credential.KubeconfigOptions{
				Namespace: namespace,
				Allow:     credential.SecretsGuardedByAdmission,
			}),
		})
}

// listsCounted returns the number of LIST requests for ConfigMaps by the API server's own metric.
func listsCounted(t *testing.T) int {
	t.Helper()
	g := NewWithT(t)
	n, err := cp.Metric(adminHTTP, "apiserver_request_total", `resource="configmaps"`, `verb="LIST"`)
	g.Expect(err).NotTo(HaveOccurred())
	return n
}

// listsSent counts the lists of ConfigMaps, of any form, in the audit log since the given time.
// byName has the count of each connection, and others has the count of all other clients. One of
// those is the namespace controller: it lists the objects in other tests' namespaces that it
// deletes.
func listsSent(t *testing.T, since time.Time) (byName map[string]int, others int) {
	t.Helper()
	byName = map[string]int{}
	for _, event := range auditLog(t, since) {
		if event.ObjectRef.Resource != "configmaps" || event.Verb != "list" &&
			!strings.Contains(event.RequestURI, "sendInitialEvents=true") {
			continue
		}
		_, name, isConnection := strings.Cut(event.UserAgent, userAgent+" extension/")
		switch {
		case isConnection && event.Stage == "RequestReceived":
			byName[name]++
		case !isConnection && event.Verb == "list" && event.Stage == "ResponseComplete":
			others++
		}
	}
	return byName, others
}

// TestRotatedKubeconfig checks that watches continue while the credential in a kubeconfig changes
// all the time. No watch lists again, and no watch misses an event.
func TestRotatedKubeconfig(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	create(t, serviceAccount(ns, "token"))
	grant(t, ns, "token", everythingInCore)
	grantTo(t, ns, "User", "certificate")
	grantOperatorSecrets(t, ns, "token", "certificate")
	newest := map[string]func() []byte{
		"token":       func() []byte { return kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, "token")}) },
		"certificate": func() []byte { return kubeconfigOf(t, certificateOf(t, "certificate")) },
	}
	for name, kubeconfig := range newest {
		remote(t, ns, name, kubeconfig())
	}
	const existing = 1000
	var objects []client.Object
	for i := range existing {
		objects = append(objects, configMap(ns, fmt.Sprintf("existing-%d", i)))
	}
	createMany(t, objects)

	o := startRemoteOperator(t, ns)
	before := map[string]clustercache.ConnectionState{}
	watchers := map[string]*fakeController{}
	for name := range newest {
		before[name] = o.waitConnected(t, name)
		watchers[name] = newFakeController(t)
		g.Expect(o.Watch(t.Context(), key(name),
			clustercache.NewWatcher(watchers[name].watch("content", &corev1.ConfigMap{}, ns)))).To(Succeed())
	}
	for name := range newest {
		g.Eventually(func() int { return len(watchers[name].seen()) }).WithTimeout(patience).
			Should(BeNumerically(">=", existing))
	}
	sent, othersBefore := listsSent(t, begin)
	counted := listsCounted(t)
	g.Expect(sent).To(Equal(map[string]int{"token": 1, "certificate": 1}))
	for name := range newest {
		watchers[name].forget()
	}
	takenUp := func() float64 { return series(t)["latchkey_rotations_total result=TakenUp"] }
	rotationsBefore, connsBefore := takenUp(), count(readLoop)

	// The token changes every second, and the certificate every six seconds. Meanwhile the test
	// creates ConfigMaps.
	rotations := testenv.Long(15, 60)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := range rotations {
		<-tick.C
		setKubeconfig(t, ns, "token", newest["token"]())
		if i%6 == 0 {
			setKubeconfig(t, ns, "certificate", newest["certificate"]())
		}
		create(t, configMap(ns, fmt.Sprintf("new-%d", i)))
	}
	g.Eventually(takenUp).WithTimeout(patience).Should(BeNumerically(">=", rotationsBefore+float64(rotations/2)),
		"a later rotation may overtake an earlier one")
	// The streams of a replaced certificate end with its TCP connections. Therefore the test waits
	// until the last of these connections is closed.
	g.Eventually(func() int { return count(readLoop) }).WithTimeout(patience).Should(BeNumerically("<=", connsBefore))
	create(t, configMap(ns, "last"))
	countedAfter := listsCounted(t)
	sentAfter, othersAfter := listsSent(t, begin)
	g.Expect(sentAfter).To(Equal(sent), "no connection listed again")
	g.Expect(countedAfter-counted).To(BeNumerically("<=", othersAfter-othersBefore), "by the API server's own metric")
	for name := range newest {
		want := []any{"create last"}
		for i := range rotations {
			want = append(want, fmt.Sprintf("create new-%d", i))
		}
		g.Eventually(watchers[name].seen).WithTimeout(patience).
			Should(ConsistOf(want...), name+": each event once, and no other event")
		after := o.state(name)
		g.Expect(after.Epoch).To(Equal(before[name].Epoch), name)
		g.Expect(after.Since).To(Equal(before[name].Since), name)
		g.Expect(after.Identity).To(Equal(before[name].Identity), name)
		g.Expect(after.Message).To(BeEmpty(), name)
		watchers[name].close()
	}
}

// readLoop is the function of the goroutine that reads from a TCP connection of HTTP/2. The name
// fits any package that implements HTTP/2.
const readLoop = "lientConnReadLoop).run"

// TestBrokenKubeconfig checks that the connection state reports an error in a kubeconfig, because
// a person looks there. While an earlier kubeconfig works, the connection continues to use
// the earlier one.
func TestBrokenKubeconfig(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	create(t, serviceAccount(ns, "one"))
	create(t, serviceAccount(ns, "two"))
	grant(t, ns, "one", everythingInCore)
	grantOperatorSecrets(t, ns, "far", "absent")
	kubeconfigFor := func(name string) []byte { return kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, name)}) }
	remote(t, ns, "far",
		kubeconfigOf(t,
			clientcmdapi.AuthInfo{
				Exec: &clientcmdapi.ExecConfig{
					Command:         "true",
					APIVersion:      "client.authentication.k8s.io/v1",
					InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
				},
			}))
	create(t, extension(ns, "absent"))
	create(t, extension(ns, "forbidden")) // the operator may not read its Secret
	o := startRemoteOperator(t, ns)

	g.Expect(o.waitReason(t, "far", clustercache.ReasonInvalidCredential).Message).
		To(ContainSubstring("refused fields: exec"))
	g.Expect(o.waitReason(t, "absent", clustercache.ReasonInvalidCredential).Message).
		To(ContainSubstring("does not exist"))
	g.Expect(o.waitReason(t, "forbidden", clustercache.ReasonOperatorForbidden).Message).
		To(ContainSubstring("the host operator needs list and watch on that secret"))

	setKubeconfig(t, ns, "far", kubeconfigFor("one"))
	first := o.waitConnected(t, "far")
	g.Expect(first.Identity.Username).To(HaveSuffix(":one"))
	sameConnection := func(message string) func(clustercache.ConnectionState) bool {
		return func(s clustercache.ConnectionState) bool {
			return s.Phase == clustercache.PhaseConnected && s.Epoch == first.Epoch &&
				strings.Contains(s.Message, message) && (message == "") == (s.Message == "")
		}
	}
	h := handlesOf(t, o, "far")
	works := func() {
		g.Expect(h.live.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))).To(Succeed())
	}
	setKubeconfig(t, ns, "far", []byte("no kubeconfig"))
	o.waitFor(t, "far", sameConnection("the content cannot be parsed as a kubeconfig"))
	works()
	setKubeconfig(t, ns, "far", kubeconfigOf(t, clientcmdapi.AuthInfo{Token: "not-one-that-counts"}))
	o.waitFor(t, "far", sameConnection("Unauthorized"))
	works()
	setKubeconfig(t, ns, "far", kubeconfigFor("one"))
	o.waitFor(t, "far", sameConnection(""))
	works()

	// A kubeconfig of another user needs a new connection, and so does a kubeconfig of another
	// server.
	setKubeconfig(t, ns, "far", kubeconfigFor("two"))
	second := o.waitFor(t, "far", func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseConnected && strings.HasSuffix(s.Identity.Username, ":two")
	})
	g.Expect(second.Epoch).To(Equal(first.Epoch + 1))
	h.expectDead(t, ns, clustercache.ReasonIdentityMismatch)
	setKubeconfig(t, ns, "far",
		kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, "two")}, func(server *clientcmdapi.Cluster) {
			server.Server = strings.Replace(server.Server, "127.0.0.1", "localhost", 1)
		}))
	third := o.waitFor(t, "far", func(s clustercache.ConnectionState) bool {
		return s.Phase == clustercache.PhaseConnected && strings.Contains(s.Target, "localhost")
	})
	g.Expect(third.Epoch).To(Equal(second.Epoch + 1))

	// The removal of the key or of the Secret ends the connection.
	h = handlesOf(t, o, "far")
	setKubeconfig(t, ns, "far", nil)
	g.Expect(o.waitReason(t, "far", clustercache.ReasonInvalidCredential).Message).
		To(ContainSubstring("does not have this key, or the key is empty"))
	h.expectDead(t, ns, clustercache.ReasonInvalidCredential)
	setKubeconfig(t, ns, "far", kubeconfigFor("one"))
	g.Expect(o.waitConnected(t, "far").Source).To(Equal("secret " + ns + "/far-kubeconfig, key value"))
	h = handlesOf(t, o, "far")
	g.Expect(admin.Delete(t.Context(), kubeconfigSecret(ns, "far", nil))).To(Succeed())
	g.Expect(o.waitReason(t, "far", clustercache.ReasonInvalidCredential).Message).To(ContainSubstring("does not exist"))
	h.expectDead(t, ns, clustercache.ReasonInvalidCredential)
	create(t, kubeconfigSecret(ns, "far", kubeconfigFor("one")))
	o.waitConnected(t, "far")
}

// TestOnlyNeededSecretsAreWatched checks that the host operator watches only Secrets that
// extensions refer to. Each watch selects one Secret by name. The watch ends when no extension
// refers to the Secret.
func TestOnlyNeededSecretsAreWatched(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	create(t, serviceAccount(ns, "one"))
	grantOperatorSecrets(t, ns, "first", "second")
	for _, name := range []string{"first", "second"} {
		remote(t, ns, name, kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, "one")}))
	}
	o := startRemoteOperator(t, ns)
	o.waitConnected(t, "first")
	o.waitConnected(t, "second")
	watches := func() int { return count("k8s.io/client-go/tools/cache.(*Reflector).RunWithContext") }
	watchesBefore := watches()
	g.Expect(admin.Delete(t.Context(), extension(ns, "second"))).To(Succeed())
	g.Eventually(watches).WithTimeout(patience).Should(Equal(watchesBefore - 1))
	o.end(t)
	for _, event := range auditLog(t, begin) {
		if event.User.Username == operatorUser && event.ObjectRef.Resource == "secrets" {
			g.Expect(event.RequestURI).To(ContainSubstring("fieldSelector=metadata.name"), event.String())
			g.Expect(event.ObjectRef.Namespace).To(Equal(ns))
		}
	}
}

// TestKubeconfigIdentity checks that the connections of a kubeconfig act as the kubeconfig's user
// and as no other user.
func TestKubeconfigIdentity(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	grantTo(t, ns, "User", "certified")
	grantOperatorSecrets(t, ns, "certified")
	remote(t, ns, "certified", kubeconfigOf(t, certificateOf(t, "certified")))
	o := startRemoteOperator(t, ns)
	state := o.waitConnected(t, "certified")
	g.Expect(state.Identity.Username).To(Equal("certified"))
	g.Expect(state.TokenExpires).NotTo(BeZero(), "the end of the certificate's validity")
	h := handlesOf(t, o, "certified")
	for action, use := range h.uses(t, ns) {
		g.Eventually(use).WithTimeout(patience).Should(Succeed(), action)
	}
	g.Expect(h.config.CertData).To(BeEmpty(), "a config for a caller contains no secret")
	g.Expect(h.config.KeyData).To(BeEmpty())
	plain := httpClientFor(t, h.config)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(h.config.Host, "/")+"/api",
		nil)
	g.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Impersonate-User", "system:admin")
	resp, err := plain.Do(req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
	g.Expect(resp.StatusCode).To(Equal(http.StatusOK))
	for _, event := range auditLog(t, begin) {
		if strings.HasSuffix(event.UserAgent, " extension/certified") {
			g.Expect(event.User.Username).To(Equal("certified"), event.String())
			g.Expect(event.ImpersonatedUser).To(BeNil(), event.String())
		}
	}
}
