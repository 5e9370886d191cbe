package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/credential"
)

// TestChoose checks a host operator whose extensions act with a kubeconfig if a label says so, and
// otherwise as a ServiceAccount, with a default. An extension that switches gets another
// connection. AllowIdentity is asked about those only that act as a ServiceAccount.
func TestChoose(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	ns := namespace(t)
	for _, name := range []string{"fallback", "named", "remote"} {
		create(t, serviceAccount(ns, name))
		grant(t, ns, name, everythingInCore)
	}
	grantOperatorSecrets(t, ns, "remote")
	create(t, kubeconfigSecret(ns, "remote", kubeconfigOf(t, clientcmdapi.AuthInfo{Token: token(t, ns, "remote")})))
	var mu sync.Mutex
	var asked []string
	o := startOperator(t, clustercache.Options{
		Credentials: credential.Choose(func(object client.Object) (string, error) {
			return map[bool]string{true: "kubeconfig", false: "tokens"}[object.GetLabels()["kubeconfig"] != ""], nil
		}, map[string]credential.Provider{
			"tokens": credential.ServiceAccountTokens(credential.ServiceAccountOptions{
				Reference: func(object client.Object) (types.NamespacedName, error) {
					name := object.GetLabels()["account"]
					if name == "panics" {
						panic("a bug of the host operator")
					}
					if name == "" {
						name = "fallback"
					}
					return types.NamespacedName{Namespace: ns, Name: name}, nil
				}}),
			"kubeconfig": credential.KubeconfigSecrets(credential.KubeconfigOptions{
				Reference: func(object client.Object) (credential.SecretReference, error) {
					return credential.SecretReference{
						Namespace: ns,
						Name:      object.GetLabels()["kubeconfig"] + "-kubeconfig",
						Key:       "value",
					}, nil
				}}),
		}),
		AllowIdentity: func(_ context.Context, object client.Object, account types.NamespacedName) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, object.GetName()+" as "+account.Name)
			if account.Name == "refused" {
				return errors.New("not this one")
			}
			return nil
		},
	})
	e := extension(ns, "chooser")
	create(t, e)
	label := func(labels map[string]string) {
		g.Expect(admin.Get(ctx, key("chooser"), e)).To(Succeed())
		e.SetLabels(labels)
		g.Expect(admin.Update(ctx, e)).To(Succeed())
	}
	actsAs := func(account string) clustercache.ConnectionState {
		t.Helper()
		state := o.waitFor(t, "chooser", func(s clustercache.ConnectionState) bool {
			return s.Identity.Username == "system:serviceaccount:"+ns+":"+account
		})
		c, err := o.For(ctx, e).GetClient(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.Create(ctx, configMap(ns, fmt.Sprintf("by-%s-%d", account, state.Epoch)))).To(Succeed())
		return state
	}
	staleFor := func(object client.Object) bool {
		_, err := o.For(ctx, object).GetClient(ctx)
		var notConnected *clustercache.NotConnectedError
		return errors.As(err, &notConnected) && notConnected.Reason == clustercache.ReasonStale
	}
	first := actsAs("fallback")
	g.Expect(first.Source).To(Equal("serviceaccount " + ns + "/fallback"))
	unedited := e.DeepCopy()
	label(map[string]string{"account": "named"})
	second := actsAs("named")
	g.Expect(staleFor(unedited)).To(BeTrue(), "the object that was read names another ServiceAccount")
	old, err := o.GetClient(ctx, key("chooser"))
	g.Expect(err).NotTo(HaveOccurred())

	mu.Lock()
	g.Expect(asked).To(ContainElements("chooser as fallback", "chooser as named"))
	mu.Unlock()
	before := e.DeepCopy()
	label(map[string]string{"kubeconfig": "remote"})
	third := actsAs("remote")
	g.Expect(staleFor(before)).To(BeTrue(), "the object that was read names a ServiceAccount")
	mu.Lock()
	asked = nil
	mu.Unlock()
	label(map[string]string{"kubeconfig": "remote", "edited": "yes"})
	create(t, extension(ns, "named")) // the reconciler sees the edit before this one
	o.waitConnected(t, "named")
	g.Expect(third.Source).To(Equal("secret " + ns + "/remote-kubeconfig, key value"))
	g.Expect(third.Epoch).To(Equal(second.Epoch + 1))
	g.Expect(old.Get(ctx, client.ObjectKey{Namespace: ns, Name: "by-named-2"}, configMap(ns, ""))).
		To(MatchError(clustercache.ErrNotConnected), "clients of the other kind of credential are dead")
	mu.Lock()
	g.Expect(asked).To(HaveEach("named as fallback"), "no ServiceAccount, no question")
	mu.Unlock()

	before = e.DeepCopy()
	label(map[string]string{"account": "named"})
	actsAs("named")
	g.Expect(staleFor(before)).To(BeTrue(), "the object that was read names a kubeconfig")

	label(map[string]string{"account": "refused"})
	refused := o.waitReason(t, "chooser", clustercache.ReasonNotAllowed)
	g.Expect(refused.Message).To(ContainSubstring("not this one"))
	label(map[string]string{"account": "panics"})
	panicked := o.waitReason(t, "chooser", clustercache.ReasonInvalidReference)
	g.Expect(panicked.Message).To(ContainSubstring("panicked: see the host operator's log"))
	_, err = o.For(ctx, e).GetClient(ctx)
	g.Expect(err).To(MatchError(clustercache.ErrNotConnected), "a function that panics is no connection")
}
