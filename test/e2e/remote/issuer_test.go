package remote

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// claims are those of a token.
type claims map[string]any

// operatorToken is what the operator sends to the proxy, which has the operator's certificate: a
// token of host would end with the key that signed it.
const operatorToken = "the operator"

// issuer is host's API server behind a proxy that may change the tokens that it issues. It signs
// them with host's own key.
type issuer struct {
	server     *httptest.Server
	transports map[bool]http.RoundTripper // by whether it has the operator's certificate

	mu     sync.Mutex
	change func(claims)
	sent   int      // TokenRequests
	tokens []string // that were issued
}

// issued has the tokens of all operators.
var issued struct {
	mu     sync.Mutex
	tokens []string
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	g := NewWithT(t)
	target, err := url.Parse(host.Config().Host)
	g.Expect(err).NotTo(HaveOccurred())
	i := &issuer{transports: map[bool]http.RoundTripper{}}
	certificate, err := host.UserConfig(operatorUser)
	g.Expect(err).NotTo(HaveOccurred())
	anonymous := rest.AnonymousClientConfig(host.Config())
	anonymous.NextProtos = []string{"http/1.1"} // as latchkey asks about tokens: a 401 ends an HTTP/2 connection
	for isOperator, config := range map[bool]*rest.Config{false: anonymous, true: certificate} {
		i.transports[isOperator], err = rest.TransportFor(config)
		g.Expect(err).NotTo(HaveOccurred())
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      testutil.RoundTripperFunc(i.send),
		FlushInterval:  -1,
		ErrorLog:       log.New(io.Discard, "", 0), // of watches that end with host
		ModifyResponse: i.modify,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	i.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isTokenRequest(r) {
			i.mu.Lock()
			i.sent++
			i.mu.Unlock()
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(i.close)
	return i
}

// send sends a request with the operator's certificate, or with the token that it has.
func (i *issuer) send(req *http.Request) (*http.Response, error) {
	isOperator := req.Header.Get("Authorization") == "Bearer "+operatorToken
	if isOperator {
		req.Header.Del("Authorization")
	}
	return i.transports[isOperator].RoundTrip(req)
}

func isTokenRequest(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/token")
}

func (i *issuer) close() {
	i.server.CloseClientConnections()
	i.server.Close()
	for _, transport := range i.transports {
		utilnet.CloseIdleConnectionsFor(transport)
	}
}

// set makes the issuer change the claims of each token, or if change is nil, none.
func (i *issuer) set(change func(claims)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.change = change
}

// requests returns how many TokenRequests were sent.
func (i *issuer) requests() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sent
}

// issued returns the tokens that were issued.
func (i *issuer) issued() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.tokens)
}

func (i *issuer) modify(resp *http.Response) error {
	if !isTokenRequest(resp.Request) || resp.StatusCode != http.StatusCreated {
		return nil
	}
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var request authenticationv1.TokenRequest
	if err := json.Unmarshal(content, &request); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.change != nil {
		changed := claimsOf(request.Status.Token)
		i.change(changed)
		if request.Status.Token, err = resigned(changed); err != nil {
			return err
		}
		request.Status.ExpirationTimestamp = metav1.Unix(int64(changed["exp"].(float64)), 0)
		if content, err = json.Marshal(request); err != nil {
			return err
		}
		resp.ContentLength = int64(len(content))
		resp.Header.Del("Content-Length")
	}
	i.tokens = append(i.tokens, request.Status.Token)
	issued.mu.Lock()
	issued.tokens = append(issued.tokens, request.Status.Token)
	issued.mu.Unlock()
	resp.Body = io.NopCloser(bytes.NewReader(content))
	return nil
}

func claimsOf(token string) (c claims) {
	content, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil {
		panic(err)
	}
	return c
}

// resigned returns a token with the claims, by the key with which host signs, or will sign after
// its next start.
func resigned(c claims) (string, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	key, err := host.SigningKey()
	if err != nil {
		return "", err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	id := sha256.Sum256(public)
	header, err := json.Marshal(map[string]string{"alg": "ES256", "kid": base64.RawURLEncoding.EncodeToString(id[:])})
	if err != nil {
		return "", err
	}
	signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(payload)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return "", err
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

// shifted moves a token in time.
func shifted(by time.Duration) func(claims) {
	return func(c claims) {
		for _, name := range []string{"iat", "nbf", "exp"} {
			c[name] = c[name].(float64) + by.Seconds()
		}
	}
}

// lasting limits the lifetime of a token.
func lasting(life time.Duration) func(claims) {
	return func(c claims) { c["exp"] = c["iat"].(float64) + life.Seconds() }
}
