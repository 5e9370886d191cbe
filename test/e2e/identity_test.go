package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// auditEvent holds the fields of an audit event that the checks need.
type auditEvent struct {
	AuditID                  string
	Stage                    string
	RequestReceivedTimestamp metav1.MicroTime
	StageTimestamp           metav1.MicroTime
	RequestURI               string
	Verb                     string
	UserAgent                string
	User                     struct {
		Username string
		UID      types.UID
	}
	ImpersonatedUser *struct{ Username, UID string }
	ResponseStatus   struct{ Code int }
	ObjectRef        struct{ Resource, Subresource, APIGroup, Namespace, Name string }
}

// who returns the user whose permissions applied to the request.
func (e auditEvent) who() string {
	if e.ImpersonatedUser != nil {
		return e.ImpersonatedUser.Username
	}
	return e.User.Username
}

func (e auditEvent) String() string {
	return fmt.Sprintf("%s %s by %s (UID %s) with User-Agent %q", e.Verb, e.RequestURI, e.User.Username, e.User.UID,
		e.UserAgent)
}

// what returns the name of a request for the closed list: a verb, and a resource or a path.
func (e auditEvent) what() string {
	if e.ObjectRef.Resource == "" {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return e.Verb + " " + path
	}
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return e.Verb + " " + resource
}

// auditLog returns all events of requests that the API server received after since.
func auditLog(t *testing.T, since time.Time) (events []auditEvent) {
	t.Helper()
	g := NewWithT(t)
	log, err := os.Open(cp.AuditLog())
	g.Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // the API server is still writing this line
		}
		if event.RequestReceivedTimestamp.After(since) {
			events = append(events, event)
		}
	}
	g.Expect(lines.Err()).NotTo(HaveOccurred())
	return events
}

// allowed lists the identities that the connections of an extension may act as, and when.
type allowed []period

// period is a time in which requests of an identity may arrive. A zero end means that the period
// has not ended.
type period struct {
	username   string
	uid        types.UID
	begin, end time.Time
}

func (p period) contains(moment time.Time) bool {
	return !moment.Before(p.begin) && (p.end.IsZero() || moment.Before(p.end))
}

// verdict returns what is wrong with an event of the extension's connections, or "" if the event is
// allowed.
func (a allowed) verdict(event auditEvent) string {
	verdict := "wrong user"
	for _, p := range a {
		if !p.contains(event.RequestReceivedTimestamp.Time) || p.username != event.User.Username {
			continue
		}
		if p.uid == event.User.UID {
			return ""
		}
		verdict = "wrong UID"
	}
	return verdict
}

// isOperator reports whether a user is a host operator of the tests. A host operator authenticates
// with a certificate, or as a ServiceAccount named "operator".
func isOperator(user string) bool {
	return user == operatorUser || strings.HasPrefix(user, "system:serviceaccount:") &&
		strings.HasSuffix(user, ":operator")
}

// operatorMay is the closed list of requests that the host operator's own identity may send.
var operatorMay = []string{
	"list clusterextensions", "watch clusterextensions", // its extensions
	"list serviceaccounts", "watch serviceaccounts", // the ServiceAccounts that extensions name
	"create serviceaccounts/token",
	"get /api", "get /apis", "get /apis/latchkey.dev/v1alpha1", "get /api/v1", // the manager's discovery
	"get /openapi/v3/apis/latchkey.dev/v1alpha1", // the schema of its extensions
}

// checkIdentities returns a description of every event whose user may not send that request, and
// the number of requests that the API server served for each extension's connections.
func checkIdentities(events []auditEvent, extensions map[string]allowed) (violations []string,
	requests map[string]int) {
	requests = map[string]int{}
	tenants := map[string]bool{} // usernames
	for _, extension := range extensions {
		for _, identity := range extension {
			tenants[identity.username] = true
		}
	}
	for _, event := range events {
		violation := func(problem string) { violations = append(violations, problem+": "+event.String()) }
		if isOperator(event.who()) || event.User.Username == operatorUser {
			if !slices.Contains(operatorMay, event.what()) || !isOperator(event.who()) {
				violation("request that the operator may not send")
			}
			if event.what() == "create serviceaccounts/token" &&
				!tenants["system:serviceaccount:"+event.ObjectRef.Namespace+":"+event.ObjectRef.Name] {
				violation("a token of a ServiceAccount that no extension names")
			}
		}
		if event.User.Username == "system:anonymous" {
			violation("anonymous")
		}
		_, name, isConnection := strings.Cut(event.UserAgent, userAgent+" extension/")
		if !isConnection {
			if tenants[event.User.Username] {
				violation("a tenant outside of its connection")
			}
			continue
		}
		extension, known := extensions[name]
		if !known {
			violation("connection of an unknown extension")
		} else if verdict := extension.verdict(event); verdict != "" {
			violation(verdict)
		} else if event.ImpersonatedUser != nil {
			violation("impersonation")
		}
		if event.Stage == "ResponseComplete" {
			requests[name]++
		}
	}
	return violations, requests
}

func TestEveryRequestActsAsItsIdentity(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	names := []string{"ann", "bob", "cyd", "dan", "eve"}
	extensions := map[string]allowed{}
	identityOf := func(name string, begin time.Time) period {
		return period{username: "system:serviceaccount:" + ns + ":" + name, uid: uidOf(t, ns, name), begin: begin}
	}
	for _, name := range names {
		tenant(t, ns, name)
		extensions[name] = allowed{identityOf(name, begin)}
	}
	controller := newFakeController(t)
	o := startOperator(t, clustercache.Options{})

	use := func(name string) {
		h := handlesOf(t, o, name)
		for action, use := range h.uses(t, ns) {
			g.Eventually(use).WithTimeout(patience).Should(Succeed(), name+": "+action)
		}
		g.Expect(o.Watch(t.Context(), key(name),
			clustercache.NewWatcher(controller.watch("secrets", &corev1.Secret{}, ns)))).To(Succeed())
		dyn, err := dynamic.NewForConfigAndClient(h.config, httpClientFor(t, h.config))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = dyn.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace(ns).
			List(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		// Credentials that a caller adds to the config cannot change the identity. A lower
		// transport adds the identity.
		tamperedConfig := rest.CopyConfig(h.config)
		tamperedConfig.BearerToken = "not-a-token"
		tamperedConfig.Impersonate.UserName = "system:admin"
		c, err := client.New(tamperedConfig, client.Options{HTTPClient: httpClientFor(t, tamperedConfig)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "tampered-"}})).To(Succeed())
		// The host operator's certificate cannot change the identity either. The API server would
		// check the certificate first.
		certificateConfig := rest.CopyConfig(h.config)
		certificateConfig.TLSClientConfig = o.mgr.GetConfig().TLSClientConfig
		c, err = client.New(certificateConfig, client.Options{HTTPClient: httpClientFor(t, certificateConfig)})
		g.Expect(err).NotTo(HaveOccurred())
		err = c.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "certified-"}})
		g.Expect(err).To(MatchError(ContainSubstring("client certificate")))
	}
	for _, name := range names {
		o.waitConnected(t, name)
		use(name)
	}

	// The test recreates one ServiceAccount. Between deletion and creation no identity may act for
	// ann. Afterwards only the new ServiceAccount may act for ann.
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "ann"))).To(Succeed())
	o.waitReason(t, "ann", clustercache.ReasonServiceAccountNotFound)
	extensions["ann"][0].end = time.Now()
	recreateTime := time.Now()
	create(t, serviceAccount(ns, "ann"))
	extensions["ann"] = append(extensions["ann"], identityOf("ann", recreateTime))
	o.waitFor(t, "ann", func(s clustercache.ConnectionState) bool { return s.Identity.UID == extensions["ann"][1].uid })
	use("ann")

	// From now on, the extension eve names the ServiceAccount of bob.
	old := handlesOf(t, o, "eve")
	e := extension(ns, "eve")
	g.Expect(admin.Get(t.Context(), key("eve"), e)).To(Succeed())
	g.Expect(unstructured.SetNestedField(e.Object, "bob", "spec", "serviceAccount", "name")).To(Succeed())
	changeTime := time.Now()
	g.Expect(admin.Update(t.Context(), e)).To(Succeed())
	o.waitFor(t, "eve", func(s clustercache.ConnectionState) bool {
		return strings.HasSuffix(s.Identity.Username, ":bob")
	})
	extensions["eve"][0].end = time.Now()
	extensions["eve"] = append(extensions["eve"], identityOf("bob", changeTime))
	old.expectDead(t, ns, clustercache.ReasonIdentityMismatch)
	use("eve")

	violations, requests := checkIdentities(auditLog(t, begin), extensions)
	g.Expect(violations).To(BeEmpty())
	for _, name := range names {
		g.Expect(requests[name]).To(BeNumerically(">", 10), "requests of "+name)
	}
}

// TestTheIdentityCheckSeesAWrongRoundTripper checks that checkIdentities can fail. The function
// must find a RoundTripper that sends another identity, with the real API server.
func TestTheIdentityCheckSeesAWrongRoundTripper(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	create(t, serviceAccount(ns, "victim"))
	create(t, serviceAccount(ns, "rogue"))
	victim := period{username: "system:serviceaccount:" + ns + ":victim", uid: uidOf(t, ns, "victim"), begin: begin}
	extensions := map[string]allowed{"victim": {victim}}

	anonymous := rest.AnonymousClientConfig(cp.Config())
	send := func(agent, token string) {
		config := rest.CopyConfig(anonymous)
		config.UserAgent = agent
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
				if token != "" {
					req = req.Clone(req.Context())
					req.Header.Set("Authorization", "Bearer "+token)
				}
				return next.RoundTrip(req)
			})
		})
		resp, err := httpClientFor(t, config).Get(strings.TrimSuffix(config.Host, "/") + "/version")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
	}
	check := func() []string {
		violations, _ := checkIdentities(auditLog(t, begin), extensions)
		return violations
	}
	send(userAgent+" extension/victim", token(t, ns, "victim"))
	_, requests := checkIdentities(auditLog(t, begin), extensions)
	g.Expect(check()).To(BeEmpty())
	g.Expect(requests["victim"]).NotTo(BeZero())

	send(userAgent+" extension/victim", token(t, ns, "rogue"))
	g.Expect(check()).To(ContainElement(HavePrefix("wrong user")))
	send("curl", token(t, ns, "victim"))
	g.Expect(check()).To(ContainElement(HavePrefix("a tenant outside of its connection")))
	send(userAgent+" extension/victim", "")
	g.Expect(check()).To(ContainElement(HavePrefix("anonymous")))

	// checkIdentities also finds an old UID, an unknown extension, and an operator that sends
	// requests outside its list.
	event := func(username string, uid types.UID, agent, verb, resource string) (e auditEvent) {
		e.User.Username, e.User.UID, e.UserAgent, e.Verb, e.ObjectRef.Resource = username, uid, agent, verb, resource
		e.RequestReceivedTimestamp = metav1.NowMicro()
		return e
	}
	foreignToken := event(operatorUser, "", "x", "create", "serviceaccounts")
	foreignToken.ObjectRef.Subresource, foreignToken.ObjectRef.Namespace, foreignToken.ObjectRef.Name = "token",
		"kube-system", "default"
	violations, _ := checkIdentities([]auditEvent{
		event(operatorUser, "", "x", "list", "secrets"),
		foreignToken,
		event(victim.username, "old", userAgent+" extension/victim", "get", "pods"),
		event("x", "", userAgent+" extension/stranger", "get", "pods"),
	}, extensions)
	g.Expect(violations).
		To(ConsistOf(HavePrefix("request that the operator may not send"),
			HavePrefix("a token of a ServiceAccount that no extension names"),
			HavePrefix("wrong UID"), HavePrefix("connection of an unknown extension")))
	victim.end = begin.Add(time.Second)
	late := event(victim.username, victim.uid, userAgent+" extension/victim", "get", "pods")
	late.RequestReceivedTimestamp.Time = victim.end
	g.Expect(allowed{victim}.verdict(late)).To(Equal("wrong user"), "the period has ended")
}

// TestOneTokenPerServiceAccount checks that two extensions with one ServiceAccount share its token
// and nothing else.
func TestOneTokenPerServiceAccount(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	tenant(t, ns, "shared")
	second := extension(ns, "second")
	g.Expect(unstructured.SetNestedField(second.Object, "shared", "spec", "serviceAccount", "name")).To(Succeed())
	create(t, second)
	o := startOperator(t, clustercache.Options{})
	g.Expect(o.waitConnected(t, "shared").Identity).To(Equal(o.waitConnected(t, "second").Identity))
	first, err := o.GetClient(t.Context(), key("shared"))
	g.Expect(err).NotTo(HaveOccurred())
	other, err := o.GetClient(t.Context(), key("second"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first).NotTo(BeIdenticalTo(other))

	tokens := 0
	for _, event := range auditLog(t, begin) {
		if event.Stage == "ResponseComplete" && event.what() == "create serviceaccounts/token" &&
			strings.Contains(event.RequestURI, "/"+ns+"/") {
			tokens++
		}
	}
	g.Expect(tokens).To(Equal(1))
}
