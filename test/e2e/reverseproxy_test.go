package e2e

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// reverseProxy is a proxy in front of the API server that removes hop-by-hop headers, as RFC 9110
// requires, and any others that a test names.
type reverseProxy struct {
	*httptest.Server
	requests  atomic.Int64
	transport http.RoundTripper
}

func newReverseProxy(t *testing.T, http2 bool, removed ...string) *reverseProxy {
	t.Helper()
	g := NewWithT(t)
	server, err := url.Parse(cp.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	p := &reverseProxy{}
	p.transport, err = rest.TransportFor(rest.AnonymousClientConfig(cp.Config()))
	g.Expect(err).NotTo(HaveOccurred())
	proxy := &httputil.ReverseProxy{
		Transport:     p.transport,
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			for _, header := range removed {
				r.Out.Header.Del(header)
			}
		},
	}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		proxy.ServeHTTP(w, r)
	}))
	p.EnableHTTP2 = http2
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// config returns a config that uses the token and reaches the API server through the proxy.
func (p *reverseProxy) config(token string) *rest.Config {
	authorities := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})
	return &rest.Config{
		Host:            p.URL,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: authorities, ServerName: "example.com"},
	}
}

// TestBehindAReverseProxy covers a proxy in front of the API server that removes every header that
// Connection names. Such a header may carry the identity of the request. Without the header, an
// impersonated request would act as the host operator, and a request with a token would be
// anonymous.
func TestBehindAReverseProxy(t *testing.T) {
	ns := namespace(t)
	tenant(t, ns, "proxied")
	create(t, serviceAccount(ns, "operator"))
	operatorSubject := rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "operator"}
	create(t,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "operator-" + ns},
			Subjects:   []rbacv1.Subject{operatorSubject},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "latchkey-operator"},
		})
	role := &rbacv1.Role{
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups:     []string{""},
				Resources:     []string{"serviceaccounts"},
				ResourceNames: []string{"proxied"},
				Verbs:         []string{"impersonate"},
			},
		},
	}
	role.Namespace, role.Name = ns, "may-impersonate"
	create(t, role)
	create(t, roleBinding(ns, role.Name, operatorSubject))

	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		for kind, provider := range map[string]credential.Provider{
			"tokens":        credential.ServiceAccountTokens(credential.ServiceAccountOptions{}),
			"impersonation": credential.Impersonation(credential.ImpersonationOptions{}),
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				g := NewWithT(t)
				begin := time.Now()
				p := newReverseProxy(t, http2)
				o := newOperatorAt(t, p.config(token(t, ns, "operator")),
					clustercache.Options{
						Credentials:   provider,
						AllowIdentity: clustercache.GuardedByAdmission,
						Client:        clustercache.ClientOptions{Timeout: patience},
					})
				o.also = append(o.also, func() { utilnet.CloseIdleConnectionsFor(p.transport) })
				o.start(t)
				o.waitConnected(t, "proxied")
				config, err := o.GetRESTConfig(t.Context(), key("proxied"))
				g.Expect(err).NotTo(HaveOccurred())
				plain := httpClientFor(t, config)
				send := func(object string, change func(*http.Request)) (int, error) {
					ctx, cancel := context.WithTimeout(t.Context(), patience/2)
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, http.MethodGet,
						config.Host+"/api/v1/namespaces/"+ns+"/configmaps/"+object, nil)
					g.Expect(err).NotTo(HaveOccurred())
					change(req)
					resp, err := plain.Do(req)
					if err != nil {
						g.Expect(ctx.Err()).NotTo(HaveOccurred(), "%s: the request hung", object)
						return 0, err
					}
					g.Expect(resp.Body.Close()).To(Succeed())
					return resp.StatusCode, nil
				}
				for object, header := range map[string]http.Header{
					"plain":               {},
					"names-impersonation": {"Connection": {"Impersonate-User"}},
					"names-the-token":     {"Connection": {"Authorization"}},
					"names-both": {"Connection": {"close, Impersonate-User, Impersonate-Uid, Impersonate-Group, " +
						"Authorization"}},
					"with-an-upgrade": {"Connection": {"Upgrade, Impersonate-User, Authorization"},
						"Upgrade": {"websocket"}},
					"not-canonical":       {"connection": {"Impersonate-User, Authorization"}},
					"proxy-connection":    {"Proxy-Connection": {"Impersonate-User, Authorization"}},
					"keep-alive-and-te":   {"Keep-Alive": {"timeout=5"}, "Te": {"trailers"}},
					"a-trailer-header":    {"Trailer": {"Impersonate-User"}},
					"proxy-authorization": {"Proxy-Authorization": {"Basic eDp4"}},
					"http2-in-clear": {"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"},
						"HTTP2-Settings": {"AAMAAABkAAQAAP__"}},
					"names-remote-user": {"Connection": {"X-Remote-User"}, "X-Remote-User": {"system:admin"}},
				} {
					status, err := send(object, func(req *http.Request) { req.Header = header.Clone() })
					switch {
					case kind == "impersonation" && object != "plain":
						g.Expect(err).To(MatchError(ContainSubstring("is not sent under impersonation")), object)
					default:
						g.Expect(err).NotTo(HaveOccurred(), object)
						g.Expect(status).To(Equal(http.StatusNotFound),
							"%s: the ServiceAccount may read, and the object does not exist", object)
					}
				}
				status, err := send("a-trailer", func(req *http.Request) {
					req.Trailer = http.Header{"Impersonate-User": {"system:admin"}}
				})
				if kind == "impersonation" {
					g.Expect(err).To(MatchError(ContainSubstring("trailers is not sent under impersonation")))
				} else {
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(status).To(Equal(http.StatusNotFound))
				}
				// A token for one virtual host must not go to another virtual host.
				_, err = send("another-host", func(req *http.Request) { req.Host = "other.example" })
				g.Expect(err).To(MatchError(ContainSubstring(`a request with Host "other.example" is not sent`)))

				_, err = send("another-url", func(req *http.Request) {
					req.URL.Path = "https://other.example" + req.URL.Path
					// an upgrade uses HTTP/1.1, which would send this URL unchanged
					req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
				})
				g.Expect(err).To(MatchError(ContainSubstring("is not sent: this connection is for paths of")))

				username, seen := "system:serviceaccount:"+ns+":proxied", map[string]bool{}
				for _, event := range auditLog(t, begin) {
					if !strings.Contains(event.RequestURI, "/namespaces/"+ns+"/configmaps/") || event.Stage == "RequestReceived" {
						continue
					}
					_, object, _ := strings.Cut(event.RequestURI, "/configmaps/")
					seen[object] = true
					g.Expect(event.who()).To(Equal(username), event.String())
				}
				g.Expect(seen).To(HaveKey("plain"))
				g.Expect(seen).NotTo(Or(HaveKey("another-host"), HaveKey("another-url")))
				g.Expect(seen["names-impersonation"]).To(Equal(kind == "tokens"))
				g.Expect(p.requests.Load()).To(BeNumerically(">", 5), "all requests went through the proxy")
			})
		}
	}
}
