package test

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
)

// auditEvent is what the checks need of an audit event.
type auditEvent struct {
	Stage                    string
	RequestReceivedTimestamp metav1.MicroTime
	RequestURI               string
	Verb                     string
	UserAgent                string
	User                     struct {
		Username string
		UID      types.UID
	}
	ImpersonatedUser *struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, APIGroup string }
}

func (e auditEvent) String() string {
	return fmt.Sprintf("%s %s by %s (UID %s) with User-Agent %q", e.Verb, e.RequestURI, e.User.Username, e.User.UID, e.UserAgent)
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

// allowed is whom the connections of an extension may act as: each from a time on.
type allowed struct {
	username string
	uids     []uidSince
}

type uidSince struct {
	uid   types.UID
	since time.Time
}

// uidAt is the UID of the requests that arrive at a time; before the first there are none.
func (a allowed) uidAt(at time.Time) (uid types.UID) {
	for _, u := range a.uids {
		if !at.Before(u.since) {
			uid = u.uid
		}
	}
	return uid
}

// operatorMay is the closed list of what the host operator's own identity is used for.
var operatorMay = []string{
	"list clusterextensions", "watch clusterextensions", // its extensions
	"list serviceaccounts", "watch serviceaccounts", // whom they name
	"create serviceaccounts/token",
	"get /api", "get /apis", "get /apis/olm.operatorframework.io/v1", "get /api/v1", // the manager's discovery
}

// checkIdentities returns every event in which somebody acted whom it did not behove, and how many requests each
// extension's connections made.
func checkIdentities(events []auditEvent, extensions map[string]allowed) (violations []string, requests map[string]int) {
	requests = map[string]int{}
	for _, event := range events {
		if event.User.Username == operatorUser && !slices.Contains(operatorMay, event.what()) {
			violations = append(violations, "not the operator's business: "+event.String())
		}
		_, name, ofConnection := strings.Cut(event.UserAgent, userAgent+" extension/")
		if !ofConnection {
			continue
		}
		extension, known := extensions[name]
		switch {
		case !known:
			violations = append(violations, "nobody's connection: "+event.String())
		case event.User.Username != extension.username:
			violations = append(violations, "wrong user: "+event.String())
		case event.User.UID != extension.uidAt(event.RequestReceivedTimestamp.Time):
			violations = append(violations, "wrong UID: "+event.String())
		case event.ImpersonatedUser != nil:
			violations = append(violations, "impersonation: "+event.String())
		}
		requests[name]++
	}
	return violations, requests
}

func TestEveryRequestActsAsItsIdentity(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	names := []string{"ann", "bob", "cyd", "dan", "eve"}
	extensions := map[string]allowed{}
	for _, name := range names {
		tenant(t, ns, name)
		extensions[name] = allowed{username: "system:serviceaccount:" + ns + ":" + name, uids: []uidSince{{uidOf(t, ns, name), begin}}}
	}
	controller := newFakeController(t)
	o := startOperator(t, clustercache.Options{})

	use := func(name string) {
		o.waitConnected(t, name)
		h := handlesOf(t, o, name)
		for what, use := range h.uses(t, ns) {
			g.Eventually(use).WithTimeout(patience).Should(Succeed(), name+": "+what)
		}
		g.Expect(o.Watch(t.Context(), key(name), clustercache.NewWatcher(controller.watch("secrets", &corev1.Secret{}, ns)))).To(Succeed())
		dyn, err := dynamic.NewForConfigAndClient(h.config, httpClientFor(t, h.config))
		g.Expect(err).NotTo(HaveOccurred())
		_, err = dyn.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace(ns).List(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		// Wrapping the config cannot change who it is: the identity is added below.
		tampered := rest.CopyConfig(h.config)
		tampered.BearerToken = "not-a-token"
		tampered.Impersonate.UserName = "system:admin"
		c, err := client.New(tampered, client.Options{HTTPClient: httpClientFor(t, tampered)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "tampered-"}})).To(Succeed())
	}
	for _, name := range names {
		use(name)
	}

	// One ServiceAccount is recreated, and one extension acts as another ServiceAccount from now on.
	g.Expect(admin.Delete(t.Context(), serviceAccount(ns, "ann"))).To(Succeed())
	o.waitReason(t, "ann", clustercache.ServiceAccountNotFound)
	recreated := time.Now()
	create(t, serviceAccount(ns, "ann"))
	ann := extensions["ann"]
	ann.uids = append(ann.uids, uidSince{uidOf(t, ns, "ann"), recreated})
	extensions["ann"] = ann
	o.waitFor(t, "ann", func(s clustercache.ConnectionState) bool { return s.Identity.UID == ann.uids[1].uid })
	use("ann")

	violations, requests := checkIdentities(auditLog(t, begin), extensions)
	g.Expect(violations).To(BeEmpty())
	for _, name := range names {
		g.Expect(requests[name]).To(BeNumerically(">", 20), "requests of "+name)
	}
}

// The check above must not be blind: a RoundTripper that sends another identity is found, on the real server.
func TestTheIdentityCheckSeesAWrongRoundTripper(t *testing.T) {
	g := NewWithT(t)
	begin := time.Now()
	ns := namespace(t)
	create(t, serviceAccount(ns, "victim"))
	create(t, serviceAccount(ns, "rogue"))
	extensions := map[string]allowed{"victim": {username: "system:serviceaccount:" + ns + ":victim", uids: []uidSince{{uidOf(t, ns, "victim"), begin}}}}

	config := rest.AnonymousClientConfig(cp.Config())
	config.UserAgent = userAgent + " extension/victim"
	send := func(token string) {
		config := rest.CopyConfig(config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripperFunc(func(req *http.Request) (*http.Response, error) {
				req = req.Clone(req.Context())
				req.Header.Set("Authorization", "Bearer "+token)
				return next.RoundTrip(req)
			})
		})
		resp, err := httpClientFor(t, config).Get(strings.TrimSuffix(config.Host, "/") + "/version")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Body.Close()).To(Succeed())
	}
	send(token(t, ns, "victim"))
	violations, requests := checkIdentities(auditLog(t, begin), extensions)
	g.Expect(violations).To(BeEmpty())
	g.Expect(requests["victim"]).NotTo(BeZero())

	send(token(t, ns, "rogue"))
	violations, _ = checkIdentities(auditLog(t, begin), extensions)
	g.Expect(violations).To(ContainElement(ContainSubstring("wrong user")))

	// Nor is it blind to an old UID, to strangers, or to an operator that helps itself.
	operator := auditEvent{Verb: "list", UserAgent: "x"}
	operator.User.Username, operator.ObjectRef.Resource = operatorUser, "secrets"
	stale := auditEvent{UserAgent: userAgent + " extension/victim"}
	stale.User.Username, stale.User.UID, stale.RequestReceivedTimestamp = extensions["victim"].username, "old", metav1.NowMicro()
	stranger := auditEvent{UserAgent: userAgent + " extension/stranger"}
	violations, _ = checkIdentities([]auditEvent{operator, stale, stranger}, extensions)
	g.Expect(violations).To(ConsistOf(ContainSubstring("not the operator's business"), ContainSubstring("wrong UID"), ContainSubstring("nobody's connection")))
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

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
		if event.Stage == "ResponseComplete" && event.what() == "create serviceaccounts/token" && strings.Contains(event.RequestURI, "/"+ns+"/") {
			tokens++
		}
	}
	g.Expect(tokens).To(Equal(1))
}
