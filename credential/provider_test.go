package credential

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
)

// host is a cluster of which only the config is used.
type host struct {
	cluster.Cluster
	config *rest.Config
}

func (h host) GetConfig() *rest.Config     { return h.config }
func (h host) GetHTTPClient() *http.Client { return &http.Client{} }

// everything returns a config in which every field names a user, limits one, or runs code.
func everything(t *testing.T) *rest.Config {
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte("authorities"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &rest.Config{
		Host:                "https://server",
		APIPath:             "/prefix",
		Username:            "u",
		Password:            "p",
		BearerToken:         "t",
		BearerTokenFile:     "/token",
		Impersonate:         rest.ImpersonationConfig{UserName: "i"},
		AuthProvider:        &clientcmdapi.AuthProviderConfig{Name: "a"},
		AuthConfigPersister: persister{},
		ExecProvider:        &clientcmdapi.ExecConfig{Command: "/bin/false"},
		TLSClientConfig: rest.TLSClientConfig{
			Insecure:   false,
			ServerName: "name",
			CAFile:     ca,
			CertFile:   "/c",
			KeyFile:    "/k",
			CertData:   []byte("c"),
			KeyData:    []byte("k"),
			NextProtos: []string{"h2"},
		},
		UserAgent:     "ua",
		QPS:           1,
		Burst:         2,
		Timeout:       time.Second,
		Transport:     http.DefaultTransport,
		WrapTransport: func(rt http.RoundTripper) http.RoundTripper { return rt },
		RateLimiter:   flowcontrol.NewFakeAlwaysRateLimiter(),
		Dial:          func(context.Context, string, string) (net.Conn, error) { return nil, nil },
		Proxy:         func(*http.Request) (*url.URL, error) { return nil, nil },
	}
}

type persister struct{}

func (persister) Persist(map[string]string) error { return nil }
func (persister) Login() error                    { return nil }

func TestAnonymousKeepsWhatNamesTheServer(t *testing.T) {
	g := NewWithT(t)
	anonymous, err := identity.Anonymous(everything(t))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(anonymous).To(Equal(&rest.Config{
		Host:            "https://server",
		APIPath:         "/prefix",
		TLSClientConfig: rest.TLSClientConfig{ServerName: "name", CAData: []byte("authorities")},
	}), "no other field is kept; the authorities were read from their file")
	for problem, config := range map[string]*rest.Config{
		"no such file":         {TLSClientConfig: rest.TLSClientConfig{CAFile: "/does/not/exist"}},
		"is empty":             {Host: "https://server", TLSClientConfig: rest.TLSClientConfig{CAFile: os.DevNull}},
		"clear text":           {Host: "http://server:8080"},
		"over https, and":      {Host: "server:8080"},
		"a user or password":   {Host: "https://user:secret@server"},
		"API server's address": {Host: "https://%zz"},
	} {
		_, err = identity.Anonymous(config)
		g.Expect(err).To(MatchError(ContainSubstring(problem)))
		g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
	}
	for host, want := range map[string]string{"http://127.0.0.1:8080": "http://127.0.0.1:8080",
		"localhost:1": "http://localhost:1"} {
		anonymous, err = identity.Anonymous(&rest.Config{Host: host})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(anonymous.Host).To(Equal(want))
	}
	// The certificate that implied TLS is removed, but the scheme stays https.
	anonymous, err = identity.Anonymous(&rest.Config{
		Host:            "server:6443",
		TLSClientConfig: rest.TLSClientConfig{CertData: []byte("c"), KeyData: []byte("k")},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(anonymous.Host).To(Equal("https://server:6443"))
}

func TestRESTConfigMapper(t *testing.T) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red"}}
	resolve := func(t *testing.T, m func(*rest.Config) (*rest.Config, error)) (identity.Resolution, error) {
		resolver, err := FromRESTConfigMapper(func(_ context.Context, got client.Object, base *rest.Config) (*rest.Config,
			error) {
			NewWithT(t).Expect(got).To(BeIdenticalTo(client.Object(object)))
			return m(base)
		}).Bind(host{config: everything(t)}, identity.Kind{}, nil, nil)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return resolver.Resolve(t.Context(), object)
	}
	withToken := func(token string) func(*rest.Config) (*rest.Config, error) {
		return func(base *rest.Config) (*rest.Config, error) { base.BearerToken = token; return base, nil }
	}

	t.Run("the mapper gets no credential, and the result has only the mapper's credential", func(t *testing.T) {
		g := NewWithT(t)
		resolved, err := resolve(t, func(base *rest.Config) (*rest.Config, error) {
			anonymous, err := identity.Anonymous(everything(t))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(base).To(Equal(anonymous))
			return withToken("mine")(base)
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resolved.Target.BearerToken).To(BeEmpty())
		g.Expect(resolved.Key).NotTo(ContainSubstring("mine"))
		g.Expect(resolved.Sharable).To(BeFalse(), "the Key is that of all extensions of a server")
		c := resolved.Open()
		g.Expect(send(t, c)).To(Equal("Bearer mine"))
		c.Close()
		_, err = send(t, c)
		g.Expect(err).To(MatchError(ErrInvalidCredential))
	})
	t.Run("the key changes with the target only, the version with the credential only", func(t *testing.T) {
		g := NewWithT(t)
		both := func(m func(*rest.Config) (*rest.Config, error)) [2]string {
			resolved, err := resolve(t, m)
			g.Expect(err).NotTo(HaveOccurred())
			return [2]string{resolved.Key, resolved.Version}
		}
		a, b := both(withToken("a")), both(withToken("b"))
		g.Expect(both(withToken("a"))).To(Equal(a))
		g.Expect(b[0]).To(Equal(a[0]))
		g.Expect(b[1]).NotTo(Equal(a[1]))
		other := both(func(base *rest.Config) (*rest.Config, error) {
			base.Host = "https://other"
			return withToken("a")(base)
		})
		g.Expect(other[0]).NotTo(Equal(a[0]))
		g.Expect(other[1]).To(Equal(a[1]))
		g.Expect(both(func(base *rest.Config) (*rest.Config, error) {
			base.UserAgent, base.QPS = "x", 5
			return withToken("a")(base)
		})).To(Equal(a))
		cert, key := clientCertificate(t, "mapped")
		withCertificate := both(func(base *rest.Config) (*rest.Config, error) {
			base.CertData, base.KeyData = cert, key
			return base, nil
		})
		g.Expect(withCertificate[0]).To(Equal(a[0]))
		g.Expect(withCertificate[1]).NotTo(Equal(a[1]))
	})
	t.Run("the host's own credential is recognized even in files that change", func(t *testing.T) {
		g := NewWithT(t)
		hostConfig := everything(t)
		file := func(content []byte) string {
			name := filepath.Join(t.TempDir(), "file")
			g.Expect(os.WriteFile(name, content, 0o600)).To(Succeed())
			return name
		}
		cert, key := clientCertificate(t, "own")
		hostConfig.BearerTokenFile, hostConfig.CertFile, hostConfig.KeyFile = file([]byte("rotated\n")), file(cert),
			file(key)
		for _, set := range []func(*rest.Config){
			func(c *rest.Config) { c.BearerToken = "t" },
			func(c *rest.Config) { c.BearerToken = "rotated" },
			func(c *rest.Config) { c.CertData, c.KeyData = cert, key },
		} {
			resolver, err := FromRESTConfigMapper(func(_ context.Context, _ client.Object, base *rest.Config) (*rest.Config,
				error) {
				set(base)
				return base, nil
			}).Bind(host{config: hostConfig}, identity.Kind{}, nil, nil)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = resolver.Resolve(t.Context(), object)
			g.Expect(err).To(MatchError(ContainSubstring("host operator's own credential")))
			g.Expect(err).To(MatchError(ErrInvalidCredential))
		}
	})
	for name, m := range map[string]func(*rest.Config) (*rest.Config, error){
		"an error":         func(*rest.Config) (*rest.Config, error) { return nil, errors.New("no") },
		"no config":        func(*rest.Config) (*rest.Config, error) { return nil, nil },
		"no credential":    func(base *rest.Config) (*rest.Config, error) { return base, nil },
		"the host's token": withToken("t"),
		"an invalid token": withToken("a\n"),
		"two credentials": func(base *rest.Config) (*rest.Config, error) {
			base.CertData, base.KeyData = clientCertificate(t, "x")
			return withToken("mine")(base)
		},
		"a certificate without TLS": func(base *rest.Config) (*rest.Config, error) {
			base.Host = "http://127.0.0.1"
			base.CertData, base.KeyData = clientCertificate(t, "x")
			return base, nil
		},
		"a certificate without its key": func(base *rest.Config) (*rest.Config, error) {
			base.CertData, _ = clientCertificate(t, "x")
			return base, nil
		},
		"no verification": func(base *rest.Config) (*rest.Config, error) {
			base.Insecure, base.CAData = true, nil
			return withToken("mine")(base)
		},
		"the host's config": func(*rest.Config) (*rest.Config, error) { return everything(t), nil },
	} {
		t.Run("rejects "+name, func(t *testing.T) {
			_, err := resolve(t, m)
			NewWithT(t).Expect(err).To(MatchError(ErrInvalidCredential))
		})
	}

	// Every field of a rest.Config is accepted, ignored or rejected, by name. A new field makes
	// this test fail.
	accepted := []string{"Host", "APIPath", "BearerToken", "TLSClientConfig.CAData", "TLSClientConfig.ServerName",
		"TLSClientConfig.Insecure", "TLSClientConfig.CertData", "TLSClientConfig.KeyData"}
	ignored := []string{"ContentConfig", "UserAgent", "DisableCompression", "QPS", "Burst", "WarningHandler",
		"WarningHandlerWithContext", "Timeout"}
	classified := map[string]bool{}
	for _, field := range append(append(accepted, ignored...), notAccepted(everything(t))...) {
		classified[field] = true
	}
	check := func(prefix string, structType reflect.Type) {
		for i := range structType.NumField() {
			if name := prefix + structType.Field(i).Name; name != "TLSClientConfig" && !classified[name] {
				t.Errorf("rest.Config.%s is neither accepted nor rejected", name)
			}
		}
	}
	check("", reflect.TypeFor[rest.Config]())
	check("TLSClientConfig.", reflect.TypeFor[rest.TLSClientConfig]())
}

func TestServiceAccountReference(t *testing.T) {
	object := func(fields map[string]any) client.Object { return &unstructured.Unstructured{Object: fields} }
	spec := func(namespace, name any) client.Object {
		return object(map[string]any{
			"spec": map[string]any{"namespace": namespace, "serviceAccount": map[string]any{"name": name}},
		})
	}
	for name, tc := range map[string]struct {
		object  client.Object
		want    types.NamespacedName
		problem string
	}{
		"both": {
			object: spec("team", "red"),
			want:   types.NamespacedName{Namespace: "team", Name: "red"},
		},
		"a name with a dot": {
			object: spec("team", "red.v2"),
			want:   types.NamespacedName{Namespace: "team", Name: "red.v2"},
		},
		"no namespace": {object: spec("", "red"), problem: "spec.namespace is not set"},
		"no name": {
			object:  object(map[string]any{"spec": map[string]any{"namespace": "team"}}),
			problem: "spec.serviceAccount.name is not set",
		},
		"no spec":                 {object: object(map[string]any{}), problem: "spec.namespace is not set"},
		"not a string":            {object: spec("team", int64(7)), problem: "spec.serviceAccount.name"},
		"a path":                  {object: spec("team", "../../nodes/x"), problem: "is not a valid name"},
		"a path in the namespace": {object: spec("team/serviceaccounts", "red"), problem: "is not a valid namespace"},
		"a scalar in the path":    {object: object(map[string]any{"spec": "none"}), problem: "spec.namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := &serviceAccountResolver{
				namespacePath: []string{"spec", "namespace"},
				namePath:      []string{"spec", "serviceAccount", "name"},
			}
			got, err := r.ServiceAccount(tc.object)
			if tc.problem != "" {
				g.Expect(err).To(MatchError(ErrInvalidReference))
				g.Expect(err).To(MatchError(ContainSubstring(tc.problem)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(tc.want))
		})
	}
	t.Run("typed objects", func(t *testing.T) {
		g := NewWithT(t)
		r := &serviceAccountResolver{
			namespacePath: []string{"metadata", "namespace"},
			namePath:      []string{"spec", "serviceAccountName"},
		}
		got, err := r.ServiceAccount(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team"},
			Spec:       corev1.PodSpec{ServiceAccountName: "red"},
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(types.NamespacedName{Namespace: "team", Name: "red"}))
	})
}

// A reference, which a tenant writes, appears in errors, states and logs. Long references are
// truncated there.
func TestLongReferences(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	serviceAccounts := &serviceAccountResolver{
		namespacePath: []string{"spec", "namespace"},
		namePath:      []string{"spec", "name"},
	}
	secrets := &kubeconfigResolver{options: kubeconfigSecrets{Namespace: "all"}, namePath: []string{"spec", "name"}}
	for name, spec := range map[string]any{
		"a namespace": map[string]any{"namespace": long, "name": "n"},
		"a name":      map[string]any{"namespace": "n", "name": long},
		"a map":       map[string]any{"namespace": "n", "name": map[string]any{"x": long}},
		"not a map":   []any{long},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
			_, err := serviceAccounts.ServiceAccount(object)
			g.Expect(err).To(MatchError(ErrInvalidReference))
			g.Expect(len(err.Error())).To(BeNumerically("<", 512), "%.600s", err)
			if _, err := secrets.reference(object); err != nil {
				g.Expect(len(err.Error())).To(BeNumerically("<", 512), "%.600s", err)
			}
		})
	}
}

func TestServiceAccountOptions(t *testing.T) {
	g := NewWithT(t)
	bind := func(options ServiceAccountOptions) error {
		_, err := ServiceAccountTokens(options).Bind(host{config: &rest.Config{}}, identity.Kind{}, nil, nil)
		return err
	}
	g.Expect(bind(ServiceAccountOptions{Lifetime: time.Minute})).
		To(MatchError(ContainSubstring("minimum of 10m0s")))
	g.Expect(bind(ServiceAccountOptions{NamePath: "spec..name"})).To(MatchError(ContainSubstring("NamePath")))
	g.Expect(bind(ServiceAccountOptions{NamespacePath: "."})).To(MatchError(ContainSubstring("NamespacePath")))
}
