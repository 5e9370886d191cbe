package credential

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/textproto"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// credentials returns one credential of each kind, and the headers that its requests must carry at
// the API server.
func credentials() map[string]struct {
	credential identity.Credential
	carries    http.Header
} {
	return map[string]struct {
		credential identity.Credential
		carries    http.Header
	}{
		"token": {newStaticCredential(secretMaterial{token: newSecret("mine")}),
			http.Header{"Authorization": {"Bearer mine"}}},
		"impersonation": {&impersonationCredential{
			headers: http.Header{"Impersonate-User": {"red"}, "Impersonate-Uid": {"1"}},
		},
			http.Header{"Impersonate-User": {"red"}, "Impersonate-Uid": {"1"}}},
		"certificate": {certificateWithoutUser(), http.Header{}},
	}
}

// certificateWithoutUser returns a credential with an empty client certificate, which is sufficient
// for tests of headers.
func certificateWithoutUser() identity.Credential {
	f := &staticCredential{}
	f.secretMaterial.Store(&secretMaterial{certificate: func() *tls.Certificate { return &tls.Certificate{} }})
	return f
}

// throughProxy sends a request with the credential through a reverse proxy. The result is the
// request that arrives behind the proxy, nil if none was sent.
func throughProxy(credential identity.Credential, req *http.Request) (arrived *http.Request, err error) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {},
		Transport: testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			arrived = req
			return nil, errors.New("arrived")
		}),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {},
	}
	_, err = credential.RoundTripper(testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		received := req.Clone(context.WithValue(req.Context(), http.ServerContextKey, nil))
		proxy.ServeHTTP(httptest.NewRecorder(), received)
		return nil, errors.New("enough")
	})).RoundTrip(req)
	if err != nil && err.Error() == "enough" {
		err = nil
	}
	return arrived, err
}

// A proxy removes every header that Connection names. The headers with the identity must not be
// removed.
func TestConnectionHeaders(t *testing.T) {
	for name, tc := range map[string]struct {
		header  http.Header
		trailer http.Header
		want    string // the Connection header before the proxy
		clean   bool   // the request has nothing to refuse
	}{
		"none": {http.Header{}, nil, "", true},
		"an upgrade": {http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, nil, "Upgrade",
			true},
		"an upgrade among others": {http.Header{"Connection": {"keep-alive, upgrade"}, "Upgrade": {"SPDY/3.1"}}, nil,
			"Upgrade", true},
		"close":         {http.Header{"Connection": {"close"}}, nil, "close", true},
		"keep-alive":    {http.Header{"Connection": {"Keep-Alive"}}, nil, "keep-alive", true},
		"impersonation": {http.Header{"Connection": {"Impersonate-User"}}, nil, "", false},
		"impersonation, lower case": {http.Header{"Connection": {"close,impersonate-user ,impersonate-uid"}}, nil,
			"close", false},
		"the token": {http.Header{"Connection": {"Authorization"}}, nil, "", false},
		"both, with an upgrade": {http.Header{"Connection": {"Upgrade, Impersonate-User", "Authorization"},
			"Upgrade": {"websocket"}}, nil, "Upgrade", false},
		"a key that is not canonical": {http.Header{"connection": {"Impersonate-User, Authorization"}}, nil, "", false},
		"an underscore":               {http.Header{"Proxy_Connection": {"Impersonate-User"}}, nil, "", false},
		"Keep-Alive":                  {http.Header{"Keep-Alive": {"timeout=5"}}, nil, "", false},
		"TE":                          {http.Header{"Te": {"trailers"}}, nil, "", false},
		"Proxy-Authorization":         {http.Header{"Proxy-Authorization": {"Basic x"}}, nil, "", false},
		"a Trailer header":            {http.Header{"Trailer": {"Impersonate-User"}}, nil, "", false},
		"trailers":                    {http.Header{}, http.Header{"Impersonate-User": {"other"}}, "", false},
		"HTTP/2 without TLS": {http.Header{"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"},
			"Http2-Settings": {"x"}}, nil, "", false},
		"an upgrade without a protocol": {http.Header{"Connection": {"Upgrade"}}, nil, "", true},
	} {
		for kind, c := range credentials() {
			t.Run(name+" with "+kind, func(t *testing.T) {
				g := NewWithT(t)
				req := httptest.NewRequest(http.MethodGet, "https://server/api", nil)
				req.Header, req.Trailer = tc.header.Clone(), tc.trailer.Clone()
				var connection string
				_, err := c.credential.RoundTripper(testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
					connection = req.Header.Get("Connection")
					return nil, errors.New("sent")
				})).RoundTrip(req)
				if kind == "impersonation" && !tc.clean {
					g.Expect(err).To(MatchError(ContainSubstring("is not sent under impersonation")))
					return
				}
				g.Expect(err).To(MatchError("sent"))
				g.Expect(connection).To(Equal(tc.want))
				g.Expect(req.Header).To(Equal(tc.header), "a RoundTripper does not change the caller's request")
				checkHeaders(t, kind, c.credential, c.carries, req)
			})
		}
	}
}

// checkHeaders checks that a request arrives behind a proxy with the credential's identity and no
// other, or does not arrive.
func checkHeaders(t *testing.T, kind string, credential identity.Credential, carries http.Header, req *http.Request) {
	t.Helper()
	arrived, err := throughProxy(credential, req)
	if err != nil {
		if kind != "impersonation" || !strings.Contains(err.Error(), "is not sent under impersonation") {
			t.Errorf("%s: %v", kind, err)
		}
		return
	}
	if arrived == nil {
		return // the proxy refused the request
	}
	for key, values := range arrived.Header {
		name := headerName(key)
		if name == "authorization" || name == "cookie" || strings.HasPrefix(name, "impersonate-") ||
			strings.HasPrefix(name, "x-remote-") || strings.HasPrefix(name, "proxy-") {
			if wanted := carries[key]; strings.Join(wanted, "\n") != strings.Join(values, "\n") {
				t.Errorf("%s: arrived with %s: %q", kind, key, values)
			}
		}
	}
	for key := range carries {
		if arrived.Header.Get(key) == "" {
			t.Errorf("%s: arrived without %s", kind, key)
		}
	}
	if len(arrived.Trailer) > 0 || arrived.Header.Get("Trailer") != "" {
		t.Errorf("%s: arrived with trailers", kind)
	}
	if arrived.Host != "" && arrived.Host != req.URL.Host {
		t.Errorf("%s: arrived for %q", kind, arrived.Host)
	}
}

// With any headers of the caller, a request arrives behind a proxy with the credential's identity
// and no other, or does not arrive.
func FuzzRequestHeaders(f *testing.F) {
	for _, lines := range []string{
		"Connection: Impersonate-User", "Connection: Upgrade, Impersonate-User\nUpgrade: websocket",
		"connection: authorization",
		"Connection: close\nConnection: Authorization", "Impersonate-User: system:admin", "impersonate_user: x",
		"Authorization: Bearer x",
		"X-Remote-User: x\nCookie: a", "Te: trailers\nTrailer: Impersonate-User",
		"Proxy-Connection: Impersonate-User\nKeep-Alive: 1",
		"Upgrade: h2c\nHTTP2-Settings: x\nConnection: Upgrade, HTTP2-Settings", "Host: other",
		"Transfer-Encoding: chunked", "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.eA",
	} {
		f.Add(lines, "", true)
		f.Add(lines, "Impersonate-User: other", false)
	}
	f.Fuzz(func(t *testing.T, lines, trailers string, canonical bool) {
		parse := func(lines string) http.Header {
			if canonical {
				parsed, _ := textproto.NewReader(bufio.NewReader(strings.NewReader(lines + "\r\n\r\n"))).ReadMIMEHeader()
				return http.Header(parsed)
			}
			header := http.Header{}
			for line := range strings.Lines(lines) {
				key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
				header[key] = append(header[key], strings.TrimSpace(value))
			}
			return header
		}
		for kind, c := range credentials() {
			req := httptest.NewRequest(http.MethodPost, "https://server/api", io.NopCloser(strings.NewReader("body")))
			if header := parse(lines); header != nil {
				req.Header = header
			}
			req.Trailer = parse(trailers)
			checkHeaders(t, kind, c.credential, c.carries, req)
		}
	})
}
