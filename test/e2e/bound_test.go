package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

var forEdits = flag.Int("for-edits", 700,
	"edits of extensions in TestForWhileExtensionsChange, for each kind of credential")

// accountOf returns the name of the ServiceAccount that an extension names.
func accountOf(object client.Object) string {
	name, _, _ := unstructured.NestedString(object.(*unstructured.Unstructured).Object, "spec", "serviceAccount", "name")
	return name
}

// changing is a set of extensions whose references change all the time.
type changing struct {
	o        *operator
	ns       string
	names    []string // of extensions
	accounts []string // that the extensions name
	recreate bool     // also recreate ServiceAccounts

	mu   sync.Mutex
	seen map[string][]*unstructured.Unstructured // guarded by mu; earlier versions by name

	served          []atomic.Int64 // requests that were permitted, by the index of the extension
	stale, requests atomic.Int64
}

// permitted is how many requests were permitted.
func (c *changing) permitted() (n int64) {
	for i := range c.served {
		n += c.served[i].Load()
	}
	return n
}

// edit changes one of the extensions or ServiceAccounts that the editor owns.
func (c *changing) edit(ctx context.Context, rng *rand.Rand, name string) error {
	switch choice := rng.IntN(20); {
	case choice < 2: // another extension of the same name
		e := extension(c.ns, name)
		if err := admin.Delete(ctx, e); err != nil {
			return err
		}
		return admin.Create(ctx, c.extension(name, c.accounts[rng.IntN(len(c.accounts))]))
	case choice < 3 && c.recreate: // another ServiceAccount of the same name
		account := serviceAccount(c.ns, c.accounts[rng.IntN(len(c.accounts))])
		if err := client.IgnoreNotFound(admin.Delete(ctx, account)); err != nil {
			return err
		}
		return client.IgnoreAlreadyExists(admin.Create(ctx, serviceAccount(c.ns, account.Name)))
	default:
		return admin.Patch(ctx, extension(c.ns, name), client.RawPatch("application/merge-patch+json",
			fmt.Appendf(nil, `{"spec":{"serviceAccount":{"name":%q}}}`, c.accounts[rng.IntN(len(c.accounts))])))
	}
}

func (c *changing) extension(name, account string) *unstructured.Unstructured {
	e := extension(c.ns, account)
	e.SetName(name)
	return e
}

// read returns the extension as a controller may have read it: now, from a cache, or some time ago.
func (c *changing) read(ctx context.Context, rng *rand.Rand, name string) (*unstructured.Unstructured, error) {
	c.mu.Lock()
	earlier := c.seen[name]
	c.mu.Unlock()
	if len(earlier) > 0 && rng.IntN(3) == 0 {
		return earlier[rng.IntN(len(earlier))], nil
	}
	e := extension(c.ns, name)
	reader := client.Reader(admin)
	if rng.IntN(2) == 0 {
		reader = c.o.mgr.GetCache()
	}
	if err := reader.Get(ctx, key(name), e); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	c.mu.Lock()
	c.seen[name] = append(c.seen[name], e)
	if len(c.seen[name]) > 20 {
		c.seen[name] = c.seen[name][1:]
	}
	c.mu.Unlock()
	return e, nil
}

// act sends requests as the identity that the object names. Their paths have the name of the
// ServiceAccount, so that the audit log shows whether the API server saw the same identity.
func (c *changing) act(ctx context.Context, rng *rand.Rand) error {
	which := rng.IntN(len(c.names))
	object, err := c.read(ctx, rng, c.names[which])
	if err != nil || object == nil {
		return err
	}
	connected, err := c.o.For(ctx, object).GetUncachedClient(ctx)
	for range 3 { // the client may end in between
		if err == nil {
			name := fmt.Sprintf("for-%s-%d", accountOf(object), c.requests.Add(1))
			err = connected.Get(ctx, client.ObjectKey{Namespace: c.ns, Name: name}, &corev1.ConfigMap{})
		}
		var notConnected *clustercache.NotConnectedError
		switch {
		case apierrors.IsNotFound(err):
			c.served[which].Add(1)
			err = nil
		case errors.As(err, &notConnected):
			if notConnected.Reason == clustercache.ReasonStale {
				c.stale.Add(1)
			}
			return nil
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err): // its ServiceAccount was just deleted
			return nil
		default:
			var noToken *clustercache.NoTokenError
			if errors.As(err, &noToken) {
				return nil
			}
			return errors.Wrapf(err, "acting for %s as %s", object.GetName(), accountOf(object))
		}
	}
	return nil
}

// TestForWhileExtensionsChange changes references, and recreates extensions and ServiceAccounts,
// while controllers act for whatever version of an extension they have read. No request may arrive
// as another identity than the one that this version names.
func TestForWhileExtensionsChange(t *testing.T) {
	for kind, recreate := range map[string]bool{"tokens": true, "impersonation": true, "kubeconfigs": false,
		"mapper": false} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			c := &changing{
				ns:       namespace(t),
				recreate: recreate,
				seen:     map[string][]*unstructured.Unstructured{},
				names:    []string{"e0", "e1", "e2", "e3", "e4", "e5"},
				accounts: []string{"a0", "a1", "a2", "a3"},
			}
			c.served = make([]atomic.Int64, len(c.names))
			tokens := map[string]string{}
			for _, account := range c.accounts {
				create(t, serviceAccount(c.ns, account))
				grant(t, c.ns, account, everythingInCore)
				if !recreate {
					tokens[account] = token(t, c.ns, account)
				}
			}
			options := clustercache.Options{
				Credentials: c.credentials(t, kind, tokens),
				Client:      clustercache.ClientOptions{QPS: 1000, Burst: 1000},
			}
			if recreate {
				options.AllowIdentity = clustercache.GuardedByAdmission
			}
			c.o = startOperator(t, options)
			for _, name := range c.names {
				create(t, c.extension(name, "a0"))
			}
			begin := time.Now()
			c.run(t)

			for _, name := range c.names { // when nothing changes any more, every extension is served
				e := extension(c.ns, name)
				g.Expect(admin.Get(t.Context(), key(name), e)).To(Succeed())
				g.Eventually(func() error {
					_, err := c.o.For(t.Context(), e).GetClient(t.Context())
					return err
				}).WithTimeout(settleTimeout).Should(Succeed())
			}
			var violations []string
			requests := 0
			g.Eventually(func() int {
				violations, requests = c.violations(t, begin)
				return requests
			}).WithTimeout(patience).Should(BeNumerically(">=", int(c.permitted())), "the log has every answer")
			g.Expect(violations).To(BeEmpty())
			t.Logf("%d edits; %d requests arrived, each as the identity that its version of the extension names; "+
				"%d calls were stale", *forEdits, requests, c.stale.Load())
			g.Expect(c.permitted()).To(BeNumerically(">", 50), "requests that were permitted")
			g.Expect(c.stale.Load()).To(BeNumerically(">", 10), "the edits made a difference")
		})
	}
}

// run edits and acts until there were enough edits. After every eighth, an editor waits until its
// extension is served: edits that outrun every connection would leave nothing to look at.
func (c *changing) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var editors, actors errgroup.Group
	for i, name := range c.names {
		editors.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range *forEdits / len(c.names) {
				if err := c.edit(ctx, rng, name); err != nil {
					return errors.Wrapf(err, "editing %s", name)
				}
				if n%8 > 0 {
					continue
				}
				before := c.served[i].Load()
				err := wait.PollUntilContextTimeout(ctx, time.Millisecond, settleTimeout, true,
					func(context.Context) (bool, error) { return c.served[i].Load() > before, nil })
				if err != nil {
					return errors.Wrapf(err, "waiting until %s is served", name)
				}
			}
			return nil
		})
	}
	for i := range 4 {
		actors.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			for ctx.Err() == nil {
				if err := c.act(ctx, rng); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	NewWithT(t).Expect(editors.Wait()).To(Succeed())
	cancel()
	NewWithT(t).Expect(actors.Wait()).To(Succeed())
}

// credentials returns the provider of a kind.
func (c *changing) credentials(t *testing.T, kind string, tokens map[string]string) credential.Provider {
	switch kind {
	case "tokens":
		return credential.ServiceAccountTokens(credential.ServiceAccountOptions{})
	case "impersonation":
		mayImpersonate(t, c.ns, c.accounts...)
		return credential.Impersonation(credential.ImpersonationOptions{})
	case "mapper":
		return credential.FromRESTConfigMapper(func(_ context.Context, object client.Object,
			config *rest.Config) (*rest.Config, error) {
			config.BearerToken = tokens[accountOf(object)]
			return config, nil
		})
	}
	grantOperatorSecrets(t, c.ns, c.accounts...)
	for account, token := range tokens {
		create(t, kubeconfigSecret(c.ns, account, kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token})))
	}
	return credential.KubeconfigSecrets(credential.KubeconfigOptions{
		Reference: func(object client.Object) (credential.SecretReference, error) {
			return credential.SecretReference{Namespace: c.ns, Name: accountOf(object) + "-kubeconfig", Key: "value"}, nil
		}})
}

// violations returns the requests that arrived as another identity than the one in their path.
func (c *changing) violations(t *testing.T, begin time.Time) (violations []string, requests int) {
	path := regexp.MustCompile(`/namespaces/` + c.ns + `/configmaps/for-(a\d)-`)
	for _, event := range auditLog(t, begin) {
		named := path.FindStringSubmatch(event.RequestURI)
		if named == nil || event.Stage != "ResponseComplete" {
			continue
		}
		requests++
		if event.who() != "system:serviceaccount:"+c.ns+":"+named[1] && event.ResponseStatus.Code != 401 {
			violations = append(violations, event.String())
		}
	}
	return violations, requests
}
