package clustercache

import (
	"context"
	"reflect"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// host is a cluster that has only a config.
type host struct{ cluster.Cluster }

func (host) GetConfig() *rest.Config { return &rest.Config{Host: "https://host"} }

// A RESTConfigMapper that panics provides no config.
func TestPanickingMapper(t *testing.T) {
	g := NewWithT(t)
	resolver, err := credential.FromRESTConfigMapper(func(context.Context, client.Object, *rest.Config) (*rest.Config,
		error) {
		panic("no")
	}).Bind(host{}, identity.Kind{}, nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	r := &reconciler{resolver: resolver}
	_, err = r.resolve(t.Context(), &corev1.ConfigMap{})
	g.Expect(err).To(MatchError(credential.ErrInvalidCredential))
	g.Expect(err).To(MatchError(ContainSubstring("Options.Credentials panicked: see the host operator's log")))
}

// namesTwo is a resolver whose functions may name one ServiceAccount for the guard, and another one
// for the connection.
type namesTwo struct {
	guarded, resolved types.NamespacedName
	accountErr        error
	panics            bool
	forgotten         int
}

func (n *namesTwo) ServiceAccount(client.Object) (types.NamespacedName, error) {
	if n.panics {
		panic("a bug of the host operator")
	}
	return n.guarded, n.accountErr
}
func (n *namesTwo) UsesServiceAccounts() bool { return true }
func (n *namesTwo) Reference(client.Object) (identity.Reference, error) {
	if n.panics {
		panic("a bug of the host operator")
	}
	return identity.Reference{Name: n.guarded.String()}, n.accountErr
}
func (n *namesTwo) Resolve(context.Context, client.Object) (identity.Resolution, error) {
	return identity.Resolution{Key: "key", ServiceAccount: n.resolved}, nil
}
func (n *namesTwo) Forget(client.ObjectKey)                     { n.forgotten++ }
func (n *namesTwo) Run(context.Context, func(client.ObjectKey)) {}

// A connection acts as the ServiceAccount that AllowIdentity allowed, and as no other. An extension
// without a credential leaves no data with the providers.
func TestResolveKeepsTheGuard(t *testing.T) {
	red, blue := types.NamespacedName{Namespace: "ns", Name: "red"}, types.NamespacedName{Namespace: "ns", Name: "blue"}
	for name, tc := range map[string]struct {
		resolver  namesTwo
		allow     func(context.Context, client.Object, types.NamespacedName) error
		reason    error  // nil for success
		message   string // with reason
		forgotten int
	}{
		"allowed":           {namesTwo{guarded: red, resolved: red}, GuardedByAdmission, nil, "", 0},
		"no ServiceAccount": {namesTwo{}, nil, nil, "", 0},
		"another one": {namesTwo{guarded: red, resolved: blue}, GuardedByAdmission, credential.ErrNotAllowed,
			"must depend on the object only: they named serviceaccount ns/red, then ns/blue", 1},
		"one that was not guarded": {namesTwo{resolved: blue}, GuardedByAdmission, credential.ErrNotAllowed,
			"must depend on the object only", 1},
		"refused": {namesTwo{guarded: red, resolved: red},
			func(context.Context, client.Object, types.NamespacedName) error { return errors.New("no") },
			credential.ErrNotAllowed, "acting as serviceaccount ns/red: no", 1},
		"the guard panics": {namesTwo{guarded: red, resolved: red},
			func(context.Context, client.Object, types.NamespacedName) error { panic("secret") },
			credential.ErrNotAllowed, "Options.AllowIdentity panicked: see the host operator's log", 1},
		"no valid reference": {namesTwo{accountErr: credential.ErrInvalidReference}, GuardedByAdmission,
			credential.ErrInvalidReference, "", 1},
		"the reference panics": {namesTwo{panics: true}, GuardedByAdmission, credential.ErrInvalidReference,
			"a function in Options.Credentials panicked: see the host operator's log", 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := &reconciler{resolver: &tc.resolver, allow: tc.allow}
			resolution, err := r.resolve(t.Context(), &corev1.ConfigMap{})
			g.Expect(tc.resolver.forgotten).To(Equal(tc.forgotten))
			if tc.reason == nil {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(resolution.ServiceAccount).To(Equal(tc.resolver.resolved))
				return
			}
			g.Expect(err).To(MatchError(tc.reason))
			g.Expect(err).To(MatchError(ContainSubstring(tc.message)))
			g.Expect(resolution.Key).To(BeEmpty(), "nothing to connect with")
		})
	}
}

// For compares objects of Options.Object's kind and type only, and survives a function that panics.
func TestBindingOf(t *testing.T) {
	g := NewWithT(t)
	resolver := &namesTwo{guarded: types.NamespacedName{Namespace: "ns", Name: "sa"}}
	c := &clusterCache{
		scheme:      scheme.Scheme,
		gvk:         corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		goType:      reflect.TypeFor[*corev1.ConfigMap](),
		referenceOf: resolver.Reference,
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid"}}
	binding, err := c.bindingOf(t.Context(), object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(binding.Reference.Name).To(Equal("ns/sa"))

	metadata := &metav1.PartialObjectMetadata{ObjectMeta: object.ObjectMeta}
	metadata.SetGroupVersionKind(c.gvk)
	for problem, other := range map[string]client.Object{
		"Options.Object a *v1.ConfigMap": metadata, "(/v1, Kind=Secret)": &corev1.Secret{ObjectMeta: object.ObjectMeta},
		"no UID": &corev1.ConfigMap{}, "is nil": nil,
	} {
		binding, err := c.bindingOf(t.Context(), other)
		g.Expect(err).To(MatchError(ContainSubstring(problem)))
		g.Expect(err).To(MatchError(connstate.ErrMistake))
		g.Expect(binding.UID).To(BeEmpty(), "calls for this object touch no extension")
	}
	resolver.accountErr = credential.ErrInvalidReference
	binding, err = c.bindingOf(t.Context(), object)
	g.Expect(err).To(MatchError(credential.ErrInvalidReference))
	g.Expect(err).NotTo(MatchError(connstate.ErrMistake), "a tenant may cause it")
	g.Expect(binding.UID).To(BeEquivalentTo("uid"), "Unwatch and GetConnectionState work without a valid reference")
	resolver.panics = true
	_, err = c.bindingOf(t.Context(), object)
	g.Expect(err).To(MatchError(ContainSubstring("panicked: see the host operator's log")))
}

// A key that no extension can have is a mistake, and not an extension that may come.
func TestCheckKey(t *testing.T) {
	g := NewWithT(t)
	namespaced, cluster := checkKey(identity.Kind{Namespaced: true}), checkKey(identity.Kind{})
	g.Expect(namespaced(client.ObjectKey{Namespace: "n", Name: "red"})).To(Succeed())
	g.Expect(cluster(client.ObjectKey{Name: "red"})).To(Succeed())
	for _, err := range []error{
		namespaced(client.ObjectKey{Name: "red"}),
		cluster(client.ObjectKey{Namespace: "n", Name: "red"}),
		namespaced(client.ObjectKey{}),
		cluster(client.ObjectKey{}),
	} {
		g.Expect(err).To(MatchError(connstate.ErrMistake))
		g.Expect(err).To(MatchError(ContainSubstring("client.ObjectKeyFromObject")))
	}
}
