package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
)

// base is the config of a host operator, with its own way to authenticate.
type base struct {
	config *rest.Config
	// The test calls quiet when the host operator is connected. The returned function reports how
	// often the config was used since then.
	quiet func() (uses func() int)
}

// bases returns one config for each way to set an identity, to run a program, or to limit requests.
func bases(t *testing.T) map[string]base {
	t.Helper()
	g := NewWithT(t)
	certificate := func() *rest.Config {
		config, err := cp.UserConfig(operatorUser)
		g.Expect(err).NotTo(HaveOccurred())
		return config
	}
	ns := namespace(t)
	create(t, serviceAccount(ns, "operator"))
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "operator-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "latchkey-operator"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "operator"}},
	})
	operatorToken := token(t, ns, "operator")
	anonymous := func() *rest.Config { return rest.AnonymousClientConfig(cp.Config()) }
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), name)
		g.Expect(os.WriteFile(path, []byte(content), mode)).To(Succeed())
		return path
	}

	all := map[string]base{"client-certificate": {config: certificate()}}

	withToken := anonymous()
	withToken.BearerToken = operatorToken
	all["bearer-token"] = base{config: withToken}

	withFile := anonymous()
	withFile.BearerTokenFile = file("token", operatorToken, 0o600)
	all["token-file"] = base{config: withFile}

	// Current API servers do not accept basic auth. The test checks that the password goes no
	// further.
	withPassword := certificate()
	withPassword.Username, withPassword.Password = "user", "secret"
	all["basic-auth"] = base{config: withPassword}

	answer, err := json.Marshal(map[string]any{"apiVersion": "client.authentication.k8s.io/v1",
		"kind": "ExecCredential", "status": map[string]any{"token": operatorToken}})
	g.Expect(err).NotTo(HaveOccurred())
	runs := file("runs", "", 0o600)
	withExec := anonymous()
	withExec.ExecProvider = &clientcmdapi.ExecConfig{
		APIVersion:      "client.authentication.k8s.io/v1",
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		Command:         file("credential", fmt.Sprintf("#!/bin/sh\necho run >> '%s'\necho '%s'\n", runs, answer), 0o700),
	}
	count := func() int {
		content, err := os.ReadFile(runs)
		g.Expect(err).NotTo(HaveOccurred())
		return strings.Count(string(content), "run")
	}
	all["exec"] = base{
		config: withExec,
		quiet: func() func() int {
			before := count()
			g.Expect(before).To(BeNumerically(">=", 1), "the host operator itself runs the command")
			return func() int { return count() - before }
		},
	}

	// A wrapper of the HTTP client can change the identity of every request that passes through the
	// wrapper. The test counts the tenants' requests that pass through.
	wrapperConfig := certificate()
	var tenantRequests atomic.Int64
	wrapperConfig.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return wrapping{next, func(req *http.Request) {
			if strings.Contains(req.UserAgent(), " extension/") {
				tenantRequests.Add(1)
			}
		}}
	}
	all["http-client"] = base{
		config: wrapperConfig,
		quiet: func() func() int {
			return func() int { return int(tenantRequests.Load()) }
		},
	}

	impersonationConfig := cp.Config()
	impersonationConfig.Impersonate = rest.ImpersonationConfig{UserName: operatorUser}
	all["impersonation"] = base{config: impersonationConfig}

	limiterConfig := certificate()
	limit := &sharedLimit{}
	limiterConfig.RateLimiter = limit
	all["rate-limiter"] = base{
		config: limiterConfig,
		quiet: func() func() int {
			before := limit.taken.Load()
			return func() int { return int(limit.taken.Load() - before) }
		},
	}
	return all
}

// wrapping calls see for each request that passes.
type wrapping struct {
	http.RoundTripper
	see func(*http.Request)
}

func (w wrapping) RoundTrip(req *http.Request) (*http.Response, error) {
	w.see(req)
	return w.RoundTripper.RoundTrip(req)
}

// WrappedRoundTripper lets client-go close the TCP connections below.
func (w wrapping) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }

// sharedLimit is a rate limiter that counts its uses.
type sharedLimit struct{ taken atomic.Int64 }

var _ flowcontrol.RateLimiter = (*sharedLimit)(nil)

func (l *sharedLimit) TryAccept() bool            { l.taken.Add(1); return true }
func (l *sharedLimit) Accept()                    { l.taken.Add(1) }
func (l *sharedLimit) Wait(context.Context) error { l.taken.Add(1); return nil }
func (*sharedLimit) Stop()                        {}
func (*sharedLimit) QPS() float32                 { return 1 }

// TestBaseConfigsLendNothing checks that no part of a host operator's own config reaches the
// connections of its tenants. No other identity acts for the tenants, no program runs for them, and
// they share no rate limit.
func TestBaseConfigsLendNothing(t *testing.T) {
	for name, base := range bases(t) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			begin := time.Now()
			ns := namespace(t)
			extensions := map[string]allowed{}
			for _, tenantName := range []string{"red", "blue"} {
				tenant(t, ns, tenantName)
				extensions[tenantName] = allowed{
					{username: "system:serviceaccount:" + ns + ":" + tenantName, uid: uidOf(t, ns, tenantName), begin: begin},
				}
			}
			o := newOperatorAt(t, base.config, clustercache.Options{AllowIdentity: clustercache.GuardedByAdmission}).start(t)
			for tenantName := range extensions {
				o.waitConnected(t, tenantName)
			}
			uses := func() int { return 0 }
			if base.quiet != nil {
				uses = base.quiet()
			}
			for tenantName := range extensions {
				h := handlesOf(t, o, tenantName)
				for action, use := range h.uses(t, ns) {
					g.Eventually(use).WithTimeout(patience).Should(Succeed(), action)
				}
				g.Expect(h.config.ExecProvider).To(BeNil())
				g.Expect(h.config.RateLimiter).NotTo(BeIdenticalTo(base.config.RateLimiter))
				c := newFakeController(t)
				g.Expect(o.Watch(t.Context(), key(tenantName),
					clustercache.NewWatcher(c.watch("content", &corev1.ConfigMap{}, ns)))).To(Succeed())
				create(t, configMap(ns, "for-"+tenantName))
				g.Eventually(c.seen).WithTimeout(patience).Should(ContainElement("create for-" + tenantName))
				for range 50 {
					g.Expect(h.live.List(t.Context(), &corev1.SecretList{}, client.InNamespace(ns), client.Limit(1))).
						To(Succeed())
				}
				c.close()
			}
			g.Expect(uses()).To(BeZero(), "the host operator's config was used for its tenants")
			violations, requests := checkIdentities(auditLog(t, begin), extensions)
			g.Expect(violations).To(BeEmpty())
			for tenantName := range extensions {
				g.Expect(requests[tenantName]).To(BeNumerically(">", 50), tenantName)
			}
		})
	}
}
