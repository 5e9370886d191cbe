package remote

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/config"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/healthprobe"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

const patience = 2 * testenv.Patience // an API server asks again for the keys of an issuer every 10 s

// operatorUser is the name of the operator at host.
const operatorUser = "host-operator"

// host has the extensions and their ServiceAccounts. second and third trust its issuer.
var (
	host          testenv.Env
	second, third *testenv.Env
	logs          testutil.Output
)

func TestMain(m *testing.M) {
	logger := func(verbosity int) logr.Logger {
		return funcr.New(func(prefix, args string) { fmt.Fprintln(&logs, prefix, args) }, funcr.Options{Verbosity: verbosity})
	}
	ctrl.SetLogger(logger(3))  // controller-runtime's queues race with what they log beyond that
	klog.SetLogger(logger(10)) // which klog asks only for what its own verbosity allows: see logRequests
	code := testenv.Run(m, controlplane.Options{}, &host, prepare)
	if code == 0 && !testing.Short() {
		code = checkLogs()
	}
	for _, env := range []*testenv.Env{second, third} {
		if env != nil {
			_ = env.Stop()
		}
	}
	os.Exit(code)
}

// requestsLogged is true after a test that called logRequests.
var requestsLogged atomic.Bool

// logRequests has client-go log all that it can about requests, until the test ends. checkLogs
// searches that.
func logRequests(t *testing.T) {
	t.Helper()
	verbosity := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	NewWithT(t).Expect(verbosity.Set("v", "10")).To(Succeed())
	t.Cleanup(func() { NewWithT(t).Expect(verbosity.Set("v", "0")).To(Succeed()) })
	requestsLogged.Store(true)
}

// checkLogs returns 1 if the logs have a token that an operator got.
func checkLogs() (code int) {
	text := logs.String()
	issued.mu.Lock()
	defer issued.mu.Unlock()
	masked := strings.Contains(text, "/token") && strings.Contains(text, "Bearer <masked>")
	if requestsLogged.Load() && !masked {
		fmt.Fprintln(os.Stderr, "the logs do not have the TokenRequests, nor that their headers are masked")
		code = 1
	}
	for _, token := range issued.tokens {
		if strings.Contains(text, token) || strings.Contains(text, strings.Split(token, ".")[1]) {
			fmt.Fprintln(os.Stderr, "the logs have a token")
			code = 1
		}
	}
	return code
}

// prepare lets everyone read the keys of host's issuer, as docs/guide-remote.md says.
func prepare(ctx context.Context) error {
	var starting sync.WaitGroup
	var failed [2]error
	defer starting.Wait() // TestMain stops them
	for i, env := range []**testenv.Env{&second, &third} {
		starting.Go(func() {
			*env, failed[i] = testenv.Open(ctx, controlplane.Options{AuthenticationConfig: true})
		})
	}
	if _, err := host.KubectlInput(ctx, config.Manifests(config.CRD, config.RBAC), "apply", "-f", "-"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"wait", "--for=condition=Established", "--timeout=60s", "crd/clusterextensions.latchkey.dev"},
		{"create", "clusterrolebinding", "issuer-discovery", "--clusterrole=system:service-account-issuer-discovery",
			"--group=system:unauthenticated"},
		{"create", "namespace", "operator"},
		{"create", "serviceaccount", "-n", "operator", "operator"},
		{"create", "clusterrolebinding", "operator", "--clusterrole=latchkey-operator", "--user=" + operatorUser},
	} {
		if _, err := host.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	starting.Wait()
	for i, env := range []*testenv.Env{second, third} {
		if failed[i] != nil {
			return errors.Wrap(failed[i], "starting a remote API server")
		}
		if err := setTrust(ctx, env, derived(env)); err != nil {
			return err
		}
	}
	return nil
}

// waitTrusted waits until env accepts tokens of host for the audience: it has fetched the keys.
func waitTrusted(ctx context.Context, env *testenv.Env, audience string) error {
	last := "nothing"
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			token, err := tokenFor(ctx, audience)
			status := 0
			if err == nil {
				status, err = review(ctx, env, token)
			}
			if last = fmt.Sprint(status); err != nil {
				last = err.Error()
			}
			return err == nil && status == http.StatusCreated, nil
		})
	return errors.Wrapf(err, "waiting until a remote API server accepts tokens, last seen: %s", last)
}

// tokenFor returns a token of the operator's ServiceAccount.
func tokenFor(ctx context.Context, audiences ...string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	err := host.Admin.SubResource("token").Create(ctx, serviceAccount("operator", "operator"), request)
	return request.Status.Token, err
}

// review returns the status with which env answers who has the token.
func review(ctx context.Context, env *testenv.Env, token string) (status int, err error) {
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(env.Config()))
	if err != nil {
		return 0, err
	}
	defer utilnet.CloseIdleConnectionsFor(transport)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		strings.TrimRight(env.Config().Host, "/")+"/apis/authentication.k8s.io/v1/selfsubjectreviews",
		strings.NewReader(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// derived returns the audience of an API server that needs no table.
func derived(env *testenv.Env) string {
	audience, err := credential.TargetAudience(at(env))
	if err != nil {
		panic(err)
	}
	return audience
}

// authenticationConfig trusts host's issuer for the audiences.
func authenticationConfig(audiences ...string) string {
	content, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1",
		"kind":       "AuthenticationConfiguration",
		"jwt": []any{map[string]any{
			"issuer": map[string]any{
				"url":                  host.Issuer(),
				"certificateAuthority": string(host.Config().CAData),
				"audiences":            audiences,
				"audienceMatchPolicy":  "MatchAny",
			},
			"claimMappings": map[string]any{
				"username": map[string]any{"expression": "'host:' + claims.sub"},
				"uid":      map[string]any{"expression": "claims['kubernetes.io'].serviceaccount.uid"},
				"groups":   map[string]any{"expression": "['host:serviceaccounts']"},
			},
			"userValidationRules": []any{map[string]any{
				"expression": "!user.username.startsWith('system:')",
				"message":    "names of this cluster are not for others",
			}},
		}},
	})
	if err != nil {
		panic(err)
	}
	return string(content)
}

// trust makes env accept tokens of host for the audiences until the test ends, and returns when it
// has fetched the keys anew.
func trust(t *testing.T, env *testenv.Env, audiences ...string) {
	t.Helper()
	NewWithT(t).Expect(setTrust(t.Context(), env, audiences...)).To(Succeed())
	t.Cleanup(func() {
		if err := setTrust(context.Background(), env, derived(env)); err != nil {
			t.Error(err)
		}
	})
}

var configurations atomic.Int32

// setTrust is trust for good.
func setTrust(ctx context.Context, env *testenv.Env, audiences ...string) error {
	marker := fmt.Sprintf("configuration-%d", configurations.Add(1)) // accepted once this one is in use
	if err := env.SetAuthenticationConfig(authenticationConfig(append(audiences, marker)...)); err != nil {
		return err
	}
	return waitTrusted(ctx, env, marker)
}

// at returns env as a Target, with the audience that needs no table.
func at(env *testenv.Env) credential.Target {
	return credential.Target{
		Server:    env.Config().Host,
		CAData:    env.Config().CAData,
		Username:  usernameOf,
		StatesUID: true,
	}
}

func usernameOf(account types.NamespacedName) string {
	return "host:system:serviceaccount:" + account.Namespace + ":" + account.Name
}

// operator is a host operator whose extensions act at remote API servers.
type operator struct {
	clustercache.ClusterCache
	host *issuer // through which it reaches host
	stop func()
}

// startOperator starts a host operator, until the test ends.
func startOperator(t *testing.T, credentials credential.Provider) *operator {
	t.Helper()
	return startManager(t, nil, func(mgr manager.Manager, unnamed controller.Options) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(t.Context(), mgr, clustercache.Options{
			Credentials:   credentials,
			AllowIdentity: clustercache.GuardedByAdmission,
			Client:        clustercache.ClientOptions{UserAgent: "latchkey-remote"},
			HealthProbe: healthprobe.Options{
				Interval:         time.Second,
				IdentityInterval: 5 * time.Second,
				Timeout:          10 * time.Second,
				FailureThreshold: 3,
			},
			ConnectBackoff: wait.Backoff{
				Duration: time.Second,
				Factor:   1.5,
				Jitter:   0.2,
				Steps:    5,
				Cap:      5 * time.Second,
			},
		}, unnamed)
	})
}

// startManager starts a manager with what setUp adds to it, until the test ends.
func startManager(t *testing.T, scheme *runtime.Scheme,
	setUp func(manager.Manager, controller.Options) (clustercache.ClusterCache, error)) *operator {
	t.Helper()
	g := NewWithT(t)
	// controller-runtime leaves one of these behind, for the manager's own watch of ServiceAccounts.
	before := testenv.NewGoroutines(goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
	o := &operator{host: newIssuer(t)}
	mgr, err := ctrl.NewManager(&rest.Config{Host: o.host.server.URL, BearerToken: operatorToken},
		manager.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	skip := true // several of one name, one after the other
	o.ClusterCache, err = setUp(mgr, controller.Options{SkipNameValidation: &skip})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stopped := false
	o.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
		o.host.close()
		g.Eventually(func() error {
			utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport)
			for _, env := range []*testenv.Env{&host, second, third} {
				utilnet.CloseIdleConnectionsFor(env.AdminHTTP.Transport)
			}
			return goleak.Find(before...)
		}).WithTimeout(patience).Should(Succeed(), "the host operator left goroutines behind")
	}
	t.Cleanup(o.stop)
	return o
}

// tokensFor returns credentials for the targets that the function returns.
func tokensFor(target func(client.Object) (credential.Target, error)) credential.ServiceAccountOptions {
	return credential.ServiceAccountOptions{
		Target: target,
		AllowTarget: func(context.Context, client.Object, types.NamespacedName, credential.Target) error {
			return nil
		},
	}
}

// always returns a function for tokensFor.
func always(target credential.Target) func(client.Object) (credential.Target, error) {
	return func(client.Object) (credential.Target, error) { return target, nil }
}
