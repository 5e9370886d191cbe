package credential

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// hostOf is a cluster in which every ServiceAccount exists, and whose HTTP client uses the given
// transport.
type hostOf struct {
	cluster.Cluster
	config    *rest.Config
	transport http.RoundTripper
}

func (h hostOf) GetConfig() *rest.Config     { return h.config }
func (h hostOf) GetHTTPClient() *http.Client { return &http.Client{Transport: h.transport} }
func (h hostOf) GetCache() cache.Cache       { return fullCache{} }

type fullCache struct{ cache.Cache }

func (fullCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, errors.New("there are none")
}

func (fullCache) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return allServiceAccounts{}.Get(ctx, key, object, opts...)
}

func TestImpersonation(t *testing.T) {
	g := NewWithT(t)
	var sent http.Header
	transport := testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		sent = req.Header
		return nil, errors.New("enough")
	})
	headers := func(options ImpersonationOptions) http.Header {
		resolver, err := Impersonation(options).Bind(hostOf{config: everythingButImpersonation(t), transport: transport},
			identity.Kind{}, nil, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resolver.UsesServiceAccounts()).To(BeTrue())
		resolved, err := resolver.Resolve(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"spec": map[string]any{"namespace": "team", "serviceAccount": map[string]any{"name": "red"}}}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resolved.Expected.UID).To(BeEmpty(), "the API server only repeats the headers of the impersonation")
		g.Expect(resolved.UID).To(BeEquivalentTo("uid-of-team/red"))
		g.Expect(resolved.Key).To(ContainSubstring("uid-of-team/red"), "another UID needs another connection")
		g.Expect(resolved.Sharable).To(BeTrue(), "the Key has the UID")
		c := resolved.Open()
		g.Expect(c.Prepare(t.Context())).To(Succeed())
		g.Expect(c.TransportRequirement().Shared()).To(BeFalse())
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		for _, header := range []string{"Authorization", "Impersonate-User", "Impersonate-Uid", "Impersonate-Group",
			"Impersonate-Extra-Scopes"} {
			req.Header.Set(header, "system:masters")
		}
		rt := c.RoundTripper(c.TransportRequirement().Transport)
		_, err = rt.RoundTrip(req)
		g.Expect(err).To(MatchError("enough"))
		c.Close()
		got := sent
		sent = nil
		_, err = rt.RoundTrip(req)
		g.Expect(err).To(MatchError(ErrInvalidCredential))
		g.Expect(sent).To(BeNil())
		return got
	}
	const user = "system:serviceaccount:team:red"
	g.Expect(headers(ImpersonationOptions{})).To(Equal(http.Header{"Impersonate-User": {user}}))
	g.Expect(headers(ImpersonationOptions{UID: true, Groups: true})).
		To(Equal(http.Header{"Impersonate-User": {user}, "Impersonate-Uid": {"uid-of-team/red"},
			"Impersonate-Group": {"system:serviceaccounts", "system:serviceaccounts:team", "system:authenticated"}}))

	// Without a user to impersonate, the API server would serve the request as the host operator.
	unnamed := &impersonationCredential{headers: http.Header{"Impersonate-User": {""}}, carrier: transport}
	_, err := unnamed.RoundTripper(transport).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
	g.Expect(err).To(MatchError(ErrInvalidCredential))
	g.Expect(sent).To(BeNil(), "no request is sent")

	_, err = Impersonation(ImpersonationOptions{}).Bind(hostOf{config: everything(t), transport: transport},
		identity.Kind{}, nil, nil)
	g.Expect(err).To(MatchError(ContainSubstring("config impersonates a user")))
	_, err = Impersonation(ImpersonationOptions{}).Bind(hostOf{config: everythingButImpersonation(t)}, identity.Kind{},
		nil, nil)
	g.Expect(err).To(MatchError(ContainSubstring("no transport")))
}

// The host operator's token may come from anywhere, so the word after "Bearer" is removed from
// responses and errors.
func TestImpersonationRedactsTheHostsToken(t *testing.T) {
	g := NewWithT(t)
	c := &impersonationCredential{headers: http.Header{"Impersonate-User": {"u"}}}
	echo := func(resp *http.Response, err error) (*http.Response, error) {
		return c.RoundTripper(testutil.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
			return resp, err
		})).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
	}
	resp, err := echo(&http.Response{
		StatusCode: http.StatusBadGateway,
		Header:     http.Header{"Warning": {"authorization: bearer hunter2"}},
		Body:       io.NopCloser(strings.NewReader("Authorization: Bearer hunter2.a-b_c\r\nAccept: x")),
	}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	body, err := io.ReadAll(resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(body)).To(Equal("Authorization: Bearer [redacted]\r\nAccept: x"))
	g.Expect(resp.Header.Get("Warning")).To(Equal("authorization: bearer [redacted]"))
	resp, err = echo(&http.Response{
		StatusCode: http.StatusFound,
		Header:     http.Header{},
		Body:       io.NopCloser(strings.NewReader("Authorization: Basic aHVudGVyMg==")),
	}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	body, err = io.ReadAll(resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(body)).To(Equal("Authorization: Basic [redacted]"))
	_, err = echo(nil, errors.New("malformed: Bearer hunter2"))
	g.Expect(err).To(MatchError("malformed: Bearer [redacted]"))
}

func everythingButImpersonation(t *testing.T) *rest.Config {
	config := everything(t)
	config.Impersonate = rest.ImpersonationConfig{}
	return config
}
