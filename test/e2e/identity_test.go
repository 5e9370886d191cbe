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
	"github.com/latchkey-dev/latchkey/internal/testutil"
)

// auditEvent is what the checks need of an audit event.
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

// who is whose rights counted.
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

// what names a request for the closed list: a verb and a resource, or a path.
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

// auditLog returns all events since then.
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

// allowed is whom the connections of an extension may act as, and when.
type allowed []period

// period is a time in which requests of an identity may arrive; without an end it has not ended.
type period struct {
	username   string
	uid        types.UID
	begin, end time.Time
}

func (p period) contains(when time.Time) bool {
	return !when.Before(p.begin) && (p.end.IsZero() || when.Before(p.end))
}

// verdict is what is wrong with an event of the extension's connections, "" if nothing is.
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

// isOperator reports whether a user is a host operator of the tests: by certificate, or by a
// ServiceAccount of that name.
func isOperator(user string) bool {
	return user == operatorUser || strings.HasPrefix(user, "system:serviceaccount:") &&
		strings.HasSuffix(user, ":operator")
}

// operatorMay is the closed list of what the host operator's own identity is used for.
var operatorMay = []string{
	"list clusterextensions", "watch clusterextensions", // its extensions
	"list serviceaccounts", "watch serviceaccounts", // whom they name
	"create serviceaccounts/token",
	"get /api", "get /apis", "get /apis/latchkey.dev/v1alpha1", "get /api/v1", // the manager's discovery
	"get /openapi/v3/apis/latchkey.dev/v1alpha1", // the schema of its extensions
}

// checkIdentities returns every event in which somebody acted whom it did not behove, and how many
// requests of each extension's connections were served.
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
		violation := func(what string) { violations = append(violations, what+": "+event.String()) }
		if isOperator(event.who()) || event.User.Username == operatorUser {
			if !slices.Contains(operatorMay, event.what()) || !isOperator(event.who()) {
				violation("not the operator's business")
			}
			if event.what() == "create serviceaccounts/token" &&
				!tenants["system:serviceaccount:"+event.ObjectRef.Namespace+":"+event.ObjectRef.Name] {
				violation("a token of nobody's ServiceAccount")
			}
		}
		if event.User.Username == "system:anonymous" {
			violation("anonymous")
		}
		_, name, ofConnection := strings.Cut(event.UserAgent, userAgent+" extension/")
		if !ofConnection {
			if tenants[event.User.Username] {
				violation("a tenant outside of its connection")
			}
			continue
		}
		extension, known := extensions[name]
		if !known {
			violation("nobody's connection")
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
	from := func(name string, begin time.Time) period {
		return period{username: "system:serviceaccount:" + ns + ":" + name, uid: uidOf(t, ns, name), begin: begin}
	}
	for _, name := range names {
		tenant(t, ns, name)
		extensions[name] = allowed{from(name, begin)}
	}
	controller := newFakeController(t)
	o := startOperator(t, clustercache.Options{})

	use := func(name string) {
		h := handlesOf(t, o, name)
		for what, use := range h.uses(t, ns) {
			g.Eventually(use).WithTimeout(patience).Should(Succeed(), name+": "+what)
		}
		g.Expect(o.Watch(t.Context(), key(name),
			clustercache.NewWatcher(controller.watch("secrets", &corev1.Secret{}, ns)))).To(Succeed())
		dyn, err := dynamic.NewForConfigAndClient(h.config, httpClientFor(t, h.config))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = dyn.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace(ns).
			List(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		// Furnishing the config cannot change who it is: the identity is added below.
		tampered := rest.CopyConfig(h.config)
		tampered.BearerToken = "not-a-token"
		tampered.Impersonate.UserName = "system:admin"
		c, err := client.New(tampered, client.Options{HTTPClient: httpClientFor(t, tampered)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "tampered-"}})).To(Succeed())
		// Nor can the host operator's certificate, which the API server would believe first.
		certified := rest.CopyConfig(h.config)
		certified.TLSClientConfig = o.mgr.GetConfig().TLSClientConfig
		c, err = client.New(certified, client.Options{HTTPClient: httpClientFor(t, certified)})
		g.Expect(err).NotTo(HaveOccurred())
		err = c.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "certified-"}})
		g.Expect(err).To(MatchError(ContainSubstring("client certificate")))
	}
	for _, name := range names {
		o.waitConnected(t, name)
		use(name)
	}

	// One ServiceAccount is recreated: in between nobody may act for ann, and then only the new
	// one.
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "ann"))).To(Succeed())
	o.waitReason(t, "ann", clustercache.ServiceAccountNotFound)
	extensions["ann"][0].end = time.Now()
	recreated := time.Now()
	create(t, serviceAccount(ns, "ann"))
	extensions["ann"] = append(extensions["ann"], from("ann", recreated))
	o.waitFor(t, "ann", func(s clustercache.ConnectionState) bool { return s.Identity.UID == extensions["ann"][1].uid })
	use("ann")

	// One extension names another's ServiceAccount from now on.
	old := handlesOf(t, o, "eve")
	e := extension(ns, "eve")
	g.Expect(admin.Get(t.Context(), key("eve"), e)).To(Succeed())
	g.Expect(unstructured.SetNestedField(e.Object, "bob", "spec", "serviceAccount", "name")).To(Succeed())
	changed := time.Now()
	g.Expect(admin.Update(t.Context(), e)).To(Succeed())
	o.waitFor(t, "eve", func(s clustercache.ConnectionState) bool {
		return strings.HasSuffix(s.Identity.Username, ":bob")
	})
	extensions["eve"][0].end = time.Now()
	extensions["eve"] = append(extensions["eve"], from("bob", changed))
	old.expectDead(t, ns, clustercache.IdentityMismatch)
	use("eve")

	violations, requests := checkIdentities(auditLog(t, begin), extensions)
	g.Expect(violations).To(BeEmpty())
	for _, name := range names {
		g.Expect(requests[name]).To(BeNumerically(">", 10), "requests of "+name)
	}
}

// The check above must not be blind: a RoundTripper that sends another identity is found, on the
// real server.
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

	// Nor is it blind to an old UID, to strangers, or to an operator that helps itself.
	event := func(username string, uid types.UID, agent, verb, resource string) (e auditEvent) {
		e.User.Username, e.User.UID, e.UserAgent, e.Verb, e.ObjectRef.Resource = username, uid, agent, verb, resource
		e.RequestReceivedTimestamp = metav1.NowMicro()
		return e
	}
	others := event(operatorUser, "", "x", "create", "serviceaccounts")
	others.ObjectRef.Subresource, others.ObjectRef.Namespace, others.ObjectRef.Name = "token", "kube-system", "default"
	violations, _ := checkIdentities([]auditEvent{
		event(operatorUser, "", "x", "list", "secrets"),
		others,
		event(victim.username, "old", userAgent+" extension/victim", "get", "pods"),
		event("x", "", userAgent+" extension/stranger", "get", "pods"),
	}, extensions)
	g.Expect(violations).
		To(ConsistOf(HavePrefix("not the operator's business"), HavePrefix("a token of nobody's"),
			HavePrefix("wrong UID"), HavePrefix("nobody's connection")))
	victim.end = begin.Add(time.Second)
	late := event(victim.username, victim.uid, userAgent+" extension/victim", "get", "pods")
	late.RequestReceivedTimestamp.Time = victim.end
	g.Expect(allowed{victim}.verdict(late)).To(Equal("wrong user"), "it has ended")
}

// Two extensions of one ServiceAccount share its token and nothing else.
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
