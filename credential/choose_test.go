package credential

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/metrics"
	"github.com/latchkey-dev/latchkey/internal/tracing"
)

// provided is a Provider, and its Resolver, that resolves every object to the same credential.
type provided struct {
	account   types.NamespacedName
	reference identity.Reference
	bindErr   error

	forgotten []client.ObjectKey
	running   atomic.Bool
}

func (*provided) sealed() {}
func (p *provided) Bind(cluster.Cluster, identity.Kind, *metrics.Cache, *tracing.Tracer) (identity.Resolver, error) {
	return p, p.bindErr
}
func (p *provided) ServiceAccount(client.Object) (types.NamespacedName, error) { return p.account, nil }
func (p *provided) UsesServiceAccounts() bool                                  { return p.account.Name != "" }
func (p *provided) Reference(client.Object) (identity.Reference, error)        { return p.reference, nil }
func (p *provided) Forget(key client.ObjectKey) {
	p.forgotten = append(p.forgotten, key)
}
func (p *provided) Resolve(context.Context, client.Object) (identity.Resolution, error) {
	return identity.Resolution{Key: "key", Reference: p.reference, Source: p.reference.Name}, nil
}
func (p *provided) Run(ctx context.Context, wake func(client.ObjectKey)) {
	p.running.Store(true)
	wake(client.ObjectKey{Name: p.reference.Name})
	<-ctx.Done()
	p.running.Store(false)
}

// byLabel chooses the provider that a label names.
func byLabel(object client.Object) (string, error) {
	if object.GetLabels()["refuse"] != "" {
		return "", errors.Wrap(ErrNotAllowed, "refused")
	}
	if object.GetLabels()["fail"] != "" {
		return "", errors.New("no kind of credential")
	}
	return object.GetLabels()["provider"], nil
}

func labelled(labels map[string]string) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "red", Labels: labels}}
}

func TestChoose(t *testing.T) {
	g := NewWithT(t)
	accounts := &provided{
		account:   types.NamespacedName{Namespace: "ns", Name: "sa"},
		reference: identity.Reference{Name: "serviceaccount ns/sa"},
	}
	mapped := &provided{reference: identity.Reference{WholeObject: true}}
	resolver, err := Choose(byLabel, map[string]Provider{"accounts": accounts, "mapped": mapped}).
		Bind(host{}, identity.Kind{}, nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resolver.UsesServiceAccounts()).To(BeTrue())
	red := client.ObjectKey{Namespace: "ns", Name: "red"}

	object := labelled(map[string]string{"provider": "accounts"})
	first, err := resolver.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.Reference).To(Equal(identity.Reference{Name: "accounts: serviceaccount ns/sa"}))
	g.Expect(resolver.Reference(object)).To(Equal(first.Reference))
	g.Expect(first.Source).To(Equal("serviceaccount ns/sa"), "people see the ServiceAccount")
	g.Expect(resolver.ServiceAccount(object)).To(Equal(accounts.account))
	g.Expect(mapped.forgotten).To(Equal([]client.ObjectKey{red}), "no other provider keeps data of the extension")
	g.Expect(accounts.forgotten).To(BeEmpty())

	object = labelled(map[string]string{"provider": "mapped"})
	second, err := resolver.Resolve(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.Key).NotTo(Equal(first.Key), "another provider is another connection")
	g.Expect(second.Reference).To(Equal(identity.Reference{Name: "mapped", WholeObject: true}))
	g.Expect(resolver.Reference(object)).To(Equal(second.Reference))
	g.Expect(resolver.ServiceAccount(object)).To(BeZero())
	g.Expect(accounts.forgotten).To(Equal([]client.ObjectKey{red}))

	for reason, labels := range map[error]map[string]string{
		ErrInvalidReference: {"provider": "unknown"},
		ErrNotAllowed:       {"refuse": "yes"},
	} {
		_, err := resolver.Resolve(t.Context(), labelled(labels))
		g.Expect(err).To(MatchError(reason))
		_, err = resolver.Reference(labelled(labels))
		g.Expect(err).To(MatchError(reason))
		_, err = resolver.ServiceAccount(labelled(labels))
		g.Expect(err).To(MatchError(reason))
	}
	_, err = resolver.Resolve(t.Context(), labelled(map[string]string{"provider": "unknown"}))
	g.Expect(err).To(MatchError(ContainSubstring(`"unknown" is none of accounts, mapped`)))
	_, err = resolver.Resolve(t.Context(), labelled(map[string]string{"fail": "yes"}))
	g.Expect(err).To(And(MatchError(ErrInvalidReference), MatchError(ContainSubstring("no kind of credential"))))

	accounts.forgotten, mapped.forgotten = nil, nil
	_, _ = resolver.Resolve(t.Context(), labelled(map[string]string{"fail": "yes"}))
	g.Expect(accounts.forgotten).To(Equal([]client.ObjectKey{red}), "the choice failed, so no Secret stays watched")
	g.Expect(mapped.forgotten).To(Equal([]client.ObjectKey{red}))
	accounts.forgotten, mapped.forgotten = nil, nil
	resolver.Forget(red)
	g.Expect(accounts.forgotten).To(Equal([]client.ObjectKey{red}))
	g.Expect(mapped.forgotten).To(Equal([]client.ObjectKey{red}))

	ctx, cancel := context.WithCancel(t.Context())
	woken, done := make(chan client.ObjectKey, 2), make(chan struct{})
	go func() {
		defer close(done)
		resolver.Run(ctx, func(key client.ObjectKey) { woken <- key })
	}()
	g.Expect([]client.ObjectKey{<-woken, <-woken}).
		To(ConsistOf(client.ObjectKey{Name: "serviceaccount ns/sa"}, client.ObjectKey{}), "both run")
	cancel()
	g.Eventually(done).Should(BeClosed())
	g.Expect(accounts.running.Load() || mapped.running.Load()).To(BeFalse())
}

func TestChooseThatCannotWork(t *testing.T) {
	g := NewWithT(t)
	kubeconfigs := &provided{reference: identity.Reference{Name: "secret"}}
	resolver, err := Choose(byLabel, map[string]Provider{"x": kubeconfigs}).Bind(host{}, identity.Kind{}, nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resolver.UsesServiceAccounts()).To(BeFalse())
	for problem, provider := range map[string]Provider{
		"needs a function":      Choose(nil, map[string]Provider{"x": kubeconfigs}),
		"needs providers":       Choose(byLabel, nil),
		`"x" of Choose is nil`:  Choose(byLabel, map[string]Provider{"x": nil}),
		`"x" of Choose: cannot`: Choose(byLabel, map[string]Provider{"x": &provided{bindErr: errors.New("cannot")}}),
		"must be empty": ServiceAccountTokens(ServiceAccountOptions{
			NamePath:  "x",
			Reference: accountByLabel,
		}),
		"NamePath must be empty": Impersonation(ImpersonationOptions{NamePath: "x", Reference: accountByLabel}),
		"Choose: Reference returns th": Choose(byLabel,
			map[string]Provider{"y": Impersonation(ImpersonationOptions{NamePath: "x", Reference: accountByLabel})}),
	} {
		_, err := provider.Bind(hostOf{config: everythingButImpersonation(t), transport: http.DefaultTransport},
			identity.Kind{}, nil, nil)
		g.Expect(err).To(MatchError(ContainSubstring(problem)))
	}
}

// accountByLabel returns the ServiceAccount that the labels name, with a default.
func accountByLabel(object client.Object) (types.NamespacedName, error) {
	labels := object.GetLabels()
	if labels["refuse"] != "" {
		return types.NamespacedName{}, errors.Wrap(ErrNotAllowed, "refused")
	}
	if labels["fail"] != "" {
		return types.NamespacedName{}, errors.New("two names")
	}
	if labels["name"] == "" {
		return types.NamespacedName{Namespace: object.GetNamespace(), Name: "default"}, nil
	}
	return types.NamespacedName{Namespace: labels["namespace"], Name: labels["name"]}, nil
}

// A Reference function replaces the fields, so the kind need not have them.
func TestServiceAccountReferenceFunction(t *testing.T) {
	g := NewWithT(t)
	resolver, err := newServiceAccountResolver(hostOf{config: &rest.Config{Host: "https://server"}},
		identity.Kind{Namespaced: true}, serviceAccountReference{function: accountByLabel})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resolver.ServiceAccount(labelled(nil))).To(Equal(types.NamespacedName{Namespace: "ns", Name: "default"}))
	other := labelled(map[string]string{"namespace": "other", "name": "sa"})
	g.Expect(resolver.ServiceAccount(other)).To(Equal(types.NamespacedName{Namespace: "other", Name: "sa"}))
	g.Expect(resolver.Reference(other)).To(Equal(identity.Reference{Name: "serviceaccount other/sa"}))
	for problem, labels := range map[string]map[string]string{
		"two names": {"fail": "yes"}, "not a valid name": {"namespace": "ns", "name": "Not Valid"},
		"not a valid namespace": {"name": "sa"},
	} {
		_, err := resolver.ServiceAccount(labelled(labels))
		g.Expect(err).To(And(MatchError(ErrInvalidReference), MatchError(ContainSubstring(problem))))
	}
	_, err = resolver.ServiceAccount(labelled(map[string]string{"refuse": "yes"}))
	g.Expect(err).To(MatchError(ErrNotAllowed))
}
