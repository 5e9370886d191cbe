package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// userWithout returns the config of a user who has no permissions of its own.
func userWithout(t *testing.T, name string) *rest.Config {
	t.Helper()
	config, err := cp.UserConfig(name)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return config
}

// grantCluster grants a user permissions in the whole cluster.
func grantCluster(t *testing.T, user, what string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user + "-" + what}, Rules: rules}
	create(t, role)
	create(t,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: user}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		})
}

var (
	readExtensions = rbacv1.PolicyRule{
		APIGroups: []string{"latchkey.dev"},
		Resources: []string{"clusterextensions"},
		Verbs:     []string{"list", "watch"},
	}
	readAccounts = rbacv1.PolicyRule{
		APIGroups: []string{""},
		Resources: []string{"serviceaccounts"},
		Verbs:     []string{"list", "watch"},
	}
	createTokens = rbacv1.PolicyRule{
		APIGroups: []string{""},
		Resources: []string{"serviceaccounts/token"},
		Verbs:     []string{"create"},
	}
	readSecrets = rbacv1.PolicyRule{
		APIGroups: []string{""},
		Resources: []string{"secrets"},
		Verbs:     []string{"list", "watch"},
	}
)

// TestOperatorWithoutPermissionsEnds checks that a host operator without read access ends with its
// context. Such an operator's cache receives a read before the cache is started, and RBAC denies
// that read. controller-runtime would wait for this cache forever, and would keep one core busy.
func TestOperatorWithoutPermissionsEnds(t *testing.T) {
	for name, newCache := range map[string]cache.NewCacheFunc{"plain": nil, "scopedcache": scopedcache.New} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			begin := time.Now()
			user := "powerless-" + name
			o := newOperatorWith(t, userWithout(t, user), manager.Options{NewCache: newCache},
				clustercache.Options{AllowIdentity: clustercache.GuardedByAdmission})
			ctx, cancel := context.WithCancel(t.Context())
			managerErr := make(chan error, 1)
			go func() { managerErr <- o.mgr.Start(ctx) }()
			g.Eventually(func() (denied int) {
				for _, event := range auditLog(t, begin) {
					if event.User.Username == user && strings.Contains(event.what(), "clusterextensions") &&
						event.ResponseStatus.Code == http.StatusForbidden ||
						event.User.Username == user && event.what() == "create selfsubjectaccessreviews" &&
							event.Stage == "ResponseComplete" {
						denied++
					}
				}
				return denied
			}).WithTimeout(patience).Should(BeNumerically(">", 0))
			cancel()
			var err error
			g.Eventually(managerErr).WithTimeout(10 * time.Second).Should(Receive(&err))
			if err != nil { // a plain manager reports that its cache has not synced
				g.Expect(err).To(MatchError(ContainSubstring("cache")))
			}
			o.leftNothing(t)
		})
	}
}

// waiting is the number of extensions that share a missing permission.
const waiting = 61

// TestOperatorForbidden covers a host operator that lacks permissions. The operator reports this
// under a reason of its own, and all of its extensions recover together.
func TestOperatorForbidden(t *testing.T) {
	startAs := func(t *testing.T, user string, options clustercache.Options) *operator {
		options.Client.QPS, options.Client.Burst = 100, 100
		// No recovery in this test may depend on the backoff.
		options.ConnectBackoff = never()
		newCache := scopedcache.NewWithOptions(scopedcache.Options{AccessReviewInterval: time.Second})
		return newOperatorWith(t, userWithout(t, user), manager.Options{NewCache: newCache}, options).start(t)
	}
	recoverTogether := func(t *testing.T, o *operator, names []string) {
		t.Helper()
		g := NewWithT(t)
		connected := func() (n int) {
			for _, name := range names {
				if o.state(name).Phase == clustercache.PhaseConnected {
					n++
				}
			}
			return n
		}
		g.Eventually(connected).WithTimeout(patience).WithPolling(10 * time.Millisecond).Should(BeNumerically(">", 0))
		noticed := time.Now()
		g.Eventually(connected).WithTimeout(5 * time.Second).WithPolling(10 * time.Millisecond).Should(Equal(len(names)))
		t.Logf("%d extensions recovered %s after the first", len(names), time.Since(noticed))
	}

	t.Run("extensions, ServiceAccounts and tokens", func(t *testing.T) {
		g := NewWithT(t)
		ns := namespace(t)
		all := []string{ns, namespace(t), namespace(t)}
		var names []string
		for i := range waiting {
			names = append(names, fmt.Sprintf("forbidden-%d", i))
			create(t, serviceAccount(all[i%len(all)], names[i]))
			create(t, extension(all[i%len(all)], names[i]))
		}
		user := "forbidden-" + ns
		o := startAs(t, user, clustercache.Options{AllowIdentity: clustercache.GuardedByAdmission})
		connectError := func() *clustercache.NotConnectedError {
			_, err := o.GetClient(t.Context(), key(names[0]))
			var notConnected *clustercache.NotConnectedError
			if !errors.As(err, &notConnected) {
				return &clustercache.NotConnectedError{}
			}
			return notConnected
		}
		g.Eventually(func() clustercache.Reason { return connectError().Reason }).WithTimeout(patience).
			Should(Equal(clustercache.ReasonOperatorForbidden))
		g.Expect(connectError()).
			To(
				MatchError(And(ContainSubstring("the host operator needs list and watch on clusterextensions.latchkey.dev"),
					ContainSubstring(`{apiGroups: ["latchkey.dev"], resources: ["clusterextensions"], verbs: ["list", "watch"]}`),
					Not(ContainSubstring("latchkey-operator")), ContainSubstring(user))))

		grantCluster(t, user, "extensions", readExtensions)
		state := o.waitReason(t, names[0], clustercache.ReasonOperatorForbidden)
		g.Expect(state.Message).
			To(And(ContainSubstring("the host operator needs list and watch on serviceaccounts"),
				ContainSubstring(`{apiGroups: [""], resources: ["serviceaccounts"], verbs: ["list", "watch"]}`),
				Not(ContainSubstring("latchkey-operator"))))
		g.Expect(state.Source).To(Equal("serviceaccount " + ns + "/" + names[0]))

		grantCluster(t, user, "accounts", readAccounts, createTokens)
		recoverTogether(t, o, names)
		g.Expect(o.mgr.GetCache().(scopedcache.Cache).States()).
			To(HaveLen(2), "one informer for extensions and one for ServiceAccounts, for any number of namespaces")

		// While the operator cannot read extensions, existing connections rely on the last known
		// extensions.
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user + "-extensions"}}
		g.Expect(admin.Delete(t.Context(), binding)).To(Succeed())
		unreadable := func() bool {
			_, err := o.GetClient(t.Context(), key("unknown"))
			var notConnected *clustercache.NotConnectedError
			return errors.As(err, &notConnected) && notConnected.Reason == clustercache.ReasonOperatorForbidden
		}
		g.Eventually(unreadable).WithTimeout(patience).Should(BeTrue())
		g.Expect(o.state(names[0]).Phase).To(Equal(clustercache.PhaseConnected))
		g.Expect(admin.Delete(t.Context(), serviceAccount(ns, names[0]))).To(Succeed())
		o.waitReason(t, names[0], clustercache.ReasonServiceAccountNotFound)
		g.Expect(o.state(names[1]).Phase).To(Equal(clustercache.PhaseConnected))
	})

	t.Run("Secrets", func(t *testing.T) {
		g := NewWithT(t)
		begin := time.Now()
		ns := namespace(t)
		create(t, serviceAccount(ns, "remote"))
		kubeconfig := kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, "remote")})
		var names []string
		for i := range waiting {
			names = append(names, fmt.Sprintf("secret-%d", i))
			create(t, kubeconfigSecret(ns, names[i], kubeconfig))
			create(t, extension(ns, names[i]))
		}
		user := "forbidden-" + ns
		grantCluster(t, user, "extensions", readExtensions)
		o := startAs(t, user,
			clustercache.Options{
				Credentials: credential.KubeconfigSecrets(credential.KubeconfigOptions{
					Namespace: ns,
					Allow:     credential.SecretsGuardedByAdmission,
				}),
			})
		for _, name := range names {
			o.waitReason(t, name, clustercache.ReasonOperatorForbidden)
		}
		g.Expect(o.state(names[0]).Message).
			To(And(ContainSubstring("the host operator needs list and watch on that secret"),
				ContainSubstring(`resources: ["secrets"], resourceNames: [`)))
		// After five denials, each of the informers waits for many seconds before its next attempt.
		g.Eventually(func() (fewest int) {
			denied := map[string]int{}
			for _, event := range auditLog(t, begin) {
				if event.User.Username == user && event.Verb == "list" && event.ObjectRef.Resource == "secrets" &&
					event.ResponseStatus.Code == http.StatusForbidden {
					denied[event.RequestURI]++
				}
			}
			for _, n := range denied {
				if fewest == 0 || n < fewest {
					fewest = n
				}
			}
			return fewest
		}).WithTimeout(patience).WithPolling(time.Second).Should(BeNumerically(">=", 5))
		grantCluster(t, user, "secrets", readSecrets)
		recoverTogether(t, o, names)
	})
}

// TestDeniedTokensAndImpersonation covers the other permissions that a host operator may lack. Each
// of them keeps its own reason, and the message names the role to apply.
func TestDeniedTokensAndImpersonation(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	tenant(t, ns, "lacking")
	user := "lacking-" + ns
	grantCluster(t, user, "reads", readExtensions, readAccounts)
	o := newOperatorAt(t, userWithout(t, user), clustercache.Options{AllowIdentity: clustercache.GuardedByAdmission}).
		start(t)
	g.Expect(o.waitReason(t, "lacking", clustercache.ReasonTokenRequestFailed).Message).To(And(
		ContainSubstring("the host operator needs create on serviceaccounts/token"), ContainSubstring(
			`resources: ["serviceaccounts/token"], resourceNames: ["lacking"], verbs: ["create"]}`), ContainSubstring(ns+"/lacking")))
	o.end(t)
	o = newOperatorAt(t, userWithout(t, user),
		clustercache.Options{
			Credentials:   credential.Impersonation(credential.ImpersonationOptions{}),
			AllowIdentity: clustercache.GuardedByAdmission,
		}).start(t)
	g.Expect(o.waitReason(t, "lacking", clustercache.ReasonUnauthorized).Message).To(And(
		ContainSubstring("the host operator needs impersonate on serviceaccount "+ns+
			"/lacking"), ContainSubstring(`resourceNames: ["lacking"], verbs: ["impersonate"]}`)))
}
