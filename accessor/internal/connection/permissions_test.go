package connection

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// An answer says whether a permission was used or refused, or nothing about that. Of what is
// forbidden, only the authorizer's text is a refusal, and it names the permission. What is read to
// find out is still in the answer.
func TestNotePermission(t *testing.T) {
	message := func(text string) string {
		encoded, err := json.Marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Message:  text,
			Details:  &metav1.StatusDetails{Name: "x is forbidden: User \"u\" cannot create resource "},
		})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return string(encoded)
	}
	const text = `pods is forbidden: User "u" cannot create resource "pods" in API group ""`
	denied, deniedPatch := message(text), message(strings.ReplaceAll(text, "create", "patch"))
	raw, err := (&metav1.Status{Message: strings.ReplaceAll(text, "create", "patch")}).Marshal()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	wrapped, err := (&runtime.Unknown{Raw: raw}).Marshal()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	protobuf := "k8s\x00" + string(wrapped)
	mimics := message("admission webhook \"w\": pods is forbidden: User \"u\" cannot get path x")
	const role = "/apis/rbac.authorization.k8s.io/v1/namespaces/n/roles/r"
	const escalation = `roles.rbac.authorization.k8s.io "r" is forbidden: user "u" (groups=["g"]) is attempting to grant ` +
		"RBAC permissions not currently held:\n{}"
	escalates := message(escalation)
	var set targets.Set
	target, err := set.Join(&rest.Config{Host: "http://server/prefix"}, nil, &targets.Policy{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	for name, tc := range map[string]struct {
		method, path  string
		status        int
		body          string
		used, refused []string
	}{
		"served":                       {status: 200, used: []string{"patch"}},
		"created by an apply":          {status: 201, used: []string{"create", "patch"}},
		"created":                      {method: "POST", path: "/api/v1/pods", status: 201, used: []string{"create"}},
		"not found":                    {status: 404, used: []string{"patch"}},
		"a conflict":                   {status: 409, used: []string{"patch"}},
		"invalid":                      {status: 422, used: []string{"patch"}},
		"an upgrade":                   {status: 101, used: []string{"patch"}},
		"created by an update":         {method: "PUT", status: 201, used: []string{"create", "update"}},
		"forbidden by the authorizer":  {status: 403, body: deniedPatch, refused: []string{"patch"}},
		"an apply that may not create": {status: 403, body: denied, used: []string{"patch"}, refused: []string{"create"}},
		"an impersonation":             {status: 403, body: message(strings.ReplaceAll(text, "create", "impersonate"))},
		"a name that says so":          {status: 403, body: message(`things.example.com "` + text + `" is forbidden: no`)},
		"a text that is no message":    {status: 403, body: text},
		"too large":                    {status: 413},
		"a constrained impersonation": {
			status:  403,
			body:    message(strings.ReplaceAll(text, "create", "impersonate-on:serviceaccount:create")),
			refused: []string{"impersonate-on:serviceaccount:create"},
		},
		"a role with more permissions": {
			path:    role,
			status:  403,
			body:    escalates,
			used:    []string{"patch"},
			refused: []string{"escalate"},
		},
		"a binding of more permissions": {
			path:    strings.Replace(role, "roles", "rolebindings", 1),
			status:  403,
			body:    message(strings.Replace(escalation, "roles", "rolebindings", 1)),
			used:    []string{"patch"},
			refused: []string{"bind"},
		},
		"what says so of another kind": {status: 403, body: escalates, used: []string{"patch"}},
		"forbidden by a webhook":       {status: 403, body: message(`admission webhook "w" denied the request: no`), used: []string{"patch"}},
		"a webhook on a path":          {status: 403, body: mimics, used: []string{"patch"}},
		"a backend's own":              {path: "/api/v1/namespaces/n/pods/p/proxy", status: 403, body: denied},
		"a backend's creation":         {path: "/api/v1/namespaces/n/pods/p/proxy", status: 201, used: []string{"patch"}},
		"longer than what is read":     {status: 403, body: strings.Repeat("x", 3*permissions.MaxText) + denied},
		"in protobuf":                  {status: 403, body: protobuf, refused: []string{"patch"}},
		"forbidden by admission":       {status: 403, body: message(`pods "p" is forbidden: exceeded quota`), used: []string{"patch"}},
		"forbidden without a text":     {status: 403},
		"a verb of the server's own":   {status: 403, body: message("you cannot rule resource x")},
		"unauthorized":                 {status: 401},
		"throttled":                    {status: 429},
		"an error":                     {status: 500},
		"a redirect":                   {status: 302},
		"no request of an API server":  {method: "BREW", status: 200},
		"discovery":                    {method: "GET", path: "/apis/apps/v1", status: 200},
		"long":                         {status: 403, body: strings.Repeat("x", 3*permissions.MaxText)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := newTestConnection(t)
			c.target, c.record = target.Target, &permissions.Record{}
			method, path := tc.method, tc.path
			if method == "" {
				method = http.MethodPatch
			}
			if path == "" {
				path = "/api/v1/namespaces/n/pods/p"
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://server/prefix"+path, nil)
			g.Expect(err).NotTo(HaveOccurred())
			resp := &http.Response{StatusCode: tc.status, Body: io.NopCloser(strings.NewReader(tc.body))}
			c.notePermission(req, resp, time.Now())
			g.Expect(io.ReadAll(resp.Body)).To(BeEquivalentTo(tc.body))
			used, refused, complete := c.record.Uses(time.Now())
			g.Expect(verbsOf(used)).To(Equal(tc.used))
			g.Expect(verbsOf(refused)).To(Equal(tc.refused))
			g.Expect(complete).To(BeTrue())
		})
	}
}

func verbsOf(uses []permissions.Use) (verbs []string) {
	for _, use := range uses {
		verbs = append(verbs, use.Verb)
	}
	return verbs
}

// An answer to a request whose permission is on record is noted without an allocation.
func TestNotePermissionAllocatesNothing(t *testing.T) {
	g := NewWithT(t)
	var set targets.Set
	target, err := set.Join(&rest.Config{Host: "http://server/prefix"}, nil, &targets.Policy{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(target.Leave)
	c := newTestConnection(t)
	c.target, c.record = target.Target, &permissions.Record{}
	const url = "http://server/prefix/api/v1/namespaces/n/pods/p"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, nil)
	g.Expect(err).NotTo(HaveOccurred())
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	g.Expect(testing.AllocsPerRun(100, func() { c.notePermission(req, resp, time.Now()) })).To(BeZero())
}

// A body that breaks off is passed on as it is: what came, and the error.
func TestPeekAtABrokenBody(t *testing.T) {
	g := NewWithT(t)
	broken := errors.New("reset")
	resp := &http.Response{Body: during{f: func() {}, text: "pods cannot get resource \"pods\"", err: broken}}
	g.Expect(peek(resp)).To(BeEquivalentTo("pods cannot get resource \"pods\""))
	text, err := io.ReadAll(resp.Body)
	g.Expect(string(text)).To(Equal("pods cannot get resource \"pods\""))
	g.Expect(err).To(MatchError(broken))
}

// answering is a RoundTripper with one answer.
type answering struct{ resp *http.Response }

func (a answering) RoundTrip(*http.Request) (*http.Response, error) { return a.resp, nil }

// BenchmarkPermissionRecord compares what is done with an answer when permissions are on record
// with when they are not.
func BenchmarkPermissionRecord(b *testing.B) {
	var set targets.Set
	target, err := set.Join(&rest.Config{Host: "http://server/prefix"}, nil, &targets.Policy{})
	NewWithT(b).Expect(err).NotTo(HaveOccurred())
	b.Cleanup(target.Leave)
	const url = "http://server/prefix/apis/apps/v1/namespaces/n/deployments/d?fieldManager=m&force=true"
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPatch, url, nil)
	NewWithT(b).Expect(err).NotTo(HaveOccurred())
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}}
	for name, record := range map[string]*permissions.Record{"off": nil, "on": {}} {
		b.Run(name, func(b *testing.B) {
			c := newTestConnection(b)
			c.target, c.record = target.Target, record
			r := observingRoundTripper{wrapper{answering{resp}}, c}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = r.RoundTrip(req)
			}
		})
	}
}
