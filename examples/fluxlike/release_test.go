package fluxlike

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fake"
)

// unit is the reconciler with fakes: the operator's own client, the tenants' cluster, and the
// connections between them.
type unit struct {
	*reconciler
	t      *testing.T
	own    client.Client
	tenant client.Client
	cc     *fake.Cache
	events *fake.Controller
}

var greeting = client.ObjectKey{Namespace: "shop", Name: "greeting"}

func newUnit(t *testing.T, release *Release) *unit {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	NewWithT(t).Expect(AddToScheme(scheme)).To(Succeed())
	u := &unit{
		t:      t,
		events: fake.NewController(t),
		cc:     fake.NewFakeEmptyCache(),
		own: clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&Release{}).
			WithObjects(release).Build(),
		tenant: clientfake.NewClientBuilder().WithScheme(scheme).Build(),
	}
	t.Cleanup(u.cc.Close)
	u.reconciler = &reconciler{client: u.own, connections: u.cc, controller: u.events}
	return u
}

func newRelease() *Release {
	return &Release{
		ObjectMeta: metav1.ObjectMeta{Namespace: greeting.Namespace, Name: greeting.Name},
		Spec:       ReleaseSpec{Data: map[string]string{"hello": "world"}},
	}
}

func (u *unit) reconcile() {
	u.t.Helper()
	_, err := u.Reconcile(u.t.Context(), ctrl.Request{NamespacedName: greeting})
	NewWithT(u.t).Expect(err).NotTo(HaveOccurred())
}

// condition returns status and reason of a condition of the Release.
func (u *unit) condition(conditionType string) string {
	u.t.Helper()
	release := &Release{}
	NewWithT(u.t).Expect(u.own.Get(u.t.Context(), greeting, release)).To(Succeed())
	if found := meta.FindStatusCondition(release.Status.Conditions, conditionType); found != nil {
		return string(found.Status) + " " + found.Reason
	}
	return ""
}

func (u *unit) content() map[string]string {
	content := &corev1.ConfigMap{}
	if u.tenant.Get(u.t.Context(), greeting, content) != nil {
		return nil
	}
	return content.Data
}

func TestServiceAccountOf(t *testing.T) {
	g := NewWithT(t)
	g.Expect(serviceAccountOf(newRelease())).To(HaveField("Name", DefaultServiceAccount))
	named := newRelease()
	named.Spec.ServiceAccountName = "other"
	g.Expect(serviceAccountOf(named)).To(And(HaveField("Name", "other"), HaveField("Namespace", "shop")))
}

func TestReconcile(t *testing.T) {
	g := NewWithT(t)
	u := newUnit(t, newRelease())
	u.reconcile()
	g.Expect(u.condition("Connected")).To(Equal("False NotStarted"))
	g.Expect(u.condition("Released")).To(Equal("Unknown NotConnected"))

	u.cc.Connect(greeting, u.tenant)
	u.reconcile()
	g.Expect(u.content()).To(Equal(map[string]string{"hello": "world"}))
	g.Expect(u.condition("Released")).To(Equal("True Applied"))
	_, err := u.events.Next(t.Context()) // the creation
	g.Expect(err).NotTo(HaveOccurred())

	drifted := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: greeting.Namespace, Name: greeting.Name},
		Data:       map[string]string{"hello": "moon"},
	}
	g.Expect(u.tenant.Update(t.Context(), drifted)).To(Succeed())
	request, err := u.events.Next(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(request.NamespacedName).To(Equal(greeting), "the watch requests a reconcile")
	u.reconcile()
	g.Expect(u.content()).To(Equal(map[string]string{"hello": "world"}))
	g.Expect(u.condition("Watched")).To(Equal("True Synced"))
	u.cc.Forbid(greeting, corev1.SchemeGroupVersion.WithKind("ConfigMap"), greeting.Namespace)
	u.reconcile()
	g.Expect(u.condition("Watched")).To(Equal("False Forbidden"))
	u.cc.Allow(greeting, corev1.SchemeGroupVersion.WithKind("ConfigMap"), greeting.Namespace)

	u.cc.MakeStale(greeting)
	u.reconcile()
	g.Expect(u.condition("Released")).To(Equal("True Applied"), "another reconcile follows and reports")
	u.cc.Disconnect(greeting, clustercache.ReasonServiceAccountNotFound)
	u.reconcile()
	g.Expect(u.condition("Connected")).To(Equal("False ServiceAccountNotFound"))
}

func TestDeletion(t *testing.T) {
	deleted := func() *Release {
		release := newRelease()
		release.Finalizers = []string{finalizer}
		release.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		return release
	}
	exists := func(u *unit) bool { return u.own.Get(t.Context(), greeting, &Release{}) == nil }
	t.Run("as the identity", func(t *testing.T) {
		g := NewWithT(t)
		u := newUnit(t, deleted())
		u.cc.Connect(greeting, u.tenant)
		g.Expect(u.tenant.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: greeting.Namespace,
				Name:      greeting.Name,
			},
			Data: map[string]string{"hello": "world"},
		})).To(Succeed())
		u.reconcile()
		g.Expect(u.content()).To(BeNil())
		g.Expect(exists(u)).To(BeFalse())
	})
	t.Run("the identity is gone", func(t *testing.T) {
		g := NewWithT(t)
		u := newUnit(t, deleted())
		u.reconcile()
		g.Expect(exists(u)).To(BeTrue())
		g.Expect(u.condition("Connected")).To(HavePrefix("False"), "a person sees why it is Terminating")
		release := &Release{}
		g.Expect(u.own.Get(t.Context(), greeting, release)).To(Succeed())
		release.Annotations = map[string]string{OrphanAnnotation: "true"}
		g.Expect(u.own.Update(t.Context(), release)).To(Succeed())
		u.reconcile()
		g.Expect(exists(u)).To(BeFalse())
	})
}
